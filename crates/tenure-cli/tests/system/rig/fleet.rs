//! Members of one fleet, each `tenure fleet run NAME --shards … -- WORKER {}`, and what is seen of them from outside.
//!
//! Every shard has a history of its own, so the judge of one name judges each of them.

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

use super::history::{History, Line};
use super::judge::{Thaw, Verdict, Workers, judge};
use super::output::Stderr;
use super::place::{Kind, Place};
use super::processes::{self, is_there};
use super::room::{Actor, Room};
use super::stage::PATIENCE;
use super::time::{look, now, pause, runtime};
use super::worker::history_of;

const NAME: &str = "system:fleet";
/// Whoever has not written for so long does not work, however busy the machine is.
const FRESH: Duration = Duration::from_millis(500);
/// What nobody changes for so long has settled.
const STILL: Duration = Duration::from_millis(400);

/// Who works on a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) member: String,
    pub(crate) token: u64,
    pub(crate) pid: u32,
}

/// By shard.
pub(crate) type Owners = BTreeMap<String, Owner>;

/// How many shards each of them works on.
pub(crate) fn shares(owners: &Owners) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for owner in owners.values() {
        *shares.entry(owner.member.clone()).or_default() += 1;
    }
    shares
}

/// What one of them works on.
pub(crate) fn of<'a>(owners: &'a Owners, member: &str) -> BTreeMap<&'a str, &'a Owner> {
    let its = owners.iter().filter(|(_, owner)| owner.member == member);
    its.map(|(shard, owner)| (shard.as_str(), owner)).collect()
}

// Fields are dropped in this order: what uses the place and the directory ends before them.
pub(crate) struct FleetStage {
    pub(crate) ttl: Duration,
    pub(crate) members: Vec<Actor>,
    pub(crate) place: Place,
    /// Of the shards that were frozen with their whole tree.
    pub(crate) thaws: Vec<(String, Thaw)>,
    /// How often a worker writes.
    each: Duration,
    /// What else the members are told.
    flags: &'static [&'static str],
    stderr: Option<Stderr>,
    name: Name,
    histories: BTreeMap<String, History>,
    store: Arc<dyn Store>,
    runtime: Runtime,
    room: Room,
}

impl FleetStage {
    /// Nobody started yet.
    pub(crate) fn new(kind: Kind, ttl: Duration, shards: usize, each: Duration) -> FleetStage {
        let room = Room::new();
        let place = Place::open(kind, room.path(), 0);
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

    /// With so many members, started together.
    pub(crate) fn with(mut self, members: usize) -> FleetStage {
        (0..members).for_each(|_| _ = self.join());
        self
    }

    /// Started with these flags too.
    pub(crate) fn told(mut self, flags: &'static [&'static str]) -> FleetStage {
        self.flags = flags;
        self
    }

    /// Started with a stderr that takes nothing.
    pub(crate) fn with_stderr(mut self, stderr: Option<Stderr>) -> FleetStage {
        self.stderr = stderr;
        self
    }

    /// Where a trial may leave what is to be kept if it fails.
    pub(crate) fn directory(&self) -> &Path {
        self.room.path()
    }

    pub(crate) fn mark(&self) -> &str {
        self.room.mark()
    }

    /// Starts one more.
    pub(crate) fn join(&mut self) -> usize {
        let id = format!("m{}", self.members.len());
        self.members.push(self.start(&id));
        self.members.len() - 1
    }

    /// Starts one anew that has ended.
    pub(crate) fn restart(&mut self, who: usize) {
        assert!(self.members[who].ended().is_some(), "{} still runs", self.members[who].id);
        self.members[who] = self.start(&self.members[who].id);
    }

