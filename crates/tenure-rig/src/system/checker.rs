//! PURE: the judge: reads a history and decides whether two workers ever worked at once.
//!
//! Sorted by stamp, tokens never decrease. A stamp of an older term at or after the first stamp of a newer one is an overlap,
//! however small. Only a term that was thawed is excused: a frozen worker cannot stop before it runs again, and the fence has
//! to refuse what it does then.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tenure::Moment;

use super::history::Line;

/// A term that was frozen as a whole, from its thaw until it must be dead.
#[derive(Clone, Copy, Debug)]
pub struct Thaw {
    pub token: u64,
    pub from: Moment,
    pub within: Duration,
}

impl Thaw {
    fn excuses(&self, line: &Line) -> bool {
        let window = self.from..=self.from + self.within;
        line.token == self.token && window.contains(&line.at)
    }
}

/// How many processes may write for one term at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    One,
    Many,
}

#[derive(Debug, Default)]
pub struct HistoryVerdict {
    pub stamps: usize,
    pub terms: usize,
    /// Effects of an older term at or after the first of a newer one.
    pub overlaps: Vec<Line>,
    /// Effects of an older term that a thaw excuses; they are not among the overlaps.
    pub excused: usize,
    /// Tokens under which two candidates have worked.
    pub shared: Vec<u64>,
    /// Effects of a term's older process after the first of a newer one.
    pub beside: Vec<Line>,
}

impl HistoryVerdict {
    pub fn is_clean(&self) -> bool {
        self.overlaps.is_empty() && self.shared.is_empty() && self.beside.is_empty()
    }
}

impl fmt::Display for HistoryVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} effects in {} terms", self.stamps, self.terms)?;
        let kinds = [("of an older term", &self.overlaps), ("of an older process", &self.beside)];
        for (what, late) in kinds {
            if let (Some(first), Some(last)) = (late.first(), late.last()) {
                write!(f, "; {} {what} too late, from {first:?} to {last:?}", late.len())?;
            }
        }
        match self.shared.as_slice() {
            [] => Ok(()),
            shared => write!(f, "; two candidates under each of {shared:?}"),
        }
    }
}

pub fn judge(lines: &[Line], thaws: &[Thaw], workers: Workers) -> HistoryVerdict {
    let mut sorted: Vec<&Line> = lines.iter().collect();
    // At one instant the newer comes first, so that a tie is an overlap.
    sorted.sort_by_key(|line| (line.at, std::cmp::Reverse(line.token)));
    let mut verdict = HistoryVerdict { stamps: lines.len(), ..HistoryVerdict::default() };
    let mut newest = 0;
    let mut owners: BTreeMap<u64, &str> = BTreeMap::new();
    // For each term, its processes in the order in which they first appeared.
    let mut pids_by_term: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for line in sorted {
        newest = newest.max(line.token);
        if line.token < newest {
            match thaws.iter().any(|thaw| thaw.excuses(line)) {
                true => verdict.excused += 1,
                false => verdict.overlaps.push(line.clone()),
            }
        }
        if *owners.entry(line.token).or_insert(&line.candidate) != line.candidate {
            verdict.shared.push(line.token);
        }
        let pids = pids_by_term.entry(line.token).or_default();
        if !pids.contains(&line.pid) {
            pids.push(line.pid);
        }
        if workers == Workers::One && pids.last() != Some(&line.pid) {
            verdict.beside.push(line.clone());
        }
    }
    verdict.terms = owners.len();
    verdict.shared.dedup();
    verdict
}

/// Tests the judge: made-up histories, each wrong in one way.
pub fn controls() {
    let read =
        |text: &str| -> Vec<Line> { text.lines().map(|line| line.parse().unwrap()).collect() };
    let judged = |text: &str, thaws: &[Thaw]| judge(&read(text), thaws, Workers::One);

    let clean = judged("10 1 100 a\n11 1 100 a\n20 2 200 b\n21 2 200 b", &[]);
    assert!(clean.is_clean() && clean.terms == 2 && clean.stamps == 4, "{clean:?}");
    // Lines may be written later than they were stamped.
    let order = judged("20 2 200 b\n10 1 100 a", &[]);
    assert!(order.is_clean(), "{order:?}");

    let after = judged("10 1 100 a\n20 2 200 b\n21 1 100 a\n22 2 200 b", &[]);
    assert_eq!(after.overlaps, read("21 1 100 a"));
    let by_nothing = judged("10 1 100 a\n20 2 200 b\n20 1 100 a", &[]);
    assert_eq!(by_nothing.overlaps, read("20 1 100 a"), "the same instant is too late");
    let back = judged("10 2 200 b\n20 1 100 a", &[]);
    assert_eq!(back.overlaps, read("20 1 100 a"), "a token that goes back");

    let two = judged("10 1 100 a\n20 1 200 b", &[]);
    assert_eq!(two.shared, [1], "one term, two candidates");
    let beside = judged("10 1 100 a\n20 1 101 a\n21 1 100 a", &[]);
    assert_eq!(beside.beside, read("21 1 100 a"), "one term, two processes at a time");
    let restarted = judged("10 1 100 a\n20 1 101 a\n21 1 101 a", &[]);
    assert!(restarted.is_clean(), "one after the other: {restarted:?}");

    let text = "10 1 100 a\n20 2 200 b\n30 1 100 a\n41 1 100 a";
    let thaw = Thaw { token: 1, from: Moment::from_nanos(25), within: Duration::from_nanos(10) };
    let thawed = judged(text, &[thaw]);
    assert_eq!((thawed.excused, thawed.overlaps), (1, read("41 1 100 a")));
}
