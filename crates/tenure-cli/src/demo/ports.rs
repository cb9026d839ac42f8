//! Which ports the processes answer on: 3000, 3001, 3002 …, and where one is taken, the next.
//!
//! Whether a port is free is known only to whoever binds it. So the demo looks first, to give the processes ports in
//! their order, and each process looks again, for somebody may have been faster.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

use tenure::{Error, Result};

use crate::http::{HttpArgs, Listen, Listener};

pub(super) const FIRST: u16 = 3000;
/// So many are tried: where none of them is free, something else is wrong.
const TRIED: u16 = 200;

/// A port for each of `many` processes.
pub(super) fn allot(many: usize) -> Vec<u16> {
    let free = (FIRST..FIRST + TRIED).filter(|port| probe(*port).is_ok());
    // Where there are too few, a process finds out for itself, and says why.
    free.chain(FIRST..).take(many).collect()
}

/// Whether these are the ones that everybody expects.
pub(super) fn are_usual(ports: &[u16]) -> bool {
    ports.iter().copied().eq((FIRST..).take(ports.len()))
}

/// Opens `wanted`, or the next that is free, for this machine only.
pub(super) fn door(wanted: u16) -> Result<Listener> {
    let last = wanted.saturating_add(TRIED - 1);
    let mut why = None;
    for port in wanted..=last {
        if let Err(error) = probe(port) {
            why.get_or_insert(error);
            continue;
        }
        let listen = Listen { host: Some(Ipv4Addr::LOCALHOST.to_string()), port };
        // Somebody may have been faster once more.
        if let Ok(Some(door)) = Listener::open(&HttpArgs::default(), Some(listen), None) {
            return Ok(door);
        }
    }
    let why = why.map(|error| format!(": {error}")).unwrap_or_default();
    Err(Error::denied(format!("no port from {wanted} to {last} can be had{why}")))
}

/// Binds it and lets it go again.
fn probe(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    // `localhost` is first of all `::1`: whoever listens there would be asked in our place. A machine that does not
    // have that address is fine.
    match TcpListener::bind((Ipv6Addr::LOCALHOST, port)) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_left_out() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let door = door(port).unwrap();
        assert!(door.address().port() > port && !door.is_open_to_others());
        assert!(probe(door.address().port()).is_err(), "it is ours now");
    }

    #[test]
    fn what_listens_on_localhost_in_the_other_way_has_the_port_too() {
        // Not every machine has it.
        let Ok(taken) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else { return };
        assert!(probe(taken.local_addr().unwrap().port()).is_err());
    }

    #[test]
    fn everybody_gets_another_port() {
        let mut ports = allot(20);
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
        assert!(are_usual(&[3000, 3001]) && !are_usual(&[3000, 3002]));
    }
}
