//! The running command of one term: behind a guard, or with `--no-guard` a child of this process.
//!
//! The term supervisor sends [`GuardOrder`]s and receives [`CommandEvent`]s; both forms behave the same towards it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use tenure::{Clock, Moment, Store};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::child_env;
use crate::guard::{
    self, CommandExit, GuardOrder, GuardReport, GuardSetup, GuardSocket, KillSchedule, Log,
    OrderSource, Orphans, ProcessTree, SparedProcess, Watchdog, socket_pair,
};
use crate::permit::Permit;

/// The settings with which the command is started in each term.
#[derive(Clone)]
pub(super) struct CommandConfig {
    pub(super) command: Vec<OsString>,
    /// The store's URL, including its password if it has one.
    pub(super) store_url: String,
    pub(super) stop_within: Duration,
    pub(super) on_lose: Option<String>,
    pub(super) log: Log,
    pub(super) guarded: bool,
}

/// How a command ended.
#[derive(Debug)]
pub(super) enum CommandEnd {
    /// No process of the command is left.
    Gone(CommandExit),
    /// The command was never started; the reason.
    Failed(String),
    /// The guard died, or with `--no-guard` the task that supervised the command. The processes that were left have been
    /// killed.
    Unguarded,
}

/// An event of a running command.
#[derive(Debug)]
pub(super) enum CommandEvent {
    Ended(CommandEnd),
    /// A process of the command could not be killed and keeps running; names the process and the error.
    CannotKill(String),
}

/// A running command.
#[allow(clippy::large_enum_variant)] // Only one value exists at a time.
pub(super) enum RunningCommand {
    Guarded(GuardConnection),
    Bare {
        orders: mpsc::UnboundedSender<GuardOrder>,
        failures: mpsc::UnboundedReceiver<String>,
        task: JoinHandle<Option<CommandExit>>,
    },
}

/// The connection to a guard and to the command behind it.
pub(super) struct GuardConnection {
    socket: GuardSocket,
    guard: tokio::process::Child,
    spared: SparedProcess,
    watchdog: Watchdog,
    /// Reports that were received and not returned yet; `None` is the end of the connection.
    received: VecDeque<Option<GuardReport>>,
    /// Set when the guard is dead or dying: its processes become children of this process, which kills them.
    orphans: Option<Orphans>,
}

impl RunningCommand {
    pub(super) fn start(
        config: &CommandConfig,
        permit: Permit<'_>,
        store: &dyn Store,
    ) -> io::Result<RunningCommand> {
        match config.guarded {
            true => guarded(config, &permit, store).map(RunningCommand::Guarded),
            false => bare(config, &permit),
        }
    }

    /// Sends an order without waiting. A guard that does not accept it is treated as dead.
    pub(super) fn order(&mut self, order: GuardOrder) {
        match self {
            RunningCommand::Guarded(GuardConnection { socket, .. }) => {
                if socket.send(&order, &[]).is_err() {
                    self.abandon();
                }
            }
            // A command that has ended needs no orders.
            RunningCommand::Bare { orders, .. } => _ = orders.send(order),
        }
    }

    /// Tells the guard that the lease is held until `deadline`.
    pub(super) fn extend(&mut self, deadline: Moment) {
        let number = match self {
            RunningCommand::Guarded(guarded) => {
                guarded.watchdog.send(Clock::boot().now(), deadline)
            }
            RunningCommand::Bare { .. } => 0,
        };
        self.order(GuardOrder::Deadline { nanos: deadline.as_nanos(), number });
    }

    /// When the guard counts as dead unless it acknowledges before. `None` if it is dead already.
    pub(super) fn expires_at(&self) -> Option<Moment> {
        match self {
            RunningCommand::Guarded(guarded) if guarded.orphans.is_none() => {
                guarded.watchdog.expires_at()
            }
            RunningCommand::Guarded(_) | RunningCommand::Bare { .. } => None,
        }
    }

    /// Reads what the guard has sent and returns whether no report is waiting for [`RunningCommand::next`]. After a freeze of
    /// this process an acknowledgement may be in the socket before the runtime knows of it.
    pub(super) fn has_no_report(&mut self) -> bool {
        match self {
            RunningCommand::Guarded(guarded) => guarded.has_no_report(),
            RunningCommand::Bare { .. } => true,
        }
    }

    /// Kills a guard that does not do its duty. Its processes then become children of this process.
    pub(super) fn abandon(&mut self) {
        if let RunningCommand::Guarded(GuardConnection { guard, .. }) = self {
            // A guard that has already ended needs no signal.
            let _ = guard.start_kill();
        }
    }

    /// Returns the next event. After [`CommandEvent::Ended`] no process of the command is left.
    ///
    /// # Cancellation
    /// Safe: a dropped call loses no event.
    pub(super) async fn next(&mut self) -> CommandEvent {
        match self {
            RunningCommand::Guarded(guarded) => guarded.next().await,
            RunningCommand::Bare { failures, task, .. } => tokio::select! {
                biased;
                Some(failure) = failures.recv() => CommandEvent::CannotKill(failure),
                outcome = task => CommandEvent::Ended(match outcome {
                    Ok(Some(outcome)) => CommandEnd::Gone(outcome),
                    Ok(None) | Err(_) => CommandEnd::Unguarded,
                }),
            },
        }
    }

