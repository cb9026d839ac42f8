//! The coordinator: the loop of a fleet member around the [`Planner`].
//!
//! It reads the source of shards, observes the other members and the overrides, passes all of this to the planner, and sends
//! the resulting commands to the driver.
//!
//! It runs on its own thread. A plan for a million shards, a slow source or a store that hangs delays no renewal, because the
//! driver's thread renews.

mod shard_lists;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::StreamExt;
use tokio::sync::mpsc;

use super::event::FleetEvent;
use super::member::{MEMBERSHIP, MemberContext, MemberInput, locked};
use super::overrides::{self, Overrides};
use super::planner::{MemberState, PlanStep, Planner};
use super::shard::{leases_prefix, member_of, nodes_prefix};
use super::source::{LastGood, Shards, Source, SourceMessage};
use super::{ListDigest, Member, Reason, Shard};
use crate::clock::Moment;
use crate::driver::{DriverCommand, HandleInput, MachineSlot};
use crate::election::Saved;
use crate::entropy;
use crate::error::{Kind, Result};
use crate::lease::CandidateId;
use crate::machine::{Machine, MachineConfig};
use crate::store::{Scope, Store};
use crate::timing::Timing;
use shard_lists::ANNOUNCEMENT_DELAY;

/// A leaving member releases its membership lease this long before its shards, so that the other members have planned by then.
const LEAVE_NOTICE: Duration = Duration::from_millis(100);
/// The coordinator observes the members this long after the expiry of a membership lease.
const EXPIRY_SLACK: Duration = Duration::from_millis(5);
/// Delay before a failed observation or announcement is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Interval between checks whether all shards have an owner.
const COVERAGE_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between reports that the number of unowned shards has changed.
const UNOWNED_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// How many unowned shards a report names.
const MAX_NAMED_SHARDS: usize = 5;

/// The configuration of the loop, and the channel of its inputs.
pub(super) struct Coordinator {
    pub(super) shared: Arc<MemberContext>,
    pub(super) store: Arc<dyn Store>,
    pub(super) source: Arc<dyn Source>,
    pub(super) timing: Arc<Timing>,
    pub(super) reread: Duration,
    pub(super) ends_with_process: bool,
    pub(super) inputs: mpsc::UnboundedReceiver<MemberInput>,
}

/// The result of one observation of the fleet.
struct FleetSnapshot {
    /// The note of each member, and the list that it has announced.
    members: BTreeMap<CandidateId, (String, ListDigest)>,
    /// The earliest expiry of a membership lease, unless it is renewed.
    until: Option<Moment>,
    overrides: Overrides,
}

/// The state of the loop.
struct CoordinatorState {
    coordinator: Coordinator,
    planner: Planner,
    last_good: LastGood,
    snapshot: Option<FleetSnapshot>,
    steps: Vec<PlanStep>,
    /// This member campaigns for its membership lease, because it has read its list.
    joins: bool,
    /// The list that this member has announced in the current term of its membership.
    announced: Option<ListDigest>,
    announce_at: Moment,
    /// Delay until the members are observed again, while their lists differ.
    observe_delay: Duration,
    /// Since when members announce different lists, and whether that was reported.
    lists_differ: Option<(Moment, bool)>,
    /// The last observation failed, and this was reported.
    observe_failed: bool,
    /// The number of unowned shards in the last report, and the time of that report.
    unowned: (usize, Moment),
    /// When the notice of a leaving member ends and it starts to release its shards.
    leave_at: Option<Moment>,
    /// All shards are released, and the driver was asked to close.
    left: bool,
}

impl Coordinator {
    pub(super) async fn run(self) {
        let planner = Planner::new(self.shared.me.clone(), self.timing.ttl);
        let state = CoordinatorState {
            coordinator: self,
            planner,
            last_good: LastGood::default(),
            snapshot: None,
            steps: Vec::new(),
            joins: false,
            announced: None,
            announce_at: Moment::PAST,
            observe_delay: ANNOUNCEMENT_DELAY,
            lists_differ: None,
            observe_failed: false,
            unowned: (0, Moment::PAST),
            leave_at: None,
            left: false,
        };
        state.run().await;
    }
}

