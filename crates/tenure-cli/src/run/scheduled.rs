//! Work on a schedule: each slot begins once, whoever leads.

use std::time::Duration;

use tenure::store::Scope;
use tenure::{Clock, Leadership, Name, Saved, Store};

use super::command::{CommandConfig, RunningCommand};
use super::http_poll::HttpPoll;
use super::lead_term::{RunResult, StopSignals, TermOutcome, TermSupervisor};
use super::messages::RunMessages;
use super::schedule_messages::RunLines;
use crate::exit::Exit;
use crate::guard::ProcessExit;
use crate::messages::CommonMessages as _;
use crate::permit::TermDeadline as _;
use crate::schedule::{
    Policy, RunOutcome, Schedule, ScheduleCheckpoint, SchedulePlanner, ScheduleStep, Slot,
};
use crate::signals::Signals;
use crate::time::unix_ms;

/// A wall clock can be set, so nobody sleeps longer than this without a look at it.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// What could not be noted down is tried again after this.
const AGAIN: Duration = Duration::from_millis(500);

/// How long `--once` waits for the store before it campaigns without knowing whether its slot is done.
const PEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// What is done, and when.
pub(super) struct ScheduledWork {
    pub(super) schedule: Schedule,
    pub(super) policy: Policy,
    pub(super) task: ScheduledTask,
    /// A guard without a command, while none runs; `None` with `--no-guard`.
    pub(super) rest_guard: Option<CommandConfig>,
}

impl ScheduledWork {
    fn lines<'a>(&'a self, lines: &'a RunMessages) -> RunLines<'a> {
        RunLines { lines, schedule: &self.schedule, now: unix_ms() }
    }

    /// With `--once`: the slot that is to be run.
    fn slot_of_once(&self) -> Option<Slot> {
        self.policy.once.and_then(|started| self.schedule.current(started))
    }

    /// With `--once`: whether the checkpoint already says that there is nothing to run, so that this candidate need not
    /// campaign. Says so. A store that does not answer soon is asked by the campaign.
    pub(super) async fn is_done(
        &self,
        name: &Name,
        store: &dyn Store,
        lines: &RunMessages,
    ) -> bool {
        if self.policy.once.is_none() {
            return false;
        }
        let clock = Clock::boot();
        let scope = Scope::name(name);
        let found = tokio::select! {
            found = store.observe(&scope) => found,
            () = clock.sleep(PEEK_TIMEOUT) => return false,
        };
        let Some(Ok(lease)) = found.ok().and_then(|found| found.into_iter().next()) else {
            return false;
        };
        let checkpoint = lease.checkpoint.as_ref().map(|checkpoint| checkpoint.as_bytes());
        let Ok(Some(ledger)) = ScheduleCheckpoint::read(checkpoint) else { return false };
        let last = ledger.last_run.clone();
        let done =
            SchedulePlanner::new(self.schedule.clone(), self.policy, Some(ledger)).step(unix_ms());
        if done == ScheduleStep::Done {
            self.lines(lines).already_done(self.slot_of_once(), last.as_ref());
        }
        done == ScheduleStep::Done
    }
}

/// What is done in one slot.
pub(super) enum ScheduledTask {
    Command(CommandConfig),
    Get(HttpPoll),
    Mock,
}

/// How one slot's run came out.
struct RunReport {
    outcome: RunOutcome,
    detail: Option<String>,
    exit: Exit,
    /// There is no next slot in this term.
    over: bool,
}

