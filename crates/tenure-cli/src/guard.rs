//! The guard: the small process between the leader and its command.
//!
//! ```text
//! leader ──► guard ──► command, and every process that it starts
//! ```
//!
//! The guard kills the command when the leader is dead or out of time, and confirms that no process of it is left: so no other
//! candidate leads while the command keeps running. It releases the lease of a dead leader: so another candidate leads in
//! milliseconds instead of a TTL. The guard is the leader's own program, started again, so that both have the same version. Its
//! configuration comes over a socket pair, never by argument or environment.
//!
//! Without a command (work on a schedule between two runs, polls over HTTP) the guard only waits for the leader's death.

// A guard that blocks on stderr, or is killed by it, kills too late or not at all: it logs through `log`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod command_check;
mod command_loop;
mod exec;
mod fleet;
mod hook;
mod kill_errors;
mod kill_schedule;
mod leader_process;
mod log;
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
use tenure::{CandidateId, Clock, Error, Hold, Moment, Nonce, Result};
use tokio::sync::oneshot;

pub(crate) use command_check::{changes_user, check as check_program, refused};
pub use command_loop::deaths;
pub(crate) use command_loop::{CommandExit, OrderSource, spawn_with_cleanup, watch_command};
pub use exec::run as run_child;
pub use fleet::run as run_many;
pub use fleet::{GuardClient, GuardClientConfig, GuardEvent, Reports};
pub(crate) use hook::Hook;
pub(crate) use kill_schedule::{KillSchedule, reserve};
pub use log::Log;
pub(crate) use process_tree::{Orphans, ProcessTree, SparedProcess, ended_orphans, reap};
pub use process_tree::{ProcessExit, adopt_orphans, reap_orphans};
pub use protocol::GuardReport;
pub(crate) use protocol::{GuardOrder, GuardSetup, GuardSocket, async_fd, socket_pair};
pub(crate) use watchdog::{GUARD_REACTION_TIME, Watchdog};

use leader_process::LeaderProcess;
use release::Releaser;
use starter::Starter;

use crate::child_env;
use crate::exit::Exit;
use crate::signals;

/// The hidden subcommands by which Tenure starts itself in another role.
pub const GUARD: &str = "guard";
pub const CHILD: &str = "guard-child";
pub const MANY: &str = "guard-many";

/// This program, also when the file it was started from has been replaced since.
pub(crate) const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// How long after the socket was closed the guard waits for the leader's death: the close is observed a moment before the death
/// that caused it.
const DEATH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the guard tries to kill the descendants of its commands after a panic. A leader that is alive then continues.
const PANIC_KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// `tenure guard [CMD ARG…]`, started by `tenure run`.
pub(crate) fn run(command: &[OsString]) -> Exit {
    run_guard(guard_command(command))
}

/// Runs a guard until `guard_loop` has ended, and returns the exit code of its process.
pub fn run_guard(guard_loop: impl Future<Output = Result<()>>) -> Exit {
    // Before the guard requests the real-time class: the writer thread has no deadline.
    let _written_at_the_end = log::start();
    let runtime = match crate::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return cannot_work(&error),
    };
    let done = catch_unwind(AssertUnwindSafe(|| runtime.block_on(guard_loop)));
    if done.is_err() {
        // The panic itself is in the log. The commands must not outlive their guard; the lease is left to expire.
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
                () = clock.sleep(PANIC_KILL_TIMEOUT) => {}
            }
        });
    }
    // A release that hangs in a file system must not keep this process alive.
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

/// Sets up this process as a guard. Returns the socket to the leader.
fn set_up_guard(starter: &str) -> Result<GuardSocket> {
    // A session of its own: otherwise Ctrl-Z would stop the guard while the command keeps running.
    let _ = setsid();
    let _ = rustix::thread::set_name(c"tenure-guard");
    realtime::request_class();
    // A signal to a whole control group is meant for the command; the guard observes its end and reports it.
    signals::catch_and_ignore()?;
    // A guard that is stopped (SIGSTOP) continues when the leader dies. If the leader is dead already, `LeaderProcess::of`
    // detects it.
    set_parent_process_death_signal(Some(Signal::CONT))
        .map_err(|error| cannot("be told of the leader's death", &error.into()))?;
    adopt_orphans().map_err(|error| cannot("adopt orphans", &error))?;
    inherited_socket(starter)
}

