//! Work on a schedule: each slot begins once, whoever leads.

use std::time::Duration;

use tenure::store::Scope;
use tenure::{Clock, Leadership, Name, Saved, Store};

use super::get::Get;
use super::lines::Lines;
use super::run_lines::RunLines;
use super::term::{After, Attention, Crew, Run};
use super::ward::{Recipe, Ward};
use crate::exit::Exit;
use crate::guard::Ended;
use crate::lines::Common as _;
use crate::permit::HeldTerm as _;
use crate::schedule::{Ledger, Outcome, Planner, Policy, Schedule, Slot, Step};
use crate::signals::Signals;
use crate::time::unix_ms;

/// A wall clock can be set, so nobody sleeps longer than this without a look at it.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// What could not be noted down is tried again after this.
const AGAIN: Duration = Duration::from_millis(500);

/// How long `--once` waits for the store before it campaigns without knowing whether its slot is done.
const PEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// What is done, and when.
pub(super) struct Timetable {
    pub(super) schedule: Schedule,
    pub(super) policy: Policy,
    pub(super) task: Task,
    /// A guard without a command, while none runs; `None` with `--no-guard`.
    pub(super) rest_guard: Option<Recipe>,
}

impl Timetable {
    fn lines<'a>(&'a self, lines: &'a Lines) -> RunLines<'a> {
        RunLines { lines, schedule: &self.schedule, now: unix_ms() }
    }

    /// With `--once`: the slot that is to be run.
    fn slot_of_once(&self) -> Option<Slot> {
        self.policy.once.and_then(|started| self.schedule.current(started))
    }

    /// With `--once`: whether the checkpoint already says that there is nothing to run, so that this candidate need not
    /// campaign. Says so. A store that does not answer soon is asked by the campaign.
    pub(super) async fn is_done(&self, name: &Name, store: &dyn Store, lines: &Lines) -> bool {
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
        let Ok(Some(ledger)) = Ledger::read(checkpoint) else { return false };
        let last = ledger.last_run.clone();
        let done = Planner::new(self.schedule.clone(), self.policy, Some(ledger)).step(unix_ms());
        if done == Step::Done {
            self.lines(lines).already_done(self.slot_of_once(), last.as_ref());
        }
        done == Step::Done
    }
}

/// What is done in one slot.
pub(super) enum Task {
    Command(Recipe),
    Get(Get),
    Mock,
}

/// How one slot's run came out.
struct Report {
    outcome: Outcome,
    detail: Option<String>,
    exit: Exit,
    /// There is no next slot in this term.
    over: bool,
}

