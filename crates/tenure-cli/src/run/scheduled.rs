//! The work of a term on a schedule: each slot begins once, whichever candidate leads.
//!
//! The pure [`SchedulePlanner`] decides; this loop executes its steps. A run starts only after the store has saved its slot in
//! the checkpoint, so that the next leader does not start the slot again.

use std::time::Duration;

use tenure::store::Scope;
use tenure::{Clock, Leadership, Name, Saved, Store};

use super::command::{CommandConfig, RunningCommand};
use super::http_poll::HttpPoll;
use super::lead_term::{RunResult, StopSignals, TermOutcome, TermSupervisor};
use super::messages::RunMessages;
use super::schedule_messages::ScheduleMessages;
use crate::exit::Exit;
use crate::guard::ProcessExit;
use crate::messages::CommonMessages as _;
use crate::permit::TermPermits as _;
use crate::schedule::{
    Policy, RunOutcome, Schedule, ScheduleCheckpoint, SchedulePlanner, ScheduleStep, Slot,
};
use crate::signals::Signals;
use crate::time::unix_ms;

/// The longest sleep without reading the wall clock, which can be set at any time.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// The pause before a checkpoint that could not be saved is saved again, and the longest wait for a save that must not delay
/// the end of a term.
const SAVE_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// How long `--once` waits for the store before it campaigns without knowing whether its slot is done.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The schedule of `tenure run`, and what runs in each slot.
pub(super) struct ScheduledWork {
    pub(super) schedule: Schedule,
    pub(super) policy: Policy,
    pub(super) task: ScheduledTask,
    /// The config of a guard without a command, which runs between two commands; `None` with `--no-guard`.
    pub(super) idle_guard: Option<CommandConfig>,
}

impl ScheduledWork {
    fn messages<'a>(&'a self, messages: &'a RunMessages) -> ScheduleMessages<'a> {
        ScheduleMessages { messages, schedule: &self.schedule, now: unix_ms() }
    }

    /// With `--once`: the slot that is to be run.
    fn slot_of_once(&self) -> Option<Slot> {
        self.policy.once.and_then(|started| self.schedule.current(started))
    }

    /// With `--once`: whether the checkpoint already says that there is nothing to run, so that this candidate need not
    /// campaign; logs that. If the store does not answer soon, the campaign finds out.
    pub(super) async fn is_done(
        &self,
        name: &Name,
        store: &dyn Store,
        messages: &RunMessages,
    ) -> bool {
        if self.policy.once.is_none() {
            return false;
        }
        let clock = Clock::boot();
        let scope = Scope::name(name);
        let found = tokio::select! {
            found = store.observe(&scope) => found,
            () = clock.sleep(OBSERVE_TIMEOUT) => return false,
        };
        let Some(Ok(lease)) = found.ok().and_then(|found| found.into_iter().next()) else {
            return false;
        };
        let checkpoint = lease.checkpoint.as_ref().map(|checkpoint| checkpoint.as_bytes());
        let Ok(Some(checkpoint)) = ScheduleCheckpoint::read(checkpoint) else { return false };
        let last = checkpoint.last_run.clone();
        let done = SchedulePlanner::new(self.schedule.clone(), self.policy, Some(checkpoint))
            .step(unix_ms());
        if done == ScheduleStep::Done {
            self.messages(messages).already_done(self.slot_of_once(), last.as_ref());
        }
        done == ScheduleStep::Done
    }
}

/// What runs in one slot.
pub(super) enum ScheduledTask {
    Command(CommandConfig),
    Get(HttpPoll),
    Mock,
}

/// The result of one slot's run.
struct RunReport {
    outcome: RunOutcome,
    detail: Option<String>,
    exit: Exit,
    /// No further slot runs in this term.
    over: bool,
}