impl CoordinatorState {
    async fn run(mut self) {
        let (shared, store) = (self.coordinator.shared.clone(), self.coordinator.store.clone());
        let source = self.coordinator.source.clone();
        let clock = shared.context.clock.clone();
        let mut nodes = store.watch(&Scope::Prefix(nodes_prefix(&shared.name)));
        let mut override_changes = store.watch(&Scope::name(&overrides::name(&shared.name)));
        let mut hints = source.hints();
        let mut reading: Option<BoxFuture<'_, Result<Shards>>> = None;
        let mut observing: Option<BoxFuture<'_, Result<FleetSnapshot>>> = None;
        let mut announcing: Option<BoxFuture<'_, (ListDigest, Result<Saved>)>> = None;
        // A hint has arrived. If a read is in flight, it may have missed the change, so another read follows it.
        let (mut read_again, mut observe_again) = (true, true);
        let (mut read_at, mut observe_at) = (clock.now(), clock.now());
        let mut count_at = clock.now() + COVERAGE_INTERVAL;
        loop {
            let now = clock.now();
            self.act(now);
            if now >= count_at {
                self.report_coverage(now);
                count_at = now + COVERAGE_INTERVAL;
            }
            if reading.is_none() && std::mem::take(&mut read_again) {
                reading = Some(source.read());
                read_at = now + self.coordinator.reread;
            }
            if observing.is_none() && std::mem::take(&mut observe_again) {
                observing = Some(self.observe());
                observe_at = now + self.coordinator.timing.retry;
            }
            if announcing.is_none() && now >= self.announce_at {
                announcing = self.announcement();
            }
            // An operation in flight is not started a second time, so its timer does not matter until it completes.
            let wake_at = [
                (announcing.is_none() && self.is_unannounced()).then_some(self.announce_at),
                self.act_at(now),
                Some(count_at),
                reading.is_none().then_some(read_at),
                observing.is_none().then_some(observe_at),
            ];
            let wake_at = wake_at.into_iter().flatten().min().unwrap_or(count_at);
            tokio::select! {
                input = self.coordinator.inputs.recv() => {
                    // Inputs arrive in bursts: handle all of them before the next plan.
                    let mut input = input;
                    let now = clock.now();
                    while let Some(next) = input {
                        if !self.handle_input(now, next) {
                            return;
                        }
                        input = self.coordinator.inputs.try_recv().ok();
                    }
                }
                read = completed(&mut reading) => {
                    reading = None;
                    if self.source_read(clock.now(), read) {
                        observe_at = observe_at.min(clock.now() + ANNOUNCEMENT_DELAY);
                    }
                }
                observation = completed(&mut observing) => {
                    observing = None;
                    observe_at = self.observed(clock.now(), observation);
                }
                (list, saved) = completed(&mut announcing) => {
                    announcing = None;
                    match saved {
                        Ok(Saved::Kept) => self.announced = Some(list),
                        failed => {
                            tracing::debug!(?failed, "the list of shards was not announced");
                            self.announce_at = clock.now() + RETRY_DELAY;
                        }
                    }
                }
                Some(()) = hints.next() => read_again = true,
                Some(_) = nodes.next() => observe_again = true,
                Some(_) = override_changes.next() => observe_again = true,
                () = clock.sleep_until(wake_at) => {
                    let now = clock.now();
                    read_again |= reading.is_none() && now >= read_at;
                    observe_again |= observing.is_none() && now >= observe_at;
                }
            }
        }
    }

    /// Returns `false` when the loop must end.
    fn handle_input(&mut self, now: Moment, input: MemberInput) -> bool {
        match input {
            MemberInput::MembershipAcquired => {
                self.announced = None;
                locked(&self.coordinator.shared.view).namesake = false;
                self.planner.membership_acquired(now);
            }
            MemberInput::MembershipLost(reason) => self.planner.membership_lost(now, reason),
            MemberInput::Owner(shard, owner, works) => {
                self.planner.owner(now, shard, owner.as_deref(), works);
            }
            MemberInput::PhaseChanged(shard, phase) => {
                self.planner.phase_changed(now, shard, phase, &mut self.steps);
            }
            MemberInput::Answered(shard) => self.planner.answered(now, shard),
            MemberInput::Broken(shard) => self.planner.broken(now, shard),
            MemberInput::Leave => {
                self.coordinator.shared.set_reason(MEMBERSHIP, Reason::Shutdown);
                self.send(MEMBERSHIP, HandleInput::Stop);
                self.leave_at.get_or_insert(now + LEAVE_NOTICE);
            }
            MemberInput::Over => return false,
        }
        true
    }