impl Crew<'_> {
    /// Works through the slots of one term.
    pub(super) async fn scheduled(
        &self,
        table: &Timetable,
        leadership: &Leadership,
        signals: &mut Signals,
    ) -> After {
        let left = leadership.checkpoint().map(|checkpoint| checkpoint.as_bytes());
        let left = match Ledger::read(left) {
            Ok(left) => left,
            Err(error) => return After::Failed(error),
        };
        self.board.show(left.as_ref());
        let mut rest_guard = self.guard_rest(table, leadership);
        let mut planner = Planner::new(table.schedule.clone(), table.policy, left);
        let mut watch = Attention::default();
        let (mut exit, mut ran) = (Exit::Done, false);
        loop {
            let pause = match planner.step(unix_ms()) {
                Step::Begin(slot) => {
                    let draft = planner.draft(slot, self.id().as_str(), unix_ms());
                    // A save that hangs must not hold up the end of the term or of this process.
                    let mut ended = None;
                    let noted = tokio::select! {
                        biased;
                        noted = self.note_down(leadership, &draft) => noted,
                        () = async {
                            ended = self.rest(Duration::MAX, leadership, signals).await;
                            Clock::boot().sleep(AGAIN).await;
                        } => Noted::Unknown,
                    };
                    if let Some(after) = ended {
                        if let Noted::Kept = noted {
                            planner.begun(draft);
                            planner.ended(Outcome::Stopped, None, unix_ms());
                            self.note_down_end(leadership, &mut planner).await;
                        }
                        return after;
                    }
                    match noted {
                        Noted::Kept => {
                            planner.begun(draft);
                            // A command has a guard of its own, which knows when it has ended.
                            if let Task::Command(_) = table.task {
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
                        Noted::Lost => Duration::MAX,
                        Noted::Unknown => AGAIN,
                    }
                }
                Step::Wait { until } => {
                    self.note_down_end(leadership, &mut planner).await;
                    let left = until.map(|until| until.saturating_sub(unix_ms()));
                    left.map_or(LOOK_EVERY, Duration::from_millis).min(LOOK_EVERY)
                }
                Step::Skip { .. } => Duration::ZERO,
                Step::Interrupted(run) => {
                    table.lines(self.lines).interrupted(&run, table.policy.interrupted);
                    self.board.passed("interrupted");
                    self.note_down_end(leadership, &mut planner).await;
                    Duration::ZERO
                }
                Step::Ahead(ahead) => {
                    self.lines.ahead(&ahead);
                    Duration::ZERO
                }
                Step::Done => {
                    if !ran {
                        let last = planner.ledger().last_run.as_ref();
                        table.lines(self.lines).already_done(table.slot_of_once(), last);
                    }
                    self.lines.work_ended();
                    return After::Ended(exit);
                }
            };
            // Even if there is no time to rest: with a store slower than the period there never is.
            if let Some(after) = self.rest(pause, leadership, signals).await {
                return after;
            }
        }
        match watch.ending {
            true => After::Ended(exit),
            false => After::Lost,
        }
    }

    /// Somebody who sees it if we die while no command runs, and gives the lease back. Without one the TTL applies.
    fn guard_rest(&self, table: &Timetable, leadership: &Leadership) -> Option<RestGuard> {
        let recipe = table.rest_guard.as_ref()?;
        let posted =
            leadership.permit(Duration::ZERO, |permit| Ward::start(recipe, permit, self.store))?;
        posted
            .inspect_err(|error| self.lines.trouble(&format!("cannot start the guard: {error}")))
            .ok()
            .map(|ward| RestGuard(Some(ward)))
    }

    /// Between two slots.
    async fn rest(
        &self,
        pause: Duration,
        leadership: &Leadership,
        signals: &mut Signals,
    ) -> Option<After> {
        let clock = Clock::boot();
        tokio::select! {
            biased;
            why = leadership.lost() => {
                self.lines.lost(&why);
                Some(After::Lost)
            }
            _ = signals.end() => Some(After::Ended(Exit::Done)),
            () = clock.sleep(pause) => None,
        }
    }

    async fn one_slot(
        &self,
        table: &Timetable,
        leadership: &Leadership,
        signals: &mut Signals,
        watch: &mut Attention,
        planner: &Planner,
    ) -> Report {
        let (clock, began) = (Clock::boot(), Clock::boot().now());
        self.board.began(unix_ms());
        self.board.show(Some(planner.ledger()));
        let report = match &table.task {
            Task::Mock => {
                let count = planner.ledger().count;
                let polled = leadership.permit(Duration::ZERO, |_permit| self.lines.poll(count));
                let outcome = if polled.is_some() { Outcome::Ok } else { Outcome::Stopped };
                Report { outcome, detail: None, exit: Exit::Done, over: false }
            }
            Task::Get(get) => self.poll(get, leadership, signals, watch, planner).await,
            Task::Command(recipe) => match self.one_run(recipe, leadership, signals, watch).await {
                Run::Ended(ended) => of_command(ended, watch.ending),
                Run::Refused(exit) => {
                    watch.ending = true;
                    Report { outcome: Outcome::Failed, detail: None, exit, over: true }
                }
                Run::Stopped => {
                    let over = watch.lost || watch.ending;
                    Report { outcome: Outcome::Stopped, detail: None, exit: Exit::Done, over }
                }
            },
        };
        let took = clock.now().since(began);
        self.board.ended(&report.outcome, took);
        // A failed poll is reported where it is done.
        if let (Outcome::Failed, Some(reason), Task::Command(_), Some(run)) =
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
        get: &Get,
        leadership: &Leadership,
        signals: &mut Signals,
        watch: &mut Attention,
        planner: &Planner,
    ) -> Report {
        let stopped =
            |over| Report { outcome: Outcome::Stopped, detail: None, exit: Exit::Done, over };
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
        self.lines.polled(planner.ledger().count, outcome == Outcome::Ok, detail.as_deref());
        Report { outcome, detail, exit: Exit::Done, over: false }
    }

    /// Slots that came while the run went on are counted, and not run.
    fn came_meanwhile(&self, table: &Timetable, planner: &mut Planner) {
        loop {
            let settled = planner.ledger().settled(&table.schedule);
            let Step::Skip { slot, slots } = planner.step(unix_ms()) else { return };
            let first = settled.and_then(|settled| table.schedule.next(settled)).unwrap_or(slot);
            let run = planner.ledger().last_run.as_ref();
            table.lines(self.lines).skipped(first.at, slot, slots, run);
            self.board.passed("skipped");
        }
    }

    async fn note_down(&self, leadership: &Leadership, ledger: &Ledger) -> Noted {
        match leadership.save(ledger.to_json()).await {
            Ok(Saved::Kept) => {
                self.save_failures.reset();
                self.board.show(Some(ledger));
                Noted::Kept
            }
            // The loss itself is told where it is declared.
            Ok(Saved::Lost) => Noted::Lost,
            Err(error) => {
                if self.save_failures.admits(Clock::boot().now()) {
                    self.lines.trouble(&format!("cannot note down what is run: {error}"));
                }
                Noted::Unknown
            }
        }
    }

    /// What has ended is noted down if it can be; the next one to begin says it too.
    async fn note_down_end(&self, leadership: &Leadership, planner: &mut Planner) {
        let Some(ledger) = planner.unsaved().cloned() else { return };
        let clock = Clock::boot();
        let noted = tokio::select! {
            noted = self.note_down(leadership, &ledger) => noted,
            () = clock.sleep(AGAIN) => Noted::Unknown,
        };
        if let Noted::Kept = noted {
            planner.saved();
        }
        self.board.show(Some(&ledger));
    }
}

/// Dismissed when it is dropped.
struct RestGuard(Option<Ward>);

impl Drop for RestGuard {
    fn drop(&mut self) {
        if let Some(ward) = self.0.take() {
            ward.dismiss();
        }
    }
}

/// Whether something was noted down.
enum Noted {
    Kept,
    /// The term is over.
    Lost,
    Unknown,
}

fn of_command(ended: Ended, over: bool) -> Report {
    let (outcome, detail) = match ended {
        Ended::Code(0) => (Outcome::Ok, None),
        Ended::Code(code) => (Outcome::Failed, Some(format!("exit code {code}"))),
        Ended::Signal(signal) => (Outcome::Failed, Some(format!("signal {signal}"))),
    };
    Report { outcome, detail, exit: ended.into(), over }
}
