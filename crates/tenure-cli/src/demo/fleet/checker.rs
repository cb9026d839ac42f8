//! PURE: reads the journals of all shards and says whether any was worked on twice at once, what moved, and for how long a
//! shard had nobody.
//!
//! A worker is a process, and everything it writes shows that it is there, its last word too. So **an overlap** is any line of an
//! older term after the first line of a newer one, by the order of the lines or by the clock. **A move** is a term of a shard that
//! had one before. It was **unowned** from the last line of that one, or from the event if that is later (a worker that is killed
//! has no last word), to the first line of the next.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::Moment;

use super::scenario::{FleetFault, FleetFaultResult};
use crate::demo::checker::overlaps;
use crate::demo::journal::JournalLine;

/// By shard.
pub(super) type Journals = BTreeMap<String, Vec<JournalLine>>;

/// What came of one event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShardFinding {
    /// From the event until every shard it touched was worked on again.
    pub(super) took: Duration,
    /// Shards that went to another member, or came back to their own.
    pub(super) moved: usize,
    /// Those among them that had nothing to do with the event.
    pub(super) besides: usize,
    /// How long each was unowned, the shortest first.
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

/// What the journals come to.
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

/// Judges all of it; what happened before the first event belongs to nobody.
pub(super) fn judge(journals: &Journals, scenes: &[FleetFaultResult]) -> FleetCheckResult {
    let mut verdict = FleetCheckResult::default();
    verdict.findings.resize(scenes.len(), ShardFinding::default());
    // The event that a moment belongs to.
    let event = |at: u64| scenes.iter().rposition(|scene| scene.at.as_nanos() <= at);
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
                verdict.findings[event].add(&scenes[event], before, term);
            }
            before = Some(term);
        }
    }
    verdict.findings.iter_mut().for_each(|finding| finding.unowned.sort_unstable());
    verdict
}

impl ShardFinding {
    fn add(&mut self, scene: &FleetFaultResult, before: Option<&WorkSpan>, term: &WorkSpan) {
        let (at, first) = (scene.at, Moment::from_nanos(term.first));
        self.took = self.took.max(first.since(at));
        let Some(before) = before else { return };
        self.moved += 1;
        self.unowned.push(first.since(at.max(Moment::from_nanos(before.last))));
        let meant = match scene.what {
            FleetFault::Start | FleetFault::Hand | FleetFault::End => true,
            FleetFault::Kill | FleetFault::Leave => before.node == scene.member,
            FleetFault::Join => term.node == scene.member,
        };
        self.besides += usize::from(!meant);
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

    fn scene(what: FleetFault, member: &str, at: u64) -> FleetFaultResult {
        FleetFaultResult::new(what, member, None, Moment::from_nanos(at))
    }

    fn journals(shards: &[(&str, &str)]) -> Journals {
        let lines = |text: &str| text.lines().map(|line| line.trim().parse().unwrap()).collect();
        shards.iter().map(|(shard, text)| ((*shard).to_owned(), lines(text))).collect()
    }

    #[test]
    fn a_kill_moves_the_victims_shards_and_their_time_alone_counts_from_the_kill() {
        let journals = journals(&[
            ("a", "10 m1 1 lead 0\n90 m1 1 count 1\n150 m2 2 lead 0"),
            ("b", "10 m2 1 lead 0\n104 m2 1 end 1\n170 m1 2 lead 0"),
            ("c", "11 m2 1 lead 0\n200 m2 1 count 9"),
        ]);
        let scenes = [scene(FleetFault::Start, "", 5), scene(FleetFault::Kill, "m1", 100)];
        let verdict = judge(&journals, &scenes);
        assert_eq!(verdict.findings[0].took, Duration::from_nanos(6));
        assert_eq!(verdict.findings[0].moved, 0);
        let kill = &verdict.findings[1];
        assert_eq!((kill.moved, kill.besides, kill.overlaps), (2, 1, 0));
        assert_eq!(kill.unowned, [50, 66].map(Duration::from_nanos));
        assert_eq!(kill.took, Duration::from_nanos(70));
        assert_eq!((verdict.terms, verdict.effects, verdict.overlaps), (5, 8, 0));
    }

    #[test]
    fn whoever_still_writes_when_another_has_begun_overlaps_even_with_a_last_word() {
        let order = journals(&[("a", "10 m1 1 lead 0\n20 m2 2 lead 0\n19 m1 1 end 0")]);
        let clock = journals(&[("a", "10 m1 1 lead 0\n21 m1 1 count 1\n20 m2 2 lead 0")]);
        let scenes = [scene(FleetFault::Start, "", 5), scene(FleetFault::Join, "m2", 15)];
        for overlapping in [order, clock] {
            let verdict = judge(&overlapping, &scenes);
            assert_eq!((verdict.overlaps, verdict.findings[1].overlaps), (1, 1));
        }
    }
}
