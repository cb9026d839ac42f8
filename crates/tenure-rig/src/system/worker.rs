//! The command that the candidates run: it records each of its effects, about one a millisecond, and behaves as badly as its
//! mode says. In every mode its processes are bounded in number and in time.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{getpgid, getppid, setpgid, setsid};
use tenure::Clock;
use tokio::signal::unix::{SignalKind, signal};

use super::checker::Workers;
use super::history::EffectWriter;
use super::slots::{Observer, Started};
use super::time::now;
use super::token_register::RegisterClient;

/// The file in a trial's directory that effects are appended to.
pub const HISTORY: &str = "history";

/// No worker process lives longer, even if its trial is killed.
const MAX_LIFETIME: Duration = Duration::from_secs(90);
const INTERVAL: Duration = Duration::from_millis(1);
/// In modes with many processes each writes less often.
const LONG_INTERVAL: Duration = Duration::from_millis(20);
/// The depth of the mode that forks: 1 + 3 + 9 + 27 processes.
const DEPTH: u32 = 3;
/// Of the mode that hops: the number of hops, and the time in one process.
const HOPS: u32 = 3_000;
const HOP: Duration = Duration::from_millis(8);

/// How the worker behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    /// Ignores SIGTERM, SIGINT and SIGHUP.
    Stubborn,
    /// Forty processes, some in their own groups and sessions, that respond to SIGTERM with more.
    Forks,
    /// A process that starts its successor and ends, repeatedly.
    Hops,
    /// Leaves a daemon (double fork, own session), and stays.
    Daemon,
    /// Leaves a daemon, and ends.
    Orphan,
    /// Closes all inherited descriptors.
    Closes,
    /// Works in its own session.
    Session,
    /// Joins the guard's process group.
    Group,
    /// Ends after one effect.
    Exits,
}

/// The exit code of [`Mode::Exits`].
pub const CODE: u8 = 7;

const MODES: &[(Mode, &str)] = &[
    (Mode::Plain, "plain"),
    (Mode::Stubborn, "stubborn"),
    (Mode::Forks, "forks"),
    (Mode::Hops, "hops"),
    (Mode::Daemon, "daemon"),
    (Mode::Orphan, "orphan"),
    (Mode::Closes, "closes"),
    (Mode::Session, "session"),
    (Mode::Group, "group"),
    (Mode::Exits, "exits"),
];

impl Mode {
    pub fn name(self) -> &'static str {
        MODES.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }

    fn find(name: &str) -> Option<Mode> {
        MODES.iter().find(|(_, each)| *each == name).map(|(mode, _)| *mode)
    }

    /// Whether SIGTERM ends the worker.
    pub fn handles_sigterm(self) -> bool {
        !matches!(self, Mode::Stubborn | Mode::Forks)
    }

    /// How many of its processes may write at a time.
    pub fn workers(self) -> Workers {
        match self {
            Mode::Forks | Mode::Hops | Mode::Daemon => Workers::Many,
            _ => Workers::One,
        }
    }
}

/// The history of one shard of a fleet.
pub fn history_of(directory: &Path, shard: &str) -> PathBuf {
    directory.join(format!("{HISTORY}-{shard}"))
}

/// The worker of a shard, in the process that a fleet runs: one effect every `each` milliseconds.
pub fn run_shard_worker(each: &str, directory: &Path, shard: &str) -> ExitCode {
    assert_eq!(std::env::var("TENURE_SHARD").as_deref(), Ok(shard), "the shard it is told of");
    let worker = Worker::new(directory);
    let writer = EffectWriter::new(&history_of(directory, shard), worker.token, &worker.candidate);
    worker.work_with(writer, Duration::from_millis(each.parse().expect("milliseconds")));
    ExitCode::SUCCESS
}

/// How long one run of a schedule takes.
const RUN: Duration = Duration::from_millis(60);

/// The worker of a schedule, in the process of one run: an effect at once, then the slot is recorded, then some more work.
pub fn run_slot_worker(url: &str, name: &str, directory: &Path) -> ExitCode {
    let worker = Worker::new(directory);
    let (mut writer, at) = (worker.writer(), now());
    writer.stamp_at(at);
    if let Some(slot) = Observer::open(url, name).running_slot(worker.token) {
        let (token, candidate) = (worker.token, worker.candidate.clone());
        Started { at, slot, token, candidate }.append(directory);
    }
    while now() < at + RUN {
        writer.stamp();
        super::time::pause(LONG_INTERVAL);
    }
    ExitCode::SUCCESS
}

