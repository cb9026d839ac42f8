//! Where a member looks around and decides: reads the source of shards, sees who else is there and what people have said, asks the
//! [`Steward`] what follows, and tells the driver.
//!
//! It has a thread of its own. A plan for a million shards, a slow source or a store that hangs hold up no renewal: those are the
//! driver's.

mod lists;

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
use crate::driver::{DriverCommand, HandleInput, MachineSlot, Saved};
use crate::entropy;
use crate::error::{Kind, Result};
use crate::lease::CandidateId;
use crate::machine::Machine;
use crate::store::{Scope, Store};
use crate::timing::Timing;
use lists::ANNOUNCED_AFTER;

/// Others see a member go before its shards do, so that each knows by then which are its own.
const NOTICE: Duration = Duration::from_millis(100);
/// A lease that ran out is looked at a moment later.
const AFTER_EXPIRY: Duration = Duration::from_millis(5);
/// A look that failed is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);
/// How often it is looked whether all shards have an owner.
const COVERAGE_EVERY: Duration = Duration::from_secs(1);
/// How often it is told that their number has changed.
const UNOWNED_EVERY: Duration = Duration::from_secs(10);
/// So many of those without are named.
const NAMED: usize = 5;

pub(super) struct Coordinator {
    pub(super) shared: Arc<MemberContext>,
    pub(super) store: Arc<dyn Store>,
    pub(super) source: Arc<dyn Source>,
    pub(super) timing: Arc<Timing>,
    pub(super) reread: Duration,
    pub(super) ends_with_process: bool,
    pub(super) notes: mpsc::UnboundedReceiver<MemberInput>,
}

/// What a look around has shown.
struct FleetSnapshot {
    /// The note of each member, and the list that it has announced.
    members: BTreeMap<CandidateId, (String, ListDigest)>,
    /// When the first of them goes, if it is not renewed.
    until: Option<Moment>,
    overrides: Overrides,
}

struct CoordinatorState {
    office: Coordinator,
    steward: Planner,
    keeper: LastGood,
    sight: Option<FleetSnapshot>,
    orders: Vec<PlanStep>,
    /// This member campaigns for its membership: it has read its list.
    joins: bool,
    /// The list that the other members know from this term's announcement.
    announced: Option<ListDigest>,
    announce_at: Moment,
    /// After this the members are observed again, while their lists differ.
    look_after: Duration,
    /// Since when members announce different lists, and whether that was reported.
    lists_differ: Option<(Moment, bool)>,
    /// Failing to look around has been told.
    troubled: bool,
    /// How many had no owner when that was last told, and when.
    unowned: (usize, Moment),
    leave_at: Option<Moment>,
    left: bool,
}

impl Coordinator {
    pub(super) async fn run(self) {
        let steward = Planner::new(self.shared.me.clone(), self.timing.ttl);
        let desk = CoordinatorState {
            office: self,
            steward,
            keeper: LastGood::default(),
            sight: None,
            orders: Vec::new(),
            joins: false,
            announced: None,
            announce_at: Moment::NEVER,
            look_after: ANNOUNCED_AFTER,
            lists_differ: None,
            troubled: false,
            unowned: (0, Moment::NEVER),
            leave_at: None,
            left: false,
        };
        desk.work().await;
    }
}

impl CoordinatorState {
    async fn work(mut self) {
        let (shared, store) = (self.office.shared.clone(), self.office.store.clone());
        let source = self.office.source.clone();
        let clock = shared.context.clock.clone();
        let mut nodes = store.watch(&Scope::Prefix(nodes_prefix(&shared.name)));
        let mut words = store.watch(&Scope::name(&overrides::name(&shared.name)));
        let mut hints = source.hints();
        let mut reading: Option<BoxFuture<'_, Result<Shards>>> = None;
        let mut looking: Option<BoxFuture<'_, Result<FleetSnapshot>>> = None;
        let mut announcing: Option<BoxFuture<'_, (ListDigest, Result<Saved>)>> = None;
        // Something may have changed; while it is being read, it is read once more after that.
        let (mut read_again, mut look_again) = (true, true);
        let (mut read_at, mut look_at) = (clock.now(), clock.now());
        let mut count_at = clock.now() + COVERAGE_EVERY;
        loop {
            let now = clock.now();
            self.act(now);
            if now >= count_at {
                self.count(now);
                count_at = now + COVERAGE_EVERY;
            }
            if reading.is_none() && std::mem::take(&mut read_again) {
                reading = Some(source.read());
                read_at = now + self.office.reread;
            }
            if looking.is_none() && std::mem::take(&mut look_again) {
                looking = Some(self.look());
                look_at = now + self.office.timing.retry;
            }
            if announcing.is_none() && now >= self.announce_at {
                announcing = self.announcement();
            }
            // What is under way is not begun a second time, so there is nothing to wake up for.
            let wake_at = [
                (announcing.is_none() && self.is_unannounced()).then_some(self.announce_at),
                self.act_at(now),
                Some(count_at),
                reading.is_none().then_some(read_at),
                looking.is_none().then_some(look_at),
            ];
            let wake_at = wake_at.into_iter().flatten().min().unwrap_or(count_at);
            tokio::select! {
                note = self.office.notes.recv() => {
                    // Many come together.
                    let mut note = note;
                    let now = clock.now();
                    while let Some(next) = note {
                        if !self.take(now, next) {
                            return;
                        }
                        note = self.office.notes.try_recv().ok();
                    }
                }
                read = done(&mut reading) => {
                    reading = None;
                    if self.read(clock.now(), read) {
                        look_at = look_at.min(clock.now() + ANNOUNCED_AFTER);
                    }
                }
                seen = done(&mut looking) => {
                    looking = None;
                    look_at = self.saw(clock.now(), seen);
                }
                (list, saved) = done(&mut announcing) => {
                    announcing = None;
                    match saved {
                        Ok(Saved::Kept) => self.announced = Some(list),
                        failed => {
                            tracing::debug!(?failed, "the list of shards was not announced");
                            self.announce_at = clock.now() + AGAIN;
                        }
                    }
                }
                Some(()) = hints.next() => read_again = true,
                Some(_) = nodes.next() => look_again = true,
                Some(_) = words.next() => look_again = true,
                () = clock.sleep_until(wake_at) => {
                    let now = clock.now();
                    read_again |= reading.is_none() && now >= read_at;
                    look_again |= looking.is_none() && now >= look_at;
                }
            }
        }
    }

