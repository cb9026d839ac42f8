//! PURE: reads the journal and says whether two led at once and whether the counter is right.
//!
//! **Two leaders at once**: an effect of an older term after the first effect of a newer one, by
//! the order of the lines or by the clock. So no two terms, from first effect to last, overlap in
//! time.
//!
//! **The counter**: a count is written down only after the store has acknowledged its checkpoint.
//! So over all processes each is the last plus one (less is *doubled*, more is *lost*), and a term
//! begins where the last one ended (else what the store acknowledged is *lost*). A term may begin
//! one further if the one before was cut off (killed, frozen) between the checkpoint and the line:
//! that count is kept, only not written down, and is called *interrupted*.

use std::collections::BTreeMap;

use super::journal::{JournalAction, JournalLine};

/// What can be wrong with the step to a term, and with the term itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// Effects of an older term after this one's first.
    pub(super) two_leaders: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// Kept, but not written down. No fault.
    pub(super) interrupted: u64,
}

impl Faults {
    pub(super) fn none(&self) -> bool {
        self.two_leaders == 0 && self.lost == 0 && self.doubled == 0
    }

    pub(super) fn add(&mut self, other: Faults) {
        self.two_leaders += other.two_leaders;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.interrupted += other.interrupted;
    }

    /// What was written down up to `reached` is `kept` by the store.
    fn handed_on(&mut self, reached: u64, kept: u64, cut_off: bool) {
        if kept == reached + 1 && cut_off {
            self.interrupted += 1;
        } else {
            self.lost += kept.abs_diff(reached);
        }
    }

    /// After `reached` comes `count`.
    fn counted(&mut self, reached: u64, count: u64) {
        match count.checked_sub(reached + 1) {
            None => self.doubled += 1,
            Some(left_out) => self.lost += left_out,
        }
    }
}

/// What the journal comes to.
#[derive(Debug, Default)]
pub(super) struct CheckResult {
    /// By token.
    pub(super) terms: BTreeMap<u64, Faults>,
    /// How many counts were written down.
    pub(super) counts: u64,
    /// The highest of them.
    pub(super) reached: u64,
    /// Faults of the end: what the store has kept is not what was written down.
    pub(super) at_the_end: Faults,
}

impl CheckResult {
    /// The faults of the terms after `after` and up to `until`.
    pub(super) fn between(&self, after: u64, until: u64) -> Faults {
        let mut sum = Faults::default();
        let terms = self.terms.iter().filter(|(token, _)| (after + 1..=until).contains(token));
        terms.for_each(|(_, faults)| sum.add(*faults));
        sum
    }

    /// All of them.
    pub(super) fn total(&self) -> Faults {
        let mut sum = self.at_the_end;
        self.terms.values().for_each(|faults| sum.add(*faults));
        sum
    }
}

/// Judges the whole journal; `kept` is the last checkpoint, where the store was asked for it.
pub(super) fn judge(lines: &[JournalLine], kept: Option<u64>) -> CheckResult {
    let mut verdict = CheckResult::default();
    // Whether the last term did not end in good order.
    let mut cut_off = false;
    for line in lines {
        let faults = verdict.terms.entry(line.token).or_default();
        match line.deed {
            JournalAction::Lead => {
                faults.handed_on(verdict.reached, line.count, cut_off);
                verdict.reached = verdict.reached.max(line.count);
                cut_off = true;
            }
            JournalAction::Count => {
                faults.counted(verdict.reached, line.count);
                verdict.reached = verdict.reached.max(line.count);
                verdict.counts += 1;
            }
            JournalAction::End => cut_off = false,
            JournalAction::Lost => {}
        }
    }
    if let Some(kept) = kept {
        verdict.at_the_end.handed_on(verdict.reached, kept, cut_off);
    }
    for token in overlaps(lines.iter().filter(|line| line.is_effect())) {
        verdict.terms.entry(token).or_default().two_leaders += 1;
    }
    verdict
}

/// For each effect that came too late, the newer term it came into.
pub(super) fn overlaps<'a>(effects: impl Iterator<Item = &'a JournalLine> + Clone) -> Vec<u64> {
    let effects = || effects.clone().enumerate();
    let mut first: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
    for (place, line) in effects() {
        let (_, at) = first.entry(line.token).or_insert((place, line.at));
        *at = (*at).min(line.at);
    }
    let late = |(place, line): (usize, &JournalLine)| {
        let newer = first.range(line.token + 1..);
        let mut passed = newer.filter(|(_, (since, at))| *since < place || *at <= line.at);
        passed.next().map(|(token, _)| *token)
    };
    effects().filter_map(late).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<JournalLine> {
        text.lines().map(|line| line.trim().parse().unwrap()).collect()
    }

    fn judged(text: &str) -> Faults {
        judge(&lines(text), None).total()
    }

    #[test]
    fn a_clean_handover_has_no_faults() {
        let text = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 2\n13 a 1 end 2\n\
                    20 b 2 lead 2\n21 b 2 count 3\n22 b 2 end 3";
        let verdict = judge(&lines(text), Some(3));
        assert_eq!(verdict.total(), Faults::default());
        assert_eq!((verdict.counts, verdict.reached), (3, 3));
    }

    #[test]
    fn a_count_saved_but_not_written_is_interrupted_after_a_cut_and_lost_after_a_clean_end() {
        let cut = "10 a 1 lead 0\n11 a 1 count 1\n20 b 2 lead 2\n21 b 2 count 3";
        assert_eq!(judged(cut), Faults { interrupted: 1, ..Faults::default() });
        let clean = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 end 1\n20 b 2 lead 2";
        assert_eq!(judged(clean), Faults { lost: 1, ..Faults::default() });
    }

    #[test]
    fn what_is_skipped_is_lost_and_what_comes_again_is_doubled() {
        let skipped = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 3";
        assert_eq!(judged(skipped), Faults { lost: 1, ..Faults::default() });
        let again = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 1";
        assert_eq!(judged(again), Faults { doubled: 1, ..Faults::default() });
        let back = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 2\n20 b 2 lead 0\n21 b 2 count 1";
        assert_eq!(judged(back), Faults { lost: 2, doubled: 1, ..Faults::default() });
    }

    #[test]
    fn an_old_leader_that_goes_on_is_seen_by_the_order_and_by_the_clock() {
        let order = "10 a 1 lead 0\n20 b 2 lead 0\n19 a 1 count 1";
        assert_eq!(judged(order).two_leaders, 1);
        let clock = "10 a 1 lead 0\n21 a 1 count 1\n20 b 2 lead 1";
        assert_eq!(judged(clock).two_leaders, 1);
        let both = "10 a 1 lead 0\n20 b 2 lead 0\n21 b 2 count 1\n22 a 1 count 1";
        assert_eq!(judged(both), Faults { two_leaders: 1, doubled: 1, ..Faults::default() });
        let parting = "10 a 1 lead 0\n20 b 2 lead 0\n21 a 1 lost 0";
        assert_eq!(judged(parting).two_leaders, 0, "saying that one has lost is no effect");
    }

    #[test]
    fn a_checkpoint_the_store_forgot_is_a_fault() {
        let text = lines("10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 2\n13 a 1 end 2");
        assert_eq!(judge(&text, Some(1)).total().lost, 1);
        assert!(judge(&text, Some(2)).total().none());
    }
}
