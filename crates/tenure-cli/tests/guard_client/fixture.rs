//! The fixture of a trial: a store, members on it, and what can be observed of both from outside.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::store::{Scope, Store};
use tenure::{Clock, Ended, Lease, Moment};
use tokio::runtime::Runtime;

use crate::guard_faults::PANICKING_GUARD_ROLE;
use crate::member::{FLEET, MemberConfig, MemberEvent, MemberOrder, ROLE};
use tenure_rig::servers::{self, Scratch, Server, free_port};
use tenure_rig::stderr_faults::Stderr;

pub(crate) const SERVER: &str = "redis-7";
/// An event that takes longer does not come.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Redis,
}

impl Kind {
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Kind::File => None,
            Kind::Redis if !cfg!(feature = "redis") => Some("built without redis".to_owned()),
            Kind::Redis => servers::find(SERVER, "redis-server")
                .is_none()
                .then(|| servers::install_hint(SERVER)),
        }
    }
}

pub(crate) fn now() -> Moment {
    Clock::boot().now()
}

/// Everything that one trial uses. Its member's processes are identified by the directory that is their HOME.
pub(crate) struct Fixture {
    pub(crate) url: String,
    runtime: Runtime,
    store: Arc<dyn Store>,
    _server: Option<Server>,
    scratch: Scratch,
}

impl Fixture {
    pub(crate) fn new(kind: Kind) -> Fixture {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let scratch = Scratch::in_memory();
        let (url, server) = match kind {
            Kind::File => (format!("file:{}", scratch.path().join("leases").display()), None),
            Kind::Redis => {
                let port = free_port();
                let text = port.to_string();
                let words = "--bind 127.0.0.1 --dir . --appendonly yes --appendfsync always";
                let arguments = ["--port", &text, "--save", ""].into_iter().chain(words.split(' '));
                let program = servers::find(SERVER, "redis-server").unwrap();
                let started =
                    Server::start(Scratch::in_memory(), program, arguments, async || answers(port));
                let server = runtime.block_on(started).unwrap();
                (format!("redis://127.0.0.1:{port}/0"), Some(server))
            }
        };
        let store = runtime.block_on(tenure::open(&url)).unwrap();
        Fixture { url, runtime, store, _server: server, scratch }
    }

    /// The config of a member that renews, with a TTL longer than any trial.
    pub(crate) fn renewing_member(&self, shards: Vec<(String, Vec<String>)>) -> MemberConfig {
        let url = self.url.clone();
        MemberConfig {
            url,
            ttl_ms: 60_000,
            stop_within_ms: 1_000,
            shards,
            guarded: true,
            renews: true,
            deadlines_ms: Vec::new(),
        }
    }

    pub(crate) fn member(&self, config: &MemberConfig) -> Member {
        self.member_with(config, None).0
    }

    /// A member, and so a guard, with this stderr, which stays as it is while the reader is kept.
    pub(crate) fn member_with(
        &self,
        config: &MemberConfig,
        stderr: Option<Stderr>,
    ) -> (Member, Option<PipeReader>) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(ROLE);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENURE_") {
                command.env_remove(name);
            }
        }
        command.env("HOME", self.scratch.path()).env("TENURE_STORE", "redis://:secret@nowhere");
        let (stderr, reader) = stderr.map_or((Stdio::inherit(), None), Stderr::open);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut process = command.spawn().unwrap();
        // The command holds this process's copy of stderr.
        drop(command);
        let (sender, events) = channel();
        let stdout = process.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let event: MemberEvent = serde_json::from_str(&line).unwrap();
                let _ = sender.send((now(), event));
            }
        });
        let mut stdin = process.stdin.take().unwrap();
        writeln!(stdin, "{}", serde_json::to_string(config).unwrap()).unwrap();
        let mut member = Member { process, stdin, events, guard: None };
        assert_eq!(member.next(), MemberEvent::Ready);
        member.guard = config.guarded.then(|| member.only_child());
        (member, reader)
    }

    fn leases(&self) -> Vec<Lease> {
        let scope = Scope::Prefix(format!("{FLEET}:"));
        let leases = self.runtime.block_on(self.store.observe(&scope)).unwrap();
        leases.into_iter().map(Result::unwrap).collect()
    }

    /// The names of all leases of the fleet that have a holder.
    pub(crate) fn held(&self) -> BTreeSet<String> {
        let held = self.leases().into_iter().filter(|lease| lease.holder.is_some());
        held.map(|lease| lease.name.to_string()).collect()
    }

    /// How the last terms of the leases without a holder ended.
    pub(crate) fn ended(&self) -> Vec<Ended> {
        let free = self.leases().into_iter().filter(|lease| lease.holder.is_none());
        free.map(|lease| lease.lineage.unwrap().before).collect()
    }

    /// The processes of this trial, apart from the member and its guard: process number and command line.
    pub(crate) fn commands(&self) -> Vec<(u32, String)> {
        let mark = format!("HOME={}", self.scratch.path().display());
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let of_trial = all.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let environ = std::fs::read(entry.path().join("environ")).ok()?;
            let of_trial = environ.split(|byte| *byte == 0).any(|it| it == mark.as_bytes());
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            // Processes of this program are called `tenure`, or have a role as their last argument.
            let roles = [ROLE, PANICKING_GUARD_ROLE].map(|role| format!(" {role} "));
            let command =
                !line.starts_with("tenure ") && !roles.iter().any(|role| line.ends_with(role));
            (of_trial && command && !line.is_empty()).then_some((pid, line))
        });
        of_trial.collect()
    }

    /// Waits until `number` processes of commands run.
    pub(crate) fn runs(&self, number: usize) {
        eventually(&format!("{number} processes"), || self.commands().len() == number);
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.path().join(name)
    }
}

