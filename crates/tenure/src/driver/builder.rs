//! [`Builder`]: what can be set, and the start of the driver's thread.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::handle::{Election, ONLY};
use super::health_task::NOT_CHECKED;
use super::shared::ElectionState;
use super::{Driver, DriverCommand, DriverEvents, HealthTask, MachineSlot};
use crate::blocking::spawn_runtime;
use crate::clock::Clock;
use crate::entropy;
use crate::error::{Error, Result};
use crate::health::{Health, HealthGate};
use crate::lease::{CandidateId, Name, Note};
use crate::machine::Machine;
use crate::store::{Scope, Store};
use crate::timing::{Options, Timing};

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
pub struct Builder {
    name: String,
    own: bool,
    id: Option<String>,
    note: String,
    options: Options,
    priority: i32,
    ends_with_process: bool,
    health: Option<HealthTask>,
    clock: Clock,
}

impl Builder {
    /// For a lease of Tenure's own.
    pub(crate) fn own(name: &Name) -> Self {
        Builder { own: true, ..Builder::new(name.as_str()) }
    }

    pub(super) fn new(name: &str) -> Self {
        Builder {
            name: name.to_owned(),
            own: false,
            id: None,
            note: String::new(),
            options: Options::default(),
            priority: 0,
            ends_with_process: false,
            health: None,
            clock: Clock::boot(),
        }
    }

    /// A readable id, unique among the candidates; by default `HOSTNAME-PID-RANDOM`.
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    /// A few words for whoever looks at the lease, such as this candidate's URL.
    pub fn note(mut self, note: &str) -> Self {
        self.note = note.to_owned();
        self
    }

    /// The length of the lease: the time to recovery when a machine vanishes. Default 4 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// How often the leader renews. Default TTL/3.
    pub fn renew_every(mut self, every: Duration) -> Self {
        self.options.renew_every = Some(every);
        self
    }

    /// The longest a waiter goes without looking at the store itself. Default the TTL.
    pub fn retry_period(mut self, period: Duration) -> Self {
        self.options.retry = Some(period);
        self
    }

    /// Step down when renewals have failed for so long. By default the deadline decides.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = Some(grace);
        self
    }

    /// The cut between the lease and the leader's own deadline. Default TTL/10.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.options.margin = Some(margin);
        self
    }

    /// The time the work gets to stop, before the deadline. Default TTL/5.
    pub fn stop_within(mut self, time: Duration) -> Self {
        self.options.stop_within = Some(time);
        self
    }

    /// How far clocks may drift apart, in millionths. Default 1000.
    pub fn drift(mut self, ppm: u32) -> Self {
        self.options.drift_ppm = Some(ppm);
        self
    }

    /// All of the durations at once.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// A candidate claims a free lease 50 ms later for each different higher priority among the other candidates, at most
    /// 250 ms; default 0. It never takes a live lease. The others are known from [`Election::set_candidates`]; before that
    /// nothing is waited for.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// The work ends with this process, so its death may free the lease at once where the store sees it
    /// ([`file:`](crate::store::file)). Not for work that lives on elsewhere: a child process, a remote job.
    pub fn ends_with_process(mut self, ends: bool) -> Self {
        self.ends_with_process = ends;
        self
    }

    /// Leads only while `check` succeeds, and not before it has succeeded for the first time; a check that takes longer than
    /// the gate's period has failed. It returns a `bool`, a `Result<(), String>` with the reason, or a [`Health`].
    pub fn health<F, R>(mut self, gate: HealthGate, check: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output: Into<Health>> + Send + 'static,
    {
        self.health = Some(HealthTask::new(gate, check));
        self
    }

    /// Another clock than the machine's: for tests, see [testing your own code](crate::guide::testing).
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Begins to campaign, and returns when the store has answered for the first time. Waits for a store that is down.
    ///
    /// # Errors
    /// Invalid: something set here cannot work. Denied, Corrupt: the store answered, and an operator must act.
    pub async fn start(self, store: Arc<dyn Store>) -> Result<Election> {
        let election = self.launch(store)?;
        election.answered().await?;
        Ok(election)
    }

    /// [`Builder::start`] that fails when the store does not answer at once.
    pub async fn try_start(self, store: Arc<dyn Store>) -> Result<Election> {
        let election = self.launch(store)?;
        election.first_answer(false).await?;
        Ok(election)
    }

    /// Begins to campaign, and returns at once: for those who want to hear of a store that is down. Must be called inside a
    /// tokio runtime if a [health check](Builder::health) is set.
    ///
    /// # Errors
    /// Invalid: something set here cannot work.
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
        let mut machine =
            Machine::new(name.clone(), candidate.clone(), timing.clone(), 0, seed, clock.now());
        if self.health.is_some() {
            // Fit only when it has been asked.
            machine.begin_unfit();
        }
        let unhealthy = self.health.is_some().then_some(NOT_CHECKED);
        if self.own {
            machine.begin_without_right();
        }
        let (commands, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(ElectionState::new(
            &name,
            &candidate,
            clock.clone(),
            store.detached(),
            commands.clone(),
            self.priority,
            unhealthy,
        ));
        if !self.own {
            machine.begin_before_drain_record();
        }
        let mut place = MachineSlot::new(machine);
        place.note = Note::new(&self.note)?;
        place.ends_with_process = self.ends_with_process;
        // Of a lease of our own nobody asks anything.
        place.listens = !self.own;
        let mut names = vec![name.clone()];
        names.extend(place.listens.then(|| name.ask()));
        for command in [DriverCommand::Add(ONLY, Box::new(place)), DriverCommand::Close] {
            // The receiver is in our hands.
            let _ = commands.send(command);
        }
        let seat = shared.clone() as Arc<dyn DriverEvents>;
        let (renewing, time) = (store.detached(), clock.clone());
        spawn(seat.clone(), Scope::Names(names), move || {
            Driver::new(renewing, time, seat, &timing, inbox)
        })?;
        if let Some(health) = self.health {
            tokio::spawn(health.watch(ONLY, clock, commands));
        }
        Ok(Election::new(shared))
    }
}

/// The driver's own thread and runtime: a busy application cannot starve it.
pub(crate) fn spawn(
    seat: Arc<dyn DriverEvents>,
    scope: Scope,
    driver: impl FnOnce() -> Driver + Send + 'static,
) -> Result<()> {
    let over = EndedOnDrop(seat);
    let spawned = spawn_runtime("tenure", move |runtime| {
        let _over = over;
        runtime.block_on(driver().run(scope));
    });
    match spawned {
        Ok(_detached) => Ok(()),
        Err(error) => {
            let message = format!("cannot start a thread to renew on: {error}");
            Err(Error::unavailable(message).caused_by(error))
        }
    }
}

/// Should the driver panic, its seat is told all the same: a term without renewals must not look alive.
struct EndedOnDrop(Arc<dyn DriverEvents>);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        self.0.over();
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
