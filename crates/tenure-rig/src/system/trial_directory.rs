//! The surroundings of a trial: its directory, and the mark that identifies every process that it has started.

use std::cell::RefCell;
use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tenure::Moment;

use super::election_trial::TIMEOUT;
use super::freezer;
use super::processes::{self, MARK, below, children, is_stopped, signal};
use super::reaper::CleanupProcess;
use super::time::{now, poll_until};
use crate::servers::Scratch;
use crate::stderr_faults::Stderr;

/// A process of the real command.
pub struct TenureProcess {
    pub id: String,
    process: Child,
}

impl TenureProcess {
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn guard(&self) -> Option<u32> {
        children(self.pid()).first().copied()
    }

    /// Signals the process unless it has ended: its number may be another process's then.
    pub fn signal(&mut self, which: Signal) {
        if self.ended().is_none() {
            signal(self.pid(), which);
        }
    }

    /// Kills the process, its guard and their commands at once. Returns the moment just before.
    pub fn kill_tree(&mut self) -> Moment {
        // Stopped first, so that no guard observes the others die.
        let guards = children(self.pid());
        guards.iter().for_each(|guard| signal(*guard, Signal::STOP));
        let stopped = || guards.iter().all(|guard| is_stopped(*guard)).then_some(());
        poll_until(TIMEOUT, stopped).expect("it stops");
        let (at, all) = (now(), below(self.pid()));
        self.signal(Signal::KILL);
        all.into_iter().for_each(|pid| signal(pid, Signal::KILL));
        at
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }
}

pub struct TrialDirectory {
    mark: String,
    _cleanup: CleanupProcess,
    scratch: Scratch,
    /// The reading ends of full pipes, never read: a guard that outlives its leader still writes to one.
    unread: RefCell<Vec<PipeReader>>,
}

impl TrialDirectory {
    pub fn new() -> TrialDirectory {
        let scratch = Scratch::in_memory();
        let mark = scratch.path().display().to_string();
        let _cleanup = CleanupProcess::new(&mark, scratch.path());
        TrialDirectory { _cleanup, mark, scratch, unread: RefCell::default() }
    }

    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    pub fn mark(&self) -> &str {
        &self.mark
    }

    pub fn log_of(&self, id: &str) -> PathBuf {
        self.path().join(format!("{id}.log"))
    }

    /// The body of `/status` of the candidate with this log; `None` if it does not serve HTTP yet.
    pub fn status_of(&self, id: &str) -> Option<Value> {
        let log = std::fs::read_to_string(self.log_of(id)).ok()?;
        // Its first line has the address that it listens on.
        let port = log.lines().find_map(|line| line.rsplit_once(", http 127.0.0.1:"))?.1;
        let mut stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, port.trim().parse().ok()?)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let request = "GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// The real command, without settings from the environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(crate::tenure_program());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENURE_") {
                command.env_remove(name);
            }
        }
        command.env(MARK, &self.mark).env("TMPDIR", self.path()).stdin(Stdio::null());
        command
    }

    /// Starts a process and records its output, except a stderr that blocks or fails.
    pub fn start(&self, id: &str, mut command: Command, stderr: Option<Stderr>) -> TenureProcess {
        let log = File::options().create(true).append(true).open(self.log_of(id)).unwrap();
        command.stdout(log.try_clone().unwrap());
        match stderr {
            Some(stderr) => {
                let (stderr, reader) = stderr.open();
                command.stderr(stderr);
                self.unread.borrow_mut().extend(reader);
            }
            None => _ = command.stderr(log),
        }
        // Ctrl-C at the terminal is handled by the test process.
        TenureProcess { id: id.to_owned(), process: command.process_group(0).spawn().unwrap() }
    }

    /// Waits briefly until every process of the trial has ended; the error describes those that are left.
    pub fn empties(&self) -> Result<(), String> {
        let left = || processes::marked(&self.mark);
        let empty = poll_until(Duration::from_secs(2), || left().is_empty().then_some(()));
        empty.ok_or_else(|| format!("processes left behind:\n{}", processes::described(&left())))
    }

    /// Fails the trial, and keeps its histories and logs.
    pub fn fail(&self, why: &str) -> ! {
        panic!("{why}\nhistories and logs are kept in {}", self.keep().display());
    }

    /// Copies the histories and the logs to a directory that outlives this process.
    pub fn keep(&self) -> PathBuf {
        let from = self.path();
        let to = crate::kept_directory().join(from.file_name().unwrap());
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                let _ = std::fs::copy(entry.path(), to.join(entry.file_name()));
            }
        }
        to
    }

    /// Kills every process of the trial, however the trial ended.
    pub fn clear(&self, actors: &mut [TenureProcess]) {
        // Frozen processes do not die.
        freezer::thaw(&self.mark);
        processes::kill_marked(&self.mark);
        for actor in actors {
            let _ = actor.process.wait();
        }
        freezer::remove(&self.mark);
    }
}
