//! PURE: checks the journals of all shards for overlapping work, and measures which shards moved and how long each was unowned.
//!
//! A worker is a process, and every line it writes proves that it runs, its last line too. So **an overlap** is any line of an
//! older term after the first line of a newer term, by the order of the lines or by the clock. **A move** is a term of a shard
//! that had a term before. The shard was **unowned** from the last line of the earlier term, or from the event if that is later
//! (a killed worker writes no last line), to the first line of the next term.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::Moment;

use super::scenario::{FleetFault, FleetFaultResult};
use crate::demo::checker::overlaps;
use crate::demo::journal::JournalLine;

/// The journal lines of each shard.
pub(super) type Journals = BTreeMap<String, Vec<JournalLine>>;

/// The result of one event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShardFinding {
    /// The time from the event until every affected shard was worked on again.
    pub(super) took: Duration,
    /// Shards that moved to another member, or came back to the same member.
    pub(super) moved: usize,
    /// Those among them that the event did not require to move.
    pub(super) besides: usize,
    /// How long each moved shard was unowned, the shortest first.
    pub(super) unowned: Vec<Duration>,
    pub(super) overlaps: usize,
}

impl ShardFinding {
    pub(super) fn longest(&self) -> Option<Duration> {
        self.unowned.last().copied()
    }

    pub(super) fn median(&self) -> Option<Duration> {
        self.unowned.get(self.unowned.len() / 2).copied()
    }
}

/// The result of checking all journals.
#[derive(Debug, Default)]
pub(super) struct FleetCheckResult {
    /// One for each event, in order.
    pub(super) findings: Vec<ShardFinding>,
    pub(super) terms: usize,
    pub(super) effects: usize,
    pub(super) overlaps: usize,
}

/// One term of a shard.
struct WorkSpan {
    node: String,
    first: u64,
    last: u64,
}

/// Checks all journals. What happened before the first event is attributed to no event.
pub(super) fn check(journals: &Journals, event_results: &[FleetFaultResult]) -> FleetCheckResult {
    let mut verdict = FleetCheckResult::default();
    verdict.findings.resize(event_results.len(), ShardFinding::default());
    // The index of the event that a moment belongs to.
    let event =
        |at: u64| event_results.iter().rposition(|event_result| event_result.at.as_nanos() <= at);
    for lines in journals.values() {
        let terms = terms(lines);
        verdict.effects += lines.len();
        verdict.terms += terms.len();
        for token in overlaps(lines.iter()) {
            verdict.overlaps += 1;
            if let Some(event) = terms.get(&token).and_then(|term| event(term.first)) {
                verdict.findings[event].overlaps += 1;
            }
        }
        let mut before: Option<&WorkSpan> = None;
        for term in terms.values() {
            if let Some(event) = event(term.first) {
                verdict.findings[event].add(&event_results[event], before, term);
            }
            before = Some(term);
        }
    }
    verdict.findings.iter_mut().for_each(|finding| finding.unowned.sort_unstable());
    verdict
}

impl ShardFinding {
    fn add(&mut self, event_result: &FleetFaultResult, before: Option<&WorkSpan>, term: &WorkSpan) {
        let (at, first) = (event_result.at, Moment::from_nanos(term.first));
        self.took = self.took.max(first.since(at));
        let Some(before) = before else { return };
        self.moved += 1;
        self.unowned.push(first.since(at.max(Moment::from_nanos(before.last))));
        let required = match event_result.what {
            FleetFault::Start | FleetFault::ByHand | FleetFault::End => true,
            FleetFault::Kill | FleetFault::Leave => before.node == event_result.member,
            FleetFault::Join => term.node == event_result.member,
        };
        self.besides += usize::from(!required);
    }
}

fn terms(lines: &[JournalLine]) -> BTreeMap<u64, WorkSpan> {
    let mut terms: BTreeMap<u64, WorkSpan> = BTreeMap::new();
    for line in lines {
        let term = terms.entry(line.token).or_insert_with(|| WorkSpan {
            node: line.node.clone(),
            first: line.at,
            last: line.at,
        });
        (term.first, term.last) = (term.first.min(line.at), term.last.max(line.at));
    }
    terms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event_result(what: FleetFault, member: &str, at: u64) -> FleetFaultResult {
        FleetFaultResult::new(what, member, None, Moment::from_nanos(at))
    }

    fn journals(shards: &[(&str, &str)]) -> Journals {
        let lines = |text: &str| text.lines().map(|line| line.trim().parse().unwrap()).collect();
        shards.iter().map(|(shard, text)| ((*shard).to_owned(), lines(text))).collect()
    }

    #[test]
    fn a_kill_moves_the_victims_shards_and_only_their_unowned_time_starts_at_the_kill() {
        let journals = journals(&[
            ("a", "10 m1 1 lead 0\n90 m1 1 count 1\n150 m2 2 lead 0"),
            ("b", "10 m2 1 lead 0\n104 m2 1 end 1\n170 m1 2 lead 0"),
            ("c", "11 m2 1 lead 0\n200 m2 1 count 9"),
        ]);
        let event_results =
            [event_result(FleetFault::Start, "", 5), event_result(FleetFault::Kill, "m1", 100)];
        let verdict = check(&journals, &event_results);
        assert_eq!(verdict.findings[0].took, Duration::from_nanos(6));
        assert_eq!(verdict.findings[0].moved, 0);
        let kill = &verdict.findings[1];
        assert_eq!((kill.moved, kill.besides, kill.overlaps), (2, 1, 0));
        assert_eq!(kill.unowned, [50, 66].map(Duration::from_nanos));
        assert_eq!(kill.took, Duration::from_nanos(70));
        assert_eq!((verdict.terms, verdict.effects, verdict.overlaps), (5, 8, 0));
    }

    #[test]
    fn a_line_after_the_start_of_a_newer_term_overlaps_even_if_it_is_the_last() {
        let order = journals(&[("a", "10 m1 1 lead 0\n20 m2 2 lead 0\n19 m1 1 end 0")]);
        let clock = journals(&[("a", "10 m1 1 lead 0\n21 m1 1 count 1\n20 m2 2 lead 0")]);
        let event_results =
            [event_result(FleetFault::Start, "", 5), event_result(FleetFault::Join, "m2", 15)];
        for overlapping in [order, clock] {
            let verdict = check(&overlapping, &event_results);
            assert_eq!((verdict.overlaps, verdict.findings[1].overlaps), (1, 1));
        }
    }
}
