//! [`ElectionBuilder`]: the settings of an election.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Election;
use super::state::ElectionState;
use crate::clock::Clock;
use crate::driver::{
    DriverCommand, DriverEvents as _, HealthTask, MachineSlot, NOT_CHECKED, shared,
};
use crate::entropy;
use crate::error::Result;
use crate::health::{Health, HealthGate};
use crate::lease::{CandidateId, Name, Note};
use crate::machine::{Machine, MachineConfig};
use crate::metrics::{Metrics, MetricsReporter};
use crate::store::Store;
use crate::timing::{Timing, TimingOptions};

/// Sets up an [`Election`]. Only the name has to be given.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
///
/// let store = tenure::open("memory:").await?;
/// let election = tenure::Election::builder("builder:example")
///     .id("web-1")
///     .ttl(Duration::from_secs(10))
///     .renew_every(Duration::from_secs(3))
///     .start(store)
///     .await?;
/// assert_eq!(election.candidate_id().as_str(), "web-1");
/// election.stop().await;
/// # Ok(()) }
/// ```
#[must_use = "nothing happens before start"]
pub struct ElectionBuilder {
    name: String,
    own: bool,
    id: Option<String>,
    note: String,
    options: TimingOptions,
    priority: i32,
    ends_with_process: bool,
    own_thread: bool,
    health: Option<HealthTask>,
    metrics: Option<Arc<dyn Metrics>>,
    clock: Clock,
}

impl ElectionBuilder {
    /// Creates a builder for a lease of Tenure's own, such as presence.
    pub(crate) fn own(name: &Name) -> Self {
        ElectionBuilder { own: true, ..ElectionBuilder::new(name.as_str()) }
    }

    pub(super) fn new(name: &str) -> Self {
        ElectionBuilder {
            name: name.to_owned(),
            own: false,
            id: None,
            note: String::new(),
            options: TimingOptions::default(),
            priority: 0,
            ends_with_process: false,
            own_thread: false,
            health: None,
            metrics: None,
            clock: Clock::boot(),
        }
    }

    /// Sets a readable id, unique among the candidates; by default `HOSTNAME-PID-RANDOM`.
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    /// Sets a short text for readers of the lease, such as this candidate's URL.
    pub fn note(mut self, note: &str) -> Self {
        self.note = note.to_owned();
        self
    }

    /// Sets the length of the lease: the time to recovery if a machine vanishes. Default 4 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Sets how often the leader renews. Default TTL/3.
    pub fn renew_every(mut self, every: Duration) -> Self {
        self.options.renew_every = Some(every);
        self
    }

    /// Sets the longest time between two polls of a waiting candidate. Default the TTL.
    pub fn retry_period(mut self, period: Duration) -> Self {
        self.options.retry = Some(period);
        self
    }

