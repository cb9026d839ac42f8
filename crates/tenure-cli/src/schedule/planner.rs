//! What a leader does next about its schedule.
//!
//! PURE: it is told the time and answers with a [`Step`]. One planner lives as long as one term.
//!
//! The rules, whatever the clocks of the nodes say:
//!
//! - A slot begins only if it is newer than every slot that was dealt with before, and only after that
//!   was saved under the token. So none begins twice, and a crash between the two loses one instead. A
//!   node whose clock is behind waits until it has caught up.
//! - When a term begins, at most one run makes up for what was missed: the interrupted one with
//!   `--interrupted rerun`, else the newest slot that has passed with `--missed run-once`.
//! - Each slot is counted once: as begun, as skipped (it came while a run went on) or as missed.
//!
//! # With `--once`
//!
//! The slot in question is the one that was current **when the process was started**, by its own clock.
//! How long it then waited for the lease does not matter, so a crontab line on several hosts means the
//! same slot everywhere: each host's cron goes by the clock by which the slot is found, and does not
//! start anything early. That holds for `0 2 * * *` with `--every 1d`, whose slots change at midnight
//! UTC, and just as well for `59 23 * * *` and `0 0 * * *`.
//!
//! Not guaranteed: that processes which are started at the same moment, and not at the same time of
//! their own clocks, mean the same slot. Three seconds apart around midnight UTC, one may mean today
//! and the other tomorrow. If yesterday's slot has been run by anybody it is still one run; if not, it
//! may be two, one for each slot. Never is it two for the same slot.

use super::{RunOutcome, RunRecord, Schedule, ScheduleCheckpoint, Slot};

/// A lead of this much is an ordinary difference between clocks, in milliseconds.
const AHEAD_MOST: u64 = 60_000;
/// Slots of a cron schedule are counted by walking over them; after so many it is "at least".
const WALK_MOST: u64 = 10_000;

/// What to do about slots that passed without a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Missed {
    /// The newest is run now
    #[default]
    RunOnce,
    /// None is run
    Skip,
}

/// What to do about a run whose leader was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Interrupted {
    /// It is told of
    #[default]
    Report,
    /// It is told of and run again
    Rerun,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) missed: Missed,
    pub(crate) interrupted: Interrupted,
    /// With `--once`: when the process was started, in Unix milliseconds.
    pub(crate) once: Option<u64>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ScheduleStep {
    /// Save [`Planner::draft`] for this slot, and start the run only if it was kept.
    Begin(Slot),
    /// Nothing until then, in Unix milliseconds, or until the run has ended; `None` is for ever.
    ///
    /// A wall clock can be set: whoever sleeps asks again now and then.
    Wait { until: Option<u64> },
    /// So many slots, the newest of them `slot`, came while the run goes on, and are not run.
    Skip { slot: Slot, slots: u64 },
    /// Nobody saw this run of an earlier term end: to be told of. Asked again, it goes on.
    Interrupted(RunRecord),
    /// A node with a wrong clock has led: to be told of. Asked again, it goes on.
    Ahead(UpcomingRuns),
    /// With `--once`: somebody has started the slot, or its run has ended.
    Done,
}

/// The newest slot that was dealt with lies far in the future.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UpcomingRuns {
    /// Who began the last run, if there was one.
    pub(crate) by: Option<String>,
    /// When that slot begins, in Unix milliseconds.
    pub(crate) settled_to: u64,
    /// Nothing will run for so many milliseconds; `None` is for ever.
    pub(crate) idle_ms: Option<u64>,
}

/// The plan of one term.
#[derive(Debug)]
pub(crate) struct SchedulePlanner {
    schedule: Schedule,
    policy: Policy,
    ledger: ScheduleCheckpoint,
    /// The slot of an interrupted run that is to be run again.
    again: Option<Slot>,
    /// A run of this term goes on.
    running: bool,
    /// What passed before this term has not been looked at yet.
    new: bool,
    warned: bool,
    /// With `--once`: its run has ended.
    over: bool,
    /// A draft was given out, and whether it was kept is not known.
    drafted: bool,
    changed: bool,
}

impl SchedulePlanner {
    /// A term begins, with what the last leader has left.
    pub(crate) fn new(
        schedule: Schedule,
        policy: Policy,
        left: Option<ScheduleCheckpoint>,
    ) -> SchedulePlanner {
        SchedulePlanner {
            schedule,
            policy,
            ledger: left.unwrap_or_default(),
            again: None,
            running: false,
            new: true,
            warned: false,
            over: false,
            drafted: false,
            changed: false,
        }
    }

    /// What to do at `now`, in Unix milliseconds.
    pub(crate) fn step(&mut self, now: u64) -> ScheduleStep {
        if self.running {
            return self.go_on(now);
        }
        if self.over {
            return ScheduleStep::Done;
        }
        if let Some(ahead) = self.ahead(now) {
            self.warned = true;
            return ScheduleStep::Ahead(ahead);
        }
        if let Some(run) = self.interrupted() {
            return ScheduleStep::Interrupted(run);
        }
        if let Some(asked) = self.policy.once {
            return self.once(asked);
        }
        if let Some(slot) = self.again {
            return ScheduleStep::Begin(slot);
        }
        self.due(now)
    }

