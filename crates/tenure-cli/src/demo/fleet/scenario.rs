//! The scenario of the fleet demo: causes each event, waits until the shares are even again and prints what happens.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tenure::fleet::{Shard, Snapshot, observe_fleet};
use tenure::{Clock, Error, Kind, Moment, Name, Store};

use super::chart::{FleetChart, MemberShare};
use super::checker::{Journals, check};
use super::members::DemoMembers;
use super::report::settled;
use crate::demo::journal;
use crate::demo::scenario::ScenarioStop;

/// The timeout for the start: a store server that has just started causes a start-up wait of some seconds.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// The timeout for any expected event, in addition to two TTLs.
const EVENT_TIMEOUT: Duration = Duration::from_secs(6);
/// How often the demo observes the store.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long the scenario pauses, so that users can follow it.
#[derive(Clone, Copy)]
struct FleetDemoTiming {
    /// Between two events.
    observe: Duration,
    /// When the demo causes no events.
    idle: Duration,
}

impl FleetDemoTiming {
    const FOR_READERS: FleetDemoTiming =
        FleetDemoTiming { observe: Duration::from_millis(2_500), idle: Duration::from_secs(10) };
    const FOR_PROGRAMS: FleetDemoTiming =
        FleetDemoTiming { observe: Duration::from_millis(700), idle: Duration::from_millis(1_500) };
}

/// An event of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FleetFault {
    Start,
    Kill,
    Join,
    Leave,
    /// From here on the user acts.
    ByHand,
    /// All members are told to stop: later moves belong to no earlier event.
    End,
}

impl FleetFault {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            FleetFault::Start => "start",
            FleetFault::Kill => "kill",
            FleetFault::Join => "join",
            FleetFault::Leave => "leave",
            FleetFault::ByHand => "byHand",
            FleetFault::End => "end",
        }
    }
}

/// One event and its result.
#[derive(Clone, Debug)]
pub(super) struct FleetFaultResult {
    pub(super) what: FleetFault,
    /// The affected member; empty at the start.
    pub(super) member: String,
    pub(super) pid: Option<u32>,
    /// When the event happened.
    pub(super) at: Moment,
    /// The share of each member once the shares were even; `None` if they never were.
    pub(super) shares: Option<BTreeMap<String, usize>>,
    /// Any other problem.
    pub(super) problem: Option<String>,
}

impl FleetFaultResult {
    pub(super) fn new(
        what: FleetFault,
        member: &str,
        pid: Option<u32>,
        at: Moment,
    ) -> FleetFaultResult {
        FleetFaultResult { what, member: member.to_owned(), pid, at, shares: None, problem: None }
    }
}

pub(super) struct FleetScenario {
    pub(super) members: DemoMembers,
    pub(super) chart: FleetChart,
    pub(super) event_results: Vec<FleetFaultResult>,
    store: Arc<dyn Store>,
    fleet: Name,
    shards: Vec<Shard>,
    journals: PathBuf,
    timing: FleetDemoTiming,
    pub(super) timeout: Duration,
    clock: Clock,
    snapshot: Snapshot,
}

impl FleetScenario {
    pub(super) fn new(
        members: DemoMembers,
        chart: FleetChart,
        (store, fleet, ttl): (Arc<dyn Store>, Name, Duration),
        shards: Vec<Shard>,
        journals: PathBuf,
    ) -> FleetScenario {
        let timing = if chart.enabled() {
            FleetDemoTiming::FOR_READERS
        } else {
            FleetDemoTiming::FOR_PROGRAMS
        };
        FleetScenario {
            members,
            chart,
            event_results: Vec::new(),
            store,
            fleet,
            shards,
            journals,
            timing,
            timeout: EVENT_TIMEOUT + 2 * ttl,
            clock: Clock::boot(),
            snapshot: Snapshot::default(),
        }
    }

    /// Starts the members, and waits until the shares are even.
    pub(super) async fn start_all(&mut self, nodes: usize) -> Result<(), ScenarioStop> {
        self.event_results.push(FleetFaultResult::new(
            FleetFault::Start,
            "",
            None,
            self.clock.now(),
        ));
        for _ in 0..nodes {
            self.start()?;
        }
        self.settle(START_TIMEOUT + self.timeout).await
    }

