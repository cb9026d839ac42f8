//! PURE: checks the journal for two leaders at once and for errors of the counter.
//!
//! **Two leaders at once**: an effect of an older term after the first effect of a newer term, by the order of the lines or by
//! the clock. Without such an effect no two terms, from first effect to last, overlap in time.
//!
//! **The counter**: a leader writes a count to the journal only after the store has acknowledged its checkpoint. So, over all
//! processes, each count is the last plus one (less is *doubled*, more is *lost*), and a term starts where the last one ended
//! (otherwise a count that the store acknowledged is *lost*). A term may start one count later if the previous leader was cut
//! off (killed, frozen) between the checkpoint and the journal line: the store has that count, only the journal has not. It is
//! called *interrupted*.

use std::collections::BTreeMap;

use super::journal::{JournalAction, JournalLine};

/// Violations in the transition to a term, and in the term itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Violations {
    /// Effects of an older term after the first effect of this term.
    pub(super) two_leaders: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// Counts that the store has but the journal has not. Not a violation.
    pub(super) interrupted: u64,
}

impl Violations {
    pub(super) fn none(&self) -> bool {
        self.two_leaders == 0 && self.lost == 0 && self.doubled == 0
    }

    pub(super) fn add(&mut self, other: Violations) {
        self.two_leaders += other.two_leaders;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.interrupted += other.interrupted;
    }

    /// Checks a handover: the journal reached `reached`, and the store has `kept`.
    fn check_handover(&mut self, reached: u64, kept: u64, cut_off: bool) {
        if kept == reached + 1 && cut_off {
            self.interrupted += 1;
        } else {
            self.lost += kept.abs_diff(reached);
        }
    }

    /// Checks that `count` follows `reached`.
    fn check_count(&mut self, reached: u64, count: u64) {
        match count.checked_sub(reached + 1) {
            None => self.doubled += 1,
            Some(left_out) => self.lost += left_out,
        }
    }
}

/// The result of checking a journal.
#[derive(Debug, Default)]
pub(super) struct CheckResult {
    /// Violations by token.
    pub(super) terms: BTreeMap<u64, Violations>,
    /// The number of counts in the journal.
    pub(super) counts: u64,
    /// The highest count.
    pub(super) reached: u64,
    /// Violations at the end: the store's last checkpoint differs from the journal.
    pub(super) at_the_end: Violations,
}

impl CheckResult {
    /// The violations of the terms after `after` and up to `until`.
    pub(super) fn between(&self, after: u64, until: u64) -> Violations {
        let mut sum = Violations::default();
        let terms = self.terms.iter().filter(|(token, _)| (after + 1..=until).contains(token));
        terms.for_each(|(_, faults)| sum.add(*faults));
        sum
    }

    /// The sum of all violations.
    pub(super) fn total(&self) -> Violations {
        let mut sum = self.at_the_end;
        self.terms.values().for_each(|faults| sum.add(*faults));
        sum
    }
}

/// Checks the whole journal; `kept` is the last checkpoint in the store, if it was read.
pub(super) fn check(lines: &[JournalLine], kept: Option<u64>) -> CheckResult {
    let mut verdict = CheckResult::default();
    // Whether the last term did not end cleanly.
    let mut cut_off = false;
    for line in lines {
        let faults = verdict.terms.entry(line.token).or_default();
        match line.action {
            JournalAction::Lead => {
                faults.check_handover(verdict.reached, line.count, cut_off);
                verdict.reached = verdict.reached.max(line.count);
                cut_off = true;
            }
            JournalAction::Count => {
                faults.check_count(verdict.reached, line.count);
                verdict.reached = verdict.reached.max(line.count);
                verdict.counts += 1;
            }
            JournalAction::End => cut_off = false,
            JournalAction::Lost => {}
        }
    }
    if let Some(kept) = kept {
        verdict.at_the_end.check_handover(verdict.reached, kept, cut_off);
    }
    for token in overlaps(lines.iter().filter(|line| line.is_effect())) {
        verdict.terms.entry(token).or_default().two_leaders += 1;
    }
    verdict
}

/// For each late effect, the token of the newer term that it overlaps.
pub(super) fn overlaps<'a>(effects: impl Iterator<Item = &'a JournalLine> + Clone) -> Vec<u64> {
    let effects = || effects.clone().enumerate();
    let mut first: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
    for (index, line) in effects() {
        let (_, at) = first.entry(line.token).or_insert((index, line.at));
        *at = (*at).min(line.at);
    }
    let late = |(index, line): (usize, &JournalLine)| {
        let newer = first.range(line.token + 1..);
        let mut passed = newer.filter(|(_, (since, at))| *since < index || *at <= line.at);
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

    fn violations(text: &str) -> Violations {
        check(&lines(text), None).total()
    }

    #[test]
    fn a_clean_handover_has_no_faults() {
        let text = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 2\n13 a 1 end 2\n\
                    20 b 2 lead 2\n21 b 2 count 3\n22 b 2 end 3";
        let verdict = check(&lines(text), Some(3));
        assert_eq!(verdict.total(), Violations::default());
        assert_eq!((verdict.counts, verdict.reached), (3, 3));
    }

    #[test]
    fn a_saved_count_missing_in_the_journal_is_interrupted_after_a_cut_and_lost_after_a_clean_end()
    {
        let cut = "10 a 1 lead 0\n11 a 1 count 1\n20 b 2 lead 2\n21 b 2 count 3";
        assert_eq!(violations(cut), Violations { interrupted: 1, ..Violations::default() });
        let clean = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 end 1\n20 b 2 lead 2";
        assert_eq!(violations(clean), Violations { lost: 1, ..Violations::default() });
    }

    #[test]
    fn a_skipped_count_is_lost_and_a_repeated_count_is_doubled() {
        let skipped = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 3";
        assert_eq!(violations(skipped), Violations { lost: 1, ..Violations::default() });
        let again = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 1";
        assert_eq!(violations(again), Violations { doubled: 1, ..Violations::default() });
        let back = "10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 2\n20 b 2 lead 0\n21 b 2 count 1";
        assert_eq!(violations(back), Violations { lost: 2, doubled: 1, ..Violations::default() });
    }

    #[test]
    fn an_old_leader_that_continues_is_detected_by_order_and_by_clock() {
        let order = "10 a 1 lead 0\n20 b 2 lead 0\n19 a 1 count 1";
        assert_eq!(violations(order).two_leaders, 1);
        let clock = "10 a 1 lead 0\n21 a 1 count 1\n20 b 2 lead 1";
        assert_eq!(violations(clock).two_leaders, 1);
        let both = "10 a 1 lead 0\n20 b 2 lead 0\n21 b 2 count 1\n22 a 1 count 1";
        assert_eq!(
            violations(both),
            Violations { two_leaders: 1, doubled: 1, ..Violations::default() }
        );
        let parting = "10 a 1 lead 0\n20 b 2 lead 0\n21 a 1 lost 0";
        assert_eq!(violations(parting).two_leaders, 0, "saying that one has lost is no effect");
    }

    #[test]
    fn a_checkpoint_that_the_store_lost_is_a_violation() {
        let text = lines("10 a 1 lead 0\n11 a 1 count 1\n12 a 1 count 2\n13 a 1 end 2");
        assert_eq!(check(&text, Some(1)).total().lost, 1);
        assert!(check(&text, Some(2)).total().none());
    }
}
