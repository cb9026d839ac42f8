//! What happens to the fleet, event by event.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tenure::fleet::{Shard, Snapshot, survey};
use tenure::{Clock, Error, Kind, Moment, Name, Store};

use super::chart::{Board, MemberShare};
use super::checker::{Journals, judge};
use super::members::DemoMembers;
use super::report::settled;
use crate::demo::journal;
use crate::demo::scenario::ScenarioStop;

/// How long the beginning may take: a server that has just started is not believed for some seconds.
const BEGINNING: Duration = Duration::from_secs(15);
/// How long anything may take that should happen, on top of two leases.
const PATIENCE: Duration = Duration::from_secs(6);
/// How often we look at the store.
const TICK: Duration = Duration::from_millis(100);

/// How long things stay as they are.
#[derive(Clone, Copy)]
struct FleetDemoTiming {
    look: Duration,
    /// Nothing is going to happen.
    stay: Duration,
}

impl FleetDemoTiming {
    const FOR_READERS: FleetDemoTiming =
        FleetDemoTiming { look: Duration::from_millis(2_500), stay: Duration::from_secs(10) };
    const FOR_NOBODY: FleetDemoTiming =
        FleetDemoTiming { look: Duration::from_millis(700), stay: Duration::from_millis(1_500) };
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FleetFault {
    Start,
    Kill,
    Join,
    Leave,
    /// From here on whatever people do to it.
    Hand,
    /// All are asked to stop: what happens now belongs to nothing that came before.
    End,
}

impl FleetFault {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            FleetFault::Start => "start",
            FleetFault::Kill => "kill",
            FleetFault::Join => "join",
            FleetFault::Leave => "leave",
            FleetFault::Hand => "byHand",
            FleetFault::End => "end",
        }
    }
}

/// One event, and what came of it.
#[derive(Clone, Debug)]
pub(super) struct FleetFaultResult {
    pub(super) what: FleetFault,
    /// Whom it befell; nobody in particular at the start.
    pub(super) member: String,
    pub(super) pid: Option<u32>,
    /// When.
    pub(super) at: Moment,
    /// What each had when everybody had the same; `None` if it never came to that.
    pub(super) shares: Option<BTreeMap<String, usize>>,
    /// What else went wrong.
    pub(super) trouble: Option<String>,
}

impl FleetFaultResult {
    pub(super) fn new(
        what: FleetFault,
        member: &str,
        pid: Option<u32>,
        at: Moment,
    ) -> FleetFaultResult {
        FleetFaultResult { what, member: member.to_owned(), pid, at, shares: None, trouble: None }
    }
}

pub(super) struct FleetScenario {
    pub(super) cast: DemoMembers,
    pub(super) board: Board,
    pub(super) scenes: Vec<FleetFaultResult>,
    store: Arc<dyn Store>,
    fleet: Name,
    shards: Vec<Shard>,
    journals: PathBuf,
    pace: FleetDemoTiming,
    pub(super) patience: Duration,
    clock: Clock,
    seen: Snapshot,
}

impl FleetScenario {
    pub(super) fn new(
        cast: DemoMembers,
        board: Board,
        (store, fleet, ttl): (Arc<dyn Store>, Name, Duration),
        shards: Vec<Shard>,
        journals: PathBuf,
    ) -> FleetScenario {
        let pace =
            if board.tells() { FleetDemoTiming::FOR_READERS } else { FleetDemoTiming::FOR_NOBODY };
        FleetScenario {
            cast,
            board,
            scenes: Vec::new(),
            store,
            fleet,
            shards,
            journals,
            pace,
            patience: PATIENCE + 2 * ttl,
            clock: Clock::boot(),
            seen: Snapshot::default(),
        }
    }

    /// From nothing to a fleet with even shares.
    pub(super) async fn begin(&mut self, nodes: usize) -> Result<(), ScenarioStop> {
        self.scenes.push(FleetFaultResult::new(FleetFault::Start, "", None, self.clock.now()));
        for _ in 0..nodes {
            self.start()?;
        }
        self.settle(BEGINNING + self.patience).await
    }