    fn start(&self, id: &str) -> Actor {
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

    // ---- what is seen ----

    /// Everything a member has said.
    pub(crate) fn said(&self, who: usize) -> String {
        std::fs::read_to_string(self.room.log_of(&self.members[who].id)).unwrap_or_default()
    }

    /// How many lines of a member's log hold all of this.
    pub(crate) fn lines_with(&self, who: usize, words: &[&str]) -> usize {
        let said = self.said(who);
        said.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// How often a member was given a shard.
    pub(crate) fn acquired(&self, who: usize) -> usize {
        let instance = format!("Lease acquired: instance={} endpoint=", self.members[who].id);
        self.lines_with(who, &[&instance])
    }

    /// Who works now.
    pub(crate) fn owners(&mut self) -> Owners {
        let fresh = |line: &Line| now().since(line.at) < FRESH;
        let newest = |(shard, history): (&String, &mut History)| {
            let line = history.newest().filter(fresh)?;
            let owner = Owner { member: line.candidate, token: line.token, pid: line.pid };
            Some((shard.clone(), owner))
        };
        self.histories.iter_mut().filter_map(newest).collect()
    }

    /// Waits until these shares, in any order, are worked on by these members, and stay so for a while.
    pub(crate) fn settled(&mut self, wanted: &[usize], limit: Duration) -> Owners {
        let shards = self.histories.len();
        self.settled_as(limit, &format!("{wanted:?}"), |owners| {
            let mut found: Vec<usize> = shares(owners).into_values().collect();
            found.sort_unstable();
            (owners.len() == shards && found == wanted).then_some(())
        })
    }

    /// Waits until what is worked on is as wanted, and stays so for a while.
    pub(crate) fn settled_as(
        &mut self,
        limit: Duration,
        what: &str,
        mut wanted: impl FnMut(&Owners) -> Option<()>,
    ) -> Owners {
        let mut since = None;
        let settled = look(limit, || {
            let owners = self.owners();
            pause(Duration::from_millis(20));
            if wanted(&owners).is_none() {
                since = None;
                return None;
            }
            match &since {
                Some((at, before)) if *before == owners => {
                    (now().since(*at) >= STILL).then_some(owners)
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

    /// Of each of these terms, when its shard was first worked on in a newer one.
    pub(crate) fn taken_over(
        &mut self,
        terms: &BTreeMap<String, Owner>,
        limit: Duration,
    ) -> BTreeMap<String, Line> {
        let found = look(limit, || {
            let newer = |(shard, owner): (&String, &Owner)| {
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
    pub(crate) fn last(&mut self, shard: &str) -> Option<Line> {
        let history = self.histories.get_mut(shard)?;
        history.lines().iter().max_by_key(|line| line.at).cloned()
    }

    /// The last effect of a term on a shard.
    pub(crate) fn last_of(&mut self, shard: &str, token: u64) -> Line {
        let last = self.histories.get_mut(shard).and_then(|history| history.last_of(token));
        last.unwrap_or_else(|| self.fail(&format!("no term {token} of {shard}")))
    }

    /// Waits until these processes are gone.
    pub(crate) fn gone(&self, pids: &[u32]) {
        let gone = look(PATIENCE, || (!pids.iter().any(|pid| is_there(*pid))).then_some(()));
        if gone.is_none() {
            let left = processes::described(pids);
            self.fail(&format!("processes that should be gone:\n{left}"));
        }
    }

    pub(crate) fn ended(&mut self, who: usize) -> ExitStatus {
        let ended = look(PATIENCE, || self.members[who].ended());
        ended.unwrap_or_else(|| self.fail(&format!("{} does not end", self.members[who].id)))
    }

    // ---- what befalls them ----

    /// Says something about the fleet, as `tenure fleet pause` and `drain` do.
    pub(crate) fn tell(&self, change: impl Fn(&mut Overrides) + Sync) {
        let asker = CandidateId::new("judge").unwrap();
        let wait = Duration::from_secs(10);
        // To say the same again does no harm, where a server was restarted.
        let told = look(PATIENCE, || {
            let changed = overrides::change(&*self.store, &self.name, &asker, wait, &change);
            self.runtime.block_on(changed).ok()
        });
        told.unwrap_or_else(|| self.fail("nothing can be said about the fleet"));
    }

    pub(crate) fn shard(&self, name: &str) -> Shard {
        Shard::new(name).unwrap()
    }

    // ---- the end ----

    /// Stops all, and lets the judge read, who must find nothing. How many terms there were.
    pub(crate) fn finish(mut self) -> usize {
        let verdicts = self.close();
        for (shard, verdict) in &verdicts {
            if !verdict.is_clean() {
                self.fail(&format!("{shard}: {verdict}"));
            }
        }
        verdicts.values().map(|verdict| verdict.terms).sum()
    }

    /// Stops all, sees that nothing is left, and lets the judge read.
    pub(crate) fn close(&mut self) -> BTreeMap<String, Verdict> {
        for member in &mut self.members {
            member.signal(Signal::CONT);
            member.signal(Signal::TERM);
        }
        (0..self.members.len()).for_each(|who| _ = self.ended(who));
        self.room.empties().unwrap_or_else(|why| self.fail(&why));
        // What was killed whole leaves its leases to the TTL.
        let held = || -> tenure::Result<Vec<tenure::Lease>> {
            let scope = Scope::Prefix(format!("{}:", self.name));
            let leases = self.runtime.block_on(self.store.observe(&scope))?;
            let leases = leases.into_iter().collect::<tenure::Result<Vec<_>>>()?;
            let held = leases.into_iter().filter(|lease| lease.holder.is_some());
            Ok(held.collect())
        };
        // What cannot be read just now (a server was restarted) can be a moment later.
        let none = || held().is_ok_and(|held| held.is_empty()).then_some(());
        if look(self.ttl + PATIENCE, none).is_none() {
            self.fail(&format!("somebody still holds {:?}", held()));
        }
        self.judged()
    }

    /// What the judge says of each shard up to now.
    fn judged(&mut self) -> BTreeMap<String, Verdict> {
        let thaws = &self.thaws;
        let judge = |(shard, history): (&String, &mut History)| {
            let of_it = thaws.iter().filter(|(of, _)| of == shard).map(|(_, thaw)| *thaw);
            let thaws: Vec<Thaw> = of_it.collect();
            (shard.clone(), judge(history.lines(), &thaws, Workers::One))
        };
        self.histories.iter_mut().map(judge).collect()
    }

    /// Ends the trial, and keeps what happened.
    pub(crate) fn fail(&self, why: &str) -> ! {
        self.room.fail(why)
    }
}

impl Drop for FleetStage {
    fn drop(&mut self) {
        self.room.clear(&mut self.members);
    }
}
