//! One row of the table: one of three members leaves or dies, repeated.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rustix::process::Signal;
use tenure::fleet::fleet_name;
use tenure::{Moment, Name};

use crate::members::{MEMBERS, Members};
use crate::observer::{ObservedChange, Observer};
use tenure_rig::figures::Figures;
use tenure_rig::system::time::{millis, pause, poll_until};

/// How a member ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGTERM to the member, which leaves the fleet.
    Leave,
    /// SIGKILL to the member; its guard releases its shards.
    Kill,
    /// SIGKILL to member and guard: no process releases the shards.
    KillTree,
}

impl Fault {
    pub(crate) const ALL: [Fault; 3] = [Fault::Leave, Fault::Kill, Fault::KillTree];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Leave => "leave",
            Fault::Kill => "kill",
            Fault::KillTree => "kill-tree",
        }
    }

    fn ttl(self) -> Duration {
        Duration::from_secs(if self == Fault::KillTree { 5 } else { 30 })
    }

    /// The target of the issue: a percentile and its limit in milliseconds.
    fn wanted(self) -> (usize, f64) {
        match self {
            Fault::Leave => (99, 250.0),
            Fault::Kill => (99, 500.0),
            Fault::KillTree => (100, 6_000.0),
        }
    }
}

pub(crate) struct Row {
    fault: Fault,
    /// For each shard, how long it had no owner: from its release, or from the kill of its owner.
    gaps: Figures,
    /// For each repeat, the time from the fault until all shards had an owner again.
    whole: Figures,
    /// The number of grants of a shard that still had an owner.
    overlaps: usize,
    /// The number of shards of other members that moved while the member was away.
    besides: usize,
}

impl Row {
    pub(crate) fn is_good(&self) -> bool {
        let (percent, most) = self.fault.wanted();
        self.overlaps == 0 && self.gaps.percent(percent) <= most
    }
}

pub(crate) fn heading(shards: usize) -> String {
    let profile = if cfg!(debug_assertions) { "DEBUG BUILD" } else { "release build" };
    format!(
        "\nRedis on loopback, {MEMBERS} members, {shards} shards without commands, {profile}; milliseconds for which a \
         shard had no owner\n{:<10} {:>4} {:>7} {:>7} {:>9} {:>9} {:>9} {:>8}   wanted",
        "fault", "TTL", "repeats", "shards", "median", "p99", "max", "overlaps"
    )
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gaps, fault) = (&self.gaps, self.fault.name());
        let (median, p99, most) = (gaps.median(), gaps.percent(99), gaps.most());
        let ttl = format!("{:?}", self.fault.ttl());
        write!(f, "{fault:<10} {ttl:>4} {:>7} {:>7}", self.whole.count(), gaps.count())?;
        write!(f, " {median:>9.1} {p99:>9.1} {most:>9.1} {:>8}", self.overlaps)?;
        let (percent, wanted) = self.fault.wanted();
        let which = if percent == 100 { "max".to_owned() } else { format!("p{percent}") };
        let met = if self.is_good() { "" } else { "   MISSED" };
        writeln!(f, "   {which} ≤ {wanted:.0}{met}")?;
        let (median, most) = (self.whole.median(), self.whole.most());
        write!(
            f,
            "    from the fault until all had an owner: median {median:.1}, max {most:.1}; "
        )?;
        write!(f, "shards of others that moved too: {}", self.besides)
    }
}

pub(crate) fn measure(fault: Fault, shards: usize, repeats: usize) -> Row {
    let fleet: Name = fleet_name("bench").unwrap();
    let mut members = Members::start(&fleet, fault.ttl(), shards);
    let observer = Observer::start(&members.place.url(), &fleet);
    let (gaps, whole) = (Figures::default(), Figures::default());
    let mut row = Row { fault, gaps, whole, overlaps: 0, besides: 0 };
    for repeat in 0..repeats {
        observer.settled(MEMBERS, shards);
        // Wait until all changes of the last round have arrived, and renewals are in flight again.
        pause(Duration::from_secs(1));
        let owners = observer.owners();
        observer.take();
        let who = repeat % MEMBERS;
        let at = match fault {
            Fault::Leave => members.signal(who, Signal::TERM),
            Fault::Kill => members.signal(who, Signal::KILL),
            Fault::KillTree => members.kill_tree(who),
        };
        let struck = Members::id(who);
        let lost = owners.values().filter(|owner| **owner == struck).count();
        let mut changes = Vec::new();
        let all = poll_until(fault.ttl() + Duration::from_secs(30), || {
            changes.extend(observer.take());
            let again = |change: &&ObservedChange| {
                change.granted.is_some() && owners[&change.shard] == struck
            };
            (changes.iter().filter(again).count() >= lost).then_some(())
        });
        all.unwrap_or_else(|| panic!("not all {lost} shards of {struck} have an owner again"));
        observer.settled(MEMBERS - 1, shards);
        changes.extend(observer.take());
        row.add(&changes, &owners, &struck, at);
        members.restart(who);
    }
    row
}

impl Row {
    /// Adds the changes of one repeat, in which the member `struck` ended at this moment.
    fn add(
        &mut self,
        changes: &[ObservedChange],
        owners: &BTreeMap<String, String>,
        struck: &str,
        at: Moment,
    ) {
        /// The state of a shard.
        struct ShardState {
            owner: Option<String>,
            token: u64,
            since: Moment,
        }
        let state = |owner: &String| ShardState { owner: Some(owner.clone()), token: 0, since: at };
        let mut states: BTreeMap<&str, ShardState> =
            owners.iter().map(|(shard, owner)| (shard.as_str(), state(owner))).collect();
        let mut last = at;
        for change in changes {
            let Some(state) = states.get_mut(change.shard.as_str()) else { continue };
            let Some((token, owner)) = &change.granted else {
                (state.owner, state.since) = (None, change.at);
                continue;
            };
            // A killed member no longer owns the shard.
            let gone = self.fault != Fault::Leave && state.owner.as_deref() == Some(struck);
            if (state.owner.is_some() && !gone) || *token <= state.token {
                self.overlaps += 1;
            }
            if owners[&change.shard] == struck && state.token == 0 {
                let from = if self.fault == Fault::Leave { state.since } else { at };
                self.gaps.add(millis(from, change.at));
                last = last.max(change.at);
            } else {
                self.besides += 1;
            }
            (state.owner, state.token) = (Some(owner.clone()), *token);
        }
        self.whole.add(millis(at, last));
    }
}