    /// One is killed, one comes, one leaves.
    pub(super) async fn play(&mut self) -> Result<(), ScenarioStop> {
        self.peace(self.pace.look).await?;
        self.end_one(0, FleetFault::Kill).await?;
        self.peace(self.pace.look).await?;
        let newcomer = format!("m{}", self.cast.len() + 1);
        self.say("")?;
        self.say(format!("2. {newcomer} joins: it gets a fair share, and nothing else moves."))?;
        self.scenes.push(FleetFaultResult::new(
            FleetFault::Join,
            &newcomer,
            None,
            self.clock.now(),
        ));
        let which = self.start()?;
        if let Some(scene) = self.scenes.last_mut() {
            scene.pid = self.cast.pid(which);
        }
        self.settle(self.patience).await?;
        self.peace(self.pace.look).await?;
        self.end_one(1, FleetFault::Leave).await?;
        self.peace(self.pace.look).await
    }

    fn start(&mut self) -> Result<usize, ScenarioStop> {
        let which = self.cast.start()?;
        let (id, pid) = (self.cast.id(which), self.cast.pid(which).unwrap_or_default());
        let line = format!("✅ [{id}] Fleet member started, process {pid}");
        self.say(line)?;
        Ok(which)
    }

    async fn end_one(&mut self, which: usize, what: FleetFault) -> Result<(), ScenarioStop> {
        let (id, pid) = (self.cast.id(which).to_owned(), self.cast.pid(which));
        let (number, told, signal, by_hand) = match what {
            FleetFault::Leave => (
                3,
                "is asked to stop: it ends its work, shard by shard, and hands each on",
                Signal::TERM,
                "TERM",
            ),
            _ => (
                1,
                "is killed without a word: its guard ends what it was running, and gives the shards back",
                Signal::KILL,
                "9",
            ),
        };
        self.say("")?;
        self.say(format!("{number}. {id} {told}."))?;
        self.say(format!("   By hand: kill -{by_hand} {}", pid.unwrap_or_default()))?;
        self.scenes.push(FleetFaultResult::new(what, &id, pid, self.clock.now()));
        self.cast.doom(which, signal);
        self.settle(self.patience).await?;
        let ended = self.until(self.patience, |stage| stage.cast.ended(which).is_some()).await?;
        let trouble = match self.cast.ended(which) {
            Some(status) if what == FleetFault::Leave && !status.success() => {
                Some(format!("it did not end in good order: {status}"))
            }
            _ => (!ended).then(|| "it does not end".to_owned()),
        };
        if let (Some(scene), Some(trouble)) = (self.scenes.last_mut(), trouble) {
            scene.trouble.get_or_insert(trouble);
        }
        Ok(())
    }

    /// Waits until everybody has the same and works on it.
    async fn settle(&mut self, time: Duration) -> Result<(), ScenarioStop> {
        if !self.until(time, FleetScenario::is_settled).await? {
            return Err(Error::unavailable(
                "the shards were not dealt out evenly in time; see the log above",
            )
            .into());
        }
        let alive = self.cast.alive().into_iter();
        let shares = alive.map(|id| (id.to_owned(), self.seen.share(id))).collect();
        let Some(scene) = self.scenes.last_mut() else { return Ok(()) };
        scene.shares = Some(shares);
        let found = judge(&self.journals()?, &self.scenes).findings.pop();
        let line = self.scenes.last().zip(found).map(|(scene, found)| settled(scene, &found));
        self.say(line.unwrap_or_default())
    }

    fn is_settled(&self) -> bool {
        let mut alive = self.cast.alive();
        alive.sort_unstable();
        let mut members: Vec<&str> =
            self.seen.members.iter().map(|member| member.id.as_str()).collect();
        members.sort_unstable();
        let shares: Vec<usize> = alive.iter().map(|id| self.seen.share(id)).collect();
        let (most, least) = (shares.iter().max(), shares.iter().min());
        alive == members
            && shares.iter().sum::<usize>() == self.shards.len()
            && most.zip(least).is_some_and(|(most, least)| most - least <= 1)
            && self.is_at_work()
    }

    /// Whether every shard is worked on by whoever owns it.
    fn is_at_work(&self) -> bool {
        let Ok(journals) = self.journals() else { return false };
        self.shards.iter().all(|shard| {
            let last = journals.get(shard.as_str()).and_then(|lines| lines.last());
            let owned = self.seen.shards.get(shard);
            let token = owned.and_then(|owned| owned.token).map(|token| token.get());
            last.is_some_and(|last| Some(last.token) == token)
        })
    }

