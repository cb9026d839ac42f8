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

// A guard that waits for stderr, or dies of it, kills too late or not at all: it logs through `log`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod command_check;
mod command_loop;
mod exec;
mod hook;
mod kill_errors;
mod kill_schedule;
mod leader;
mod log;
mod many;
mod pidfd;
pub(crate) mod proc_mount;
mod process_tree;
mod procfs;
mod protocol;
mod realtime;
mod release;
mod spare_fds;
mod starter;
mod watchdog;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::socket_type;
use rustix::process::{Pid, Signal, set_parent_process_death_signal, setsid};
use tenure::store::file::LockHolder;
use tenure::{CandidateId, Clock, Error, Hold, Moment, Nonce, Result};
use tokio::sync::oneshot;

pub(crate) use command_check::{changes_user, check as check_program, refused};
pub(crate) use command_loop::{CommandExit, OrderSource, deaths, oversee, spawn as spawn_overseer};
pub(crate) use exec::run as run_child;
pub(crate) use hook::Hook;
pub(crate) use kill_schedule::{KillSchedule, reserve};
pub(crate) use log::Log;
pub(crate) use many::run as run_many;
pub(crate) use many::{GuardClient, GuardClientConfig, GuardEvent, Reports};
pub(crate) use process_tree::{
    Orphans, ProcessExit, ProcessTree, SparedProcess, adopt_orphans, ended_orphans, reap,
    reap_orphans,
};
pub(crate) use protocol::{GuardOrder, GuardReport, GuardSetup, GuardSocket, line};
pub(crate) use watchdog::{GUARD_REACTS, Watchdog};

use leader::LeaderProcess;
use release::Releaser;
use starter::Starter;

use crate::child_env;
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

/// How long the guard tries to kill what its commands have started after a panic. A living leader then continues.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// `tenure guard [CMD ARG…]`, started by `tenure run`.
pub(crate) fn run(command: &[OsString]) -> Exit {
    stand_by(stand(command))
}

/// Runs a guard to its end.
pub(crate) fn stand_by(watch: impl Future<Output = Result<()>>) -> Exit {
    // Before the guard asks for the real-time class: the writer thread has no deadline.
    let _written_at_the_end = log::start();
    let runtime = match crate::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return cannot_work(&error),
    };
    let done = catch_unwind(AssertUnwindSafe(|| runtime.block_on(watch)));
    if done.is_err() {
        // The panic itself is in the log. The commands must not outlive their guard; the lease is left to its time.
        let end = async {
            let mut orphans = Orphans::new();
            while let Some(failure) = orphans.end().await {
                log::unprefixed(&failure);
            }
        };
        let clock = Clock::boot();
        runtime.block_on(async {
            tokio::select! {
                () = end => {}
                () = clock.sleep(AFTER_PANIC) => {}
            }
        });
    }
    // A release that hangs in a file system must not keep us here.
    runtime.shutdown_background();
    match done {
        Ok(Ok(())) => Exit::Done,
        Ok(Err(error)) => cannot_work(&error),
        Err(_) => Exit::Operator,
    }
}

fn cannot_work(error: &Error) -> Exit {
    log::unprefixed(&format!("the guard cannot work: {error}"));
    Exit::Operator
}

/// What every guard does first. The line to the leader.
fn take_post(starter: &str) -> Result<GuardSocket> {
    // Out of reach of the terminal: Ctrl-Z would stop us beside a command that runs on.
    let _ = setsid();
    let _ = rustix::thread::set_name(c"tenure-guard");
    realtime::hurry();
    // Whoever ends a whole control group means the command; we see it end and report.
    signals::be_deaf()?;
    // A guard that is stopped (SIGSTOP) goes on when the leader dies. Should that be dead already, `Leader::of` sees it.
    set_parent_process_death_signal(Some(Signal::CONT))
        .map_err(|error| cannot("be told of the leader's death", &error.into()))?;
    adopt_orphans().map_err(|error| cannot("adopt orphans", &error))?;
    inherited_line(starter)
}