    /// Stops leading when renewals have failed for this long. By default the deadline decides.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = Some(grace);
        self
    }

    /// Sets the margin between the end of the lease and the leader's own deadline. Default TTL/10.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.options.margin = Some(margin);
        self
    }

    /// Sets the time that the work has to stop before the deadline. Default TTL/5.
    pub fn stop_within(mut self, time: Duration) -> Self {
        self.options.stop_within = Some(time);
        self
    }

    /// Sets how far clocks may drift apart, in millionths. Default 1000.
    pub fn drift(mut self, ppm: u32) -> Self {
        self.options.drift_ppm = Some(ppm);
        self
    }

    /// Sets all durations at once.
    pub fn options(mut self, options: TimingOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the priority; default 0. A candidate claims a free lease 50 ms later for each different higher priority among the
    /// other candidates, at most 250 ms. It never takes a live lease. It knows the other candidates from
    /// [`Election::set_candidates`]; before that it does not wait.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Declares that the work ends with this process. Then a store that detects the death of the process
    /// ([`file:`](crate::store::file)) may free the lease at once. Do not use it for work that continues elsewhere: a child
    /// process, a remote job.
    pub fn ends_with_process(mut self, ends: bool) -> Self {
        self.ends_with_process = ends;
        self
    }

    /// Gives this election a thread and connections of its own.
    ///
    /// By default, the elections and presences of a process that were started with clones of one `Arc<dyn Store>` share a thread
    /// and its connections. Candidates of one name never share them.
    pub fn own_thread(mut self) -> Self {
        self.own_thread = true;
        self
    }

    /// Leads only while `check` succeeds, and not before its first success. A check that takes longer than the gate's period
    /// has failed. It returns a `bool`, a `Result<(), String>` with the reason, or a [`Health`].
    ///
    /// The check runs on the application's runtime, and the renewal thread times it: if that runtime does not run the check in
    /// time, the check has failed.
    pub fn health<F, R>(mut self, gate: HealthGate, check: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output: Into<Health>> + Send + 'static,
    {
        self.health = Some(HealthTask::new(gate, check));
        self
    }

    /// Reports to `metrics`, such as `FacadeMetrics` (feature `metrics`). One implementation can serve many elections.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// use std::sync::Arc;
    /// use tenure::metrics::Metrics;
    ///
    /// #[derive(Debug)]
    /// struct Log;
    ///
    /// impl Metrics for Log {
    ///     fn renewed(&self, name: &tenure::Name, took: std::time::Duration) {
    ///         println!("{name} was renewed in {took:?}");
    ///     }
    /// }
    ///
    /// let store = tenure::open("memory:").await?;
    /// let election =
    ///     tenure::Election::builder("builder:metrics").metrics(Arc::new(Log)).start(store).await?;
    /// # election.stop().await;
    /// # Ok(()) }
    /// ```
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Replaces the machine's clock, for tests: see [testing your own code](crate::docs::testing).
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Starts to campaign, and returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// Invalid: a setting cannot work. Denied, Corrupt: the store answered, and an operator must act.
    pub async fn start(self, store: Arc<dyn Store>) -> Result<Election> {
        let election = self.launch(store)?;
        election.answered().await?;
        Ok(election)
    }

    /// [`ElectionBuilder::start`] that fails when the store does not answer at once.
    pub async fn try_start(self, store: Arc<dyn Store>) -> Result<Election> {
        let election = self.launch(store)?;
        election.first_answer(false).await?;
        Ok(election)
    }

    /// Starts to campaign, and returns at once: for callers that want events about a store that is down. Must be called inside
    /// a tokio runtime if a [health check](ElectionBuilder::health) is set.
    ///
    /// # Errors
    /// Invalid: a setting cannot work, or there is no runtime for the health check.
    pub fn launch(self, store: Arc<dyn Store>) -> Result<Election> {
        let name = if self.own { Name::stored(&self.name)? } else { Name::new(&self.name)? };
        let candidate = match &self.id {
            Some(id) => CandidateId::new(id)?,
            None => CandidateId::generate(),
        };
        let timing = Timing::new(&self.options, &store.limits())?;
        if let Some(warning) = timing.warning() {
            tracing::warn!(%name, "{warning}");
        }
        let seed = entropy::random_u128();
        let clock = self.clock;
        let machine = MachineConfig {
            // Healthy only after the first successful check.
            healthy: self.health.is_none(),
            awaits_drain_record: !self.own,
            grants_no_right: self.own,
            ..MachineConfig::new(name.clone(), candidate.clone(), timing.clone(), seed)
        };
        let machine = Machine::new(machine, clock.now());
        let unhealthy = self.health.is_some().then_some(NOT_CHECKED);
        let note = Note::new(&self.note)?;
        let health = self.health.map(HealthTask::on_this_runtime).transpose()?;
        let (link, id) = shared::driver_for(&store, &clock, &name, self.own_thread)?;
        let runtime = link.runtime.clone();
        let shared = Arc::new(ElectionState::new(
            &name,
            &candidate,
            clock.clone(),
            (link, id),
            self.priority,
            unhealthy,
            MetricsReporter::new(&name, self.metrics),
        ));
        let mut slot = MachineSlot::new(machine, shared.clone());
        slot.note = note;
        slot.ends_with_process = self.ends_with_process;
        // A lease of Tenure's own accepts no requests and keeps no history.
        slot.accepts_requests = !self.own;
        slot.keeps_history = !self.own;
        let commands = shared.context.commands.clone();
        if commands.send(DriverCommand::Add(id, Box::new(slot))).is_err() {
            // The driver has ended meanwhile, in a panic.
            shared.ended(id);
        }
        if let Some(health) = health {
            runtime.spawn(health.watch(id, clock, commands, shared.stopped()));
        }
        Ok(Election::new(shared))
    }
}

impl fmt::Debug for ElectionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElectionBuilder")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