    /// What all shards' workers have written so far.
    pub(super) fn journals(&self) -> tenure::Result<Journals> {
        let read = |shard: &Shard| {
            let lines = journal::so_far(&self.journals.join(shard.as_str()))?;
            Ok((shard.to_string(), lines))
        };
        self.shards.iter().map(read).collect()
    }

    /// Nothing happens for a while but what people do.
    pub(super) async fn stay(&mut self) -> Result<(), ScenarioStop> {
        let stay = self.pace.stay;
        self.scenes.push(FleetFaultResult::new(FleetFault::Hand, "", None, self.clock.now()));
        self.say(format!(
            "   Nothing happens for {} s, unless you do it; Ctrl+C ends it.",
            stay.as_secs()
        ))?;
        self.peace(stay).await
    }

    /// Only shows how it goes on, for ever.
    pub(super) async fn keep(&mut self) -> Result<(), ScenarioStop> {
        self.scenes.push(FleetFaultResult::new(FleetFault::Hand, "", None, self.clock.now()));
        loop {
            self.peace(Duration::from_secs(3_600)).await?;
        }
    }

    /// Ends all of them in good order.
    pub(super) async fn finish(&mut self) -> Result<(), ScenarioStop> {
        self.board.leave();
        self.say("")?;
        self.say("That was all: every member is asked to stop.")?;
        self.scenes.push(FleetFaultResult::new(FleetFault::End, "", None, self.clock.now()));
        let left: Vec<usize> =
            (0..self.cast.len()).filter(|which| self.cast.ended(*which).is_none()).collect();
        for which in &left {
            self.cast.doom(*which, Signal::TERM);
        }
        let all =
            |stage: &FleetScenario| left.iter().all(|which| stage.cast.ended(*which).is_some());
        if !self.until(self.patience, all).await? {
            return Err(Error::unavailable("a member does not stop").into());
        }
        for which in left {
            let (id, status) = (self.cast.id(which), self.cast.ended(which));
            if let Some(status) = status.filter(|status| !status.success()) {
                return Err(Error::unavailable(format!("{id} ended badly: {status}")).into());
            }
        }
        Ok(())
    }

    pub(super) fn say(&mut self, text: impl AsRef<str>) -> Result<(), ScenarioStop> {
        self.board.say(text)
    }

    /// Only looks.
    async fn peace(&mut self, time: Duration) -> Result<(), ScenarioStop> {
        self.until(time, |_| false).await?;
        Ok(())
    }

    /// Looks until something has come about; returns whether it has, in time.
    async fn until(
        &mut self,
        time: Duration,
        done: impl Fn(&FleetScenario) -> bool,
    ) -> Result<bool, ScenarioStop> {
        let end = self.clock.now() + time;
        loop {
            self.look().await?;
            if done(self) {
                return Ok(true);
            }
            let clock = self.clock.clone();
            let next = clock.now() + TICK;
            loop {
                tokio::select! {
                    line = self.cast.line() => self.board.log(&line)?,
                    () = clock.sleep_until(next.min(end)) => break,
                }
            }
            if clock.now() >= end {
                return Ok(false);
            }
        }
    }

    async fn look(&mut self) -> Result<(), ScenarioStop> {
        for (id, status) in self.cast.notice()? {
            // Killed by somebody: the others go on. What fails by itself would only fail again.
            if status.code().is_some_and(|code| code != 0) {
                return Err(Error::unavailable(format!("{id} ended by itself: {status}")).into());
            }
            self.say(format!("   {id} was ended by hand ({status})."))?;
        }
        match survey(&*self.store, &self.fleet, self.shards.iter().cloned()).await {
            Ok(seen) => self.seen = seen,
            // The next look may be luckier.
            Err(error) if error.kind() == Kind::Unavailable => {}
            Err(error) => return Err(error.into()),
        }
        let alive = self.cast.alive();
        let mut shares: BTreeMap<&str, usize> = alive.into_iter().map(|id| (id, 0)).collect();
        let owned = self.seen.shares();
        let nobody = self.seen.shards.len() - owned.values().sum::<usize>();
        shares.extend(owned);
        let mut shares: Vec<MemberShare> = shares
            .into_iter()
            .map(|(member, shards)| MemberShare {
                member: crate::output::printable(member),
                shards,
            })
            .collect();
        shares.sort_by_key(|share| (share.member.len(), share.member.clone()));
        self.board.draw(shares, nobody)
    }
}