    fn act(&mut self, now: Moment) {
        // Until the notice ends no shard is released, although the membership lease is.
        if self.left || self.leave_at.is_some_and(|at| now < at) {
            return;
        }
        self.planner.act(now, &mut self.steps);
        for step in std::mem::take(&mut self.steps) {
            self.apply_step(now, step);
        }
        if self.leave_at.is_some() && self.planner.holds_nothing() {
            for shard in self.planner.numbers() {
                self.send(shard, HandleInput::Stop);
            }
            let _ = self.coordinator.shared.context.commands.send(DriverCommand::Close);
            // The driver sends `Over` when it has ended; until then this loop starts nothing new.
            self.left = true;
        }
    }

    /// When to act again, unless an event comes first.
    fn act_at(&self, now: Moment) -> Option<Moment> {
        match self.leave_at {
            _ if self.left => None,
            Some(at) if now < at => Some(at),
            _ => self.planner.wake_at(),
        }
    }

    fn apply_step(&mut self, now: Moment, step: PlanStep) {
        let shared = self.coordinator.shared.clone();
        match step {
            PlanStep::Add(number, shard) => {
                let slot = self.machine_slot(now, &shard);
                shared.add(number, Some(shard));
                let _ = shared.context.commands.send(DriverCommand::Add(number, Box::new(slot)));
            }
            PlanStep::Claim(number) => {
                shared.expect_answer(number);
                self.send(number, HandleInput::Wanted(true));
            }
            PlanStep::Withdraw(number) => self.send(number, HandleInput::Wanted(false)),
            PlanStep::Release(number, next, reason) => {
                shared.set_reason(number, reason);
                self.send(number, HandleInput::Resign(next));
                self.send(number, HandleInput::Wanted(false));
            }
            PlanStep::Remove(number, reason) => {
                shared.set_reason(number, reason);
                self.send(number, HandleInput::Stop);
            }
        }
    }

    fn machine_slot(&self, now: Moment, shard: &Shard) -> MachineSlot {
        let shared = &self.coordinator.shared;
        let (name, me) = (shard.lease(&shared.name), shared.me.clone());
        let timing = self.coordinator.timing.clone();
        let machine = MachineConfig::new(name, me, timing, entropy::random_u128());
        // It observes the shard until the planner decides to claim it.
        let machine = MachineConfig { campaigns: false, ..machine };
        let mut slot =
            MachineSlot::new(Machine::new(machine, now), self.coordinator.shared.clone());
        slot.note = shard.note(&shared.name);
        slot.ends_with_process = self.coordinator.ends_with_process;
        slot
    }

    fn send(&self, machine: u64, input: HandleInput) {
        self.coordinator.shared.context.tell(machine, input);
    }

    // ---- observations ----

