//! The command of one term, as the leader sees it: behind a guard, or, with `--no-guard`, its own child.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;
use tenure::{Clock, Store};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::environment;
use crate::guard::{
    self, Fuse, Line, Log, Order, Orders, Outcome, Report, Setup, Spared, Tree, end_orphans, line,
};
use crate::permit::Permit;

/// How the command is started in each term.
#[derive(Clone)]
pub(super) struct Recipe {
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
pub(super) enum Fate {
    /// Nothing of it is left.
    Gone(Outcome),
    /// It was never started.
    Failed(String),
    /// The guard is dead, and what it left has been ended.
    Unguarded,
}

/// A command that runs.
#[allow(clippy::large_enum_variant)] // There is one of it.
pub(super) enum Ward {
    Guarded { line: Line, guard: tokio::process::Child, spared: Spared },
    Bare { orders: mpsc::UnboundedSender<Order>, task: JoinHandle<Outcome> },
}

impl Ward {
    pub(super) fn start(
        recipe: &Recipe,
        permit: Permit<'_>,
        store: &dyn Store,
    ) -> io::Result<Ward> {
        match recipe.guarded {
            true => guarded(recipe, &permit, store),
            false => bare(recipe, &permit),
        }
    }

    /// Passes it on without waiting. Whoever does not take it is as good as dead.
    pub(super) fn order(&mut self, order: Order) {
        match self {
            Ward::Guarded { line, .. } => {
                if line.send(&order, &[]).is_err() {
                    self.abandon();
                }
            }
            // One that has ended needs no orders.
            Ward::Bare { orders, .. } => _ = orders.send(order),
        }
    }

    /// The guard does not do its duty: without it we get the tree ourselves.
    pub(super) fn abandon(&mut self) {
        if let Ward::Guarded { guard, .. } = self {
            // One that has ended already needs no signal.
            let _ = guard.start_kill();
        }
    }

    /// Returns when nothing of the command is left.
    pub(super) async fn end(&mut self) -> Fate {
        match self {
            Ward::Guarded { line, .. } => match line.receive().await {
                Some(Report::Gone { ended, told }) => Fate::Gone(Outcome { ended, told }),
                Some(Report::Failed(why)) => Fate::Failed(why),
                None => {
                    self.abandon();
                    self.clear_up().await;
                    Fate::Unguarded
                }
            },
            Ward::Bare { task, .. } => match task.await {
                Ok(outcome) => Fate::Gone(outcome),
                Err(error) => Fate::Failed(error.to_string()),
            },
        }
    }

    /// The guard is dead or dying: its tree comes to us, and ends here.
    async fn clear_up(&mut self) {
        let Ward::Guarded { guard, .. } = self else { return };
        let _ = guard.wait().await;
        let clock = Clock::boot();
        while !end_orphans() {
            clock.sleep(Duration::from_millis(2)).await;
        }
    }

    /// The guard has nothing more to do, and ends. The lease does not wait for that.
    pub(super) fn dismiss(self) {
        if let Ward::Guarded { line, mut guard, spared, .. } = self {
            let _ = line.send(&Order::Dismissed, &[]);
            tokio::spawn(async move {
                let _ = guard.wait().await;
                drop((spared, line));
            });
        }
    }
}

fn guarded(recipe: &Recipe, permit: &Permit<'_>, store: &dyn Store) -> io::Result<Ward> {
    let (line, theirs) = line()?;
    let mut command = Command::new(guard::OURSELVES);
    command.arg0("tenure").arg(guard::GUARD).args(&recipe.command);
    environment::cleared(&mut command);
    command.stdin(Stdio::from(theirs));
    let guard = tokio::process::Command::from(command).spawn()?;
    let spared = Spared::new(pid_of(guard.id())?);
    let stop_within_ms = u64::try_from(recipe.stop_within.as_millis()).unwrap_or(u64::MAX);
    let deadline = permit.deadline();
    let mut setup = Setup::new(&recipe.store_url, permit.hold(), deadline, stop_within_ms);
    setup.on_lose.clone_from(&recipe.on_lose);
    setup.log = recipe.log;
    let stdin = io::stdin();
    let mut files = vec![stdin.as_fd()];
    files.extend(store.liveness());
    line.send(&setup, &files)?;
    Ok(Ward::Guarded { line, guard, spared })
}

fn bare(recipe: &Recipe, permit: &Permit<'_>) -> io::Result<Ward> {
    let [program, args @ ..] = &*recipe.command else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let hold = permit.hold();
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    environment::of(&mut command, &hold.name, &hold.candidate, Some(hold.token));
    let mut deaths = guard::deaths()?;
    let main = pid_of(Some(command.spawn()?.id()))?;
    // Reaped by its tree, and by nobody who clears up around it.
    let spared = Spared::new(main);
    let (orders, inbox) = mpsc::unbounded_channel();
    let mut fuse = Fuse::new(permit.deadline(), recipe.stop_within);
    let task = tokio::spawn(async move {
        let mut tree = Tree::among_others(main);
        let mut inbox = Inbox(inbox);
        let never = std::future::pending();
        let outcome = guard::oversee(&mut tree, &mut fuse, &mut deaths, &mut inbox, never).await;
        drop(spared);
        outcome
    });
    Ok(Ward::Bare { orders, task })
}

struct Inbox(mpsc::UnboundedReceiver<Order>);

impl Orders for Inbox {
    async fn next(&mut self) -> Option<Order> {
        self.0.recv().await
    }
}

fn pid_of(id: Option<u32>) -> io::Result<Pid> {
    let pid = id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("the process has no number"))
}