async fn guard_command(command: &[OsString]) -> Result<()> {
    let socket = set_up_guard("tenure run")?;
    let deaths = deaths().map_err(|error| cannot("watch over children", &error))?;
    let Some((setup, files)) = socket.receive_with_files::<GuardSetup>().await else {
        // The leader died before it could send the configuration.
        return Ok(());
    };
    let leader = LeaderProcess::of(setup.leader)?;
    let hold = setup.hold()?;
    let mut files = files.into_iter();
    let (stdin, live) = (files.next(), files.next());
    let candidate = hold.candidate.clone();
    let leader_socket =
        LeaderSocket { socket, log: setup.log, candidate, outbox: VecDeque::new(), received: None };
    // A leader that is gone starts nothing any more. If it ended normally, it has dismissed this guard; otherwise the guard
    // releases its lease.
    if command.is_empty() || leader.was_gone() {
        let releaser = Releaser::prepare(setup.store.clone(), hold.name.clone());
        let done = GuardLoop { ended: "", leader_socket, leader, setup, hold, releaser, deaths }
            .release_after_death(None)
            .await;
        drop(live);
        return done;
    }
    let stop_within = Duration::from_millis(setup.stop_within_ms);
    let mut schedule = KillSchedule::new(setup.deadline(), stop_within);
    let started = match (proc_mount::check(), schedule.due(Clock::boot().now())) {
        (Err(error), _) => Err(io::Error::other(error)),
        // This process or the leader did not run for a while.
        (Ok(()), Some(_)) => Err(io::Error::other("the term is over already")),
        (Ok(()), None) => match live.as_ref().map(OwnedFd::try_clone).transpose() {
            Ok(inherited) => {
                let prepared = prepare(command, stdin, |command| {
                    child_env::set(command, &hold.name, &hold.candidate, Some(hold.token));
                });
                start_in_time(prepared, inherited, &leader, &schedule).await
            }
            Err(error) => Err(error),
        },
    };
    // Only after the command was started: it does not wait for the store.
    let releaser = Releaser::prepare(setup.store.clone(), hold.name.clone());
    let ended = if started.is_ok() { "ended the command and " } else { "" };
    let mut guard_loop = GuardLoop { ended, leader_socket, leader, setup, hold, releaser, deaths };
    let done = match started {
        Ok(main) => guard_loop.run(main, schedule).await,
        Err(error) => {
            guard_loop.leader_socket.queue(&GuardReport::Failed(error.to_string()));
            guard_loop.release_after_death(None).await
        }
    };
    // Until this file is closed, the leader's death alone does not free the lease.
    drop(live);
    done
}

/// The guard of one lease, with or without a command.
struct GuardLoop {
    /// What the guard has ended, for the log.
    ended: &'static str,
    leader_socket: LeaderSocket,
    leader: LeaderProcess,
    setup: GuardSetup,
    hold: Hold,
    releaser: Releaser,
    deaths: tokio::signal::unix::Signal,
}

impl GuardLoop {
    async fn run(mut self, main: Pid, mut schedule: KillSchedule) -> Result<()> {
        let mut tree = ProcessTree::alone(main);
        let death = self.leader.death();
        let CommandExit { ended, asked_to_stop } = watch_command(
            &mut tree,
            &mut schedule,
            &mut self.deaths,
            &mut self.leader_socket,
            death,
        )
        .await;
        // No process of the command is left from here on.
        self.leader_socket.queue(&GuardReport::Gone { ended, asked_to_stop });
        self.release_after_death(Some(schedule.deadline())).await
    }

