//! The loop that watches a running command until no process of it is left: in the guard, or without a guard in the leader.
//!
//! The loop receives orders (deadlines, stop, signals), applies the [`KillSchedule`], and kills and reaps the process tree.

use std::time::Duration;

use rustix::process::Signal;
use tenure::{Clock, Moment};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::task::JoinHandle;

use super::kill_errors::KillErrors;
use super::kill_schedule::{Due, KillSchedule};
use super::process_tree::{MAX_RETRY_INTERVAL, Orphans, ProcessExit, ProcessTree};
use super::protocol::GuardOrder;

/// SIGCHLD reports the death of children, but may merge several into one. So a killed tree is polled too: this interval is the
/// first, and it doubles up to [`MAX_POLL_INTERVAL`].
pub(super) const MIN_POLL_INTERVAL: Duration = Duration::from_millis(2);
pub(super) const MAX_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The source of a command's orders: the leader's socket, or the leader itself.
pub(crate) trait OrderSource {
    /// The next order. `None` when no more can come, and from then on always.
    async fn next(&mut self) -> Option<GuardOrder>;

    /// Reports that a process of the command could not be signalled, and keeps running.
    fn cannot_kill(&mut self, failure: String);
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandExit {
    pub(crate) ended: ProcessExit,
    /// The command was asked to stop, and has not ended by itself.
    pub(crate) asked_to_stop: bool,
}

/// A stream of SIGCHLD, from the moment this is called.
pub fn deaths() -> std::io::Result<Signals> {
    signal(SignalKind::child())
}

/// Runs a task that watches commands. If it panics, all child processes that are not spared are killed, as after the death of a
/// guard, and the result is `None`. `cannot_kill` receives each process that could not be killed.
pub(crate) fn spawn_with_cleanup<T: Send + 'static>(
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

/// Returns when no process of `tree` is left. The tree is ended when its schedule says so, when an order says so, when no order
/// can come any more, and when `abort` completes.
pub(crate) async fn watch_command(
    tree: &mut ProcessTree,
    schedule: &mut KillSchedule,
    deaths: &mut Signals,
    orders: &mut impl OrderSource,
    abort: impl Future<Output = ()>,
) -> CommandExit {
    let clock = Clock::boot();
    let mut abort = std::pin::pin!(abort);
    let (mut aborted, mut orders_ended) = (false, false);
    let mut poll_at = None;
    // Grows while nothing dies: the processes that are to die need the processor too.
    let mut pause = MIN_POLL_INTERVAL;
    // Whether the command was asked to stop before it ended.
    let mut asked_to_stop = None;
    let mut failures = KillErrors::default();
    loop {
        failures.take().into_iter().for_each(|failure| orders.cannot_kill(failure));
        if let Some(ended) = tree.ended() {
            let asked_to_stop = *asked_to_stop.get_or_insert(schedule.is_stopping());
            if !schedule.is_stopping() {
                // The command ended by itself. Its remaining processes get the usual time to end too.
                schedule.stop(clock.now() + schedule.stop_within());
            }
            if tree.is_gone() {
                return CommandExit { ended, asked_to_stop };
            }
        }
        match schedule.due(clock.now()) {
            Some(Due::Terminate) => {
                tree.terminate(&mut failures);
                continue;
            }
            // Each death wakes this loop; walking the tree must not take the time that dying needs.
            Some(Due::Kill) if poll_at.is_none_or(|poll_at| clock.now() >= poll_at) => {
                let begun = clock.now();
                tree.kill(&mut failures);
                let took = clock.now().since(begun);
                poll_at = Some(clock.now() + took.max(pause));
                let most =
                    if failures.take_recent() { MAX_RETRY_INTERVAL } else { MAX_POLL_INTERVAL };
                pause = (2 * pause).min(most);
                if tree.is_gone() {
                    continue;
                }
                failures.take().into_iter().for_each(|failure| orders.cannot_kill(failure));
            }
            Some(Due::Kill) => {}
            None => {}
        }
        let wake_at = poll_at.unwrap_or_else(|| schedule.next_due_at());
        tokio::select! {
            // Orders first: an order that extends the deadline has been valid since it was sent.
            biased;
            order = orders.next(), if !orders_ended => match order {
                Some(GuardOrder::Deadline { nanos, .. }) => schedule.extend(Moment::from_nanos(nanos)),
                Some(GuardOrder::Stop(kill_at)) => schedule.stop(Moment::from_nanos(kill_at)),
                Some(GuardOrder::Signal(number)) => {
                    if let Some(signal) = Signal::from_named_raw(number) {
                        tree.signal(signal, &mut failures);
                    }
                }
                // A dismissal that comes too early counts as the end of the orders.
                Some(GuardOrder::Dismissed) | None => {
                    orders_ended = true;
                    schedule.kill_now();
                }
            },
            () = &mut abort, if !aborted => {
                aborted = true;
                schedule.kill_now();
            }
            _ = deaths.recv() => {
                // Orphans are reaped as they end, also while the command runs.
                tree.reap_strays();
                pause = MIN_POLL_INTERVAL;
                poll_at = poll_at.map(|at: Moment| at.min(clock.now() + MIN_POLL_INTERVAL));
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

    const SEPARATE_PROCESS_VAR: &str = "TENURE_TEST_OVERSEER_PANICS";

    /// In a separate process: the children of all other tests would be killed too.
    #[test]
    #[allow(clippy::zombie_processes, reason = "what is tested reaps it")]
    fn processes_of_a_task_that_panics_are_killed() {
        if std::env::var_os(SEPARATE_PROCESS_VAR).is_none() {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "--nocapture"]);
            let (_, module) = module_path!().split_once("::").unwrap();
            command.arg(format!("{module}::processes_of_a_task_that_panics_are_killed"));
            let output = command.env(SEPARATE_PROCESS_VAR, "1").output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
            return;
        }
        adopt_orphans().unwrap();
        crate::runtime().unwrap().block_on(async {
            let child = Command::new("sh").args(["-c", "setsid sleep 60 & wait"]).spawn().unwrap();
            let pid = Pid::from_child(&child);
            let spared = SparedProcess::new(pid);
            let task = async move {
                let _spared = spared;
                Clock::boot().sleep(Duration::from_millis(100)).await;
                panic!("as wanted by this test");
            };
            let none: Option<()> =
                spawn_with_cleanup(task, |failure| panic!("{failure}")).await.unwrap();
            assert_eq!(none, None);
            assert!(test_kill_process(pid).is_err(), "the command runs on");
            assert!(super::super::procfs::children().unwrap().is_empty(), "a descendant runs on");
        });
    }
}
