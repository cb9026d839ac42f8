//! The members of the fleet demo: starts them as a user would, signals them, reads their logs, and reaps them and the
//! processes that they leave behind.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tenure::{Clock, Error, Result};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::mpsc;

use super::member_process::DEMO_MEMBER_COMMAND;
use super::worker::DEMO_WORKER_COMMAND;
use crate::demo::processes::own_executable;
use crate::guard::adopt_orphans;

/// How often the demo checks whether the orphans of the members have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The config that all members share.
pub(super) struct DemoMemberConfig {
    /// The store's URL. It may contain a password: passed only in the environment, and never shown.
    pub(super) store: String,
    pub(super) fleet: String,
    pub(super) ttl: Duration,
    /// The file of the shards.
    pub(super) shards: PathBuf,
    /// The directory of the journals.
    pub(super) journals: PathBuf,
    /// An empty settings file, so that the user's own settings are not read.
    pub(super) config: PathBuf,
    /// The log flags.
    pub(super) flags: Vec<String>,
}

/// One member.
struct DemoMember {
    id: String,
    child: Child,
    ended: Option<ExitStatus>,
    /// The demo has told the member to stop.
    stopping: bool,
}

pub(super) struct DemoMembers {
    config: DemoMemberConfig,
    members: Vec<DemoMember>,
    lines: mpsc::UnboundedReceiver<String>,
    sender: mpsc::UnboundedSender<String>,
}

impl DemoMembers {
    pub(super) fn new(config: DemoMemberConfig) -> Result<DemoMembers> {
        // The guard of a killed member outlives it, and the demo must wait for the guard.
        adopt_orphans().map_err(|error| Error::denied(format!("cannot adopt orphans: {error}")))?;
        let (sender, lines) = mpsc::unbounded_channel();
        Ok(DemoMembers { config, members: Vec::new(), lines, sender })
    }

    /// Starts the next member; returns its number.
    pub(super) fn start(&mut self) -> Result<usize> {
        let failed =
            |error: std::io::Error| Error::denied(format!("cannot start a member: {error}"));
        let (id, config) = (format!("m{}", self.members.len() + 1), &self.config);
        let own_executable = own_executable().map_err(failed)?;
        let mut command = Command::new(&own_executable);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"TENURE_") {
                command.env_remove(name);
            }
        }
        command
            .env("TENURE_STORE", &config.store)
            .arg(DEMO_MEMBER_COMMAND)
            .arg(std::process::id().to_string())
            .args(&config.flags)
            .arg("--config")
            .arg(&config.config)
            .args(["fleet", "run", &config.fleet, "--node-id", &id])
            .args(["--lease-duration", &format!("{}ms", config.ttl.as_millis())])
            .arg("--shards-file")
            .arg(&config.shards)
            .arg("--")
            .arg(&own_executable)
            .arg(DEMO_WORKER_COMMAND)
            .arg(config.journals.join("{}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl+C on the terminal must reach only the demo itself.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(read_lines(stderr, self.sender.clone()));
        }
        self.members.push(DemoMember { id, child, ended: None, stopping: false });
        Ok(self.members.len() - 1)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn id(&self, which: usize) -> &str {
        &self.members[which].id
    }

    /// The process id; `None` once the process was reaped.
    pub(super) fn pid(&self, which: usize) -> Option<u32> {
        self.members[which].child.id()
    }

    /// The ids of the members that should be in the fleet.
    pub(super) fn alive(&self) -> Vec<&str> {
        let alive = |member: &&DemoMember| member.ended.is_none() && !member.stopping;
        self.members.iter().filter(alive).map(|member| &*member.id).collect()
    }

    /// The next log line of any member.
    pub(super) async fn line(&mut self) -> String {
        match self.lines.recv().await {
            Some(line) => line,
            // Unreachable: `self` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// The log lines that were not read yet.
    pub(super) fn remaining_lines(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.lines.try_recv().ok()).collect()
    }

    /// Stops a member with the given signal. A process keeps its id until it is reaped, so no other process can receive the
    /// signal.
    pub(super) fn stop(&mut self, which: usize, signal: Signal) {
        self.members[which].stopping = true;
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

    /// The exit status of a member; `None` while it runs.
    pub(super) fn ended(&self, which: usize) -> Option<ExitStatus> {
        self.members[which].ended
    }

    /// Reaps the members that have ended; returns those that the demo has not told to stop.
    pub(super) fn reap_ended(&mut self) -> Result<Vec<(String, ExitStatus)>> {
        let mut unexpected = Vec::new();
        for member in self.members.iter_mut().filter(|member| member.ended.is_none()) {
            let ended = member.child.try_wait();
            member.ended = ended
                .map_err(|error| Error::denied(format!("cannot wait for a member: {error}")))?;
            if let Some(status) = member.ended.filter(|_| !member.stopping) {
                unexpected.push((member.id.clone(), status));
            }
        }
        Ok(unexpected)
    }

    /// Kills every member that is left, and returns when no process of theirs is left: their guards end the work and release
    /// the leases.
    pub(super) async fn kill_all(&mut self, timeout: Duration) {
        for which in 0..self.len() {
            if self.members[which].ended.is_none() {
                self.signal(which, Signal::KILL);
            }
        }
        for member in self.members.iter_mut().filter(|member| member.ended.is_none()) {
            match member.child.wait().await {
                Ok(status) => member.ended = Some(status),
                Err(error) => tracing::warn!("{}: {error}", member.id),
            }
        }
        let clock = Clock::boot();
        let end = clock.now() + timeout;
        // All remaining children of this process are orphans of the members.
        while wait(WaitOptions::NOHANG).err() != Some(Errno::CHILD) {
            if clock.now() >= end {
                tracing::warn!("a guard of the demo has not ended yet");
                break;
            }
            clock.sleep(POLL_INTERVAL).await;
        }
    }
}

async fn read_lines(stderr: ChildStderr, sender: mpsc::UnboundedSender<String>) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // The receiver is gone when the demo is over.
        let _ = sender.send(line);
    }
}