    /// Waits for the leader's death, and releases the lease then. Never while the leader lives, however long it is frozen: a
    /// renewal that the guard knows nothing about may be in flight, and a leader that resumes relies on it.
    async fn release_after_death(mut self, deadline: Option<Moment>) -> Result<()> {
        let clock = Clock::boot();
        let mut frozen = false;
        loop {
            tokio::select! {
                biased;
                dismissed = self.leader_socket.closed() => {
                    let followed = async {
                        tokio::select! {
                            () = self.leader.death() => true,
                            () = clock.sleep(DEATH_TIMEOUT) => false,
                        }
                    };
                    // A leader that closed the socket and lives has its own reasons, and releases its lease itself.
                    if dismissed || !followed.await {
                        return Ok(());
                    }
                    break;
                }
                () = self.leader.death() => break,
                () = deadline_passed(&clock, deadline), if !frozen => {
                    frozen = true;
                    self.on_lose().await;
                    let what = "the leader's process is frozen";
                    self.warn(what, "left the lease to run out by itself");
                    if self.is_locked_by_leader().await {
                        // No other candidate could lead before the leader resumes. Killing it costs nothing but a restart.
                        let then = match self.leader.kill() {
                            Ok(()) => "killed it".to_owned(),
                            Err(error) => format!("could not kill it: {error}"),
                        };
                        self.warn(&format!("{what} in the middle of a change"), &then);
                    }
                }
            }
        }
        // The leader's last messages may not be read yet.
        if self.leader_socket.was_dismissed() {
            return Ok(());
        }
        if !frozen {
            self.on_lose().await;
        }
        let outcome = self.releaser.release(vec![self.hold.clone()]).await;
        let then = match outcome {
            Ok(()) => "released the lease".to_owned(),
            Err(failed) => {
                format!("could not release the lease, which runs out by itself: {}", failed.error)
            }
        };
        self.warn("the leader's process died", &then);
        Ok(())
    }

    /// Runs the `--on-lose` hook, in place of a leader that cannot.
    async fn on_lose(&self) {
        if let Some(on_lose) = &self.setup.on_lose {
            // Nothing is left to kill, and the hook needs no real-time class.
            let _ = realtime::former_class().map(realtime::restore_class);
            let hold = &self.hold;
            Hook::new(on_lose, &hold.name, &hold.candidate, Some(hold.token)).run().await;
        }
    }

    /// Whether the leader was frozen in the middle of a change and holds the store's lock, so that no other candidate can make
    /// one.
    async fn is_locked_by_leader(&mut self) -> bool {
        let probed = self.releaser.release(vec![hold_with_new_nonce(&self.hold)]).await;
        let lock_holder_pid = probed.err().and_then(|failed| lock_holder(&failed.error));
        lock_holder_pid.is_some() && lock_holder_pid == u32::try_from(self.setup.leader).ok()
    }

    fn warn(&self, what: &str, then: &str) {
        let text = format!("{what}: {}{then}", self.ended);
        log::warn(self.setup.log, &self.hold.candidate, &text);
    }
}

/// A hold on the same lease with a nonce that never held it. To release it changes nothing, and waits for the process that is
/// changing the lease.
fn hold_with_new_nonce(hold: &Hold) -> Hold {
    Hold::new(hold.name.clone(), hold.candidate.clone(), Nonce::random(), hold.token)
}

/// A command in its own process group, to be started by way of [`exec`].
fn prepare(
    command: &[OsString],
    stdin: Option<OwnedFd>,
    environment: impl FnOnce(&mut Command),
) -> Command {
    let mut prepared = Command::new(OWN_EXECUTABLE);
    let former = realtime::former_class().map(|class| class.to_string()).unwrap_or_default();
    let guard = format!("{}:{former}", std::process::id());
    prepared.arg0("tenure").arg(CHILD).arg(guard).args(command);
    environment(&mut prepared);
    prepared.stdin(stdin.map_or_else(Stdio::null, Stdio::from)).process_group(0);
    prepared
}

