//! The guard: the small process between the leader and its command.
//!
//! ```text
//! leader ──► guard ──► command, and whatever that starts
//! ```
//!
//! It ends the command when the leader is dead or out of time, and sees that nothing of it is left: so nobody leads beside a
//! command that runs on. The lease of a dead leader it gives back: so another leads in milliseconds instead of a TTL. It is
//! the leader's own program, started again, so that both are of one version; what it must know comes over a line of their
//! own, never by argument or environment.
//!
//! Without a command (work on a schedule between two runs, polls over HTTP) it only waits for the leader's death.

mod child;
mod family;
mod fuse;
mod giving_back;
mod haste;
mod hook;
mod many;
mod oversee;
mod program;
mod tree;
mod wire;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::socket_type;
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, setsid};
use tenure::store::file::Locked;
use tenure::{CandidateId, Clock, Error, Hold, Moment, Nonce, Result};
use tokio::io::unix::AsyncFd;

pub(crate) use child::run as run_child;
pub(crate) use fuse::{Fuse, reserve};
pub(crate) use hook::Hook;
pub(crate) use many::run as run_many;
pub(crate) use many::{Duty, Keeper, Reports};
pub(crate) use oversee::{Orders, Outcome, deaths, oversee};
pub(crate) use program::{check as check_program, refused};
pub(crate) use tree::{
    Ended, Spared, Tree, adopt_orphans, end_orphans, ended_orphans, reap, reap_orphans,
};
pub(crate) use wire::{Line, Log, Order, Report, Setup, line};

use giving_back::GivingBack;

use crate::environment;
use crate::exit::Exit;
use crate::signals;

/// The words by which we start ourselves as something else.
pub(crate) const GUARD: &str = "guard";
pub(crate) const CHILD: &str = "guard-child";
pub(crate) const MANY: &str = "guard-many";

/// Our own program, also when the file it came from has been replaced meanwhile.
pub(crate) const OURSELVES: &str = "/proc/self/exe";

/// The end of the line is seen a moment before the death that caused it.
const DEATH_FOLLOWS: Duration = Duration::from_secs(1);

/// `tenure guard [CMD ARG…]`, started by `tenure run`.
pub(crate) fn run(command: &[OsString]) -> Exit {
    stand_by(stand(command))
}

fn stand_by(watch: impl Future<Output = Result<()>>) -> Exit {
    match crate::runtime().and_then(|runtime| {
        let done = runtime.block_on(watch);
        // A release that hangs in a file system must not keep us here.
        runtime.shutdown_background();
        done
    }) {
        Ok(()) => Exit::Done,
        Err(error) => {
            eprintln!("tenure: the guard cannot work: {error}");
            Exit::Operator
        }
    }
}

/// What every guard does first. The line to the leader.
fn take_post(starter: &str) -> Result<Line> {
    // Out of reach of the terminal: Ctrl-Z would stop us beside a command that runs on.
    let _ = setsid();
    let _ = rustix::thread::set_name(c"tenure-guard");
    haste::hurry();
    // Whoever ends a whole control group means the command; we see it end and report.
    signals::be_deaf()?;
    adopt_orphans().map_err(|error| cannot("adopt orphans", &error))?;
    inherited_line(starter)
}

async fn stand(command: &[OsString]) -> Result<()> {
    let line = take_post("tenure run")?;
    let deaths = deaths().map_err(|error| cannot("watch over children", &error))?;
    let Some((setup, files)) = line.receive_with_files::<Setup>().await else {
        // The leader died before it could say what there is to guard.
        return Ok(());
    };
    let leader = Leader::of(setup.leader)?;
    let hold = setup.hold()?;
    let mut files = files.into_iter();
    let (stdin, live) = (files.next(), files.next());
    if command.is_empty() {
        let giving_back = GivingBack::prepare(setup.store.clone(), hold.name.clone());
        let done = Watch { ended: "", line, leader, setup, hold, giving_back, deaths }
            .give_back(None)
            .await;
        drop(live);
        return done;
    }
    let stop_within = Duration::from_millis(setup.stop_within_ms);
    let mut fuse = Fuse::new(setup.deadline(), stop_within);
    let started = match fuse.due(Clock::boot().now()) {
        // We or the leader did not run for a while.
        Some(_) => Err(io::Error::other("the term is over already")),
        None => start(command, stdin, live.as_ref(), |command| {
            environment::of(command, &hold.name, &hold.candidate, Some(hold.token));
        }),
    };
    let main = match started {
        Ok(main) => main,
        Err(error) => {
            let _ = line.send(&Report::Failed(error.to_string()), &[]);
            return Ok(());
        }
    };
    // Only now: the command does not wait for the store.
    let giving_back = GivingBack::prepare(setup.store.clone(), hold.name.clone());
    let ended = "ended the command and ";
    let watch = Watch { ended, line, leader, setup, hold, giving_back, deaths };
    let done = watch.keep(main, fuse).await;
    // Until now the lease is not free by the leader's death alone.
    drop(live);
    done
}