async fn stand(command: &[OsString]) -> Result<()> {
    let line = take_post("tenure run")?;
    let deaths = deaths().map_err(|error| cannot("watch over children", &error))?;
    let Some((setup, files)) = line.receive_with_files::<GuardSetup>().await else {
        // The leader died before it could say what there is to guard.
        return Ok(());
    };
    let leader = LeaderProcess::of(setup.leader)?;
    let hold = setup.hold()?;
    let mut files = files.into_iter();
    let (stdin, live) = (files.next(), files.next());
    let candidate = hold.candidate.clone();
    let leader_line =
        LeaderLine { line, log: setup.log, candidate, outbox: VecDeque::new(), received: None };
    // A leader that is gone starts nothing any more. If it ended normally, it has dismissed us; else its lease is released.
    if command.is_empty() || leader.was_gone() {
        let giving_back = Releaser::prepare(setup.store.clone(), hold.name.clone());
        let done = GuardLoop { ended: "", leader_line, leader, setup, hold, giving_back, deaths }
            .give_back(None)
            .await;
        drop(live);
        return done;
    }
    let stop_within = Duration::from_millis(setup.stop_within_ms);
    let mut fuse = KillSchedule::new(setup.deadline(), stop_within);
    let started = match (proc_mount::check(), fuse.due(Clock::boot().now())) {
        (Err(error), _) => Err(io::Error::other(error)),
        // We or the leader did not run for a while.
        (Ok(()), Some(_)) => Err(io::Error::other("the term is over already")),
        (Ok(()), None) => match live.as_ref().map(OwnedFd::try_clone).transpose() {
            Ok(inherited) => {
                let prepared = prepare(command, stdin, |command| {
                    child_env::of(command, &hold.name, &hold.candidate, Some(hold.token));
                });
                start_in_time(prepared, inherited, &leader, &fuse).await
            }
            Err(error) => Err(error),
        },
    };
    // Only now: the command does not wait for the store.
    let giving_back = Releaser::prepare(setup.store.clone(), hold.name.clone());
    let ended = if started.is_ok() { "ended the command and " } else { "" };
    let mut watch = GuardLoop { ended, leader_line, leader, setup, hold, giving_back, deaths };
    let done = match started {
        Ok(main) => watch.keep(main, fuse).await,
        Err(error) => {
            watch.leader_line.queue(&GuardReport::Failed(error.to_string()));
            watch.give_back(None).await
        }
    };
    // Until now the lease is not free by the leader's death alone.
    drop(live);
    done
}

struct GuardLoop {
    /// What there was to end, for the log.
    ended: &'static str,
    leader_line: LeaderLine,
    leader: LeaderProcess,
    setup: GuardSetup,
    hold: Hold,
    giving_back: Releaser,
    deaths: tokio::signal::unix::Signal,
}

impl GuardLoop {
    async fn keep(mut self, main: Pid, mut fuse: KillSchedule) -> Result<()> {
        let mut tree = ProcessTree::alone(main);
        let death = self.leader.death();
        let CommandExit { ended, told } =
            oversee(&mut tree, &mut fuse, &mut self.deaths, &mut self.leader_line, death).await;
        // Nothing of the command is left from here on.
        self.leader_line.queue(&GuardReport::Gone { ended, told });
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
                dismissed = self.leader_line.hung_up() => {
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
                        // Nobody could ever lead before it goes on. Its death costs nothing but a restart.
                        let then = match self.leader.kill() {
                            Ok(()) => "killed it".to_owned(),
                            Err(error) => format!("could not kill it: {error}"),
                        };
                        self.say(&format!("{what} in the middle of a change"), &then);
                    }
                }
            }
        }
        // What the leader sent last may not be read yet.
        if self.leader_line.was_dismissed() {
            return Ok(());
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
            let _ = realtime::former().map(realtime::calm);
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
        log::warn(self.setup.log, &self.hold.candidate, &text);
    }
}

/// The same lease in hands that never held it: to give this back changes nothing, and waits for whoever is changing it.
fn nobodys(hold: &Hold) -> Hold {
    Hold { nonce: Nonce::random(), ..hold.clone() }
}

/// A command in a group of its own, to be started by way of [`child`].
fn prepare(
    command: &[OsString],
    stdin: Option<OwnedFd>,
    environment: impl FnOnce(&mut Command),
) -> Command {
    let mut prepared = Command::new(OURSELVES);
    let former = realtime::former().map(|class| class.to_string()).unwrap_or_default();
    let guard = format!("{}:{former}", std::process::id());
    prepared.arg0("tenure").arg(CHILD).arg(guard).args(command);
    environment(&mut prepared);
    prepared.stdin(stdin.map_or_else(Stdio::null, Stdio::from)).process_group(0);
    prepared
}

/// Starts what was prepared. The file is open in it and in whatever it starts: the lease is not free by our death as long as
/// anything of the command has it open.
fn spawn(prepared: &mut Command, inherited: Option<OwnedFd>) -> io::Result<Pid> {
    if let Some(file) = &inherited {
        fcntl_setfd(file.as_fd(), FdFlags::empty())?;
    }
    let child = prepared.spawn()?;
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the command has no process number"))
}

