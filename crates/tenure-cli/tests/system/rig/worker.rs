//! The command that the contenders run: it writes down each of its effects, about one a millisecond, and is as badly
//! behaved as it is told to be. In every mode its processes are bounded in number and in time.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{getpgid, getppid, setpgid, setsid};
use tenure::Clock;
use tokio::signal::unix::{SignalKind, signal};

use super::history::Pen;
use super::judge::Workers;
use super::register::Line;
use super::slots::{Observer, Started};
use super::time::now;

/// The file in a trial's directory that effects are appended to.
pub(crate) const HISTORY: &str = "history";

/// No process of ours lives longer, whatever becomes of the trial.
const LIFE: Duration = Duration::from_secs(90);
const EACH: Duration = Duration::from_millis(1);
/// Where there are many processes each writes less often.
const SELDOM: Duration = Duration::from_millis(20);
/// Of the mode that forks: 1 + 3 + 9 + 27 processes.
const DEPTH: u32 = 3;
/// Of the mode that hops: how often, and how long in one process.
const HOPS: u32 = 3_000;
const HOP: Duration = Duration::from_millis(8);

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Plain,
    /// Ignores SIGTERM, SIGINT and SIGHUP.
    Stubborn,
    /// Forty processes, some in groups and sessions of their own, that answer SIGTERM with more.
    Forks,
    /// A process that starts its successor and ends, again and again.
    Hops,
    /// Leaves a daemon (double fork, own session), and stays.
    Daemon,
    /// Leaves a daemon, and ends.
    Orphan,
    /// Closes all descriptors it was given.
    Closes,
    /// Works in a session of its own.
    Session,
    /// Goes into the guard's process group.
    Group,
    /// Ends after one effect.
    Exits,
}

/// What [`Mode::Exits`] ends with.
pub(crate) const CODE: u8 = 7;

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
    pub(crate) fn name(self) -> &'static str {
        MODES.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }

    fn find(name: &str) -> Option<Mode> {
        MODES.iter().find(|(_, each)| *each == name).map(|(mode, _)| *mode)
    }

    /// Whether SIGTERM ends it.
    pub(crate) fn heeds_signals(self) -> bool {
        !matches!(self, Mode::Stubborn | Mode::Forks)
    }

    /// How many processes of it may write at a time.
    pub(crate) fn workers(self) -> Workers {
        match self {
            Mode::Forks | Mode::Hops | Mode::Daemon => Workers::Many,
            _ => Workers::One,
        }
    }
}

/// The history of one shard of a fleet.
pub(crate) fn history_of(directory: &Path, shard: &str) -> PathBuf {
    directory.join(format!("{HISTORY}-{shard}"))
}

/// Inside a process that a fleet runs for a shard: an effect each so many milliseconds.
pub(crate) fn play_shard(each: &str, directory: &Path, shard: &str) -> ExitCode {
    assert_eq!(std::env::var("TENURE_SHARD").as_deref(), Ok(shard), "the shard it is told of");
    let worker = Worker::new(directory);
    let pen = Pen::new(&history_of(directory, shard), worker.token, &worker.candidate);
    worker.work_with(pen, Duration::from_millis(each.parse().expect("milliseconds")));
    ExitCode::SUCCESS
}

/// How long one run of a schedule takes.
const RUN: Duration = Duration::from_millis(60);

/// Inside a process that a schedule runs: an effect at once, then the slot is written down, then some more work.
pub(crate) fn play_slot(url: &str, name: &str, directory: &Path) -> ExitCode {
    let worker = Worker::new(directory);
    let (mut pen, at) = (worker.pen(), now());
    pen.stamp_at(at);
    if let Some(slot) = Observer::open(url, name).running_slot(worker.token) {
        let (token, candidate) = (worker.token, worker.candidate.clone());
        Started { at, slot, token, candidate }.append(directory);
    }
    while now() < at + RUN {
        pen.stamp();
        super::time::pause(SELDOM);
    }
    ExitCode::SUCCESS
}

