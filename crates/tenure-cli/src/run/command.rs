//! The command of one term, as the leader sees it: behind a guard, or, with `--no-guard`, its own child.

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
    OrderSource, Orphans, ProcessTree, SparedProcess, Watchdog, line,
};
use crate::permit::Permit;

/// How the command is started in each term.
#[derive(Clone)]
pub(super) struct CommandConfig {
    pub(super) command: Vec<OsString>,
    /// The store's URL, with its password if it has one.
    pub(super) store_url: String,
    pub(super) stop_within: Duration,
    pub(super) on_lose: Option<String>,
    pub(super) log: Log,
    pub(super) guarded: bool,
}

/// What became of it.
#[derive(Debug)]
pub(super) enum CommandEnd {
    /// Nothing of it is left.
    Gone(CommandExit),
    /// It was never started.
    Failed(String),
    /// The guard is dead, or without one the task that oversaw the command: what it left has been ended.
    Unguarded,
}

/// What happens to a command that runs.
#[derive(Debug)]
pub(super) enum CommandEvent {
    Ended(CommandEnd),
    /// A process of it could not be killed, and runs on; which and why.
    CannotKill(String),
}

/// A command that runs.
#[allow(clippy::large_enum_variant)] // There is one of it.
pub(super) enum RunningCommand {
    Guarded(GuardConnection),
    Bare {
        orders: mpsc::UnboundedSender<GuardOrder>,
        failures: mpsc::UnboundedReceiver<String>,
        task: JoinHandle<Option<CommandExit>>,
    },
}

/// A command behind a guard.
pub(super) struct GuardConnection {
    line: GuardSocket,
    guard: tokio::process::Child,
    spared: SparedProcess,
    watchdog: Watchdog,
    /// Reports that were received and not returned yet; `None` is the end of the line.
    received: VecDeque<Option<GuardReport>>,
    /// The guard is dead or dying: its tree comes to us, and ends here.
    orphans: Option<Orphans>,
}

impl RunningCommand {
    pub(super) fn start(
        recipe: &CommandConfig,
        permit: Permit<'_>,
        store: &dyn Store,
    ) -> io::Result<RunningCommand> {
        match recipe.guarded {
            true => guarded(recipe, &permit, store).map(RunningCommand::Guarded),
            false => bare(recipe, &permit),
        }
    }

    /// Passes it on without waiting. Whoever does not take it is as good as dead.
    pub(super) fn order(&mut self, order: GuardOrder) {
        match self {
            RunningCommand::Guarded(GuardConnection { line, .. }) => {
                if line.send(&order, &[]).is_err() {
                    self.abandon();
                }
            }
            // One that has ended needs no orders.
            RunningCommand::Bare { orders, .. } => _ = orders.send(order),
        }
    }

    /// The lease is held until `deadline`.
    pub(super) fn extend(&mut self, deadline: Moment) {
        let number = match self {
            RunningCommand::Guarded(guarded) => {
                guarded.watchdog.send(Clock::boot().now(), deadline)
            }
            RunningCommand::Bare { .. } => 0,
        };
        self.order(GuardOrder::Deadline { nanos: deadline.as_nanos(), number });
    }

    /// When the guard counts as dead, unless it answers before. `None` if it is dead already.
    pub(super) fn expires_at(&self) -> Option<Moment> {
        match self {
            RunningCommand::Guarded(guarded) if guarded.orphans.is_none() => {
                guarded.watchdog.expires_at()
            }
            RunningCommand::Guarded(_) | RunningCommand::Bare { .. } => None,
        }
    }

    /// Reads what the guard has sent; whether no report is waiting for [`Ward::next`]. After a freeze of this process an
    /// acknowledgement may be in the socket before the runtime knows of it.
    pub(super) fn has_no_report(&mut self) -> bool {
        match self {
            RunningCommand::Guarded(guarded) => guarded.has_no_report(),
            RunningCommand::Bare { .. } => true,
        }
    }