/// Starts a prepared command. The command and all its descendants inherit the file `inherited`: the guard's death does not free
/// the lease while any of them has it open.
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

/// Starts the command unless the leader dies or its deadline comes first: then the command is killed, however far its start has
/// come.
async fn start_in_time(
    prepared: Command,
    inherited: Option<OwnedFd>,
    leader: &LeaderProcess,
    schedule: &KillSchedule,
) -> io::Result<Pid> {
    let clock = Clock::boot();
    let (reply, mut started) = oneshot::channel();
    Starter::launch()?.start(prepared, inherited, |started| _ = reply.send(started));
    tokio::select! {
        biased;
        started = &mut started => return started.unwrap_or_else(|_| Err(start_aborted())),
        () = leader.death() => {}
        () = clock.sleep_until(schedule.next_due_at()) => {}
    }
    // Before the thread has answered, the process to kill may not exist yet.
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
            () = clock.sleep(command_loop::MAX_POLL_INTERVAL) => {}
        }
    }
}

fn start_aborted() -> io::Error {
    io::Error::other("the command was not started in time")
}

/// The guard's end of the socket to the leader: receives orders, and sends reports when there is room for them.
struct LeaderSocket {
    socket: GuardSocket,
    log: Log,
    candidate: CandidateId,
    outbox: VecDeque<Vec<u8>>,
    /// The number of the last deadline that was received and is not acknowledged yet.
    received: Option<u64>,
}

impl LeaderSocket {
    fn queue(&mut self, report: &GuardReport) {
        // Every report can be written as JSON.
        self.outbox.extend(serde_json::to_vec(report));
    }

    /// Returns when the leader needs the guard no more: `true` if it dismissed the guard, `false` if the socket was closed.
    async fn closed(&mut self) -> bool {
        while let Some(order) = self.next().await {
            if order == GuardOrder::Dismissed {
                return true;
            }
        }
        false
    }

    /// Whether the leader, which is dead, has dismissed the guard: everything it ever sent has arrived.
    fn was_dismissed(&mut self) -> bool {
        while let Some(Some((order, _))) = self.socket.take::<GuardOrder>() {
            if order == GuardOrder::Dismissed {
                return true;
            }
        }
        false
    }
}

impl OrderSource for LeaderSocket {
    async fn next(&mut self) -> Option<GuardOrder> {
        loop {
            // Acknowledged only now: the caller requests the next order when it has carried out the last. One acknowledgement
            // covers many.
            if self.outbox.is_empty()
                && let Some(number) = self.received.take()
            {
                self.queue(&GuardReport::Acknowledged(number));
            }
            tokio::select! {
                biased;
                order = self.socket.receive::<GuardOrder>() => {
                    if let Some(GuardOrder::Deadline { number, .. }) = order {
                        self.received = Some(number);
                    }
                    return order;
                }
                sent = self.socket.send_when_writable(self.outbox.front().map_or(&[], Vec::as_slice), &[]),
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

/// Returns at the deadline. Never returns while no deadline is known, nor after a refused renewal ([`Moment::PAST`]): there is
/// nothing to release, and the leader that reported the refusal was not frozen.
async fn deadline_passed(clock: &Clock, deadline: Option<Moment>) {
    match deadline {
        None | Some(Moment::PAST) => std::future::pending().await,
        Some(deadline) => clock.sleep_until(deadline).await,
    }
}

fn inherited_socket(starter: &str) -> Result<GuardSocket> {
    if socket_type(io::stdin()).is_err() {
        return Err(Error::invalid(format!("only '{starter}' may start it")));
    }
    let socket = io::stdin().as_fd().try_clone_to_owned();
    socket.and_then(GuardSocket::over).map_err(|error| cannot("use the line to the leader", &error))
}

/// The process that kept a lease from being released, if the store knows it.
fn lock_holder(error: &Error) -> Option<u32> {
    error.blocked_by()?.pid
}

fn cannot(what: &str, error: &io::Error) -> Error {
    Error::denied(format!("cannot {what}: {error}"))
}