struct Watch {
    /// What there was to end, for the log.
    ended: &'static str,
    line: Line,
    leader: Leader,
    setup: Setup,
    hold: Hold,
    giving_back: GivingBack,
    deaths: tokio::signal::unix::Signal,
}

impl Watch {
    async fn keep(mut self, main: Pid, mut fuse: Fuse) -> Result<()> {
        let mut tree = Tree::alone(main);
        let mut orders = OverTheLine(&self.line);
        let death = self.leader.death();
        let Outcome { ended, told } =
            oversee(&mut tree, &mut fuse, &mut self.deaths, &mut orders, death).await;
        // Nothing of the command is left from here on.
        let _ = self.line.send(&Report::Gone { ended, told }, &[]);
        self.give_back(Some(fuse.deadline())).await
    }

    /// Gives the lease back when the leader is dead. Never while it lives, however long it is frozen: a renewal may be under
    /// way of which we know nothing, and when it goes on it believes in that.
    async fn give_back(mut self, deadline: Option<Moment>) -> Result<()> {
        let clock = Clock::boot();
        let mut frozen = false;
        loop {
            tokio::select! {
                biased;
                dismissed = hung_up(&self.line) => {
                    let followed = async {
                        tokio::select! {
                            () = self.leader.death() => true,
                            () = clock.sleep(DEATH_FOLLOWS) => false,
                        }
                    };
                    // A leader that hung up and lives has its own reasons, and gives back itself what is to be given back.
                    if dismissed || !followed.await {
                        return Ok(());
                    }
                    break;
                }
                () = self.leader.death() => break,
                () = believed_no_more(&clock, deadline.unwrap_or(Moment::NEVER)), if !frozen => {
                    frozen = true;
                    self.on_lose().await;
                    let what = "the leader's process is frozen";
                    self.say(what, "left the lease to run out by itself");
                    if self.is_locked_by_the_leader().await {
                        self.say(&format!("{what} in the middle of a change"), "killed it");
                        // Nobody could ever lead before it goes on. Its death costs nothing but a restart.
                        self.leader.kill();
                    }
                }
            }
        }
        if !frozen {
            self.on_lose().await;
        }
        let given = self.giving_back.give(vec![self.hold.clone()]).await;
        let then = match given {
            Ok(()) => "released the lease".to_owned(),
            Err(kept) => {
                format!("could not release the lease, which runs out by itself: {}", kept.why)
            }
        };
        self.say("the leader's process died", &then);
        Ok(())
    }

    /// What a leader that lives does itself.
    async fn on_lose(&self) {
        if let Some(on_lose) = &self.setup.on_lose {
            // There is nothing left to end, and the hook is in no hurry.
            let _ = haste::former().map(haste::calm);
            let hold = &self.hold;
            Hook::new(on_lose, &hold.name, &hold.candidate, Some(hold.token)).run().await;
        }
    }

    /// Whether the leader stands in the middle of a change, so that nobody else can make one.
    async fn is_locked_by_the_leader(&mut self) -> bool {
        let asked = self.giving_back.give(vec![nobodys(&self.hold)]).await;
        let in_the_way = asked.err().and_then(|kept| stuck_in_the_way(&kept.why));
        in_the_way.is_some() && in_the_way == u32::try_from(self.setup.leader).ok()
    }

