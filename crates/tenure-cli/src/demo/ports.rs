//! The HTTP ports of the demo's processes: 3000, 3001, 3002 …, skipping ports that are in use.
//!
//! Only the process that binds a port knows that it is free. So the demo probes first, to assign ports in order, and each
//! process probes again, because another program may have bound the port meanwhile.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

use tenure::{Error, Result};

use crate::http::{HttpArgs, Listen, Listener};

pub(super) const FIRST_PORT: u16 = 3000;
/// The number of ports to try. If none of them is free, something else is wrong.
const PORTS_TRIED: u16 = 200;

/// Chooses a port for each of `many` processes.
pub(super) fn choose(many: usize) -> Vec<u16> {
    let free = (FIRST_PORT..FIRST_PORT + PORTS_TRIED).filter(|port| probe(*port).is_ok());
    // If there are too few free ports, the process itself finds out and reports the reason.
    free.chain(FIRST_PORT..).take(many).collect()
}

/// Whether these are the documented ports, counted from 3000 without a gap.
pub(super) fn are_default(ports: &[u16]) -> bool {
    ports.iter().copied().eq((FIRST_PORT..).take(ports.len()))
}

/// Listens on `wanted` or the next free port, on loopback only.
pub(super) fn listen_from(wanted: u16) -> Result<Listener> {
    let last = wanted.saturating_add(PORTS_TRIED - 1);
    let mut first_error = None;
    for port in wanted..=last {
        if let Err(error) = probe(port) {
            first_error.get_or_insert(error);
            continue;
        }
        let listen = Listen { host: Some(Ipv4Addr::LOCALHOST.to_string()), port };
        // Another program may have bound the port after the probe.
        if let Ok(Some(listener)) = Listener::open(&HttpArgs::default(), Some(listen), None) {
            return Ok(listener);
        }
    }
    let why = first_error.map(|error| format!(": {error}")).unwrap_or_default();
    Err(Error::denied(format!("no port from {wanted} to {last} can be had{why}")))
}

/// Binds the port and closes it again.
fn probe(port: u16) -> io::Result<()> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    // `localhost` usually resolves to `::1` first: a program that listens there would receive the requests instead. A machine
    // without that address is fine.
    match TcpListener::bind((Ipv6Addr::LOCALHOST, port)) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_skipped() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let listener = listen_from(port).unwrap();
        assert!(listener.address().port() > port && !listener.is_open_to_others());
        assert!(probe(listener.address().port()).is_err(), "the listener has it now");
    }

    #[test]
    fn a_port_in_use_on_ipv6_localhost_is_skipped() {
        // Not every machine has an IPv6 loopback address.
        let Ok(taken) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else { return };
        assert!(probe(taken.local_addr().unwrap().port()).is_err());
    }

    #[test]
    fn every_process_gets_its_own_port() {
        let mut ports = choose(20);
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
        assert!(are_default(&[3000, 3001]) && !are_default(&[3000, 3002]));
    }
}