    /// `false`: it is over.
    fn take(&mut self, now: Moment, note: MemberInput) -> bool {
        match note {
            MemberInput::Seated => {
                self.announced = None;
                locked(&self.office.shared.view).namesake = false;
                self.steward.seated(now);
            }
            MemberInput::Unseated(reason) => self.steward.unseated(now, reason),
            MemberInput::Owner(shard, owner, works) => {
                self.steward.owner(now, shard, owner.as_deref(), works);
            }
            MemberInput::Moved(shard, phase) => {
                self.steward.moved(now, shard, phase, &mut self.orders);
            }
            MemberInput::Answered(shard) => self.steward.answered(now, shard),
            MemberInput::Broken(shard) => self.steward.broken(now, shard),
            MemberInput::Leave => {
                self.office.shared.reason(MEMBERSHIP, Reason::Shutdown);
                self.tell(MEMBERSHIP, HandleInput::Stop);
                self.leave_at.get_or_insert(now + NOTICE);
            }
            MemberInput::Over => return false,
        }
        true
    }

    fn act(&mut self, now: Moment) {
        // Until then nothing is given away, although we are a member no more.
        if self.left || self.leave_at.is_some_and(|at| now < at) {
            return;
        }
        self.steward.act(now, &mut self.orders);
        for order in std::mem::take(&mut self.orders) {
            self.carry_out(now, order);
        }
        if self.leave_at.is_some() && self.steward.holds_nothing() {
            for shard in self.steward.numbers() {
                self.tell(shard, HandleInput::Stop);
            }
            let _ = self.office.shared.context.commands.send(DriverCommand::Close);
            // The driver says when it is over; until then nothing is begun any more.
            self.left = true;
        }
    }

    /// When to act again, unless something happens before.
    fn act_at(&self, now: Moment) -> Option<Moment> {
        match self.leave_at {
            _ if self.left => None,
            Some(at) if now < at => Some(at),
            _ => self.steward.wake_at(),
        }
    }

    fn carry_out(&mut self, now: Moment, order: PlanStep) {
        let shared = self.office.shared.clone();
        match order {
            PlanStep::Add(number, shard) => {
                let place = self.place(now, &shard);
                shared.add(number, Some(shard));
                let _ = shared.context.commands.send(DriverCommand::Add(number, Box::new(place)));
            }
            PlanStep::Claim(number) => {
                shared.expect(number);
                self.tell(number, HandleInput::Wanted(true));
            }
            PlanStep::Rest(number) => self.tell(number, HandleInput::Wanted(false)),
            PlanStep::Leave(number, next, reason) => {
                shared.reason(number, reason);
                self.tell(number, HandleInput::Resign(next));
                self.tell(number, HandleInput::Wanted(false));
            }
            PlanStep::Drop(number, reason) => {
                shared.reason(number, reason);
                self.tell(number, HandleInput::Stop);
            }
        }
    }

    fn place(&self, now: Moment, shard: &Shard) -> MachineSlot {
        let shared = &self.office.shared;
        let (name, me) = (shard.lease(&shared.name), shared.me.clone());
        let timing = self.office.timing.clone();
        let mut machine = Machine::new(name, me, timing, 0, entropy::random_u128(), now);
        machine.begin_unwanted();
        let mut place = MachineSlot::new(machine);
        place.note = shard.note(&shared.name);
        place.ends_with_process = self.office.ends_with_process;
        place
    }

    fn tell(&self, place: u64, said: HandleInput) {
        self.office.shared.context.tell(place, said);
    }

    // ---- looking around ----

