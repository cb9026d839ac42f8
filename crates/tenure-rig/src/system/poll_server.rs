//! The server that `--get` polls: it records each request as an effect of the token that it carries.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::Moment;

use super::history::EffectWriter;
use super::slots::{Observer, Started};
use super::time::now;
use super::worker::HISTORY;

/// The candidate in the history: a request does not name its sender.
const POLLER: &str = "poller";

pub struct PollServer {
    port: u16,
    closed: Arc<AtomicBool>,
}

impl PollServer {
    /// `url` and `name`: the lease under which the polls are made.
    pub fn start(directory: &Path, url: &str, name: &'static str) -> PollServer {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let closed = Arc::<AtomicBool>::default();
        let (until, directory, url) = (closed.clone(), directory.to_path_buf(), url.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if until.load(Ordering::SeqCst) {
                    return;
                }
                // Each response closes its connection, so every poll makes one. A leader connects after it has saved the slot,
                // and its request follows at once or not at all.
                let at = now();
                let (directory, url) = (directory.clone(), url.clone());
                std::thread::spawn(move || serve(&client, at, directory, &url, name));
            }
        });
        PollServer { port, closed }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }
}

impl Drop for PollServer {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn serve(mut client: &TcpStream, at: Moment, directory: PathBuf, url: &str, name: &str) {
    let mut head = String::new();
    let mut lines = BufReader::new(client);
    while lines.read_line(&mut head).is_ok_and(|read| read > 2) {}
    let token = head.lines().find_map(|line| {
        let (header, value) = line.split_once(':')?;
        header.eq_ignore_ascii_case("tenure-token").then(|| value.trim().parse::<u64>().ok())?
    });
    // A connection that was closed without a request.
    let Some(token) = token else { return };
    EffectWriter::new(&directory.join(HISTORY), token, POLLER).stamp_at(at);
    if let Some(slot) = Observer::open(url, name).running_slot(token) {
        Started { at, slot, token, candidate: POLLER.to_owned() }.append(&directory);
    }
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let _ = client.write_all(answer);
}
