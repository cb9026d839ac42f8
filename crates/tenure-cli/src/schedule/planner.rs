//! What a leader does next about its schedule.
//!
//! PURE: the caller passes the time and gets a [`ScheduleStep`]. One planner serves one term.
//!
//! The rules, which hold however wrong the clocks of the nodes are:
//!
//! - A slot begins only if it is newer than every slot that was settled before, and only after its start was saved under
//!   the token. So no slot begins twice; a crash between the save and the start loses one run instead. A node whose clock
//!   is behind waits until it has caught up.
//! - When a term begins, at most one run makes up for what was missed: the interrupted run with `--interrupted rerun`,
//!   otherwise the newest slot that has passed with `--missed run-once`.
//! - Each slot is counted once: as begun, as skipped (it came during a run) or as missed.
//!
//! # With `--once`
//!
//! The slot is the one that was current **when the process was started**, by its own clock. How long the process then
//! waited for the lease does not matter, so one crontab line on several hosts means the same slot everywhere: the cron of
//! each host uses the clock from which the slot is computed, and starts nothing early. That holds for `0 2 * * *` with
//! `--every 1d`, whose slots change at midnight UTC, and also for `59 23 * * *` and `0 0 * * *`.
//!
//! Not guaranteed: that processes started at the same moment, but not at the same time of their own clocks, mean the same
//! slot. Three seconds apart around midnight UTC, one may mean today's slot and the other tomorrow's. If any candidate has
//! run yesterday's slot, there is still only one run; if not, there may be two, one for each slot. There are never two
//! runs of the same slot.

use super::{RunOutcome, RunRecord, Schedule, ScheduleCheckpoint, Slot};

/// The lead of a clock, in milliseconds, up to which it is an ordinary difference between clocks.
const MAX_CLOCK_LEAD_MS: u64 = 60_000;
/// The most slots of a cron schedule that are counted, because they are found one by one; beyond this the count means "at
/// least".
const MAX_COUNTED_SLOTS: u64 = 10_000;

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

/// The options of a schedule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) missed: Missed,
    pub(crate) interrupted: Interrupted,
    /// With `--once`: when the process was started, in Unix milliseconds.
    pub(crate) once: Option<u64>,
}

/// What the leader does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ScheduleStep {
    /// Save [`SchedulePlanner::draft`] for this slot, and start the run only if the store kept it.
    Begin(Slot),
    /// Do nothing until then, in Unix milliseconds, or until the run has ended; `None` means forever.
    ///
    /// A wall clock can be set, so the caller takes another step now and then.
    Wait { until: Option<u64> },
    /// The `slots` slots up to `slot` came during the run, and are not run.
    Skip { slot: Slot, slots: u64 },
    /// An earlier term left this run unfinished: report it. The next step continues.
    Interrupted(RunRecord),
    /// A node with a wrong clock has led: report it. The next step continues.
    Ahead(ClockAhead),
    /// With `--once`: a candidate has already started the slot, or its run has ended.
    Done,
}

/// The newest settled slot lies far in the future.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClockAhead {
    /// The candidate that began the last run, if there was one.
    pub(crate) by: Option<String>,
    /// When that slot begins, in Unix milliseconds.
    pub(crate) settled_to: u64,
    /// How many milliseconds nothing will run; `None` means forever.
    pub(crate) idle_ms: Option<u64>,
}

/// The planner of one term.
#[derive(Debug)]
pub(crate) struct SchedulePlanner {
    schedule: Schedule,
    policy: Policy,
    checkpoint: ScheduleCheckpoint,
    /// The slot of an interrupted run that is to be run again.
    rerun_slot: Option<Slot>,
    /// A run of this term is in progress.
    running: bool,
    /// The slots that passed before this term have not been considered yet.
    new: bool,
    warned: bool,
    /// With `--once`: its run has ended.
    over: bool,
    /// A draft was handed out, and it is not known whether the store kept it.
    drafted: bool,
    changed: bool,
}

impl SchedulePlanner {
    /// Starts a term with the checkpoint that the last leader left.
    pub(crate) fn new(
        schedule: Schedule,
        policy: Policy,
        left: Option<ScheduleCheckpoint>,
    ) -> SchedulePlanner {
        SchedulePlanner {
            schedule,
            policy,
            checkpoint: left.unwrap_or_default(),
            rerun_slot: None,
            running: false,
            new: true,
            warned: false,
            over: false,
            drafted: false,
            changed: false,
        }
    }

