//! [`Builder`]: what can be set, and the start of the member's two threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::coordinator::{self, Coordinator};
use super::member::{MEMBERSHIP, MemberContext};
use super::shard::{fleet_name, node};
use super::source::{self, Source};
use super::{Fleet, FleetEvent};
use crate::blocking::spawn_runtime;
use crate::clock::Clock;
use crate::driver::{Context, Driver, DriverCommand, DriverEvents, HealthTask, MachineSlot, spawn};
use crate::entropy;
use crate::error::{Error, Result};
use crate::fork_check::ProcessId;
use crate::health::{Health, HealthGate};
use crate::lease::{CandidateId, Note};
use crate::machine::Machine;
use crate::store::Store;
use crate::timing::{Options, Timing};

/// A fleet's leases are long: a hundred thousand of them are renewed a hundred thousand times in a third of that.
const TTL: Duration = Duration::from_secs(30);
const REREAD: Duration = Duration::from_secs(10);

/// Sets up a member of a [`Fleet`]. Name and shards have to be given.
#[must_use = "nothing happens before join"]
pub struct Builder {
    name: String,
    member: Option<String>,
    note: String,
    source: Option<Arc<dyn Source>>,
    options: Options,
    reread: Duration,
    ends_with_process: bool,
    health: Option<HealthTask>,
    clock: Clock,
}

impl Builder {
    pub(super) fn new(name: &str) -> Self {
        Builder {
            name: name.to_owned(),
            member: None,
            note: String::new(),
            source: None,
            options: Options::default(),
            reread: REREAD,
            ends_with_process: false,
            health: None,
            clock: Clock::boot(),
        }
    }

    /// A readable id, unique in the fleet; by default `HOSTNAME-PID-RANDOM`.
    pub fn member(mut self, id: &str) -> Self {
        self.member = Some(id.to_owned());
        self
    }

    /// What the member says of itself, such as its URL: up to 512 bytes.
    pub fn note(mut self, note: &str) -> Self {
        self.note = note.to_owned();
        self
    }

    /// Where the shards come from: see [`source`].
    pub fn shards(mut self, source: Arc<dyn Source>) -> Self {
        self.source = Some(source);
        self
    }

    /// The length of a lease: the time until the shards of a machine that vanishes have other owners. Default 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// All of the durations at once; the TTL is 30 s unless it is given.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// How often the source is read. Default 10 s, and earlier where the source says so.
    pub fn reread(mut self, every: Duration) -> Self {
        self.reread = every;
        self
    }

    /// The work ends with this process, so its death may free the leases at once where the store sees it. Not for work that
    /// lives on elsewhere.
    pub fn ends_with_process(mut self, ends: bool) -> Self {
        self.ends_with_process = ends;
        self
    }

    /// Takes part only while `check` succeeds: it returns a `bool`, a `Result<(), String>` with the reason, or a [`Health`].
    pub fn health<F, R>(mut self, gate: HealthGate, check: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output: Into<Health>> + Send + 'static,
    {
        self.health = Some(HealthTask::new(gate, check));
        self
    }

    /// Another clock than the machine's: for tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Joins, and returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// Invalid: something set here cannot work. Denied, Corrupt: the store answered, and an operator must act.
    pub async fn join(self, store: Arc<dyn Store>) -> Result<Fleet> {
        let fleet = self.launch(store)?;
        fleet.answered().await?;
        Ok(fleet)
    }

    /// Joins, and returns at once. Must be called inside a tokio runtime if a [health check](Builder::health) is set.
    ///
    /// # Errors
    /// Invalid: something set here cannot work.
    pub fn launch(mut self, store: Arc<dyn Store>) -> Result<Fleet> {
        let name = fleet_name(&self.name)?;
        let me = match &self.member {
            Some(id) => CandidateId::new(id)?,
            None => CandidateId::generate(),
        };
        let source = match self.source.take() {
            Some(source) => source,
            None => source::list([] as [&str; 0]),
        };
        if self.reread.is_zero() {
            return Err(Error::invalid("the period in which shards are read must not be zero"));
        }
        let limits = store.limits();
        self.options.ttl.get_or_insert(TTL.clamp(limits.min_ttl, limits.max_ttl));
        let timing = Arc::new(Timing::new(&self.options, &limits)?);
        if let Some(warning) = timing.warning() {
            tracing::warn!(%name, "{warning}");
        }
        let clock = self.clock.clone();
        let (commands, inbox) = mpsc::unbounded_channel();
        let (notes_in, notes) = mpsc::unbounded_channel();
        let (events_in, events) = mpsc::unbounded_channel::<FleetEvent>();
        let context = Context {
            clock: clock.clone(),
            store: store.detached(),
            commands: commands.clone(),
            process: ProcessId::current(),
        };
        let shared = Arc::new(MemberContext::new(name, me, context, notes_in, events_in));
        let machine = Machine::new(
            node(&shared.name, &shared.me),
            shared.me.clone(),
            timing.clone(),
            0,
            entropy::random_u128(),
            clock.now(),
        );
        let mut membership = MachineSlot::new(machine);
        // It gives no right to any shard, and whoever waits for it waits again for those.
        membership.machine.begin_without_right();
        // It joins when it has read its list: the others give a share to each member.
        membership.machine.begin_unwanted();
        membership.note = Note::new(&self.note)?;
        // Its shards may be worked on elsewhere, but to be there it has to live.
        membership.ends_with_process = true;
        if self.health.is_some() {
            // Fit only when it has been asked.
            membership.machine.begin_unfit();
            shared.fit(MEMBERSHIP, false);
        }
        shared.add(MEMBERSHIP, None);
        let _ = commands.send(DriverCommand::Add(MEMBERSHIP, Box::new(membership)));
        let office = Coordinator {
            shared: shared.clone(),
            store: store.detached(),
            source,
            timing: timing.clone(),
            reread: self.reread,
            ends_with_process: self.ends_with_process,
            notes,
        };
        let (renewing, time, seat) = (store.detached(), clock.clone(), shared.clone());
        spawn(shared.clone() as Arc<dyn DriverEvents>, coordinator::scope(&shared), move || {
            Driver::new(renewing, time, seat, &timing, inbox)
        })?;
        open_office(office)?;
        if let Some(health) = self.health {
            tokio::spawn(health.watch(MEMBERSHIP, clock, commands));
        }
        Ok(Fleet::new(shared, events))
    }
}

fn open_office(office: Coordinator) -> Result<()> {
    let spawned = spawn_runtime("tenure-fleet", move |runtime| {
        // Should it panic, nothing would be decided any more: then the leases are left to their TTL.
        let _abandon = AbandonOnDrop(office.shared.clone());
        runtime.block_on(office.run());
        runtime.shutdown_background();
    });
    spawned.map(drop).map_err(|error| {
        Error::unavailable(format!("cannot start a thread to plan on: {error}")).caused_by(error)
    })
}

struct AbandonOnDrop(Arc<MemberContext>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        let _ = self.0.context.commands.send(DriverCommand::Abandon);
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("member", &self.member)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
