//! The judge's shared data: a register that compares tokens inside its write, and a counter that does not.
//!
//! Workers reach both over a socket, so that a frozen worker holds no lock, and a write that it had already sent is judged
//! here.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const SOCKET: &str = "judge.sock";

/// The results of all writes.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// The tokens of the fenced writes that were accepted, in that order.
    accepted: Vec<u64>,
    greatest: u64,
    /// Fenced writes with a token older than the greatest so far.
    pub refused: u64,
    /// The unfenced counter, and how many times a worker has set it one higher than the value it had read.
    counter: u64,
    increments: u64,
}

impl Books {
    fn fenced(&mut self, token: u64) -> bool {
        let fresh = token >= self.greatest;
        if fresh {
            self.greatest = token;
            self.accepted.push(token);
        } else {
            self.refused += 1;
        }
        fresh
    }

    pub fn accepted(&self) -> usize {
        self.accepted.len()
    }

    /// Writes that were accepted after a newer one: counted afterwards, not by the comparison that accepted them.
    pub fn stale_accepted(&self) -> usize {
        self.accepted.windows(2).filter(|pair| pair[1] < pair[0]).count()
    }

    /// Increments of the unfenced counter that another worker has overwritten.
    pub fn lost_updates(&self) -> u64 {
        self.increments.abs_diff(self.counter)
    }
}

pub struct Register {
    path: PathBuf,
    books: Arc<Mutex<Books>>,
    closed: Arc<AtomicBool>,
}

impl Register {
    pub fn open(directory: &Path) -> Register {
        let path = directory.join(SOCKET);
        let listener = UnixListener::bind(&path).unwrap();
        let (books, closed) = (Arc::<Mutex<Books>>::default(), Arc::<AtomicBool>::default());
        let register = Register { path, books: books.clone(), closed: closed.clone() };
        std::thread::spawn(move || {
            for worker in listener.incoming().flatten() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                let books = books.clone();
                std::thread::spawn(move || serve(worker, &books));
            }
        });
        register
    }

    pub fn books(&self) -> Books {
        self.books.lock().unwrap().clone()
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(&self.path);
    }
}

fn serve(worker: UnixStream, books: &Mutex<Books>) {
    let Ok(mut answers) = worker.try_clone() else { return };
    for line in BufReader::new(worker).lines() {
        let Ok(line) = line else { return };
        let number = |text: &str| text.parse::<u64>().ok();
        let answer = {
            let mut books = books.lock().unwrap();
            match line.split_once(' ').map(|(verb, value)| (verb, number(value))) {
                Some(("fenced", Some(token))) => u64::from(books.fenced(token)),
                Some(("set", Some(value))) => {
                    books.counter = value;
                    books.increments += 1;
                    value
                }
                _ => books.counter,
            }
        };
        if answers.write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// A worker's connection to the judge.
pub struct RegisterClient {
    requests: UnixStream,
    answers: BufReader<UnixStream>,
    read: Option<u64>,
}

impl RegisterClient {
    pub fn open(directory: &Path) -> Option<RegisterClient> {
        let requests = UnixStream::connect(directory.join(SOCKET)).ok()?;
        let answers = BufReader::new(requests.try_clone().ok()?);
        Some(RegisterClient { requests, answers, read: None })
    }

    fn request(&mut self, request: &str) -> Option<u64> {
        self.requests.write_all(format!("{request}\n").as_bytes()).ok()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).ok()?;
        answer.trim().parse().ok()
    }

    /// The fenced write.
    pub fn write(&mut self, token: u64) {
        self.request(&format!("fenced {token}"));
    }

    /// The unfenced increment in two steps, as in an application that trusts its lease.
    pub fn read_counter(&mut self) {
        self.read = self.request("get");
    }

    pub fn write_counter(&mut self) {
        if let Some(value) = self.read.take() {
            self.request(&format!("set {}", value + 1));
        }
    }
}