    /// Tells the guard that it has nothing more to do, so that it ends. The release of the lease does not wait for that.
    pub(super) fn dismiss(self) {
        if let RunningCommand::Guarded(GuardConnection { socket, mut guard, spared, .. }) = self {
            let _ = socket.send(&GuardOrder::Dismissed, &[]);
            tokio::spawn(async move {
                let _ = guard.wait().await;
                drop((spared, socket));
            });
        }
    }
}

impl GuardConnection {
    fn has_no_report(&mut self) -> bool {
        while self.orphans.is_none()
            && let Some(message) = self.socket.take()
        {
            match message.map(|(report, _)| report) {
                Some(GuardReport::Acknowledged(number)) => self.watchdog.acknowledged(number),
                Some(report) => self.received.push_back(Some(report)),
                None => {
                    self.received.push_back(None);
                    break;
                }
            }
        }
        self.received.is_empty()
    }

    async fn next(&mut self) -> CommandEvent {
        while self.orphans.is_none() {
            let report = match self.received.pop_front() {
                Some(report) => report,
                None => self.socket.receive().await,
            };
            match report {
                Some(GuardReport::Gone { ended, asked_to_stop }) => {
                    return CommandEvent::Ended(CommandEnd::Gone(CommandExit {
                        ended,
                        asked_to_stop,
                    }));
                }
                Some(GuardReport::Failed(reason)) => {
                    return CommandEvent::Ended(CommandEnd::Failed(reason));
                }
                Some(GuardReport::CannotKill(failure)) => return CommandEvent::CannotKill(failure),
                Some(GuardReport::Acknowledged(number)) => self.watchdog.acknowledged(number),
                None => {
                    // A guard that has already ended needs no signal.
                    let _ = self.guard.start_kill();
                    self.orphans = Some(Orphans::new());
                }
            }
        }
        let _ = self.guard.wait().await;
        match self.orphans.get_or_insert_with(Orphans::new).end().await {
            Some(failure) => CommandEvent::CannotKill(failure),
            None => CommandEvent::Ended(CommandEnd::Unguarded),
        }
    }
}

fn guarded(
    config: &CommandConfig,
    permit: &Permit<'_>,
    store: &dyn Store,
) -> io::Result<GuardConnection> {
    let (socket, guard_end) = socket_pair()?;
    let mut command = Command::new(guard::OWN_EXECUTABLE);
    command.arg0("tenure").arg(guard::GUARD).args(&config.command);
    child_env::clear(&mut command);
    command.stdin(Stdio::from(guard_end));
    let guard = tokio::process::Command::from(command).spawn()?;
    let spared = SparedProcess::new(checked_pid(guard.id())?);
    let stop_within_ms = u64::try_from(config.stop_within.as_millis()).unwrap_or(u64::MAX);
    let deadline = permit.deadline();
    let mut setup = GuardSetup::new(&config.store_url, permit.hold(), deadline, stop_within_ms);
    setup.on_lose.clone_from(&config.on_lose);
    setup.log = config.log;
    let stdin = io::stdin();
    let mut files = vec![stdin.as_fd()];
    files.extend(store.liveness());
    socket.send(&setup, &files)?;
    let watchdog = Watchdog::new(config.stop_within);
    let received = VecDeque::new();
    Ok(GuardConnection { socket, guard, spared, watchdog, received, orphans: None })
}

fn bare(config: &CommandConfig, permit: &Permit<'_>) -> io::Result<RunningCommand> {
    let [program, args @ ..] = &*config.command else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let hold = permit.hold();
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    child_env::set(&mut command, &hold.name, &hold.candidate, Some(hold.token));
    let mut deaths = guard::deaths()?;
    let main = checked_pid(Some(command.spawn()?.id()))?;
    // Only the command's own process tree reaps it, not the task that reaps adopted orphans.
    let spared = SparedProcess::new(main);
    let (orders, inbox) = mpsc::unbounded_channel();
    let (report, failures) = mpsc::unbounded_channel();
    let mut kill_schedule = KillSchedule::new(permit.deadline(), config.stop_within);
    let cannot_kill = report.clone();
    let supervision = async move {
        let mut tree = ProcessTree::with_spared_children(main);
        let mut inbox = Inbox { orders: inbox, failures: report };
        let never = std::future::pending();
        let outcome =
            guard::watch_command(&mut tree, &mut kill_schedule, &mut deaths, &mut inbox, never)
                .await;
        drop(spared);
        outcome
    };
    let task = guard::spawn_with_cleanup(supervision, move |failure| _ = cannot_kill.send(failure));
    Ok(RunningCommand::Bare { orders, failures, task })
}

struct Inbox {
    orders: mpsc::UnboundedReceiver<GuardOrder>,
    failures: mpsc::UnboundedSender<String>,
}

impl OrderSource for Inbox {
    async fn next(&mut self) -> Option<GuardOrder> {
        self.orders.recv().await
    }

    fn cannot_kill(&mut self, failure: String) {
        let _ = self.failures.send(failure);
    }
}

fn checked_pid(id: Option<u32>) -> io::Result<Pid> {
    let pid = id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the process has no number"))
}