/// Inside the process. `mode` is a mode, or the part of a process that one has started: `PART:NUMBER`.
pub(crate) fn play(mode: &str, directory: &Path) -> ExitCode {
    let worker = Worker::new(directory);
    let (part, number) = mode.split_once(':').unwrap_or((mode, "0"));
    let number: u32 = number.parse().unwrap_or_default();
    match (part, Mode::find(part)) {
        (_, Some(Mode::Plain)) => worker.work(EACH),
        (_, Some(Mode::Stubborn)) => worker.resist(EACH, || {}),
        (_, Some(Mode::Forks)) => worker.fork(DEPTH),
        (_, Some(Mode::Hops)) => worker.hop(number),
        (_, Some(Mode::Daemon)) => {
            worker.start("fork-off", false);
            worker.work(EACH);
        }
        (_, Some(Mode::Orphan)) => worker.start("fork-off", false),
        (_, Some(Mode::Closes)) => return worker.close(),
        (_, Some(Mode::Session)) => {
            worker.command("session-leader").status().unwrap();
        }
        (_, Some(Mode::Group)) => {
            // The parent is the guard, and in our session.
            let group = getpgid(getppid()).unwrap();
            setpgid(None, Some(group)).unwrap();
            worker.work(EACH);
        }
        (_, Some(Mode::Exits)) => {
            worker.pen().stamp();
            return ExitCode::from(CODE);
        }
        ("session-leader", _) => {
            setsid().unwrap();
            worker.work(EACH);
        }
        ("fork-off", _) => {
            setsid().unwrap();
            worker.start("plain", false);
        }
        ("branch", _) => worker.fork(number),
        ("late", _) => worker.resist(SELDOM, || {}),
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

    fn pen(&self) -> Pen {
        Pen::new(&self.directory.join(HISTORY), self.token, &self.candidate)
    }

    /// Another process like this one, in another part.
    fn command(&self, part: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["worker", part]).arg(self.directory).stdin(Stdio::null());
        command
    }

    /// Starts one and forgets about it.
    fn start(&self, part: &str, own_group: bool) {
        let mut command = self.command(part);
        if own_group {
            command.process_group(0);
        }
        drop(command.spawn().unwrap());
    }

    /// Effect after effect.
    fn work(&self, each: Duration) {
        self.work_with(self.pen(), each);
    }

    fn work_with(&self, mut pen: Pen, each: Duration) {
        // The first before anything that takes time: how soon it comes is measured.
        pen.stamp();
        super::time::runtime().block_on(self.go_on(pen, each));
    }

    async fn go_on(&self, mut pen: Pen, each: Duration) {
        let clock = Clock::boot();
        let end = clock.now() + LIFE;
        let mut line = Line::open(self.directory);
        for count in 0_u32.. {
            if clock.now() >= end {
                return;
            }
            pen.stamp();
            if let Some(line) = &mut line {
                match count % 32 {
                    0 => line.read_counter(),
                    // Most of the time between reading and writing, so that a freeze falls there.
                    28 => line.write_counter(),
                    8 | 16 | 24 => line.write(self.token),
                    _ => {}
                }
            }
            clock.sleep(each).await;
        }
    }

    /// Effect after effect, whatever signals say; the first SIGTERM is answered.
    fn resist(&self, each: Duration, answer: impl FnOnce()) {
        let mut pen = self.pen();
        pen.stamp();
        super::time::runtime().block_on(async {
            // Being registered is enough for a signal to do nothing.
            let kinds = [SignalKind::interrupt(), SignalKind::hangup()];
            let _ignored = kinds.map(|kind| signal(kind).unwrap());
            let mut terminations = signal(SignalKind::terminate()).unwrap();
            let answered = async {
                terminations.recv().await;
                answer();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = self.go_on(pen, each) => {}
                () = answered => {}
            }
        });
    }

    /// Three more below this one, unless it is deep enough, and one more when asked to end.
    fn fork(&self, depth: u32) {
        if depth > 0 {
            for number in 0..3 {
                self.start(&format!("branch:{}", depth - 1), number > 0);
            }
        }
        self.resist(if depth == DEPTH { EACH } else { SELDOM }, || self.start("late", true));
    }

    /// A little work here, the rest in a successor that nobody waits for.
    fn hop(&self, hops: u32) {
        if hops >= HOPS {
            return;
        }
        let mut pen = self.pen();
        pen.stamp();
        if hops == 0 {
            // The first stays, so that the command has not ended.
            self.start("hops:1", true);
            return self.work(EACH);
        }
        super::time::pause(HOP);
        pen.stamp();
        self.start(&format!("hops:{}", hops + 1), hops.is_multiple_of(2));
    }

    /// Only a shell can close what it does not own, without unsafe code.
    fn close(&self) -> ExitCode {
        let script = r#"for f in /proc/self/fd/*; do eval "exec ${f##*/}>&-"; done; exec "$@""#;
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash"]).arg(std::env::current_exe().unwrap());
        let error = command.args(["worker", "plain"]).arg(self.directory).exec();
        panic!("no bash: {error}");
    }
}
