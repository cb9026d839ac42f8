//! [`term`]: a term without a store and without a driver, for tests of work.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::driver::{Context, DriverCommand, HandleInput};
use crate::election::{Leadership, Leading};
use crate::fork_check::ProcessId;
use crate::lease::{Answer, CandidateId, Checkpoint, Claim, Name, Nonce};
use crate::machine::{EndReason, TermEnd, TermStart};
use crate::store::memory::MemoryStore;
use crate::store::{Store, StoreExt as _};

/// A day: a term of a test ends when the test says so.
const TTL: Duration = Duration::from_secs(86_400);

/// A term for a test of work: its handle, and the control with which the test ends it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::machine::EndReason;
///
/// async fn work(leadership: tenure::Leadership) -> tenure::Result<u32> {
///     let mut steps = 0;
///     while !leadership.should_stop() {
///         steps += 1;
///         let _ = leadership.save(steps.to_string()).await?;
///         tokio::task::yield_now().await;
///     }
///     Ok(steps)
/// }
///
/// let (leadership, mut term) = tenure::testing::term();
/// let running = tokio::spawn(work(leadership));
/// tokio::task::yield_now().await;
/// term.end(EndReason::Resigned);
/// let steps = running.await.expect("no panic")?;
/// term.work_ended().await;
/// assert_eq!(term.saved().expect("a step").as_bytes(), steps.to_string().as_bytes());
/// # Ok(()) }
/// ```
///
/// The deadline counts on `clock()`, a manual clock: [`Clock::advance`] lets the term run out, as a pause of the process would.
pub fn term() -> (Leadership, TermControl) {
    term_after(None)
}

/// The same, after a leader that saved `checkpoint`.
pub fn term_after(checkpoint: Option<Checkpoint>) -> (Leadership, TermControl) {
    let clock = Clock::manual();
    let store = MemoryStore::new(clock.clone());
    let grant = granted(&store, "earlier");
    if let Some(checkpoint) = &checkpoint {
        ready(store.save(&grant.hold, 1, checkpoint));
    }
    ready(store.release_one(&grant.hold));
    let grant = granted(&store, "test");
    let (commands, inputs) = mpsc::unbounded_channel();
    let context = Context {
        clock: clock.clone(),
        store: Arc::new(store.clone()),
        commands,
        runtime: OnceLock::new(),
        process: ProcessId::current(),
    };
    let deadline = clock.now() + TTL;
    let start = TermStart { hold: grant.hold, checkpoint: grant.checkpoint, deadline };
    let leading = Leading::begin(0, start, Arc::new(context), tracing::Span::none());
    let control = TermControl { leading: leading.clone(), clock, store, inputs };
    let Some(leadership) = leading.handle() else { unreachable!("the term has just begun") };
    (leadership, control)
}

fn granted(store: &MemoryStore, id: &str) -> crate::lease::Grant {
    let (Ok(name), Ok(id)) = (Name::new("test"), CandidateId::new(id)) else {
        unreachable!("both are valid")
    };
    match ready(store.acquire_one(&Claim::new(name, id, Nonce::random(), TTL))) {
        Answer::Held(grant) => grant,
        Answer::Taken(_) => unreachable!("the lease is free"),
    }
}

/// The result of a call to the memory store, which answers at once.
fn ready<T>(call: impl Future<Output = crate::Result<T>>) -> T {
    match call.now_or_never() {
        Some(Ok(answer)) => answer,
        _ => unreachable!("the memory store answers at once"),
    }
}

/// Ends the term of a test, and says what the work has done.
pub struct TermControl {
    leading: Arc<Leading>,
    clock: Clock,
    store: MemoryStore,
    inputs: mpsc::UnboundedReceiver<DriverCommand>,
}

impl TermControl {
    /// Ends the term with this reason. After [`EndReason::Refused`] the work has no time left to stop.
    pub fn end(&self, reason: EndReason) {
        let deadline = match reason.ends_at_once() {
            true => crate::Moment::PAST,
            false => self.leading.term.deadline(),
        };
        self.leading.end(TermEnd { reason, deadline });
    }

    /// The clock of the term. Advance it by a day to let the term run out.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The checkpoint that the work saved last, or the one that the term began with.
    pub fn saved(&self) -> Option<Checkpoint> {
        ready(self.store.observe_one(&self.leading.term.hold.name))?.checkpoint
    }

    /// Whether the work has called [`Leadership::resign`] since the last call of this method or of
    /// [`TermControl::work_ended`].
    pub fn resigned(&mut self) -> bool {
        let inputs = std::iter::from_fn(|| self.inputs.try_recv().ok());
        let mut resigned = false;
        for input in inputs {
            resigned |= matches!(input, DriverCommand::Input(_, HandleInput::Resign(_)));
        }
        resigned
    }

    /// How many handles exist.
    pub fn handles(&self) -> u32 {
        self.leading.term.handles()
    }

    /// Returns when the work has dropped every handle.
    pub async fn work_ended(&mut self) {
        while self.handles() > 0 {
            // Every last handle sends an input, so this wakes up.
            self.inputs.recv().await;
        }
    }
}

impl fmt::Debug for TermControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TermControl").field("handles", &self.handles()).finish_non_exhaustive()
    }
}
