//! A proxy between a candidate and its server that can be cut: nothing passes, in either direction, and neither side is
//! notified.
//!
//! Messages that were in flight when it was cut, and those sent meanwhile, arrive when it is mended: late, as after a
//! partition.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

pub struct Proxy {
    port: u16,
    cable: Arc<Cable>,
}

#[derive(Default)]
struct Cable {
    state: Mutex<CableState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum CableState {
    #[default]
    Whole,
    Cut,
    /// Requests pass, responses wait.
    Held,
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Requests,
    Answers,
}

impl Cable {
    fn set(&self, state: CableState) {
        *self.state.lock().unwrap() = state;
        self.changed.notify_all();
    }

    /// Returns when something may pass; `false` when nothing ever will.
    fn passes(&self, what: What) -> bool {
        let waits = |state: &mut CableState| match state {
            CableState::Cut => true,
            CableState::Held => what == What::Answers,
            CableState::Whole | CableState::Gone => false,
        };
        let state = self.state.lock().unwrap();
        *self.changed.wait_while(state, waits).unwrap() != CableState::Gone
    }
}

impl Proxy {
    pub fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let cable = Arc::<Cable>::default();
        let shared = cable.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if *shared.state.lock().unwrap() == CableState::Gone {
                    return;
                }
                let cable = shared.clone();
                std::thread::spawn(move || serve(client, server, &cable));
            }
        });
        Proxy { port, cable }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn cut(&self) {
        self.cable.set(CableState::Cut);
    }

    /// Lets requests pass, but no response, until it is mended.
    pub fn hold_answers(&self) {
        self.cable.set(CableState::Held);
    }

    pub fn mend(&self) {
        self.cable.set(CableState::Whole);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cable.set(CableState::Gone);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn serve(client: TcpStream, server: u16, cable: &Cable) {
    if !cable.passes(What::Requests) {
        return;
    }
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else { return };
    // Small messages both ways: Nagle's algorithm would be an unwanted fault.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    std::thread::scope(|scope| {
        scope.spawn(|| pump(&client, &server, cable, What::Requests));
        scope.spawn(|| pump(&server, &client, cable, What::Answers));
    });
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, cable: &Cable, what: What) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if !cable.passes(what) || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The end of a connection is delayed too.
    cable.passes(what);
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