    /// Who is there, and what people have said.
    fn look(&self) -> BoxFuture<'static, Result<FleetSnapshot>> {
        let (store, shared) = (self.office.store.clone(), self.office.shared.clone());
        async move {
            let clock = shared.context.clock.clone();
            let sent = clock.now();
            let overrides = overrides::read(&*store, &shared.name).await?;
            let scope = Scope::Prefix(nodes_prefix(&shared.name));
            let leases = store.observe(&scope).await?;
            let mut sight = FleetSnapshot { members: BTreeMap::new(), until: None, overrides };
            // What cannot be read is nobody; it does not hide the others.
            for lease in leases.into_iter().flatten().filter(|lease| lease.holder.is_some()) {
                let Some(id) = member_of(&shared.name, &lease.name) else { continue };
                let until = sent + lease.left + AFTER_EXPIRY;
                sight.until = Some(sight.until.map_or(until, |first| first.min(until)));
                let list = ListDigest::announced(lease.checkpoint.as_ref());
                sight.members.insert(id, (lease.note.as_str().to_owned(), list));
            }
            Ok(sight)
        }
        .boxed()
    }

    /// Returns when to look again.
    fn saw(&mut self, now: Moment, seen: Result<FleetSnapshot>) -> Moment {
        let sight = match seen {
            Ok(sight) => sight,
            Err(error) => {
                if !std::mem::replace(&mut self.troubled, true) && error.kind() != Kind::Unavailable
                {
                    tracing::error!(fleet = %self.office.shared.name, %error, "cannot see who is there");
                }
                return now + AGAIN;
            }
        };
        self.troubled = false;
        let drained = |id: &CandidateId| sight.overrides.drained.contains(id);
        let state = |id: &CandidateId, list: &ListDigest| MemberState {
            drained: drained(id),
            list: list.clone(),
        };
        let mut members: BTreeMap<CandidateId, MemberState> =
            sight.members.iter().map(|(id, (_, list))| (id.clone(), state(id, list))).collect();
        // Also before we are seen: what was said of us counts from the first.
        let me = &self.office.shared.me;
        if drained(me) {
            members.entry(me.clone()).or_default().drained = true;
        }
        self.steward.members(now, members);
        let shown = sight.members.iter().map(|(id, (note, list))| Member {
            id: id.clone(),
            note: note.clone(),
            drained: drained(id),
            list: list.clone(),
        });
        locked(&self.office.shared.view).members = shown.collect();
        let look_at = now + self.look_again_in(&sight);
        let look_at =
            sight.until.map_or(look_at, |until| look_at.min(until.max(now + AFTER_EXPIRY)));
        let paused = self.sight.as_ref().map(|before| &before.overrides.paused);
        let changed = paused != Some(&sight.overrides.paused);
        self.sight = Some(sight);
        if changed {
            self.shards_changed(now);
        }
        look_at
    }

    /// Whether the list has changed.
    fn read(&mut self, now: Moment, read: Result<Shards>) -> bool {
        let change = self.keeper.take(read);
        let shared = &self.office.shared;
        locked(&shared.view).source_error = self.keeper.failing().cloned();
        for word in change.words {
            let text = match &word {
                SourceMessage::Fails { error, kept: None } => {
                    let retry = self.office.reread;
                    let fleet = &shared.name;
                    format!(
                        "{fleet}: cannot list shards: {error}; not joining the fleet, next try in {retry:?}"
                    )
                }
                word => format!("{} {word}", self.office.source.shown()),
            };
            shared.report(FleetEvent::Source(text));
        }
        if change.changed {
            self.look_after = ANNOUNCED_AFTER;
            self.shards_changed(now);
        }
        change.changed
    }

    /// Nobody takes a shard before it is known whether somebody has paused it.
    fn shards_changed(&mut self, now: Moment) {
        let (Some(shards), Some(sight)) = (self.keeper.shards(), &self.sight) else { return };
        let shards = shards.clone();
        let overrides = &sight.overrides;
        let paused =
            |shard: &Shard| overrides.paused.contains(shard) || shards.is_paused(shard.as_str());
        self.steward.shards(now, &shards.shards, paused, &mut self.orders);
        locked(&self.office.shared.view).shards = shards;
        // The others give a share to each member, so one that knows no shards yet must not be a member.
        if !std::mem::replace(&mut self.joins, true) {
            self.tell(MEMBERSHIP, HandleInput::Wanted(true));
        }
    }

    fn count(&mut self, now: Moment) {
        self.compare_lists(now);
        let coverage = self.steward.coverage(now);
        locked(&self.office.shared.view).coverage = coverage;
        // A number that changes every second is told now and then; that there are any, and that there are none, at once.
        let (told, at) = self.unowned;
        let turned = (coverage.unowned == 0) != (told == 0);
        if turned || (coverage.unowned != told && now.since(at) >= UNOWNED_EVERY) {
            self.unowned = (coverage.unowned, now);
            let some = self.steward.unowned(now, NAMED);
            self.office.shared.report(FleetEvent::Unowned(coverage.unowned, some));
        }
    }
}

/// What is under way, if anything is.
async fn done<T>(under_way: &mut Option<BoxFuture<'_, T>>) -> T {
    match under_way {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Everything that concerns the shards of this fleet.
pub(super) fn scope(shared: &MemberContext) -> Scope {
    Scope::Prefix(leases_prefix(&shared.name))
}