    /// Observes the members and the overrides.
    fn observe(&self) -> BoxFuture<'static, Result<FleetSnapshot>> {
        let (store, shared) = (self.coordinator.store.clone(), self.coordinator.shared.clone());
        async move {
            let clock = shared.context.clock.clone();
            let sent = clock.now();
            let overrides = overrides::read(&*store, &shared.name).await?;
            let scope = Scope::Prefix(nodes_prefix(&shared.name));
            let leases = store.observe(&scope).await?;
            let mut snapshot = FleetSnapshot { members: BTreeMap::new(), until: None, overrides };
            // A lease that cannot be read is not a member, and it does not hide the other members.
            for lease in leases.into_iter().flatten().filter(|lease| lease.holder.is_some()) {
                let Some(id) = member_of(&shared.name, &lease.name) else { continue };
                let until = sent + lease.left + EXPIRY_SLACK;
                snapshot.until = Some(snapshot.until.map_or(until, |first| first.min(until)));
                let list = ListDigest::announced(lease.checkpoint.as_ref());
                snapshot.members.insert(id, (lease.note.as_str().to_owned(), list));
            }
            Ok(snapshot)
        }
        .boxed()
    }

    /// Processes an observation and returns when to observe again.
    fn observed(&mut self, now: Moment, observation: Result<FleetSnapshot>) -> Moment {
        let snapshot = match observation {
            Ok(snapshot) => snapshot,
            Err(error) => {
                if !std::mem::replace(&mut self.observe_failed, true)
                    && error.kind() != Kind::Unavailable
                {
                    tracing::error!(fleet = %self.coordinator.shared.name, %error, "cannot see who is there");
                }
                return now + RETRY_DELAY;
            }
        };
        self.observe_failed = false;
        let drained = |id: &CandidateId| snapshot.overrides.drained.contains(id);
        let state = |id: &CandidateId, list: &ListDigest| MemberState {
            drained: drained(id),
            list: list.clone(),
        };
        let mut members: BTreeMap<CandidateId, MemberState> =
            snapshot.members.iter().map(|(id, (_, list))| (id.clone(), state(id, list))).collect();
        // Also before the membership lease is observed: a drain of this member counts from the start.
        let me = &self.coordinator.shared.me;
        if drained(me) {
            members.entry(me.clone()).or_default().drained = true;
        }
        self.planner.members(now, members);
        let shown = snapshot.members.iter().map(|(id, (note, list))| Member {
            id: id.clone(),
            note: note.clone(),
            drained: drained(id),
            list: list.clone(),
        });
        locked(&self.coordinator.shared.view).members = shown.collect();
        let observe_at = now + self.next_observe_delay(&snapshot);
        let observe_at = snapshot
            .until
            .map_or(observe_at, |until| observe_at.min(until.max(now + EXPIRY_SLACK)));
        let paused = self.snapshot.as_ref().map(|before| &before.overrides.paused);
        let changed = paused != Some(&snapshot.overrides.paused);
        self.snapshot = Some(snapshot);
        if changed {
            self.shards_changed(now);
        }
        observe_at
    }

    /// Processes a read of the source and returns whether the list has changed.
    fn source_read(&mut self, now: Moment, read: Result<Shards>) -> bool {
        let change = self.last_good.take(read);
        let shared = &self.coordinator.shared;
        locked(&shared.view).source_error = self.last_good.failing().cloned();
        for message in change.messages {
            let text = match &message {
                SourceMessage::Fails { error, kept: None } => {
                    let retry = self.coordinator.reread;
                    let fleet = &shared.name;
                    format!(
                        "{fleet}: cannot list shards: {error}; not joining the fleet, next try in {retry:?}"
                    )
                }
                message => format!("{} {message}", self.coordinator.source.shown()),
            };
            shared.report(FleetEvent::Source(text));
        }
        if change.changed {
            self.observe_delay = ANNOUNCEMENT_DELAY;
            self.shards_changed(now);
        }
        change.changed
    }

    /// Passes the shards to the planner, but not before the overrides are known: a paused shard must not be claimed.
    fn shards_changed(&mut self, now: Moment) {
        let (Some(shards), Some(snapshot)) = (self.last_good.shards(), &self.snapshot) else {
            return;
        };
        let shards = shards.clone();
        let overrides = &snapshot.overrides;
        let paused =
            |shard: &Shard| overrides.paused.contains(shard) || shards.is_paused(shard.as_str());
        self.planner.shards(now, shards.shards(), paused, &mut self.steps);
        locked(&self.coordinator.shared.view).shards = shards;
        // Every plan gives each member a share, so a process that knows no shards yet must not be a member.
        if !std::mem::replace(&mut self.joins, true) {
            self.send(MEMBERSHIP, HandleInput::Wanted(true));
        }
    }

    fn report_coverage(&mut self, now: Moment) {
        self.compare_lists(now);
        let coverage = self.planner.coverage(now);
        locked(&self.coordinator.shared.view).coverage = coverage;
        // The first unowned shard and the return to zero are reported at once; other changes of the number only now and then.
        let (reported, at) = self.unowned;
        let turned = (coverage.unowned == 0) != (reported == 0);
        if turned || (coverage.unowned != reported && now.since(at) >= UNOWNED_REPORT_INTERVAL) {
            self.unowned = (coverage.unowned, now);
            let some = self.planner.unowned(now, MAX_NAMED_SHARDS);
            self.coordinator.shared.report(FleetEvent::Unowned(coverage.unowned, some));
        }
    }
}

/// Waits for the operation in flight; forever, if there is none.
async fn completed<T>(in_flight: &mut Option<BoxFuture<'_, T>>) -> T {
    match in_flight {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// The scope of all shard leases of this fleet.
pub(super) fn scope(shared: &MemberContext) -> Scope {
    Scope::Prefix(leases_prefix(&shared.name))
}
