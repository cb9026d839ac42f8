//! The slots of a schedule that were started, and the check that none was started twice (I14).
//!
//! A command does not know its slot. It reads the slot from the store right after its first effect: during a run its leader
//! saves no other slot, so what the store shows for the run's own token is the slot of that run. A run that is killed before it
//! has read the slot, or that starts while the store is down, has a start without a slot.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Scope, Store};
use tenure::{Lease, Moment, Name, Token};
use tokio::runtime::Runtime;

use super::history::padded_line;
use super::time::{now, runtime};

/// The file in a trial's directory that started slots are appended to.
pub const SLOTS: &str = "slots";
/// The store is read repeatedly for this long.
const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// One run whose slot is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// When the run started, on the boot clock.
    pub at: Moment,
    pub slot: u64,
    pub token: u64,
    pub candidate: String,
}

impl FromStr for Started {
    type Err = String;

    fn from_str(text: &str) -> Result<Started, String> {
        let bad = || format!("not a started slot: {text:?}");
        let words: Vec<&str> = text.trim_end().split(' ').collect();
        let [at, slot, token, candidate] = words[..] else { return Err(bad()) };
        let number = |word: &str| word.parse().map_err(|_| bad());
        Ok(Started {
            at: Moment::from_nanos(number(at)?),
            slot: number(slot)?,
            token: number(token)?,
            candidate: candidate.to_owned(),
        })
    }
}

impl Started {
    /// Appends it, in one write.
    pub fn append(&self, directory: &Path) {
        let Started { at, slot, token, candidate } = self;
        let line = padded_line(&format!("{} {slot} {token} {candidate}", at.as_nanos()));
        let path = directory.join(SLOTS);
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }

    pub fn read(directory: &Path) -> Vec<Started> {
        let text = std::fs::read_to_string(directory.join(SLOTS)).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }
}

/// The result of the check.
#[derive(Debug, Default)]
pub struct SlotVerdict {
    pub started: usize,
    /// Starts of a slot that had been started before.
    pub twice: Vec<Started>,
    /// Starts of a slot older than one that had been started before.
    pub backwards: Vec<Started>,
}

impl SlotVerdict {
    pub fn is_clean(&self) -> bool {
        self.twice.is_empty() && self.backwards.is_empty()
    }
}

impl fmt::Display for SlotVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots started", self.started)?;
        for (what, starts) in [("twice", &self.twice), ("after a newer one", &self.backwards)] {
            if !starts.is_empty() {
                write!(f, "; {} {what}: {starts:?}", starts.len())?;
            }
        }
        Ok(())
    }
}

/// PURE: sorted by time, the slots of one schedule only grow.
pub fn check_slots(starts: &[Started]) -> SlotVerdict {
    let mut sorted: Vec<&Started> = starts.iter().collect();
    sorted.sort_by_key(|start| (start.at, start.slot));
    let mut verdict = SlotVerdict { started: starts.len(), ..SlotVerdict::default() };
    for (index, start) in sorted.iter().enumerate() {
        let before = &sorted[..index];
        if before.iter().any(|earlier| earlier.slot == start.slot) {
            verdict.twice.push((*start).clone());
        } else if before.iter().any(|earlier| earlier.slot > start.slot) {
            verdict.backwards.push((*start).clone());
        }
    }
    verdict
}

/// Tests the checker on made-up histories.
pub fn controls() {
    let read = |text: &str| -> Vec<Started> { text.lines().map(|l| l.parse().unwrap()).collect() };
    let check = |text: &str| check_slots(&read(text));

    let clean = check("10 100 1 a\n20 101 1 a\n30 105 2 b");
    assert!(clean.is_clean() && clean.started == 3, "{clean}");
    assert!(check("").is_clean());
    let order = check("20 101 1 a\n10 100 1 a");
    assert!(order.is_clean(), "lines may be written later than their stamps: {order}");

    let next_term = check("10 100 1 a\n20 100 2 b\n30 101 2 b");
    assert_eq!(next_term.twice, read("20 100 2 b"), "the next leader repeats a slot");
    let same_term = check("10 100 1 a\n20 100 1 a");
    assert_eq!(same_term.twice, read("20 100 1 a"), "one leader repeats a slot");
    let same_time = check("10 100 1 a\n10 100 2 b");
    assert_eq!(same_time.twice.len(), 1, "both start it at one instant");
    let later = check("10 100 1 a\n20 101 1 a\n30 100 2 b");
    assert_eq!(later.twice, read("30 100 2 b"), "a newer slot in between hides nothing");
    let stale = check("10 100 1 a\n20 103 2 b\n30 102 1 a");
    assert_eq!(stale.backwards, read("30 102 1 a"), "a stale leader runs its old slot");
}

/// Reads one lease, over a separate connection that no fault hits.
pub struct Observer {
    runtime: Runtime,
    store: Arc<dyn Store>,
    name: Name,
}

/// What the store shows of the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleObservation {
    pub token: u64,
    /// The holder of the lease, if there is one.
    pub holder: Option<String>,
    /// The slot that was started last, by which candidate, and whether it still runs.
    pub slot: Option<u64>,
    pub by: String,
    pub running: bool,
}

impl Observer {
    pub fn open(url: &str, name: &str) -> Observer {
        let runtime = runtime();
        let store = runtime.block_on(tenure::open(url)).expect("the URL is right");
        Observer { runtime, store, name: Name::new(name).unwrap() }
    }

    /// Reads the lease; `None` if the store does not respond, or has no such lease.
    pub fn observe(&self) -> Option<ScheduleObservation> {
        let scope = Scope::name(&self.name);
        let found = self.runtime.block_on(self.store.observe(&scope)).ok()?;
        saved(found.into_iter().next()?.ok()?)
    }

    /// The slot that runs in the term `token`; `None` if the store does not show it.
    pub fn running_slot(&self, token: u64) -> Option<u64> {
        let end = now() + READ_TIMEOUT;
        let saved = loop {
            match self.observe() {
                Some(saved) => break saved,
                None if now() >= end => return None,
                None => super::time::pause(Duration::from_millis(5)),
            }
        };
        saved.slot.filter(|_| saved.running && saved.token == token)
    }
}

fn saved(lease: Lease) -> Option<ScheduleObservation> {
    let holder = lease.holder.map(|holder| holder.id.to_string());
    let checkpoint = lease.checkpoint.map(|checkpoint| {
        serde_json::from_slice::<serde_json::Value>(checkpoint.as_bytes()).unwrap()
    });
    let last = checkpoint.map(|checkpoint| checkpoint["lastRun"].clone()).unwrap_or_default();
    Some(ScheduleObservation {
        token: lease.token.map(Token::get)?,
        holder,
        slot: last["slot"].as_u64(),
        by: last["by"].as_str().unwrap_or_default().to_owned(),
        running: last["outcome"] == "running",
    })
}