    /// The ledger that says that `slot` has begun, to be saved before it does.
    ///
    /// If the store does not say whether it was kept, save the same again, or ask for the next step.
    pub(crate) fn draft(&mut self, slot: Slot, by: &str, now: u64) -> ScheduleCheckpoint {
        let mut ledger = self.ledger.clone();
        let settled = self.settled();
        // Run again, it stands for all that has passed meanwhile.
        let (through, missed) = match settled {
            Some(settled) if self.again == Some(slot) => {
                let newest = self.newer(now).map_or(settled, |newest| newest.at);
                (newest, self.count(settled, newest))
            }
            Some(settled) => (slot.at, self.count(settled, slot.at).saturating_sub(1)),
            None => (slot.at, 0),
        };
        ledger.missed = ledger.missed.saturating_add(missed);
        ledger.settled_to = Some(through);
        ledger.count = ledger.count.saturating_add(1);
        ledger.last_run = Some(RunRecord {
            slot: slot.number,
            slot_at: Some(slot.at),
            by: by.to_owned(),
            started_at: Some(now),
            ended_at: None,
            outcome: RunOutcome::Running,
            detail: None,
        });
        self.drafted = true;
        ledger
    }

    /// The draft was kept: the run starts.
    pub(crate) fn begun(&mut self, draft: ScheduleCheckpoint) {
        self.ledger = draft;
        self.running = true;
        self.new = false;
        self.again = None;
        self.drafted = false;
        self.changed = false;
    }

    /// The run has ended.
    pub(crate) fn ended(&mut self, outcome: RunOutcome, detail: Option<String>, now: u64) {
        if let Some(run) = self.ledger.last_run.as_mut().filter(|_| self.running) {
            run.outcome = outcome;
            run.ended_at = Some(now);
            run.detail = detail;
            self.changed = true;
        }
        self.running = false;
        self.over = self.policy.once.is_some();
    }

    /// What the store does not know yet, and should before anybody waits.
    pub(crate) fn unsaved(&self) -> Option<&ScheduleCheckpoint> {
        // A draft that may have been kept has the newer count: this would put it back.
        (self.changed && !self.drafted).then_some(&self.ledger)
    }

    /// The store has kept what was [unsaved](Self::unsaved).
    pub(crate) fn saved(&mut self) {
        self.changed = false;
    }

    /// What the status tells.
    pub(crate) fn ledger(&self) -> &ScheduleCheckpoint {
        &self.ledger
    }

    /// A run goes on, and no other begins beside it.
    fn go_on(&mut self, now: u64) -> ScheduleStep {
        if self.policy.once.is_some() {
            return ScheduleStep::Wait { until: None };
        }
        match self.newer(now) {
            Some(slot) => {
                let slots = self.settled().map_or(1, |settled| self.count(settled, slot.at));
                self.ledger.skipped = self.ledger.skipped.saturating_add(slots);
                self.settle(slot);
                ScheduleStep::Skip { slot, slots }
            }
            None => self.wait(now),
        }
    }

    fn once(&self, asked: u64) -> ScheduleStep {
        let Some(slot) = self.schedule.current(asked) else { return ScheduleStep::Done };
        let started = self.settled().is_some_and(|settled| slot.at <= settled);
        if started && self.again != Some(slot) {
            ScheduleStep::Done
        } else {
            ScheduleStep::Begin(slot)
        }
    }

    fn due(&mut self, now: u64) -> ScheduleStep {
        let Some(slot) = self.newer(now) else { return self.wait(now) };
        let new = std::mem::take(&mut self.new);
        match self.settled() {
            // As cron does it: nobody has missed what was before the first leader.
            None if matches!(self.schedule, Schedule::Cron(_)) => {
                self.settle(slot);
                self.wait(now)
            }
            Some(settled) if new && self.policy.missed == Missed::Skip => {
                let missed = self.count(settled, slot.at);
                self.ledger.missed = self.ledger.missed.saturating_add(missed);
                self.settle(slot);
                self.wait(now)
            }
            _ => ScheduleStep::Begin(slot),
        }
    }

    /// The current slot, if it is newer than what was dealt with.
    fn newer(&self, now: u64) -> Option<Slot> {
        let settled = self.settled();
        self.schedule.current(now).filter(|slot| settled.is_none_or(|settled| slot.at > settled))
    }

    fn wait(&self, now: u64) -> ScheduleStep {
        let from = self.settled().map_or(now, |settled| settled.max(now));
        ScheduleStep::Wait { until: self.schedule.next(from).map(|slot| slot.at) }
    }

    /// Marks a run that an earlier term has left unfinished.
    fn interrupted(&mut self) -> Option<RunRecord> {
        let left = self.ledger.unfinished()?.clone();
        if self.policy.interrupted == Interrupted::Rerun {
            // A number of another schedule may mean any time: one that was begun is not later than this.
            let settled = self.settled().unwrap_or(0);
            let at = self.schedule.slot(left.slot).map_or(settled, |slot| slot.at.min(settled));
            self.again = Some(Slot { at, number: left.slot });
        }
        if let Some(run) = &mut self.ledger.last_run {
            run.outcome = RunOutcome::Interrupted;
        }
        self.changed = true;
        Some(left)
    }

    fn ahead(&self, now: u64) -> Option<UpcomingRuns> {
        let settled_to = self.settled()?;
        if self.warned || settled_to <= now.saturating_add(AHEAD_MOST) {
            return None;
        }
        let next = self.schedule.next(settled_to);
        Some(UpcomingRuns {
            by: self.ledger.last_run.as_ref().map(|run| run.by.clone()),
            settled_to,
            idle_ms: next.map(|slot| slot.at.saturating_sub(now)),
        })
    }

    fn settled(&self) -> Option<u64> {
        self.ledger.settled(&self.schedule)
    }

    fn settle(&mut self, slot: Slot) {
        self.ledger.settled_to = Some(slot.at);
        self.changed = true;
    }

    fn count(&self, from: u64, to: u64) -> u64 {
        self.schedule.count(from, to, WALK_MOST)
    }
}
