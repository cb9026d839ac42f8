//! The lines about the runs of a schedule: spelled in `docs/CLI.md`. Slots are named by their local time.

use std::time::Duration;

use tenure::CandidateId;

use super::messages::RunMessages;
use crate::messages::{CommonMessages as _, say};
use crate::schedule::{Interrupted, RunOutcome, RunRecord, Schedule, Slot};
use crate::{duration, time};

/// Above this many, only the first and the last skipped run are named.
const NAMED_MOST: u64 = 2;

/// Says what happens to the runs of one schedule.
#[derive(Clone, Copy)]
pub(super) struct RunLines<'a> {
    pub(super) lines: &'a RunMessages,
    pub(super) schedule: &'a Schedule,
    /// Unix milliseconds: times of another day are shown with their date.
    pub(super) now: u64,
}

impl RunLines<'_> {
    /// The command of this slot's run failed; `reason` is its exit code or signal.
    pub(super) fn failed(&self, run: &RunRecord, reason: &str, took: Duration, next: Option<Slot>) {
        let (id, text) = (self.id(), self.failure(run, reason, took, next));
        say!(warn, id, "failed", "warning: {text}");
    }

    fn failure(&self, run: &RunRecord, reason: &str, took: Duration, next: Option<Slot>) -> String {
        let next = next.map(|slot| format!("; next at {}", self.at(slot.at)));
        let (name, slot, took) = (&self.lines.name, self.slot_of(run), duration::rounded(took));
        format!(
            "{name}: the run of {slot} failed: {reason} after {took}{}",
            next.unwrap_or_default()
        )
    }

    /// So many slots, from `first` to `last`, came while `run` went on.
    pub(super) fn skipped(&self, first: u64, last: Slot, slots: u64, run: Option<&RunRecord>) {
        let (id, text) = (self.id(), self.skipping(first, last, slots, run));
        say!(warn, id, "skipped", "{text}");
    }

    fn skipping(&self, first: u64, last: Slot, slots: u64, run: Option<&RunRecord>) -> String {
        let (name, first, last) = (&self.lines.name, self.at(first), self.at(last.at));
        let skipped = match slots {
            0 | 1 => format!("the run of {last}"),
            ..=NAMED_MOST => format!("the runs of {first} and {last}"),
            _ => format!("{slots} runs, from {first} to {last}"),
        };
        let going = run
            .map_or("an earlier run".to_owned(), |run| format!("the run of {}", self.slot_of(run)));
        format!("{name}: skipped {skipped}: {going} was still going")
    }

    /// The leader of this run was lost before the run had ended.
    pub(super) fn interrupted(&self, run: &RunRecord, policy: Interrupted) {
        let (id, name, slot, by) = (self.id(), &self.lines.name, self.slot_of(run), &run.by);
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
        let name = &self.lines.name;
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
        self.lines.id()
    }

    fn at(&self, unix_ms: u64) -> String {
        time::of_slot(unix_ms, self.now)
    }

    /// To the second: nobody reads when exactly a run has ended.
    fn second(&self, unix_ms: u64) -> String {
        self.at(unix_ms / 1_000 * 1_000)
    }

    /// The time of the run's slot. In a checkpoint of an earlier version only its number is known.
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

    /// What the lines say, with the local times in them replaced by how far they are from now.
    fn with<T>(test: impl FnOnce(&RunLines<'_>) -> T) -> T {
        let (id, name) = (CandidateId::new("n1").unwrap(), Name::new("job").unwrap());
        let lines = RunMessages::new(&id, &name);
        let schedule = Schedule::Every(MINUTE);
        test(&RunLines { lines: &lines, schedule: &schedule, now: NOW })
    }

    fn at(unix_ms: u64) -> String {
        time::of_slot(unix_ms, NOW)
    }

    #[test]
    fn a_failed_run_tells_its_slot_reason_duration_and_successor() {
        with(|lines| {
            let run = run(NOW, RunOutcome::Failed);
            let (took, next) = (Duration::from_millis(2_512), lines.schedule.next(NOW));
            assert_eq!(
                lines.failure(&run, "exit code 3", took, next),
                format!(
                    "job: the run of {} failed: exit code 3 after 2.5s; next at {}",
                    at(NOW),
                    at(NOW + MINUTE)
                )
            );
            let old = RunRecord { slot_at: None, ..run };
            assert_eq!(
                lines.failure(&old, "signal 9", Duration::from_secs(90), None),
                format!("job: the run of {} failed: signal 9 after 1m30s", at(NOW))
            );
        });
    }

    #[test]
    fn skipped_runs_are_named_by_their_times() {
        with(|lines| {
            let run = run(NOW, RunOutcome::Running);
            let slot = |after: u64| lines.schedule.current(NOW + after * MINUTE).unwrap();
            let skipped = |slots| lines.skipping(NOW + MINUTE, slot(slots), slots, Some(&run));
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
    fn a_slot_that_is_done_tells_by_whom_and_when() {
        with(|lines| {
            let slot = lines.schedule.current(NOW);
            let (now, ended) = (at(NOW), at(NOW + 3_000));
            let ok = run(NOW, RunOutcome::Ok);
            assert_eq!(
                lines.done(slot, Some(&ok)),
                format!("job: the run of {now} was done by host-b at {ended} (ok)")
            );
            let later = run(NOW + MINUTE, RunOutcome::Failed);
            assert_eq!(
                lines.done(slot, Some(&later)),
                format!(
                    "job: the run of {now} was skipped or missed; the last one, of {}, was done by host-b at {} (failed)",
                    at(NOW + MINUTE),
                    at(NOW + MINUTE + 3_000)
                )
            );
            let interrupted = RunRecord { ended_at: None, ..run(NOW, RunOutcome::Interrupted) };
            assert_eq!(
                lines.done(slot, Some(&interrupted)),
                format!("job: the run of {now} was begun by host-b (interrupted)")
            );
            assert_eq!(lines.done(None, None), "job: no run is due yet");
        });
    }
}
