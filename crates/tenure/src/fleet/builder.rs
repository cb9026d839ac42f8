//! The [`FleetBuilder`] of a member: its options, and the start of its two threads.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc;

use super::Fleet;
use super::coordinator::{self, Coordinator};
use super::event::QueuedEvent;
use super::member::{MEMBERSHIP, MemberContext};
use super::shard::{fleet_name, node};
use super::source::{self, Source};
use crate::blocking::spawn_runtime;
use crate::clock::Clock;
use crate::driver::{
    Context, Driver, DriverCommand, DriverEvents as _, HealthTask, MachineSlot, Watched, spawn,
};
use crate::entropy;
use crate::error::{Error, Result};
use crate::fork_check::ProcessId;
use crate::health::{Health, HealthGate};
use crate::lease::{CandidateId, Note};
use crate::machine::{Machine, MachineConfig};
use crate::store::Store;
use crate::timing::{Timing, TimingOptions};

/// The default TTL is long because a fleet has many leases: a member with a hundred thousand shards renews a hundred thousand
/// leases in a third of the TTL.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The default interval between reads of the source.
const DEFAULT_REREAD_INTERVAL: Duration = Duration::from_secs(10);

/// Configures a member of a [`Fleet`]. The name is required; without shards the source is an empty list.
#[must_use = "nothing happens before join"]
pub struct FleetBuilder {
    name: String,
    member: Option<String>,
    note: String,
    source: Option<Arc<dyn Source>>,
    options: TimingOptions,
    reread: Duration,
    ends_with_process: bool,
    health: Option<HealthTask>,
    clock: Clock,
}

impl FleetBuilder {
    pub(super) fn new(name: &str) -> Self {
        FleetBuilder {
            name: name.to_owned(),
            member: None,
            note: String::new(),
            source: None,
            options: TimingOptions::default(),
            reread: DEFAULT_REREAD_INTERVAL,
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

    /// A note that other members and operators can read, such as the member's URL: up to 512 bytes.
    pub fn note(mut self, note: &str) -> Self {
        self.note = note.to_owned();
        self
    }

    /// The source of the shards: see [`source`].
    pub fn shards(mut self, source: Arc<dyn Source>) -> Self {
        self.source = Some(source);
        self
    }

    /// The TTL of all leases: when the member's machine fails, its shards get other owners after this time. Default 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Sets all durations at once. The TTL is 30 s if it is not set.
    pub fn options(mut self, options: TimingOptions) -> Self {
        self.options = options;
        self
    }

    /// The interval between reads of the source. Default 10 s; a [hint](Source::hints) of the source causes an earlier read.
    pub fn reread(mut self, every: Duration) -> Self {
        self.reread = every;
        self
    }

    /// States that the work ends with this process, so that a store that detects the death of the process may free the leases
    /// at once. Do not set it if the work runs elsewhere and may outlive this process.
    pub fn ends_with_process(mut self, ends: bool) -> Self {
        self.ends_with_process = ends;
        self
    }

    /// Makes this process a member only while `check` succeeds. The check returns a `bool`, a `Result<(), String>` with the
    /// reason, or a [`Health`].
    pub fn health<F, R>(mut self, gate: HealthGate, check: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output: Into<Health>> + Send + 'static,
    {
        self.health = Some(HealthTask::new(gate, check));
        self
    }

    /// Replaces the machine's clock, for tests.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Joins the fleet, and returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// Invalid: an option is not valid. Denied, Corrupt: the store has answered with an error that an operator must fix.
    pub async fn join(self, store: Arc<dyn Store>) -> Result<Fleet> {
        let fleet = self.launch(store)?;
        fleet.answered().await?;
        Ok(fleet)
    }

    /// Joins the fleet, and returns at once. Must be called inside a tokio runtime if a [health check](FleetBuilder::health) is
    /// set.
    ///
    /// # Errors
    /// Invalid: an option is not valid.
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
        self.options.ttl.get_or_insert(DEFAULT_TTL.clamp(limits.min_ttl, limits.max_ttl));
        let timing = Arc::new(Timing::new(&self.options, &limits)?);
        if let Some(warning) = timing.warning() {
            tracing::warn!(%name, "{warning}");
        }
        let clock = self.clock.clone();
        let (commands, inbox) = mpsc::unbounded_channel();
        let (input_sender, inputs) = mpsc::unbounded_channel();
        let (event_sender, events) = mpsc::unbounded_channel::<QueuedEvent>();
        let context = Context {
            clock: clock.clone(),
            store: store.detached(),
            commands: commands.clone(),
            runtime: OnceLock::new(),
            process: ProcessId::current(),
        };
        let health = self.health.map(HealthTask::on_this_runtime).transpose()?;
        let shared = Arc::new(MemberContext::new(
            name,
            me,
            context,
            input_sender,
            event_sender,
            timing.stop_within,
        ));
        let (lease, me) = (node(&shared.name, &shared.me), shared.me.clone());
        let machine = MachineConfig {
            // Unhealthy until the first check.
            healthy: health.is_none(),
            // It joins after it has read its list, because every plan gives each member a share.
            campaigns: false,
            // The membership lease grants no right to any shard, so it needs no start-up wait: the shard leases have their own.
            grants_no_right: true,
            ..MachineConfig::new(lease, me, timing.clone(), entropy::random_u128())
        };
        let mut membership = MachineSlot::new(Machine::new(machine, clock.now()), shared.clone());
        membership.note = Note::new(&self.note)?;
        // The work on its shards may run elsewhere, but the membership always ends with this process.
        membership.ends_with_process = true;
        if health.is_some() {
            shared.health_changed(MEMBERSHIP, false);
        }
        shared.add(MEMBERSHIP, None);
        let _ = commands.send(DriverCommand::Add(MEMBERSHIP, Box::new(membership)));
        let coordinator = Coordinator {
            shared: shared.clone(),
            store: store.detached(),
            source,
            timing: timing.clone(),
            reread: self.reread,
            ends_with_process: self.ends_with_process,
            inputs,
        };
        let (driver_store, driver_clock) = (store.detached(), clock.clone());
        let watched = Watched::Scope(coordinator::scope(&shared));
        let (due, ending) = (shared.sleeps_until.clone(), shared.clone());
        let driver = move || Driver::new(driver_store, driver_clock, watched, due, inbox);
        let runtime = spawn(driver, move || ending.driver_ended())?;
        // Set only here: it cannot be set already.
        let _ = shared.context.runtime.set(runtime.clone());
        spawn_coordinator(coordinator)?;
        if let Some(health) = health {
            runtime.spawn(health.watch(MEMBERSHIP, clock, commands, shared.has_ended()));
        }
        Ok(Fleet::new(shared, events))
    }
}

/// Starts the coordinator on its own thread.
fn spawn_coordinator(coordinator: Coordinator) -> Result<()> {
    let spawned = spawn_runtime("tenure-fleet", move |runtime| {
        // If the coordinator panics, nothing plans any more: then the driver stops, and the leases are left to their TTL.
        let _abandon = AbandonOnDrop(coordinator.shared.clone());
        runtime.block_on(coordinator.run());
        runtime.shutdown_background();
    });
    spawned.map(drop).map_err(|error| {
        Error::unavailable(format!("cannot start a thread to plan on: {error}")).caused_by(error)
    })
}

/// Stops the driver when the coordinator's thread ends.
struct AbandonOnDrop(Arc<MemberContext>);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        let _ = self.0.context.commands.send(DriverCommand::Abandon);
    }
}

impl fmt::Debug for FleetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetBuilder")
            .field("name", &self.name)
            .field("member", &self.member)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