    fn say(&self, what: &str, then: &str) {
        let text = format!("{what}: {}{then}", self.ended);
        say(self.setup.log, &self.hold.candidate, &text);
    }
}

/// The same lease in hands that never held it: to give this back changes nothing, and waits for whoever is changing it.
fn nobodys(hold: &Hold) -> Hold {
    Hold { nonce: Nonce::random(), ..hold.clone() }
}

/// One line of log. Nobody else writes the guard's.
fn say(log: Log, candidate: &CandidateId, text: &str) {
    let text = format!("[{candidate}] {text}");
    match log {
        Log::Silent => {}
        Log::Text => eprintln!("tenure: {text}"),
        Log::Json => {
            let line = serde_json::json!({
                "timestamp": crate::time::now(),
                "level": "WARN",
                "message": text,
                "candidate": candidate.as_str(),
                "event": "guard",
            });
            eprintln!("{line}");
        }
    }
}

/// Starts a command in a group of its own, by way of [`child`].
fn start(
    command: &[OsString],
    stdin: Option<OwnedFd>,
    live: Option<&OwnedFd>,
    environment: impl FnOnce(&mut Command),
) -> io::Result<Pid> {
    if let Some(live) = live {
        // The lease is not free by our death as long as anything of the command has this open.
        fcntl_setfd(live.as_fd(), FdFlags::empty())?;
    }
    let mut start = Command::new(OURSELVES);
    let former = haste::former().map(|class| class.to_string()).unwrap_or_default();
    start.arg0("tenure").arg(CHILD).arg(format!("{}:{former}", std::process::id())).args(command);
    environment(&mut start);
    let child = start.stdin(stdin.map_or_else(Stdio::null, Stdio::from)).process_group(0).spawn();
    if let Some(live) = live {
        fcntl_setfd(live.as_fd(), FdFlags::CLOEXEC)?;
    }
    i32::try_from(child?.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the command has no process number"))
}

/// The process that leads.
struct Leader(AsyncFd<OwnedFd>);

impl Leader {
    fn of(pid: i32) -> Result<Leader> {
        let gone = || Error::unavailable("the leader died before the guard could see it");
        let pid = Pid::from_raw(pid).ok_or_else(gone)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| gone())?;
        // Asked after: as long as it is our parent, nobody else has its number.
        if getppid() != Some(pid) {
            return Err(gone());
        }
        let watched = wire::watched(pidfd).map_err(|error| cannot("watch the leader", &error))?;
        Ok(Leader(watched))
    }

    fn kill(&self) {
        // One that is dead already needs no signal.
        let _ = pidfd_send_signal(self.0.get_ref(), Signal::KILL);
    }

    async fn death(&self) {
        if self.0.readable().await.is_err() {
            // The runtime is going away; nothing else can make this fail.
            std::future::pending::<()>().await;
        }
    }
}

struct OverTheLine<'a>(&'a Line);

impl Orders for OverTheLine<'_> {
    async fn next(&mut self) -> Option<Order> {
        self.0.receive().await
    }
}

/// Returns at the deadline; never after a refusal, when there is nothing to give back, and a leader that has told us so.
async fn believed_no_more(clock: &Clock, deadline: Moment) {
    match deadline {
        Moment::NEVER => std::future::pending().await,
        deadline => clock.sleep_until(deadline).await,
    }
}

/// Returns when there is nothing more to do for the leader; whether it said so.
async fn hung_up(line: &Line) -> bool {
    while let Some(order) = line.receive::<Order>().await {
        if order == Order::Dismissed {
            return true;
        }
    }
    false
}

fn inherited_line(starter: &str) -> Result<Line> {
    if socket_type(io::stdin()).is_err() {
        return Err(Error::invalid(format!("it is started by '{starter}', and by nobody else")));
    }
    let socket = io::stdin().as_fd().try_clone_to_owned();
    socket.and_then(Line::over).map_err(|error| cannot("use the line to the leader", &error))
}

/// The process that has locked what we want to give back.
fn stuck_in_the_way(error: &Error) -> Option<u32> {
    std::error::Error::source(error)?.downcast_ref::<Locked>()?.by
}

fn cannot(what: &str, error: &io::Error) -> Error {
    Error::denied(format!("cannot {what}: {error}"))
}
