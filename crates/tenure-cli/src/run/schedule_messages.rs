//! The log lines about the runs of a schedule: spelled in `docs/CLI.md`. Slots are named by their local time.

use std::time::Duration;

use tenure::CandidateId;

use super::messages::RunMessages;
use crate::messages::{CommonMessages as _, say};
use crate::schedule::{Interrupted, RunOutcome, RunRecord, Schedule, Slot};
use crate::{duration, time};

/// Up to this many skipped runs are named individually; of more, only the first and the last.
const MAX_NAMED_SLOTS: u64 = 2;

/// Logs what happens to the runs of one schedule.
#[derive(Clone, Copy)]
pub(super) struct ScheduleMessages<'a> {
    pub(super) messages: &'a RunMessages,
    pub(super) schedule: &'a Schedule,
    /// Unix milliseconds. Times of another day are shown with their date.
    pub(super) now: u64,
}

impl ScheduleMessages<'_> {
    /// The command of this slot's run failed; `reason` is its exit code or signal.
    pub(super) fn failed(&self, run: &RunRecord, reason: &str, took: Duration, next: Option<Slot>) {
        let (id, text) = (self.id(), self.failure(run, reason, took, next));
        say!(warn, id, "failed", "warning: {text}");
    }

    fn failure(&self, run: &RunRecord, reason: &str, took: Duration, next: Option<Slot>) -> String {
        let next = next.map(|slot| format!("; next at {}", self.at(slot.at)));
        let (name, slot, took) = (&self.messages.name, self.slot_of(run), duration::rounded(took));
        format!(
            "{name}: the run of {slot} failed: {reason} after {took}{}",
            next.unwrap_or_default()
        )
    }

    /// The `slots` from `first` to `last` came while `run` was in progress.
    pub(super) fn skipped(&self, first: u64, last: Slot, slots: u64, run: Option<&RunRecord>) {
        let (id, text) = (self.id(), self.skipping(first, last, slots, run));
        say!(warn, id, "skipped", "{text}");
    }

    fn skipping(&self, first: u64, last: Slot, slots: u64, run: Option<&RunRecord>) -> String {
        let (name, first, last) = (&self.messages.name, self.at(first), self.at(last.at));
        let skipped = match slots {
            0 | 1 => format!("the run of {last}"),
            ..=MAX_NAMED_SLOTS => format!("the runs of {first} and {last}"),
            _ => format!("{slots} runs, from {first} to {last}"),
        };
        let going = run
            .map_or("an earlier run".to_owned(), |run| format!("the run of {}", self.slot_of(run)));
        format!("{name}: skipped {skipped}: {going} was still going")
    }

    /// The leader of this run was lost before the run ended.
    pub(super) fn interrupted(&self, run: &RunRecord, policy: Interrupted) {
        let (id, name, slot, by) = (self.id(), &self.messages.name, self.slot_of(run), &run.by);
        let then = match policy {
            Interrupted::Report => "not repeated (--interrupted rerun)",
            Interrupted::Rerun => "it runs again now (--interrupted rerun)",
        };
        say!(
            warn,
            id,
            "interrupted",
            "warning: {name}: the run of {slot} on {by} was interrupted; {then}"
        );
    }

    /// With `--once`: the run of `slot` is not started here, because of the last run or of a later slot.
    pub(super) fn already_done(&self, slot: Option<Slot>, last: Option<&RunRecord>) {
        let (id, text) = (self.id(), self.done(slot, last));
        say!(info, id, "done", "{text}; nothing to do");
    }

    fn done(&self, slot: Option<Slot>, last: Option<&RunRecord>) -> String {
        let name = &self.messages.name;
        let Some(slot) = slot else { return format!("{name}: no run is due yet") };
        let at = self.at(slot.at);
        let Some(last) = last else {
            return format!("{name}: the run of {at} was skipped or missed");
        };
        let (by, outcome) = (&last.by, last.outcome.word());
        let how = match (&last.outcome, last.ended_at, last.started_at) {
            (RunOutcome::Interrupted, ..) => format!("was begun by {by} ({outcome})"),
            (_, Some(ended), _) => {
                format!("was done by {by} at {} ({outcome})", self.second(ended))
            }
            (_, None, Some(begun)) => {
                format!("was begun by {by} at {} ({outcome})", self.second(begun))
            }
            (_, None, None) => format!("was begun by {by} ({outcome})"),
        };
        match last.slot == slot.number {
            true => format!("{name}: the run of {at} {how}"),
            false => format!(
                "{name}: the run of {at} was skipped or missed; the last one, of {}, {how}",
                self.slot_of(last)
            ),
        }
    }

    fn id(&self) -> &CandidateId {
        self.messages.id()
    }

    fn at(&self, unix_ms: u64) -> String {
        time::local_time_of_slot(unix_ms, self.now)
    }

    /// Rounded down to the second, which is precise enough for the end of a run.
    fn second(&self, unix_ms: u64) -> String {
        self.at(unix_ms / 1_000 * 1_000)
    }

    /// The time of the run's slot. A checkpoint of an earlier version contains only the slot's number.
    fn slot_of(&self, run: &RunRecord) -> String {
        let at = run.slot_at.or_else(|| self.schedule.slot(run.slot).map(|slot| slot.at));
        at.map_or_else(|| format!("slot {}", run.slot), |at| self.at(at))
    }
}