/// A running member.
pub(crate) struct Member {
    process: Child,
    stdin: ChildStdin,
    events: Receiver<(Moment, MemberEvent)>,
    guard: Option<u32>,
}

impl Member {
    pub(crate) fn next(&self) -> MemberEvent {
        self.next_at().1
    }

    pub(crate) fn next_at(&self) -> (Moment, MemberEvent) {
        self.events.recv_timeout(TIMEOUT).expect("it says something")
    }

    pub(crate) fn has_no_event(&self) -> bool {
        self.events.try_recv().is_err()
    }

    pub(crate) fn send(&mut self, order: &MemberOrder) {
        writeln!(self.stdin, "{}", serde_json::to_string(order).unwrap()).unwrap();
    }

    pub(crate) fn signal(&self, number: Signal) {
        signal(self.process.id(), number);
    }

    pub(crate) fn guard(&self) -> u32 {
        self.guard.expect("it has one")
    }

    fn only_child(&self) -> u32 {
        let pid = self.process.id();
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        list.trim().parse().expect("the guard is the only child")
    }

    pub(crate) fn wait(&mut self) {
        self.process.wait().unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // The guard releases the leases that it can, and the store must not be gone before.
        let end = now() + TIMEOUT;
        while now() < end && self.guard.is_some_and(is_alive) {
            pause(Duration::from_millis(2));
        }
        // Only when a trial fails.
        self.guard.into_iter().filter(|guard| is_alive(*guard)).for_each(|guard| {
            signal(guard, Signal::KILL);
        });
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A trial that fails may leave some processes.
        while let left @ [_, ..] = &*self.commands() {
            left.iter().for_each(|(pid, _)| signal(*pid, Signal::KILL));
            pause(Duration::from_millis(2));
        }
    }
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
}

/// Whether the process exists and has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The process with this command line.
pub(crate) fn running(line: &str) -> Option<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut numbers = all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let cmdline = std::fs::read(entry.path().join("cmdline")).ok()?;
        (String::from_utf8_lossy(&cmdline).replace('\0', " ").trim() == line).then_some(pid)
    });
    numbers.next()
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = now() + TIMEOUT;
    while !done() {
        assert!(now() < end, "it never came to this: {what}");
        pause(Duration::from_millis(2));
    }
}

pub(crate) fn pause(time: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Clock::boot().sleep(time));
}

fn answers(port: u16) -> bool {
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let _ = server.set_read_timeout(Some(Duration::from_millis(500)));
    let mut answer = [0; 7];
    server.write_all(b"PING\r\n").is_ok()
        && server.read_exact(&mut answer).is_ok()
        && answer == *b"+PONG\r\n"
}

/// Shards, each with a command in which the shard's number replaces `{}`.
pub(crate) fn shards(number: usize, command: &[&str]) -> Vec<(String, Vec<String>)> {
    let argv = |n: usize| command.iter().map(|word| word.replace("{}", &n.to_string())).collect();
    (0..number).map(|n| (format!("s{n}"), argv(n))).collect()
}
