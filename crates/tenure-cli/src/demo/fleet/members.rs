//! The members of the demo: started as anybody would start them, signalled, listened to, and reaped with all they leave.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tenure::{Clock, Error, Result};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::mpsc;

use super::member_process::TIED;
use super::worker::WORKER;
use crate::demo::processes::ourselves;
use crate::guard::adopt_orphans;

/// How often we look whether what the members left has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What all members have in common.
pub(super) struct Orders {
    /// May hold a password: handed on in the environment, and seen by nobody else.
    pub(super) store: String,
    pub(super) fleet: String,
    pub(super) ttl: Duration,
    /// The file of the shards.
    pub(super) shards: PathBuf,
    /// The directory of the journals.
    pub(super) journals: PathBuf,
    /// Settings that say nothing, so that nobody's own are read.
    pub(super) config: PathBuf,
    /// How the log is to be.
    pub(super) flags: Vec<String>,
}

/// One member.
struct DemoMember {
    id: String,
    child: Child,
    ended: Option<ExitStatus>,
    /// We have asked for its end.
    doomed: bool,
}

pub(super) struct DemoMembers {
    orders: Orders,
    players: Vec<DemoMember>,
    lines: mpsc::UnboundedReceiver<String>,
    heard: mpsc::UnboundedSender<String>,
}

impl DemoMembers {
    pub(super) fn new(orders: Orders) -> Result<DemoMembers> {
        // The guard of a member that is killed outlives it. We are not done before it is.
        adopt_orphans().map_err(|error| Error::denied(format!("cannot adopt orphans: {error}")))?;
        let (heard, lines) = mpsc::unbounded_channel();
        Ok(DemoMembers { orders, players: Vec::new(), lines, heard })
    }

    /// Starts the next member; returns its number.
    pub(super) fn start(&mut self) -> Result<usize> {
        let failed =
            |error: std::io::Error| Error::denied(format!("cannot start a member: {error}"));
        let (id, orders) = (format!("m{}", self.players.len() + 1), &self.orders);
        let ourselves = ourselves().map_err(failed)?;
        let mut command = Command::new(&ourselves);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"TENURE_") {
                command.env_remove(name);
            }
        }
        command
            .env("TENURE_STORE", &orders.store)
            .arg(TIED)
            .arg(std::process::id().to_string())
            .args(&orders.flags)
            .arg("--config")
            .arg(&orders.config)
            .args(["fleet", "run", &orders.fleet, "--node-id", &id])
            .args(["--lease-duration", &format!("{}ms", orders.ttl.as_millis())])
            .arg("--shards-file")
            .arg(&orders.shards)
            .arg("--")
            .arg(&ourselves)
            .arg(WORKER)
            .arg(orders.journals.join("{}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl+C on the terminal is for us alone.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(listen(stderr, self.heard.clone()));
        }
        self.players.push(DemoMember { id, child, ended: None, doomed: false });
        Ok(self.players.len() - 1)
    }

    pub(super) fn len(&self) -> usize {
        self.players.len()
    }

    pub(super) fn id(&self, which: usize) -> &str {
        &self.players[which].id
    }

    /// Its process id; none once it was reaped.
    pub(super) fn pid(&self, which: usize) -> Option<u32> {
        self.players[which].child.id()
    }

    /// Those that are to take part.
    pub(super) fn alive(&self) -> Vec<&str> {
        let alive = |player: &&DemoMember| player.ended.is_none() && !player.doomed;
        self.players.iter().filter(alive).map(|player| &*player.id).collect()
    }

    /// The next line that one of them logs.
    pub(super) async fn line(&mut self) -> String {
        match self.lines.recv().await {
            Some(line) => line,
            // We hold a sender ourselves.
            None => std::future::pending().await,
        }
    }

    /// What they have logged and nobody has heard yet.
    pub(super) fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.lines.try_recv().ok()).collect()
    }

    /// Asks for its end, in one way or another. Its process id is its own until it is reaped, so nobody else is hit.
    pub(super) fn doom(&mut self, which: usize, signal: Signal) {
        self.players[which].doomed = true;
        self.signal(which, signal);
    }

    fn signal(&self, which: usize, signal: Signal) {
        let pid = self.pid(which).and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid
            && let Err(errno) = kill_process(pid, signal)
        {
            tracing::warn!("cannot signal {}: {errno}", self.id(which));
        }
    }

    /// How it ended, if it has.
    pub(super) fn ended(&self, which: usize) -> Option<ExitStatus> {
        self.players[which].ended
    }

    /// Reaps the members that have ended; gives those whose end nobody here has asked for.
    pub(super) fn notice(&mut self) -> Result<Vec<(String, ExitStatus)>> {
        let mut unasked = Vec::new();
        for player in self.players.iter_mut().filter(|player| player.ended.is_none()) {
            let ended = player.child.try_wait();
            player.ended = ended
                .map_err(|error| Error::denied(format!("cannot wait for a member: {error}")))?;
            if let Some(status) = player.ended.filter(|_| !player.doomed) {
                unasked.push((player.id.clone(), status));
            }
        }
        Ok(unasked)
    }

    /// Ends whoever is left at once, and returns when nothing of them is left: their guards end the work and give the
    /// leases back.
    pub(super) async fn end(&mut self, patience: Duration) {
        for which in 0..self.len() {
            if self.players[which].ended.is_none() {
                self.signal(which, Signal::KILL);
            }
        }
        for player in self.players.iter_mut().filter(|player| player.ended.is_none()) {
            match player.child.wait().await {
                Ok(status) => player.ended = Some(status),
                Err(error) => tracing::warn!("{}: {error}", player.id),
            }
        }
        let clock = Clock::boot();
        let end = clock.now() + patience;
        // Now all children that we have are such orphans.
        while wait(WaitOptions::NOHANG).err() != Some(Errno::CHILD) {
            if clock.now() >= end {
                tracing::warn!("a guard of the demo has not ended yet");
                break;
            }
            clock.sleep(LOOK_EVERY).await;
        }
    }
}

async fn listen(stderr: ChildStderr, heard: mpsc::UnboundedSender<String>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // Nobody listens when the demo is over.
        let _ = heard.send(line);
    }
}
