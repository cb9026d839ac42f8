//! A write that comes too late is refused by the resource itself: here a file with a token and a value.
//!
//! In two terminals: `cargo run --example fenced_write`. Freeze the leader with Ctrl-Z, wait until the other one writes,
//! and resume the first with `fg`: it is in the middle of a step and writes, and the file refuses its write.
//! A store is the first argument, or `TENURE_STORE`; the file is in `target/fenced-write`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tenure::{Clock, Election, Leadership, Token};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let store = tenure::open(argument.as_deref().unwrap_or("file:")).await?;
    let register = Register("target/fenced-write".into());
    fs::create_dir_all(&register.0)?;
    let election = Election::builder("demo:fenced-write").start(store).await?;
    tokio::select! {
        done = work(&election, &register) => done?,
        stop = tokio::signal::ctrl_c() => stop?,
    }
    election.stop().await;
    Ok(())
}

async fn work(election: &Election, register: &Register) -> io::Result<()> {
    while let Some(leadership) = election.leadership().await {
        println!("leads, token {}", leadership.token());
        while !leadership.should_stop() {
            step(&leadership, register).await?;
        }
        println!("stops: {:?}", leadership.lost().await);
    }
    Ok(())
}

/// Reads, computes for a second, and writes. This candidate led when the step began; when it writes, the term may be over.
async fn step(leadership: &Leadership, register: &Register) -> io::Result<()> {
    let (_, value) = register.read()?;
    Clock::boot().sleep(Duration::from_secs(1)).await;
    match register.write(leadership.token(), value + 1)? {
        None => println!("wrote {} under token {}", value + 1, leadership.token()),
        Some(newer) => println!("REFUSED: token {} comes after {newer}", leadership.token()),
    }
    Ok(())
}

/// One number on disk, and the greatest token that has written it.
struct Register(PathBuf);

impl Register {
    fn read(&self) -> io::Result<(u64, u64)> {
        let text = match fs::read_to_string(self.0.join("register")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
            text => text?,
        };
        let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
        numbers.next().zip(numbers.next()).ok_or_else(|| io::Error::other("not a register"))
    }

    /// Compares and writes under one lock, so no other write comes in between. Returns the newer token if it refuses.
    fn write(&self, token: Token, value: u64) -> io::Result<Option<u64>> {
        let lock = File::create(self.0.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let (greatest, _) = self.read()?;
        if greatest > token.get() {
            return Ok(Some(greatest));
        }
        let mut new = File::create(self.0.join("new"))?;
        writeln!(new, "{token} {value}")?;
        new.sync_all()?;
        fs::rename(self.0.join("new"), self.0.join("register"))?;
        File::open(&self.0)?.sync_all()?;
        Ok(None)
    }
}