impl TermSupervisor<'_> {
    /// Works through the slots of one term.
    pub(super) async fn scheduled(
        &self,
        table: &ScheduledWork,
        leadership: &Leadership,
        signals: &mut Signals,
    ) -> TermOutcome {
        let left = leadership.checkpoint().map(|checkpoint| checkpoint.as_bytes());
        let left = match ScheduleCheckpoint::read(left) {
            Ok(left) => left,
            Err(error) => return TermOutcome::Failed(error),
        };
        self.board.show(left.as_ref());
        let mut rest_guard = self.guard_rest(table, leadership);
        let mut planner = SchedulePlanner::new(table.schedule.clone(), table.policy, left);
        let mut watch = StopSignals::default();
        let (mut exit, mut ran) = (Exit::Done, false);
        loop {
            let pause = match planner.step(unix_ms()) {
                ScheduleStep::Begin(slot) => {
                    let draft = planner.draft(slot, self.id().as_str(), unix_ms());
                    // A save that hangs must not hold up the end of the term or of this process.
                    let mut ended = None;
                    let noted = tokio::select! {
                        biased;
                        noted = self.note_down(leadership, &draft) => noted,
                        () = async {
                            ended = self.rest(Duration::MAX, leadership, signals).await;
                            Clock::boot().sleep(AGAIN).await;
                        } => SaveOutcome::Unknown,
                    };
                    if let Some(after) = ended {
                        if let SaveOutcome::Kept = noted {
                            planner.begun(draft);
                            planner.ended(RunOutcome::Stopped, None, unix_ms());
                            self.note_down_end(leadership, &mut planner).await;
                        }
                        return after;
                    }
                    match noted {
                        SaveOutcome::Kept => {
                            planner.begun(draft);
                            // A command has a guard of its own, which knows when it has ended.
                            if let ScheduledTask::Command(_) = table.task {
                                rest_guard.take();
                            }
                            let report = self
                                .one_slot(table, leadership, signals, &mut watch, &planner)
                                .await;
                            (exit, ran) = (report.exit, true);
                            if rest_guard.is_none() && !report.over {
                                rest_guard = self.guard_rest(table, leadership);
                            }
                            self.came_meanwhile(table, &mut planner);
                            planner.ended(report.outcome, report.detail, unix_ms());
                            self.note_down_end(leadership, &mut planner).await;
                            if report.over {
                                break;
                            }
                            Duration::ZERO
                        }
                        SaveOutcome::Lost => Duration::MAX,
                        SaveOutcome::Unknown => AGAIN,
                    }
                }
                ScheduleStep::Wait { until } => {
                    self.note_down_end(leadership, &mut planner).await;
                    let left = until.map(|until| until.saturating_sub(unix_ms()));
                    left.map_or(LOOK_EVERY, Duration::from_millis).min(LOOK_EVERY)
                }
                ScheduleStep::Skip { .. } => Duration::ZERO,
                ScheduleStep::Interrupted(run) => {
                    table.lines(self.lines).interrupted(&run, table.policy.interrupted);
                    self.board.passed("interrupted");
                    self.note_down_end(leadership, &mut planner).await;
                    Duration::ZERO
                }
                ScheduleStep::Ahead(ahead) => {
                    self.lines.ahead(&ahead);
                    Duration::ZERO
                }
                ScheduleStep::Done => {
                    if !ran {
                        let last = planner.ledger().last_run.as_ref();
                        table.lines(self.lines).already_done(table.slot_of_once(), last);
                    }
                    self.lines.work_ended();
                    return TermOutcome::Ended(exit);
                }
            };
            // Even if there is no time to rest: with a store slower than the period there never is.
            if let Some(after) = self.rest(pause, leadership, signals).await {
                return after;
            }
        }
        match watch.ending {
            true => TermOutcome::Ended(exit),
            false => TermOutcome::Lost,
        }
    }

    /// Somebody who sees it if we die while no command runs, and gives the lease back. Without one the TTL applies.
    fn guard_rest(&self, table: &ScheduledWork, leadership: &Leadership) -> Option<IdleGuard> {
        let recipe = table.rest_guard.as_ref()?;
        let posted = leadership
            .permit(Duration::ZERO, |permit| RunningCommand::start(recipe, permit, self.store))?;
        posted
            .inspect_err(|error| self.lines.trouble(&format!("cannot start the guard: {error}")))
            .ok()
            .map(|ward| IdleGuard(Some(ward)))
    }

    /// Between two slots.
    async fn rest(
        &self,
        pause: Duration,
        leadership: &Leadership,
        signals: &mut Signals,
    ) -> Option<TermOutcome> {
        let clock = Clock::boot();
        tokio::select! {
            biased;
            why = leadership.lost() => {
                self.lines.lost(&why);
                Some(TermOutcome::Lost)
            }
            _ = signals.end() => Some(TermOutcome::Ended(Exit::Done)),
            () = clock.sleep(pause) => None,
        }
    }

    async fn one_slot(
        &self,
        table: &ScheduledWork,
        leadership: &Leadership,
        signals: &mut Signals,
        watch: &mut StopSignals,
        planner: &SchedulePlanner,
    ) -> RunReport {
        let (clock, began) = (Clock::boot(), Clock::boot().now());
        self.board.began(unix_ms());
        self.board.show(Some(planner.ledger()));
        let report = match &table.task {
            ScheduledTask::Mock => {
                let count = planner.ledger().count;
                let polled = leadership.permit(Duration::ZERO, |_permit| self.lines.poll(count));
                let outcome = if polled.is_some() { RunOutcome::Ok } else { RunOutcome::Stopped };
                RunReport { outcome, detail: None, exit: Exit::Done, over: false }
            }
            ScheduledTask::Get(get) => self.poll(get, leadership, signals, watch, planner).await,
            ScheduledTask::Command(recipe) => match self
                .one_run(recipe, leadership, signals, watch)
                .await
            {
                RunResult::Ended(ended) => of_command(ended, watch.ending),
                RunResult::Refused(exit) => {
                    watch.ending = true;
                    RunReport { outcome: RunOutcome::Failed, detail: None, exit, over: true }
                }
                RunResult::Stopped => {
                    let over = watch.lost || watch.ending;
                    RunReport { outcome: RunOutcome::Stopped, detail: None, exit: Exit::Done, over }
                }
            },
        };
        let took = clock.now().since(began);
        self.board.ended(&report.outcome, took);
        // A failed poll is reported where it is done.
        if let (RunOutcome::Failed, Some(reason), ScheduledTask::Command(_), Some(run)) =
            (&report.outcome, &report.detail, &table.task, &planner.ledger().last_run)
            && !watch.ending
        {
            let next = table.schedule.next(unix_ms()).filter(|_| table.policy.once.is_none());
            table.lines(self.lines).failed(run, reason, took, next);
        }
        report
    }

    async fn poll(
        &self,
        get: &HttpPoll,
        leadership: &Leadership,
        signals: &mut Signals,
        watch: &mut StopSignals,
        planner: &SchedulePlanner,
    ) -> RunReport {
        let stopped =
            |over| RunReport { outcome: RunOutcome::Stopped, detail: None, exit: Exit::Done, over };
        let (outcome, detail) = tokio::select! {
            biased;
            why = leadership.lost() => {
                self.lines.lost(&why);
                watch.lost = true;
                return stopped(true);
            }
            _ = signals.end() => {
                watch.ending = true;
                return stopped(true);
            }
            answer = get.poll(leadership) => answer,
        };
        self.lines.polled(planner.ledger().count, outcome == RunOutcome::Ok, detail.as_deref());
        RunReport { outcome, detail, exit: Exit::Done, over: false }
    }

    /// Slots that came while the run went on are counted, and not run.
    fn came_meanwhile(&self, table: &ScheduledWork, planner: &mut SchedulePlanner) {
        loop {
            let settled = planner.ledger().settled(&table.schedule);
            let ScheduleStep::Skip { slot, slots } = planner.step(unix_ms()) else { return };
            let first = settled.and_then(|settled| table.schedule.next(settled)).unwrap_or(slot);
            let run = planner.ledger().last_run.as_ref();
            table.lines(self.lines).skipped(first.at, slot, slots, run);
            self.board.passed("skipped");
        }
    }

    async fn note_down(&self, leadership: &Leadership, ledger: &ScheduleCheckpoint) -> SaveOutcome {
        match leadership.save(ledger.to_json()).await {
            Ok(Saved::Kept) => {
                self.save_failures.reset();
                self.board.show(Some(ledger));
                SaveOutcome::Kept
            }
            // The loss itself is told where it is declared.
            Ok(Saved::Lost) => SaveOutcome::Lost,
            Err(error) => {
                if self.save_failures.admits(Clock::boot().now()) {
                    self.lines.trouble(&format!("cannot note down what is run: {error}"));
                }
                SaveOutcome::Unknown
            }
        }
    }

    /// What has ended is noted down if it can be; the next one to begin says it too.
    async fn note_down_end(&self, leadership: &Leadership, planner: &mut SchedulePlanner) {
        let Some(ledger) = planner.unsaved().cloned() else { return };
        let clock = Clock::boot();
        let noted = tokio::select! {
            noted = self.note_down(leadership, &ledger) => noted,
            () = clock.sleep(AGAIN) => SaveOutcome::Unknown,
        };
        if let SaveOutcome::Kept = noted {
            planner.saved();
        }
        self.board.show(Some(&ledger));
    }
}

/// Dismissed when it is dropped.
struct IdleGuard(Option<RunningCommand>);

impl Drop for IdleGuard {
    fn drop(&mut self) {
        if let Some(ward) = self.0.take() {
            ward.dismiss();
        }
    }
}

/// Whether something was noted down.
enum SaveOutcome {
    Kept,
    /// The term is over.
    Lost,
    Unknown,
}

fn of_command(ended: ProcessExit, over: bool) -> RunReport {
    let (outcome, detail) = match ended {
        ProcessExit::Code(0) => (RunOutcome::Ok, None),
        ProcessExit::Code(code) => (RunOutcome::Failed, Some(format!("exit code {code}"))),
        ProcessExit::Signal(signal) => (RunOutcome::Failed, Some(format!("signal {signal}"))),
    };
    RunReport { outcome, detail, exit: ended.into(), over }
}