#[cfg(test)]
mod tests {
    use tenure::Name;

    use super::*;

    const MINUTE: u64 = 60_000;
    const NOW: u64 = 1_750_258_800_000;

    fn run(at: u64, outcome: RunOutcome) -> RunRecord {
        RunRecord {
            slot: at / MINUTE,
            slot_at: Some(at),
            by: "host-b".to_owned(),
            started_at: Some(at + 41),
            ended_at: Some(at + 3_041),
            outcome,
            detail: None,
        }
    }

    /// Runs `test` with the messages of a schedule of one run per minute, at the time `NOW`.
    fn with<T>(test: impl FnOnce(&ScheduleMessages<'_>) -> T) -> T {
        let (id, name) = (CandidateId::new("n1").unwrap(), Name::new("job").unwrap());
        let messages = RunMessages::new(&id, &name);
        let schedule = Schedule::Every(MINUTE);
        test(&ScheduleMessages { messages: &messages, schedule: &schedule, now: NOW })
    }

    fn at(unix_ms: u64) -> String {
        time::local_time_of_slot(unix_ms, NOW)
    }

    #[test]
    fn a_failed_run_reports_its_slot_reason_duration_and_next_slot() {
        with(|messages| {
            let run = run(NOW, RunOutcome::Failed);
            let (took, next) = (Duration::from_millis(2_512), messages.schedule.next(NOW));
            assert_eq!(
                messages.failure(&run, "exit code 3", took, next),
                format!(
                    "job: the run of {} failed: exit code 3 after 2.5s; next at {}",
                    at(NOW),
                    at(NOW + MINUTE)
                )
            );
            let old = RunRecord { slot_at: None, ..run };
            assert_eq!(
                messages.failure(&old, "signal 9", Duration::from_secs(90), None),
                format!("job: the run of {} failed: signal 9 after 1m30s", at(NOW))
            );
        });
    }

    #[test]
    fn skipped_runs_are_named_by_their_times() {
        with(|messages| {
            let run = run(NOW, RunOutcome::Running);
            let slot = |after: u64| messages.schedule.current(NOW + after * MINUTE).unwrap();
            let skipped = |slots| messages.skipping(NOW + MINUTE, slot(slots), slots, Some(&run));
            let (zero, one) = (at(NOW), at(NOW + MINUTE));
            let end = format!(": the run of {zero} was still going");
            assert_eq!(skipped(1), format!("job: skipped the run of {one}{end}"));
            let two = at(NOW + 2 * MINUTE);
            assert_eq!(skipped(2), format!("job: skipped the runs of {one} and {two}{end}"));
            let five = at(NOW + 5 * MINUTE);
            assert_eq!(skipped(5), format!("job: skipped 5 runs, from {one} to {five}{end}"));
        });
    }

    #[test]
    fn a_slot_that_is_done_reports_its_candidate_and_time() {
        with(|messages| {
            let slot = messages.schedule.current(NOW);
            let (now, ended) = (at(NOW), at(NOW + 3_000));
            let ok = run(NOW, RunOutcome::Ok);
            assert_eq!(
                messages.done(slot, Some(&ok)),
                format!("job: the run of {now} was done by host-b at {ended} (ok)")
            );
            let later = run(NOW + MINUTE, RunOutcome::Failed);
            assert_eq!(
                messages.done(slot, Some(&later)),
                format!(
                    "job: the run of {now} was skipped or missed; the last one, of {}, was done by host-b at {} (failed)",
                    at(NOW + MINUTE),
                    at(NOW + MINUTE + 3_000)
                )
            );
            let interrupted = RunRecord { ended_at: None, ..run(NOW, RunOutcome::Interrupted) };
            assert_eq!(
                messages.done(slot, Some(&interrupted)),
                format!("job: the run of {now} was begun by host-b (interrupted)")
            );
            assert_eq!(messages.done(None, None), "job: no run is due yet");
        });
    }
}
