//! A trial of one fleet: members, each `tenure fleet run NAME --shards … -- WORKER {}`, observed from outside.
//!
//! Every shard has its own history, so the judge of one name judges each of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tenure::fleet::overrides::{self, Overrides};
use tenure::fleet::{Shard, fleet_name};
use tenure::store::{Scope, Store};
use tenure::{CandidateId, Name};
use tokio::runtime::Runtime;

use super::checker::{HistoryVerdict, Thaw, Workers, judge};
use super::election_trial::TIMEOUT;
use super::history::{History, Line};
use super::processes::{self, is_there};
use super::time::{now, pause, poll_until, runtime};
use super::trial_directory::{TenureProcess, TrialDirectory};
use super::trial_store::{StoreKind, TrialStore};
use super::worker::history_of;
use crate::stderr_faults::Stderr;

const NAME: &str = "system:fleet";
/// A worker that has not written for this long does not work, however busy the machine is.
const IDLE_AFTER: Duration = Duration::from_millis(500);
/// A state that has not changed for this long is settled.
const SETTLED_AFTER: Duration = Duration::from_millis(400);

/// The worker of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardOwner {
    pub member: String,
    pub token: u64,
    pub pid: u32,
}

/// Owners by shard.
pub type ShardOwners = BTreeMap<String, ShardOwner>;

/// The number of shards of each member.
pub fn shares(owners: &ShardOwners) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for owner in owners.values() {
        *shares.entry(owner.member.clone()).or_default() += 1;
    }
    shares
}

/// The shards of one member.
pub fn of<'a>(owners: &'a ShardOwners, member: &str) -> BTreeMap<&'a str, &'a ShardOwner> {
    let its = owners.iter().filter(|(_, owner)| owner.member == member);
    its.map(|(shard, owner)| (shard.as_str(), owner)).collect()
}

// Fields are dropped in this order: the users of the store and the directory end before those.
pub struct FleetStage {
    pub ttl: Duration,
    pub members: Vec<TenureProcess>,
    pub place: TrialStore,
    /// The thaws of shards that were frozen with their whole process tree.
    pub thaws: Vec<(String, Thaw)>,
    /// How often a worker writes.
    each: Duration,
    /// Further flags of the members.
    flags: &'static [&'static str],
    stderr: Option<Stderr>,
    name: Name,
    histories: BTreeMap<String, History>,
    store: Arc<dyn Store>,
    runtime: Runtime,
    room: TrialDirectory,
}

impl FleetStage {
    /// Starts no member yet.
    pub fn new(kind: StoreKind, ttl: Duration, shards: usize, each: Duration) -> FleetStage {
        let room = TrialDirectory::new();
        let place = TrialStore::open(kind, room.path(), 0);
        let runtime = runtime();
        let store = runtime.block_on(tenure::open(&place.url())).unwrap();
        let history = |number: usize| {
            let shard = format!("s{number}");
            let history = History::create(&history_of(room.path(), &shard));
            (shard, history)
        };
        FleetStage {
            ttl,
            members: Vec::new(),
            place,
            thaws: Vec::new(),
            each,
            flags: &[],
            stderr: None,
            name: fleet_name(NAME).unwrap(),
            histories: (0..shards).map(history).collect(),
            store,
            runtime,
            room,
        }
    }

    /// Starts this many members together.
    pub fn with(mut self, members: usize) -> FleetStage {
        (0..members).for_each(|_| _ = self.join());
        self
    }