    /// The guard does not do its duty: without it we get the tree ourselves.
    pub(super) fn abandon(&mut self) {
        if let RunningCommand::Guarded(GuardConnection { guard, .. }) = self {
            // One that has ended already needs no signal.
            let _ = guard.start_kill();
        }
    }

    /// What happens next. After [`Event::Ended`] nothing of the command is left.
    ///
    /// # Cancellation
    /// Nothing is lost by dropping this.
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

    /// The guard has nothing more to do, and ends. The lease does not wait for that.
    pub(super) fn dismiss(self) {
        if let RunningCommand::Guarded(GuardConnection { line, mut guard, spared, .. }) = self {
            let _ = line.send(&GuardOrder::Dismissed, &[]);
            tokio::spawn(async move {
                let _ = guard.wait().await;
                drop((spared, line));
            });
        }
    }
}

impl GuardConnection {
    fn has_no_report(&mut self) -> bool {
        while self.orphans.is_none()
            && let Some(message) = self.line.take()
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
                None => self.line.receive().await,
            };
            match report {
                Some(GuardReport::Gone { ended, told }) => {
                    return CommandEvent::Ended(CommandEnd::Gone(CommandExit { ended, told }));
                }
                Some(GuardReport::Failed(why)) => {
                    return CommandEvent::Ended(CommandEnd::Failed(why));
                }
                Some(GuardReport::CannotKill(failure)) => return CommandEvent::CannotKill(failure),
                Some(GuardReport::Acknowledged(number)) => self.watchdog.acknowledged(number),
                None => {
                    // One that has ended already needs no signal.
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
    recipe: &CommandConfig,
    permit: &Permit<'_>,
    store: &dyn Store,
) -> io::Result<GuardConnection> {
    let (line, theirs) = line()?;
    let mut command = Command::new(guard::OURSELVES);
    command.arg0("tenure").arg(guard::GUARD).args(&recipe.command);
    child_env::cleared(&mut command);
    command.stdin(Stdio::from(theirs));
    let guard = tokio::process::Command::from(command).spawn()?;
    let spared = SparedProcess::new(pid_of(guard.id())?);
    let stop_within_ms = u64::try_from(recipe.stop_within.as_millis()).unwrap_or(u64::MAX);
    let deadline = permit.deadline();
    let mut setup = GuardSetup::new(&recipe.store_url, permit.hold(), deadline, stop_within_ms);
    setup.on_lose.clone_from(&recipe.on_lose);
    setup.log = recipe.log;
    let stdin = io::stdin();
    let mut files = vec![stdin.as_fd()];
    files.extend(store.liveness());
    line.send(&setup, &files)?;
    let watchdog = Watchdog::new(recipe.stop_within);
    let received = VecDeque::new();
    Ok(GuardConnection { line, guard, spared, watchdog, received, orphans: None })
}

fn bare(recipe: &CommandConfig, permit: &Permit<'_>) -> io::Result<RunningCommand> {
    let [program, args @ ..] = &*recipe.command else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let hold = permit.hold();
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    child_env::of(&mut command, &hold.name, &hold.candidate, Some(hold.token));
    let mut deaths = guard::deaths()?;
    let main = pid_of(Some(command.spawn()?.id()))?;
    // Reaped by its tree, and by nobody who clears up around it.
    let spared = SparedProcess::new(main);
    let (orders, inbox) = mpsc::unbounded_channel();
    let (report, failures) = mpsc::unbounded_channel();
    let mut fuse = KillSchedule::new(permit.deadline(), recipe.stop_within);
    let cannot_kill = report.clone();
    let overseer = async move {
        let mut tree = ProcessTree::among_others(main);
        let mut inbox = Inbox { orders: inbox, failures: report };
        let never = std::future::pending();
        let outcome = guard::oversee(&mut tree, &mut fuse, &mut deaths, &mut inbox, never).await;
        drop(spared);
        outcome
    };
    let task = guard::spawn_overseer(overseer, move |failure| _ = cannot_kill.send(failure));
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

fn pid_of(id: Option<u32>) -> io::Result<Pid> {
    let pid = id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the process has no number"))
}
