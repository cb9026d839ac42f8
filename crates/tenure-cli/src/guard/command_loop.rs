//! Watches over a running command until nothing of it is left: in the guard, or without one in the leader itself.

use std::time::Duration;

use rustix::process::Signal;
use tenure::{Clock, Moment};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::task::JoinHandle;

use super::kill_errors::KillErrors;
use super::kill_schedule::{Due, KillSchedule};
use super::process_tree::{Orphans, ProcessExit, ProcessTree, RETRY_AT_MOST};
use super::protocol::GuardOrder;

/// Deaths are told by SIGCHLD, but not all at once: how long until a killed tree is looked at again, at first and at last.
pub(super) const AGAIN: Duration = Duration::from_millis(2);
pub(super) const AT_LAST: Duration = Duration::from_millis(50);

/// Where orders come from.
pub(crate) trait OrderSource {
    /// The next one; `None` when no more can come, and then for ever.
    async fn next(&mut self) -> Option<GuardOrder>;

    /// A process of the command could not be signalled, and runs on.
    fn cannot_kill(&mut self, failure: String);
}

/// What came of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandExit {
    pub(crate) ended: ProcessExit,
    /// It was told to stop, and has not ended by itself.
    pub(crate) told: bool,
}

/// Deaths of children, from the moment this is made.
pub(crate) fn deaths() -> std::io::Result<Signals> {
    signal(SignalKind::child())
}

/// Runs a task that oversees commands. If it panics, all child processes that are not spared are killed, as after the death of
/// a guard, and the result is `None`. `cannot_kill` gets what could not be killed.
pub(crate) fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
    cannot_kill: impl Fn(String) + Send + 'static,
) -> JoinHandle<Option<T>> {
    let task = tokio::spawn(task);
    tokio::spawn(async move {
        if let Ok(output) = task.await {
            return Some(output);
        }
        let mut orphans = Orphans::new();
        while let Some(failure) = orphans.end().await {
            cannot_kill(failure);
        }
        None
    })
}

/// Returns when nothing of `tree` is left. It is ended when its fuse has burnt down, when an order says so, when no order
/// can come any more, and when `fate` is sealed.
pub(crate) async fn oversee(
    tree: &mut ProcessTree,
    fuse: &mut KillSchedule,
    deaths: &mut Signals,
    orders: &mut impl OrderSource,
    fate: impl Future<Output = ()>,
) -> CommandExit {
    let clock = Clock::boot();
    let mut fate = std::pin::pin!(fate);
    let (mut sealed, mut deaf) = (false, false);
    let mut again = None;
    // Longer, the longer nothing dies: those who are to die need the processor too.
    let mut pause = AGAIN;
    // Whether the command was told to stop before it ended.
    let mut told = None;
    let mut failures = KillErrors::default();
    loop {
        failures.take().into_iter().for_each(|failure| orders.cannot_kill(failure));
        if let Some(ended) = tree.ended() {
            let told = *told.get_or_insert(fuse.burnt());
            if !fuse.burnt() {
                // It ended by itself; what it has left behind has the usual time to follow.
                fuse.stop(clock.now() + fuse.stop_within());
            }
            if tree.is_gone() {
                return CommandExit { ended, told };
            }
        }
        match fuse.due(clock.now()) {
            Some(Due::Ask) => {
                tree.ask(&mut failures);
                continue;
            }
            // Each death wakes us; looking for what is left must not take the time that dying needs.
            Some(Due::Kill) if again.is_none_or(|again| clock.now() >= again) => {
                let begun = clock.now();
                tree.kill(&mut failures);
                let took = clock.now().since(begun);
                again = Some(clock.now() + took.max(pause));
                let most = if failures.take_recent() { RETRY_AT_MOST } else { AT_LAST };
                pause = (2 * pause).min(most);
                if tree.is_gone() {
                    continue;
                }
                failures.take().into_iter().for_each(|failure| orders.cannot_kill(failure));
            }
            Some(Due::Kill) => {}
            None => {}
        }
        let wake_at = again.unwrap_or_else(|| fuse.burns_until());
        tokio::select! {
            // Orders first: one that extends the deadline has been true since it was sent.
            biased;
            order = orders.next(), if !deaf => match order {
                Some(GuardOrder::Deadline { nanos, .. }) => fuse.extend(Moment::from_nanos(nanos)),
                Some(GuardOrder::Stop(kill_at)) => fuse.stop(Moment::from_nanos(kill_at)),
                Some(GuardOrder::Signal(number)) => {
                    if let Some(signal) = Signal::from_named_raw(number) {
                        tree.signal(signal, &mut failures);
                    }
                }
                // Said too early, it is as good as no more orders.
                Some(GuardOrder::Dismissed) | None => {
                    deaf = true;
                    fuse.cut();
                }
            },
            () = &mut fate, if !sealed => {
                sealed = true;
                fuse.cut();
            }
            _ = deaths.recv() => {
                // Reaped as they come, also while the command runs.
                tree.reap_strays();
                pause = AGAIN;
                again = again.map(|at: Moment| at.min(clock.now() + AGAIN));
            }
            () = clock.sleep_until(wake_at) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, test_kill_process};

    use super::super::{SparedProcess, adopt_orphans};
    use super::*;

    const IN_A_PROCESS_OF_ITS_OWN: &str = "TENURE_TEST_OVERSEER_PANICS";

    /// In a process of its own: the children of all other tests would be killed too.
    #[test]
    #[allow(clippy::zombie_processes, reason = "what is tested reaps it")]
    fn what_an_overseer_that_panics_has_left_is_killed() {
        if std::env::var_os(IN_A_PROCESS_OF_ITS_OWN).is_none() {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "--nocapture"]);
            command.arg("guard::oversee::tests::what_an_overseer_that_panics_has_left_is_killed");
            let output = command.env(IN_A_PROCESS_OF_ITS_OWN, "1").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        adopt_orphans().unwrap();
        crate::runtime().unwrap().block_on(async {
            let child = Command::new("sh").args(["-c", "setsid sleep 60 & wait"]).spawn().unwrap();
            let pid = Pid::from_child(&child);
            let overseen = SparedProcess::new(pid);
            let task = async move {
                let _overseen = overseen;
                Clock::boot().sleep(Duration::from_millis(100)).await;
                panic!("as wanted by this test");
            };
            let none: Option<()> = spawn(task, |failure| panic!("{failure}")).await.unwrap();
            assert_eq!(none, None);
            assert!(test_kill_process(pid).is_err(), "the command runs on");
            assert!(super::super::procfs::children().unwrap().is_empty(), "a descendant runs on");
        });
    }
}