    /// Starts members with these flags too.
    pub fn with_flags(mut self, flags: &'static [&'static str]) -> FleetStage {
        self.flags = flags;
        self
    }

    /// Starts members with a stderr that blocks or fails.
    pub fn with_stderr(mut self, stderr: Option<Stderr>) -> FleetStage {
        self.stderr = stderr;
        self
    }

    /// The directory for files that are kept if the trial fails.
    pub fn directory(&self) -> &Path {
        self.room.path()
    }

    pub fn mark(&self) -> &str {
        self.room.mark()
    }

    /// Starts one more member.
    pub fn join(&mut self) -> usize {
        let id = format!("m{}", self.members.len());
        self.members.push(self.start(&id));
        self.members.len() - 1
    }

    /// Restarts a member that has ended.
    pub fn restart(&mut self, who: usize) {
        assert!(self.members[who].ended().is_some(), "{} still runs", self.members[who].id);
        self.members[who] = self.start(&self.members[who].id);
    }

    fn start(&self, id: &str) -> TenureProcess {
        let shards: Vec<&str> = self.histories.keys().map(String::as_str).collect();
        let mut command = self.room.command();
        command.args(["--store", &self.place.url(), "--log-level", "info"]);
        command.args(["fleet", "run", self.name.as_str(), "--node-id", id, "--lease-duration"]);
        command.arg(format!("{}ms", self.ttl.as_millis())).args(["--shards", &shards.join(",")]);
        command.args(self.flags).arg("--").arg(std::env::current_exe().unwrap());
        command.args(["shard", &self.each.as_millis().to_string()]);
        command.arg(self.room.path()).arg("{}");
        self.room.start(id, command, self.stderr)
    }

    // ---- observations ----

    /// The log of a member.
    pub fn log_of(&self, who: usize) -> String {
        std::fs::read_to_string(self.room.log_of(&self.members[who].id)).unwrap_or_default()
    }

    /// How many lines of a member's log contain all these words.
    pub fn lines_with(&self, who: usize, words: &[&str]) -> usize {
        let log = self.log_of(who);
        log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// How many times a member acquired a shard.
    pub fn acquired(&self, who: usize) -> usize {
        let instance = format!("Lease acquired: instance={} endpoint=", self.members[who].id);
        self.lines_with(who, &[&instance])
    }

    /// The current workers.
    pub fn owners(&mut self) -> ShardOwners {
        let fresh = |line: &Line| now().since(line.at) < IDLE_AFTER;
        let newest = |(shard, history): (&String, &mut History)| {
            let line = history.newest().filter(fresh)?;
            let owner = ShardOwner { member: line.candidate, token: line.token, pid: line.pid };
            Some((shard.clone(), owner))
        };
        self.histories.iter_mut().filter_map(newest).collect()
    }

    /// Waits until the members' shares are these, in any order, and stay so for a while.
    pub fn settled(&mut self, wanted: &[usize], limit: Duration) -> ShardOwners {
        let shards = self.histories.len();
        self.settled_as(limit, &format!("{wanted:?}"), |owners| {
            let mut found: Vec<usize> = shares(owners).into_values().collect();
            found.sort_unstable();
            (owners.len() == shards && found == wanted).then_some(())
        })
    }

    /// Waits until the owners are as wanted, and stay so for a while.
    pub fn settled_as(
        &mut self,
        limit: Duration,
        what: &str,
        mut wanted: impl FnMut(&ShardOwners) -> Option<()>,
    ) -> ShardOwners {
        let mut since = None;
        let settled = poll_until(limit, || {
            let owners = self.owners();
            pause(Duration::from_millis(20));
            if wanted(&owners).is_none() {
                since = None;
                return None;
            }
            match &since {
                Some((at, before)) if *before == owners => {
                    (now().since(*at) >= SETTLED_AFTER).then_some(owners)
                }
                _ => {
                    since = Some((now(), owners));
                    None
                }
            }
        });
        settled.unwrap_or_else(|| {
            let owners = self.owners();
            self.fail(&format!("not as wanted ({what}): {:?}, {owners:?}", shares(&owners)))
        })
    }

    /// For each of these terms, the first effect on its shard in a newer term.
    pub fn taken_over(
        &mut self,
        terms: &BTreeMap<String, ShardOwner>,
        limit: Duration,
    ) -> BTreeMap<String, Line> {
        let found = poll_until(limit, || {
            let newer = |(shard, owner): (&String, &ShardOwner)| {
                let line = self.histories.get_mut(shard)?.first_after(owner.token)?;
                Some((shard.clone(), line))
            };
            pause(Duration::from_millis(10));
            terms.iter().map(newer).collect::<Option<BTreeMap<_, _>>>()
        });
        found.unwrap_or_else(|| {
            let owners = self.owners();
            self.fail(&format!("not all of {terms:?} were taken over: {owners:?}"))
        })
    }

    /// The last effect of any term on a shard up to now.
    pub fn last(&mut self, shard: &str) -> Option<Line> {
        let history = self.histories.get_mut(shard)?;
        history.lines().iter().max_by_key(|line| line.at).cloned()
    }

    /// The last effect of a term on a shard.
    pub fn last_of(&mut self, shard: &str, token: u64) -> Line {
        let last = self.histories.get_mut(shard).and_then(|history| history.last_of(token));
        last.unwrap_or_else(|| self.fail(&format!("no term {token} of {shard}")))
    }

    /// Waits until these processes are gone.
    pub fn gone(&self, pids: &[u32]) {
        let gone = poll_until(TIMEOUT, || (!pids.iter().any(|pid| is_there(*pid))).then_some(()));
        if gone.is_none() {
            let left = processes::described(pids);
            self.fail(&format!("processes that should be gone:\n{left}"));
        }
    }

    pub fn ended(&mut self, who: usize) -> ExitStatus {
        let ended = poll_until(TIMEOUT, || self.members[who].ended());
        ended.unwrap_or_else(|| self.fail(&format!("{} does not end", self.members[who].id)))
    }

    // ---- actions ----

    /// Changes the fleet's overrides, as `tenure fleet pause` and `drain` do.
    pub fn change_overrides(&self, change: impl Fn(&mut Overrides) + Sync) {
        let requester = CandidateId::new("judge").unwrap();
        let wait = Duration::from_secs(10);
        // Repeating the change does no harm, if a server was restarted.
        let changed = poll_until(TIMEOUT, || {
            let change = overrides::change(&*self.store, &self.name, &requester, wait, &change);
            self.runtime.block_on(change).ok()
        });
        changed.unwrap_or_else(|| self.fail("nothing can be said about the fleet"));
    }

    pub fn shard(&self, name: &str) -> Shard {
        Shard::new(name).unwrap()
    }

    // ---- the end ----

    /// Stops all members and checks that no process is left and that every history is clean. Returns the number of terms.
    pub fn finish(mut self) -> usize {
        let verdicts = self.close();
        for (shard, verdict) in &verdicts {
            if !verdict.is_clean() {
                self.fail(&format!("{shard}: {verdict}"));
            }
        }
        verdicts.values().map(|verdict| verdict.terms).sum()
    }

    /// Stops all members, checks that no process is left, and returns the judge's verdicts.
    pub fn close(&mut self) -> BTreeMap<String, HistoryVerdict> {
        for member in &mut self.members {
            member.signal(Signal::CONT);
            member.signal(Signal::TERM);
        }
        (0..self.members.len()).for_each(|who| _ = self.ended(who));
        self.room.empties().unwrap_or_else(|why| self.fail(&why));
        // A member that was killed together with its guard leaves its leases to the TTL.
        let held = || -> tenure::Result<Vec<tenure::Lease>> {
            let scope = Scope::Prefix(format!("{}:", self.name));
            let leases = self.runtime.block_on(self.store.observe(&scope))?;
            let leases = leases.into_iter().collect::<tenure::Result<Vec<_>>>()?;
            let held = leases.into_iter().filter(|lease| lease.holder.is_some());
            Ok(held.collect())
        };
        // A lease that cannot be read now (a server was restarted) can be read a moment later.
        let none = || held().is_ok_and(|held| held.is_empty()).then_some(());
        if poll_until(self.ttl + TIMEOUT, none).is_none() {
            self.fail(&format!("a member still holds {:?}", held()));
        }
        self.judged()
    }

    /// The judge's verdict on each shard up to now.
    fn judged(&mut self) -> BTreeMap<String, HistoryVerdict> {
        let thaws = &self.thaws;
        let judge = |(shard, history): (&String, &mut History)| {
            let of_it = thaws.iter().filter(|(of, _)| of == shard).map(|(_, thaw)| *thaw);
            let thaws: Vec<Thaw> = of_it.collect();
            (shard.clone(), judge(history.lines(), &thaws, Workers::One))
        };
        self.histories.iter_mut().map(judge).collect()
    }

    /// Fails the trial, and keeps its histories and logs.
    pub fn fail(&self, why: &str) -> ! {
        self.room.fail(why)
    }
}

impl Drop for FleetStage {
    fn drop(&mut self) {
        self.room.clear(&mut self.members);
    }
}