    /// The step at `now`, in Unix milliseconds.
    pub(crate) fn step(&mut self, now: u64) -> ScheduleStep {
        if self.running {
            return self.step_during_run(now);
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
        if let Some(process_start) = self.policy.once {
            return self.once(process_start);
        }
        if let Some(slot) = self.rerun_slot {
            return ScheduleStep::Begin(slot);
        }
        self.due(now)
    }

    /// The checkpoint that says that `slot` has begun, to be saved before the run starts.
    ///
    /// If the store does not answer whether it was kept, save the same draft again, or take another step.
    pub(crate) fn draft(&mut self, slot: Slot, by: &str, now: u64) -> ScheduleCheckpoint {
        let mut checkpoint = self.checkpoint.clone();
        let settled = self.settled();
        // A rerun stands for all slots that have passed in the meantime.
        let (through, missed) = match settled {
            Some(settled) if self.rerun_slot == Some(slot) => {
                let newest = self.newer(now).map_or(settled, |newest| newest.at);
                (newest, self.count(settled, newest))
            }
            Some(settled) => (slot.at, self.count(settled, slot.at).saturating_sub(1)),
            None => (slot.at, 0),
        };
        checkpoint.missed = checkpoint.missed.saturating_add(missed);
        checkpoint.settled_to = Some(through);
        checkpoint.count = checkpoint.count.saturating_add(1);
        checkpoint.last_run = Some(RunRecord {
            slot: slot.number,
            slot_at: Some(slot.at),
            by: by.to_owned(),
            started_at: Some(now),
            ended_at: None,
            outcome: RunOutcome::Running,
            detail: None,
        });
        self.drafted = true;
        checkpoint
    }

    /// The store kept the draft: the run starts.
    pub(crate) fn begun(&mut self, draft: ScheduleCheckpoint) {
        self.checkpoint = draft;
        self.running = true;
        self.new = false;
        self.rerun_slot = None;
        self.drafted = false;
        self.changed = false;
    }

    /// The run has ended.
    pub(crate) fn ended(&mut self, outcome: RunOutcome, detail: Option<String>, now: u64) {
        if let Some(run) = self.checkpoint.last_run.as_mut().filter(|_| self.running) {
            run.outcome = outcome;
            run.ended_at = Some(now);
            run.detail = detail;
            self.changed = true;
        }
        self.running = false;
        self.over = self.policy.once.is_some();
    }

    /// The changes that the store does not have yet, to be saved before the leader waits.
    pub(crate) fn unsaved(&self) -> Option<&ScheduleCheckpoint> {
        // A draft that may have been kept has a newer count, which saving this would undo.
        (self.changed && !self.drafted).then_some(&self.checkpoint)
    }

    /// The store has kept what was [unsaved](Self::unsaved).
    pub(crate) fn saved(&mut self) {
        self.changed = false;
    }

    /// The current checkpoint, as the status shows it.
    pub(crate) fn checkpoint(&self) -> &ScheduleCheckpoint {
        &self.checkpoint
    }

    /// The step during a run: no other run begins beside it.
    fn step_during_run(&mut self, now: u64) -> ScheduleStep {
        if self.policy.once.is_some() {
            return ScheduleStep::Wait { until: None };
        }
        match self.newer(now) {
            Some(slot) => {
                let slots = self.settled().map_or(1, |settled| self.count(settled, slot.at));
                self.checkpoint.skipped = self.checkpoint.skipped.saturating_add(slots);
                self.settle(slot);
                ScheduleStep::Skip { slot, slots }
            }
            None => self.wait(now),
        }
    }

    fn once(&self, process_start: u64) -> ScheduleStep {
        let Some(slot) = self.schedule.current(process_start) else { return ScheduleStep::Done };
        let started = self.settled().is_some_and(|settled| slot.at <= settled);
        if started && self.rerun_slot != Some(slot) {
            ScheduleStep::Done
        } else {
            ScheduleStep::Begin(slot)
        }
    }

    fn due(&mut self, now: u64) -> ScheduleStep {
        let Some(slot) = self.newer(now) else { return self.wait(now) };
        let new = std::mem::take(&mut self.new);
        match self.settled() {
            // As cron does it: nothing before the first leader counts as missed.
            None if matches!(self.schedule, Schedule::Cron(_)) => {
                self.settle(slot);
                self.wait(now)
            }
            Some(settled) if new && self.policy.missed == Missed::Skip => {
                let missed = self.count(settled, slot.at);
                self.checkpoint.missed = self.checkpoint.missed.saturating_add(missed);
                self.settle(slot);
                self.wait(now)
            }
            _ => ScheduleStep::Begin(slot),
        }
    }

    /// The current slot, if it is newer than every settled slot.
    fn newer(&self, now: u64) -> Option<Slot> {
        let settled = self.settled();
        self.schedule.current(now).filter(|slot| settled.is_none_or(|settled| slot.at > settled))
    }

    fn wait(&self, now: u64) -> ScheduleStep {
        let from = self.settled().map_or(now, |settled| settled.max(now));
        ScheduleStep::Wait { until: self.schedule.next(from).map(|slot| slot.at) }
    }

    /// Marks a run that an earlier term left unfinished as interrupted, and returns it.
    fn interrupted(&mut self) -> Option<RunRecord> {
        let left = self.checkpoint.unfinished()?.clone();
        if self.policy.interrupted == Interrupted::Rerun {
            // A number of another schedule may mean any time. A run that has begun is not later than the newest settled slot.
            let settled = self.settled().unwrap_or(0);
            let at = self.schedule.slot(left.slot).map_or(settled, |slot| slot.at.min(settled));
            self.rerun_slot = Some(Slot { at, number: left.slot });
        }
        if let Some(run) = &mut self.checkpoint.last_run {
            run.outcome = RunOutcome::Interrupted;
        }
        self.changed = true;
        Some(left)
    }

    fn ahead(&self, now: u64) -> Option<ClockAhead> {
        let settled_to = self.settled()?;
        if self.warned || settled_to <= now.saturating_add(MAX_CLOCK_LEAD_MS) {
            return None;
        }
        let next = self.schedule.next(settled_to);
        Some(ClockAhead {
            by: self.checkpoint.last_run.as_ref().map(|run| run.by.clone()),
            settled_to,
            idle_ms: next.map(|slot| slot.at.saturating_sub(now)),
        })
    }

    fn settled(&self) -> Option<u64> {
        self.checkpoint.settled(&self.schedule)
    }

    fn settle(&mut self, slot: Slot) {
        self.checkpoint.settled_to = Some(slot.at);
        self.changed = true;
    }

    fn count(&self, from: u64, to: u64) -> u64 {
        self.schedule.count(from, to, MAX_COUNTED_SLOTS)
    }
}