/// The worker of an election. `mode` is a mode, or the role of a process that a mode has started: `ROLE:NUMBER`.
pub fn run_worker(mode: &str, directory: &Path) -> ExitCode {
    let worker = Worker::new(directory);
    let (part, number) = mode.split_once(':').unwrap_or((mode, "0"));
    let number: u32 = number.parse().unwrap_or_default();
    match (part, Mode::find(part)) {
        (_, Some(Mode::Plain)) => worker.work(INTERVAL),
        (_, Some(Mode::Stubborn)) => worker.resist(INTERVAL, || {}),
        (_, Some(Mode::Forks)) => worker.fork(DEPTH),
        (_, Some(Mode::Hops)) => worker.hop(number),
        (_, Some(Mode::Daemon)) => {
            worker.start("fork-off", false);
            worker.work(INTERVAL);
        }
        (_, Some(Mode::Orphan)) => worker.start("fork-off", false),
        (_, Some(Mode::Closes)) => return worker.close(),
        (_, Some(Mode::Session)) => {
            worker.command("session-leader").status().unwrap();
        }
        (_, Some(Mode::Group)) => {
            // The parent is the guard, and in the same session.
            let group = getpgid(getppid()).unwrap();
            setpgid(None, Some(group)).unwrap();
            worker.work(INTERVAL);
        }
        (_, Some(Mode::Exits)) => {
            worker.writer().stamp();
            return ExitCode::from(CODE);
        }
        ("session-leader", _) => {
            setsid().unwrap();
            worker.work(INTERVAL);
        }
        ("fork-off", _) => {
            setsid().unwrap();
            worker.start("plain", false);
        }
        ("branch", _) => worker.fork(number),
        ("late", _) => worker.resist(LONG_INTERVAL, || {}),
        _ => return ExitCode::from(99),
    }
    ExitCode::SUCCESS
}

struct Worker<'a> {
    directory: &'a Path,
    token: u64,
    candidate: String,
}

impl Worker<'_> {
    fn new(directory: &Path) -> Worker<'_> {
        let token = std::env::var("TENURE_TOKEN").expect("the child gets its token");
        let candidate = std::env::var("TENURE_CANDIDATE").expect("the child gets its candidate");
        Worker { directory, token: token.parse().expect("a number"), candidate }
    }

    fn writer(&self) -> EffectWriter {
        EffectWriter::new(&self.directory.join(HISTORY), self.token, &self.candidate)
    }

    /// Another worker process, in another role.
    fn command(&self, part: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["worker", part]).arg(self.directory).stdin(Stdio::null());
        command
    }

    /// Starts a worker process and does not wait for it.
    fn start(&self, part: &str, own_group: bool) {
        let mut command = self.command(part);
        if own_group {
            command.process_group(0);
        }
        drop(command.spawn().unwrap());
    }

    /// Writes one effect after the other.
    fn work(&self, each: Duration) {
        self.work_with(self.writer(), each);
    }

    fn work_with(&self, mut writer: EffectWriter, each: Duration) {
        // The first effect before anything that takes time: how soon it comes is measured.
        writer.stamp();
        super::time::runtime().block_on(self.write_effects(writer, each));
    }

    async fn write_effects(&self, mut writer: EffectWriter, each: Duration) {
        let clock = Clock::boot();
        let end = clock.now() + MAX_LIFETIME;
        let mut register = RegisterClient::open(self.directory);
        for count in 0_u32.. {
            if clock.now() >= end {
                return;
            }
            writer.stamp();
            if let Some(register) = &mut register {
                match count % 32 {
                    0 => register.read_counter(),
                    // Most of the time is between reading and writing, so that a freeze falls there.
                    28 => register.write_counter(),
                    8 | 16 | 24 => register.write(self.token),
                    _ => {}
                }
            }
            clock.sleep(each).await;
        }
    }

    /// Writes one effect after the other and ignores signals; the first SIGTERM is answered by `answer`.
    fn resist(&self, each: Duration, answer: impl FnOnce()) {
        let mut writer = self.writer();
        writer.stamp();
        super::time::runtime().block_on(async {
            // A registered signal does nothing else.
            let kinds = [SignalKind::interrupt(), SignalKind::hangup()];
            let _ignored = kinds.map(|kind| signal(kind).unwrap());
            let mut terminations = signal(SignalKind::terminate()).unwrap();
            let answered = async {
                terminations.recv().await;
                answer();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = self.write_effects(writer, each) => {}
                () = answered => {}
            }
        });
    }

    /// Starts three more processes unless it is deep enough, and one more at SIGTERM.
    fn fork(&self, depth: u32) {
        if depth > 0 {
            for number in 0..3 {
                self.start(&format!("branch:{}", depth - 1), number > 0);
            }
        }
        self.resist(if depth == DEPTH { INTERVAL } else { LONG_INTERVAL }, || {
            self.start("late", true)
        });
    }

    /// Works a little here, and the rest in a successor that no process waits for.
    fn hop(&self, hops: u32) {
        if hops >= HOPS {
            return;
        }
        let mut writer = self.writer();
        writer.stamp();
        if hops == 0 {
            // The first process stays, so that the command has not ended.
            self.start("hops:1", true);
            return self.work(INTERVAL);
        }
        super::time::pause(HOP);
        writer.stamp();
        self.start(&format!("hops:{}", hops + 1), hops.is_multiple_of(2));
    }

    /// Only a shell can close descriptors that it does not own, without unsafe code.
    fn close(&self) -> ExitCode {
        let script = r#"for f in /proc/self/fd/*; do eval "exec ${f##*/}>&-"; done; exec "$@""#;
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash"]).arg(std::env::current_exe().unwrap());
        let error = command.args(["worker", "plain"]).arg(self.directory).exec();
        panic!("no bash: {error}");
    }
}