/// Starts the command unless the leader dies or its time comes first: then it is killed, however far its start has come.
async fn start_in_time(
    prepared: Command,
    inherited: Option<OwnedFd>,
    leader: &LeaderProcess,
    fuse: &KillSchedule,
) -> io::Result<Pid> {
    let clock = Clock::boot();
    let (reply, mut started) = oneshot::channel();
    Starter::launch()?.start(prepared, inherited, |started| _ = reply.send(started));
    tokio::select! {
        biased;
        started = &mut started => return started.unwrap_or_else(|_| Err(start_aborted())),
        () = leader.death() => {}
        () = clock.sleep_until(fuse.burns_until()) => {}
    }
    // Before the thread has answered there may be nothing to kill yet.
    let mut orphans = Orphans::new();
    let mut answered = false;
    loop {
        while let Some(failure) = orphans.end().await {
            log::unprefixed(&failure);
        }
        if answered {
            return Err(start_aborted());
        }
        tokio::select! {
            _ = &mut started => answered = true,
            () = clock.sleep(command_loop::AT_LAST) => {}
        }
    }
}

fn start_aborted() -> io::Error {
    io::Error::other("the command was not started in time")
}

/// The guard's end of the line to the leader: receives orders, and sends reports when there is room for them.
struct LeaderLine {
    line: GuardSocket,
    log: Log,
    candidate: CandidateId,
    outbox: VecDeque<Vec<u8>>,
    /// The number of the last deadline that was received and is not acknowledged yet.
    received: Option<u64>,
}

impl LeaderLine {
    fn queue(&mut self, report: &GuardReport) {
        // Every report can be written as JSON.
        self.outbox.extend(serde_json::to_vec(report));
    }

    /// Returns when there is nothing more to do for the leader; whether it said so.
    async fn hung_up(&mut self) -> bool {
        while let Some(order) = self.next().await {
            if order == GuardOrder::Dismissed {
                return true;
            }
        }
        false
    }

    /// Whether the leader, which is dead, has dismissed us: everything it ever sent has arrived.
    fn was_dismissed(&mut self) -> bool {
        while let Some(Some((order, _))) = self.line.take::<GuardOrder>() {
            if order == GuardOrder::Dismissed {
                return true;
            }
        }
        false
    }
}

impl OrderSource for LeaderLine {
    async fn next(&mut self) -> Option<GuardOrder> {
        loop {
            // Only now: the caller asks for the next order when it has carried out the last. One acknowledgement covers many.
            if self.outbox.is_empty()
                && let Some(number) = self.received.take()
            {
                self.queue(&GuardReport::Acknowledged(number));
            }
            tokio::select! {
                biased;
                order = self.line.receive::<GuardOrder>() => {
                    if let Some(GuardOrder::Deadline { number, .. }) = order {
                        self.received = Some(number);
                    }
                    return order;
                }
                sent = self.line.pass(self.outbox.front().map_or(&[], Vec::as_slice), &[]),
                    if !self.outbox.is_empty() =>
                {
                    self.outbox.pop_front();
                    if sent.is_err() {
                        // The leader is gone.
                        self.outbox.clear();
                    }
                }
            }
        }
    }

    fn cannot_kill(&mut self, failure: String) {
        log::error(self.log, &self.candidate, &failure);
        self.queue(&GuardReport::CannotKill(failure));
    }
}

/// Returns at the deadline; never after a refusal, when there is nothing to give back, and a leader that has told us so.
async fn believed_no_more(clock: &Clock, deadline: Moment) {
    match deadline {
        Moment::NEVER => std::future::pending().await,
        deadline => clock.sleep_until(deadline).await,
    }
}

fn inherited_line(starter: &str) -> Result<GuardSocket> {
    if socket_type(io::stdin()).is_err() {
        return Err(Error::invalid(format!("it is started by '{starter}', and by nobody else")));
    }
    let socket = io::stdin().as_fd().try_clone_to_owned();
    socket.and_then(GuardSocket::over).map_err(|error| cannot("use the line to the leader", &error))
}

/// The process that has locked what we want to give back.
fn stuck_in_the_way(error: &Error) -> Option<u32> {
    std::error::Error::source(error)?.downcast_ref::<LockHolder>()?.by
}

fn cannot(what: &str, error: &io::Error) -> Error {
    Error::denied(format!("cannot {what}: {error}"))
}