    /// One member is killed, one joins, one leaves.
    pub(super) async fn play(&mut self) -> Result<(), ScenarioStop> {
        self.idle(self.timing.observe).await?;
        self.end_one(0, FleetFault::Kill).await?;
        self.idle(self.timing.observe).await?;
        let new_member = format!("m{}", self.members.len() + 1);
        self.say("")?;
        self.say(format!("2. {new_member} joins: it gets a fair share, and nothing else moves."))?;
        self.event_results.push(FleetFaultResult::new(
            FleetFault::Join,
            &new_member,
            None,
            self.clock.now(),
        ));
        let which = self.start()?;
        if let Some(event_result) = self.event_results.last_mut() {
            event_result.pid = self.members.pid(which);
        }
        self.settle(self.timeout).await?;
        self.idle(self.timing.observe).await?;
        self.end_one(1, FleetFault::Leave).await?;
        self.idle(self.timing.observe).await
    }

    fn start(&mut self) -> Result<usize, ScenarioStop> {
        let which = self.members.start()?;
        let (id, pid) = (self.members.id(which), self.members.pid(which).unwrap_or_default());
        let line = format!("✅ [{id}] Fleet member started, process {pid}");
        self.say(line)?;
        Ok(which)
    }

    async fn end_one(&mut self, which: usize, what: FleetFault) -> Result<(), ScenarioStop> {
        let (id, pid) = (self.members.id(which).to_owned(), self.members.pid(which));
        let (number, sentence, signal, by_hand) = match what {
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
        self.say(format!("{number}. {id} {sentence}."))?;
        self.say(format!("   By hand: kill -{by_hand} {}", pid.unwrap_or_default()))?;
        self.event_results.push(FleetFaultResult::new(what, &id, pid, self.clock.now()));
        self.members.stop(which, signal);
        self.settle(self.timeout).await?;
        let ended = self
            .wait_until(self.timeout, |scenario| scenario.members.ended(which).is_some())
            .await?;
        let problem = match self.members.ended(which) {
            Some(status) if what == FleetFault::Leave && !status.success() => {
                Some(format!("it did not end in good order: {status}"))
            }
            _ => (!ended).then(|| "it does not end".to_owned()),
        };
        if let (Some(event_result), Some(problem)) = (self.event_results.last_mut(), problem) {
            event_result.problem.get_or_insert(problem);
        }
        Ok(())
    }

    /// Waits until the shares are even and every shard is worked on.
    async fn settle(&mut self, time: Duration) -> Result<(), ScenarioStop> {
        if !self.wait_until(time, FleetScenario::is_settled).await? {
            return Err(Error::unavailable(
                "the shards were not dealt out evenly in time; see the log above",
            )
            .into());
        }
        let alive = self.members.alive().into_iter();
        let shares = alive.map(|id| (id.to_owned(), self.snapshot.share(id))).collect();
        let Some(event_result) = self.event_results.last_mut() else { return Ok(()) };
        event_result.shares = Some(shares);
        let found = check(&self.journals()?, &self.event_results).findings.pop();
        let line = self
            .event_results
            .last()
            .zip(found)
            .map(|(event_result, found)| settled(event_result, &found));
        self.say(line.unwrap_or_default())
    }

    fn is_settled(&self) -> bool {
        let mut alive = self.members.alive();
        alive.sort_unstable();
        let mut members: Vec<&str> =
            self.snapshot.members.iter().map(|member| member.id.as_str()).collect();
        members.sort_unstable();
        let shares: Vec<usize> = alive.iter().map(|id| self.snapshot.share(id)).collect();
        let (most, least) = (shares.iter().max(), shares.iter().min());
        alive == members
            && shares.iter().sum::<usize>() == self.shards.len()
            && most.zip(least).is_some_and(|(most, least)| most - least <= 1)
            && self.is_at_work()
    }

    /// Whether the owner of each shard works on it.
    fn is_at_work(&self) -> bool {
        let Ok(journals) = self.journals() else { return false };
        self.shards.iter().all(|shard| {
            let last = journals.get(shard.as_str()).and_then(|lines| lines.last());
            let owned = self.snapshot.shards.get(shard);
            let token = owned.and_then(|owned| owned.token).map(|token| token.get());
            last.is_some_and(|last| Some(last.token) == token)
        })
    }

    /// The lines that the workers of all shards have written so far.
    pub(super) fn journals(&self) -> tenure::Result<Journals> {
        let read = |shard: &Shard| {
            let lines = journal::read_complete(&self.journals.join(shard.as_str()))?;
            Ok((shard.to_string(), lines))
        };
        self.shards.iter().map(read).collect()
    }

    /// Causes no events for a while; the user may act.
    pub(super) async fn stay(&mut self) -> Result<(), ScenarioStop> {
        let stay = self.timing.idle;
        self.event_results.push(FleetFaultResult::new(
            FleetFault::ByHand,
            "",
            None,
            self.clock.now(),
        ));
        self.say(format!(
            "   Nothing happens for {} s, unless you do it; Ctrl+C ends it.",
            stay.as_secs()
        ))?;
        self.idle(stay).await
    }

    /// Shows the fleet until the user interrupts; causes no events.
    pub(super) async fn keep(&mut self) -> Result<(), ScenarioStop> {
        self.event_results.push(FleetFaultResult::new(
            FleetFault::ByHand,
            "",
            None,
            self.clock.now(),
        ));
        loop {
            self.idle(Duration::from_secs(3_600)).await?;
        }
    }

    /// Stops all members cleanly.
    pub(super) async fn finish(&mut self) -> Result<(), ScenarioStop> {
        self.chart.finish();
        self.say("")?;
        self.say("That was all: every member is asked to stop.")?;
        self.event_results.push(FleetFaultResult::new(FleetFault::End, "", None, self.clock.now()));
        let left: Vec<usize> =
            (0..self.members.len()).filter(|which| self.members.ended(*which).is_none()).collect();
        for which in &left {
            self.members.stop(*which, Signal::TERM);
        }
        let all = |scenario: &FleetScenario| {
            left.iter().all(|which| scenario.members.ended(*which).is_some())
        };
        if !self.wait_until(self.timeout, all).await? {
            return Err(Error::unavailable("a member does not stop").into());
        }
        for which in left {
            let (id, status) = (self.members.id(which), self.members.ended(which));
            if let Some(status) = status.filter(|status| !status.success()) {
                return Err(Error::unavailable(format!("{id} ended badly: {status}")).into());
            }
        }
        Ok(())
    }

    pub(super) fn say(&mut self, text: impl AsRef<str>) -> Result<(), ScenarioStop> {
        self.chart.say(text)
    }

    /// Only observes for this time.
    async fn idle(&mut self, time: Duration) -> Result<(), ScenarioStop> {
        self.wait_until(time, |_| false).await?;
        Ok(())
    }

    /// Observes until `done`; returns whether that came in time.
    async fn wait_until(
        &mut self,
        time: Duration,
        done: impl Fn(&FleetScenario) -> bool,
    ) -> Result<bool, ScenarioStop> {
        let end = self.clock.now() + time;
        loop {
            self.observe().await?;
            if done(self) {
                return Ok(true);
            }
            let clock = self.clock.clone();
            let next = clock.now() + POLL_INTERVAL;
            loop {
                tokio::select! {
                    line = self.members.line() => self.chart.log(&line)?,
                    () = clock.sleep_until(next.min(end)) => break,
                }
            }
            if clock.now() >= end {
                return Ok(false);
            }
        }
    }

    async fn observe(&mut self) -> Result<(), ScenarioStop> {
        for (id, status) in self.members.reap_ended()? {
            // The user killed the member: the others continue. A member that failed by itself would only fail again.
            if status.code().is_some_and(|code| code != 0) {
                return Err(Error::unavailable(format!("{id} ended by itself: {status}")).into());
            }
            self.say(format!("   {id} was ended by hand ({status})."))?;
        }
        match observe_fleet(&*self.store, &self.fleet, self.shards.iter().cloned()).await {
            Ok(snapshot) => self.snapshot = snapshot,
            // The next observation may succeed.
            Err(error) if error.kind() == Kind::Unavailable => {}
            Err(error) => return Err(error.into()),
        }
        let alive = self.members.alive();
        let mut shares: BTreeMap<&str, usize> = alive.into_iter().map(|id| (id, 0)).collect();
        let owned = self.snapshot.shares();
        let unowned = self.snapshot.shards.len() - owned.values().sum::<usize>();
        shares.extend(owned);
        let mut shares: Vec<MemberShare> = shares
            .into_iter()
            .map(|(member, shards)| MemberShare {
                member: crate::output::printable(member),
                shards,
            })
            .collect();
        shares.sort_by_key(|share| (share.member.len(), share.member.clone()));
        self.chart.draw(shares, unowned)
    }
}