impl TermSupervisor<'_> {
    /// Works through the slots of one term.
    pub(super) async fn scheduled(
        &self,
        work: &ScheduledWork,
        leadership: &Leadership,
        signals: &mut Signals,
    ) -> TermOutcome {
        let left = leadership.checkpoint().map(|checkpoint| checkpoint.as_bytes());
        let left = match ScheduleCheckpoint::read(left) {
            Ok(left) => left,
            Err(error) => return TermOutcome::Failed(error),
        };
        self.run_reporter.show(left.as_ref());
        let mut idle_guard = self.start_idle_guard(work, leadership);
        let mut planner = SchedulePlanner::new(work.schedule.clone(), work.policy, left);
        let mut stop_signals = StopSignals::default();
        let (mut exit, mut ran) = (Exit::Done, false);
        loop {
            let pause = match planner.step(unix_ms()) {
                ScheduleStep::Begin(slot) => {
                    let draft = planner.draft(slot, self.id().as_str(), unix_ms());
                    // A save that hangs must not delay the end of the term or of this process.
                    let mut ended = None;
                    let saved = tokio::select! {
                        biased;
                        saved = self.save_checkpoint(leadership, &draft) => saved,
                        () = async {
                            ended = self.wait_between_slots(Duration::MAX, leadership, signals).await;
                            Clock::boot().sleep(SAVE_RETRY_INTERVAL).await;
                        } => SaveOutcome::Unknown,
                    };
                    if let Some(outcome) = ended {
                        if let SaveOutcome::Kept = saved {
                            planner.begun(draft);
                            planner.ended(RunOutcome::Stopped, None, unix_ms());
                            self.save_end(leadership, &mut planner).await;
                        }
                        return outcome;
                    }
                    match saved {
                        SaveOutcome::Kept => {
                            planner.begun(draft);
                            // A command has its own guard, which knows when the command has ended.
                            if let ScheduledTask::Command(_) = work.task {
                                idle_guard.take();
                            }
                            let report = self
                                .run_slot(work, leadership, signals, &mut stop_signals, &planner)
                                .await;
                            (exit, ran) = (report.exit, true);
                            if idle_guard.is_none() && !report.over {
                                idle_guard = self.start_idle_guard(work, leadership);
                            }
                            self.skip_overlapping_slots(work, &mut planner);
                            planner.ended(report.outcome, report.detail, unix_ms());
                            self.save_end(leadership, &mut planner).await;
                            if report.over {
                                break;
                            }
                            Duration::ZERO
                        }
                        SaveOutcome::Lost => Duration::MAX,
                        SaveOutcome::Unknown => SAVE_RETRY_INTERVAL,
                    }
                }
                ScheduleStep::Wait { until } => {
                    self.save_end(leadership, &mut planner).await;
                    let left = until.map(|until| until.saturating_sub(unix_ms()));
                    left.map_or(CLOCK_CHECK_INTERVAL, Duration::from_millis)
                        .min(CLOCK_CHECK_INTERVAL)
                }
                ScheduleStep::Skip { .. } => Duration::ZERO,
                ScheduleStep::Interrupted(run) => {
                    work.messages(self.messages).interrupted(&run, work.policy.interrupted);
                    self.run_reporter.passed("interrupted");
                    self.save_end(leadership, &mut planner).await;
                    Duration::ZERO
                }
                ScheduleStep::Ahead(ahead) => {
                    self.messages.ahead(&ahead);
                    Duration::ZERO
                }
                ScheduleStep::Done => {
                    if !ran {
                        let last = planner.checkpoint().last_run.as_ref();
                        work.messages(self.messages).already_done(work.slot_of_once(), last);
                    }
                    self.messages.work_ended();
                    return TermOutcome::Ended(exit);
                }
            };
            // Checked even without a pause: with a store slower than the period there is never time for one.
            if let Some(outcome) = self.wait_between_slots(pause, leadership, signals).await {
                return outcome;
            }
        }
        match stop_signals.ending {
            true => TermOutcome::Ended(exit),
            false => TermOutcome::Lost,
        }
    }

    /// Starts a guard without a command, which releases the lease if this process dies while no command runs. Without it the
    /// lease expires by its TTL.
    fn start_idle_guard(&self, work: &ScheduledWork, leadership: &Leadership) -> Option<IdleGuard> {
        let config = work.idle_guard.as_ref()?;
        let started = leadership
            .permit(Duration::ZERO, |permit| RunningCommand::start(config, permit, self.store))?;
        started
            .inspect_err(|error| self.messages.warning(&format!("cannot start the guard: {error}")))
            .ok()
            .map(|guard| IdleGuard(Some(guard)))
    }

    /// Waits for `pause` between two slots, or returns how the term ended.
    async fn wait_between_slots(
        &self,
        pause: Duration,
        leadership: &Leadership,
        signals: &mut Signals,
    ) -> Option<TermOutcome> {
        let clock = Clock::boot();
        tokio::select! {
            biased;
            reason = leadership.lost() => {
                self.messages.lost(&reason);
                Some(TermOutcome::Lost)
            }
            _ = signals.end() => Some(TermOutcome::Ended(Exit::Done)),
            () = clock.sleep(pause) => None,
        }
    }

    async fn run_slot(
        &self,
        work: &ScheduledWork,
        leadership: &Leadership,
        signals: &mut Signals,
        stop_signals: &mut StopSignals,
        planner: &SchedulePlanner,
    ) -> RunReport {
        let (clock, began) = (Clock::boot(), Clock::boot().now());
        self.run_reporter.began(unix_ms());
        self.run_reporter.show(Some(planner.checkpoint()));
        let report = match &work.task {
            ScheduledTask::Mock => {
                let count = planner.checkpoint().count;
                let polled = leadership.permit(Duration::ZERO, |_permit| self.messages.poll(count));
                let outcome = if polled.is_some() { RunOutcome::Ok } else { RunOutcome::Stopped };
                RunReport { outcome, detail: None, exit: Exit::Done, over: false }
            }
            ScheduledTask::Get(get) => {
                self.poll(get, leadership, signals, stop_signals, planner).await
            }
            ScheduledTask::Command(config) => match self
                .run_command(config, leadership, signals, stop_signals)
                .await
            {
                RunResult::Ended(ended) => command_report(ended, stop_signals.ending),
                RunResult::Refused(exit) => {
                    stop_signals.ending = true;
                    RunReport { outcome: RunOutcome::Failed, detail: None, exit, over: true }
                }
                RunResult::Stopped => {
                    let over = stop_signals.lost || stop_signals.ending;
                    RunReport { outcome: RunOutcome::Stopped, detail: None, exit: Exit::Done, over }
                }
            },
        };
        let took = clock.now().since(began);
        self.run_reporter.ended(&report.outcome, took);
        // A failed poll is logged by `poll`.
        if let (RunOutcome::Failed, Some(reason), ScheduledTask::Command(_), Some(run)) =
            (&report.outcome, &report.detail, &work.task, &planner.checkpoint().last_run)
            && !stop_signals.ending
        {
            let next = work.schedule.next(unix_ms()).filter(|_| work.policy.once.is_none());
            work.messages(self.messages).failed(run, reason, took, next);
        }
        report
    }

    async fn poll(
        &self,
        get: &HttpPoll,
        leadership: &Leadership,
        signals: &mut Signals,
        stop_signals: &mut StopSignals,
        planner: &SchedulePlanner,
    ) -> RunReport {
        let stopped =
            |over| RunReport { outcome: RunOutcome::Stopped, detail: None, exit: Exit::Done, over };
        let (outcome, detail) = tokio::select! {
            biased;
            reason = leadership.lost() => {
                self.messages.lost(&reason);
                stop_signals.lost = true;
                return stopped(true);
            }
            _ = signals.end() => {
                stop_signals.ending = true;
                return stopped(true);
            }
            answer = get.poll(leadership) => answer,
        };
        self.messages.polled(
            planner.checkpoint().count,
            outcome == RunOutcome::Ok,
            detail.as_deref(),
        );
        RunReport { outcome, detail, exit: Exit::Done, over: false }
    }

    /// Counts and logs the slots that came while the run was in progress; they are not run.
    fn skip_overlapping_slots(&self, work: &ScheduledWork, planner: &mut SchedulePlanner) {
        loop {
            let settled = planner.checkpoint().settled(&work.schedule);
            let ScheduleStep::Skip { slot, slots } = planner.step(unix_ms()) else { return };
            let first = settled.and_then(|settled| work.schedule.next(settled)).unwrap_or(slot);
            let run = planner.checkpoint().last_run.as_ref();
            work.messages(self.messages).skipped(first.at, slot, slots, run);
            self.run_reporter.passed("skipped");
        }
    }

    async fn save_checkpoint(
        &self,
        leadership: &Leadership,
        checkpoint: &ScheduleCheckpoint,
    ) -> SaveOutcome {
        match leadership.save(checkpoint.to_json()).await {
            Ok(Saved::Kept) => {
                self.save_failures.reset();
                self.run_reporter.show(Some(checkpoint));
                SaveOutcome::Kept
            }
            // The loss is logged where it is declared.
            Ok(Saved::Lost) => SaveOutcome::Lost,
            Err(error) => {
                if self.save_failures.admits(Clock::boot().now()) {
                    self.messages.warning(&format!("cannot note down what is run: {error}"));
                }
                SaveOutcome::Unknown
            }
        }
    }

    /// Saves the end of a run if it can be saved now; otherwise the next save includes it.
    async fn save_end(&self, leadership: &Leadership, planner: &mut SchedulePlanner) {
        let Some(checkpoint) = planner.unsaved().cloned() else { return };
        let clock = Clock::boot();
        let saved = tokio::select! {
            saved = self.save_checkpoint(leadership, &checkpoint) => saved,
            () = clock.sleep(SAVE_RETRY_INTERVAL) => SaveOutcome::Unknown,
        };
        if let SaveOutcome::Kept = saved {
            planner.saved();
        }
        self.run_reporter.show(Some(&checkpoint));
    }
}

/// A guard without a command; dismissed on drop.
struct IdleGuard(Option<RunningCommand>);

impl Drop for IdleGuard {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            guard.dismiss();
        }
    }
}

/// The result of saving a checkpoint.
enum SaveOutcome {
    Kept,
    /// The term is over.
    Lost,
    Unknown,
}

fn command_report(ended: ProcessExit, over: bool) -> RunReport {
    let (outcome, detail) = match ended {
        ProcessExit::Code(0) => (RunOutcome::Ok, None),
        ProcessExit::Code(code) => (RunOutcome::Failed, Some(format!("exit code {code}"))),
        ProcessExit::Signal(signal) => (RunOutcome::Failed, Some(format!("signal {signal}"))),
    };
    RunReport { outcome, detail, exit: ended.into(), over }
}
