//! A watch for stores that cannot notify: it observes at an interval and reports what changed.
//!
//! A store without notifications implements [`Store::watch`](super::Store::watch) with [`watch`]. It passes a function that reads
//! one [`Mark`] for each lease in the scope; a [`Lease`] can be turned into its mark.
//!
//! ```
//! use std::time::Duration;
//!
//! use futures_util::StreamExt;
//! use tenure::store::memory::MemoryStore;
//! use tenure::store::poll::{self, Mark};
//! use tenure::store::{Change, Scope, Store};
//! use tenure::{CandidateId, Claim, Clock, Name, Nonce};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure::Result<()> {
//! let (store, clock) = (MemoryStore::new(Clock::boot()), Clock::boot());
//! let (name, me) = (Name::new("job")?, CandidateId::new("me")?);
//!
//! let observed = (store.clone(), Scope::name(&name));
//! let mut changes = poll::watch(clock, Duration::from_millis(20), move || {
//!     let (store, scope) = observed.clone();
//!     async move { Ok(store.observe(&scope).await?.iter().flatten().map(Mark::from).collect()) }
//! });
//! assert_eq!(changes.next().await, Some(Change::Look));
//!
//! let claim = Claim::new(name.clone(), me.clone(), Nonce::random(), Duration::from_secs(10));
//! let grant = store.acquire(&[claim]).await?.remove(0)?.held().expect("the lease is free");
//! let (token, holder) = (grant.hold.token, Some(me));
//! assert_eq!(changes.next().await, Some(Change::Granted { name, token, holder }));
//! # Ok(()) }
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};

use super::Change;
use crate::clock::Clock;
use crate::error::Result;
use crate::lease::{CandidateId, Holder, Lease, Name, Token};

/// The shortest time between two polls, so that an interval of zero does not occupy a processor.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// What one poll found of one lease. A lease has changed if its mark has.
///
/// A renewal must not change the mark: watchers do not need to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The name of the lease.
    pub name: Name,
    /// Whether the lease is held.
    pub state: MarkState,
    /// A hash of everything else whose change a watcher must notice, such as the note; zero if there is nothing else.
    pub fingerprint: u64,
}

/// The state of a lease, as far as a poll needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkState {
    /// The lease can be acquired.
    Free {
        /// The token of the last term.
        token: Option<Token>,
        /// The successor that the last holder prefers.
        next: Option<CandidateId>,
    },
    /// A candidate holds the lease.
    Held {
        /// The token of the term.
        token: Token,
        /// The candidate; `None` where the store does not report it.
        holder: Option<CandidateId>,
    },
    /// The lease cannot be acquired, and no candidate holds it: it was revoked, or another program holds it.
    Blocked,
}

impl From<&Lease> for Mark {
    fn from(lease: &Lease) -> Self {
        let state = match (&lease.holder, lease.token) {
            (None, token) => MarkState::Free { token, next: lease.next.clone() },
            (Some(Holder { id, nonce: Some(_) }), Some(token)) => {
                MarkState::Held { token, holder: CandidateId::new(id).ok() }
            }
            (Some(_), _) => MarkState::Blocked,
        };
        let mut hasher = DefaultHasher::new();
        let holder = lease.holder.as_ref();
        holder.map(|holder| (&holder.id, holder.nonce)).hash(&mut hasher);
        (lease.token, lease.since, lease.note.as_str()).hash(&mut hasher);
        lease.lineage.map(|lineage| lineage.origin).hash(&mut hasher);
        lease.wait.map(|wait| wait.reason.as_str()).hash(&mut hasher);
        Mark { name: lease.name.clone(), state, fingerprint: hasher.finish() }
    }
}

/// Watches by calling `observe`, and again `interval` after each answer.
///
/// - The first item is [`Change::Look`], after the first successful observation. Every later change is reported.
/// - An error is retried after `interval`, and the stream does not end. The first observation after an error yields
///   [`Change::Look`].
/// - Several changes of one lease between two polls are reported as one, so a lease that was released and granted again is
///   `Granted`.
///
/// The stream polls only while it is polled itself, and ends all activity when it is dropped. `observe` needs a timeout of its own:
/// the stream waits for its answer.
pub fn watch<Observe, Answer>(
    clock: Clock,
    interval: Duration,
    observe: Observe,
) -> BoxStream<'static, Change>
where
    Observe: FnMut() -> Answer + Send + 'static,
    Answer: Future<Output = Result<Vec<Mark>>> + Send + 'static,
{
    let interval = interval.max(MIN_INTERVAL);
    let state =
        PollingWatch { clock, interval, observe, pause: false, last: None, queue: VecDeque::new() };
    stream::unfold(state, async |mut watch| {
        let change = watch.next().await;
        Some((change, watch))
    })
    .boxed()
}

struct PollingWatch<Observe> {
    clock: Clock,
    interval: Duration,
    observe: Observe,
    /// Whether to wait before the next observation: not before the first.
    pause: bool,
    /// The last observation; `None` if it failed or there was none.
    last: Option<Vec<Mark>>,
    queue: VecDeque<Change>,
}

impl<Observe, Answer> PollingWatch<Observe>
where
    Observe: FnMut() -> Answer,
    Answer: Future<Output = Result<Vec<Mark>>>,
{
    async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.queue.pop_front() {
                return change;
            }
            if self.pause {
                self.clock.sleep(self.interval).await;
            }
            self.pause = true;
            match (self.observe)().await {
                Ok(marks) => {
                    match &self.last {
                        Some(last) => self.queue.extend(changes(last, &marks)),
                        None => self.queue.push_back(Change::Look),
                    }
                    self.last = Some(marks);
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot observe for a watch");
                    self.last = None;
                }
            }
        }
    }
}

/// PURE: the changes between two observations of the same scope, sorted by name.
///
/// A change that is neither a grant nor the end of a term is [`Change::Look`], at most once.
pub fn changes(before: &[Mark], after: &[Mark]) -> Vec<Change> {
    let known: BTreeMap<&Name, &Mark> = before.iter().map(|mark| (&mark.name, mark)).collect();
    let found: BTreeMap<&Name, &Mark> = after.iter().map(|mark| (&mark.name, mark)).collect();
    let mut needs_look = known.keys().any(|name| !found.contains_key(name));
    let mut changes = Vec::new();
    for (name, mark) in found {
        match change(known.get(name).copied(), mark) {
            Some(Change::Look) => needs_look = true,
            other => changes.extend(other),
        }
    }
    if needs_look {
        changes.push(Change::Look);
    }
    changes
}

fn change(before: Option<&Mark>, after: &Mark) -> Option<Change> {
    if before == Some(after) {
        return None;
    }
    let name = after.name.clone();
    Some(match (before.map(|mark| &mark.state), &after.state) {
        // The same term with another note.
        (Some(MarkState::Held { token: known, .. }), MarkState::Held { token, .. })
            if known == token =>
        {
            Change::Look
        }
        (_, MarkState::Held { token, holder }) => {
            Change::Granted { name, token: *token, holder: holder.clone() }
        }
        // The state is the same, so only the fingerprint differs.
        (Some(known), state) if known == state => Change::Look,
        (_, MarkState::Free { next, .. }) => Change::Freed { name, next: next.clone() },
        (_, MarkState::Blocked) => Change::Look,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::FutureExt;

    use super::super::memory::MemoryStore;
    use super::super::{Revoke, Scope, Store};
    use super::*;
    use crate::error::Error;
    use crate::lease::{Claim, Nonce, Note, Release};

    const INTERVAL: Duration = Duration::from_millis(500);

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn id(text: &str) -> CandidateId {
        CandidateId::new(text).unwrap()
    }

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn held(number: u64, holder: &str) -> MarkState {
        MarkState::Held { token: token(number), holder: Some(id(holder)) }
    }

    fn free(number: u64, next: Option<&str>) -> MarkState {
        MarkState::Free { token: Some(token(number)), next: next.map(id) }
    }

    fn mark(text: &str, state: MarkState, fingerprint: u64) -> Mark {
        Mark { name: name(text), state, fingerprint }
    }

    fn granted(text: &str, number: u64, holder: &str) -> Change {
        Change::Granted { name: name(text), token: token(number), holder: Some(id(holder)) }
    }

    fn freed(text: &str, next: Option<&str>) -> Change {
        Change::Freed { name: name(text), next: next.map(id) }
    }

    #[test]
    fn two_observations_of_one_lease_give_the_change_between_them() {
        use MarkState::Blocked;
        let (granted, freed, look) = (granted("a", 7, "y"), freed("a", Some("z")), Change::Look);
        for (before, after, expected) in [
            (None, Some((held(7, "y"), 0)), Some(&granted)),
            (None, Some((free(7, Some("z")), 0)), Some(&freed)),
            (None, Some((Blocked, 0)), Some(&look)),
            (Some((free(5, None), 0)), Some((held(7, "y"), 0)), Some(&granted)),
            (Some((held(5, "x"), 0)), Some((held(7, "y"), 0)), Some(&granted)),
            (Some((Blocked, 0)), Some((held(7, "y"), 0)), Some(&granted)),
            (Some((held(7, "y"), 0)), Some((held(7, "y"), 0)), None),
            (Some((held(7, "y"), 0)), Some((held(7, "y"), 1)), Some(&look)),
            (Some((held(7, "y"), 0)), Some((free(7, Some("z")), 0)), Some(&freed)),
            // Acquired and released between two polls.
            (Some((free(5, None), 0)), Some((free(7, Some("z")), 0)), Some(&freed)),
            (Some((Blocked, 0)), Some((free(7, Some("z")), 0)), Some(&freed)),
            (Some((free(7, None), 0)), Some((free(7, None), 0)), None),
            (Some((free(7, None), 0)), Some((free(7, None), 1)), Some(&look)),
            (Some((held(7, "y"), 0)), Some((Blocked, 0)), Some(&look)),
            (Some((Blocked, 0)), Some((Blocked, 0)), None),
            (Some((Blocked, 0)), Some((Blocked, 1)), Some(&look)),
            (Some((held(7, "y"), 0)), None, Some(&look)),
            (Some((free(7, None), 0)), None, Some(&look)),
        ] {
            let marks = |state: &Option<(MarkState, u64)>| -> Vec<Mark> {
                state.iter().map(|(state, hash)| mark("a", state.clone(), *hash)).collect()
            };
            let found = changes(&marks(&before), &marks(&after));
            assert_eq!(found.iter().collect::<Vec<_>>(), Vec::from_iter(expected), "{before:?}");
        }
    }

    #[test]
    fn many_leases_give_their_hints_and_at_most_one_look() {
        let before = [
            mark("gone", held(1, "x"), 0),
            mark("b", held(2, "x"), 0),
            mark("same", held(3, "x"), 0),
            mark("note", held(4, "x"), 0),
        ];
        let after = [
            mark("note", held(4, "x"), 1),
            mark("same", held(3, "x"), 0),
            mark("b", free(2, None), 0),
            mark("a", held(5, "y"), 0),
        ];
        let expected = [granted("a", 5, "y"), freed("b", None), Change::Look];
        assert_eq!(changes(&before, &after), expected);
        assert_eq!(changes(&after, &after), []);
        assert_eq!(changes(&[], &[]), []);
    }

    /// A memory store on a manual clock, and a polling watch of it that can be made to fail.
    struct Polled {
        store: MemoryStore,
        clock: Clock,
        polls: Arc<Mutex<(u32, Result<()>)>>,
        changes: BoxStream<'static, Change>,
    }

    impl Polled {
        fn new() -> Self {
            let clock = Clock::manual();
            let store = MemoryStore::new(clock.clone());
            let polls = Arc::new(Mutex::new((0, Ok(()))));
            let (observed, counted) = (store.clone(), Arc::clone(&polls));
            let changes = watch(clock.clone(), INTERVAL, move || {
                let (observed, counted) = (observed.clone(), Arc::clone(&counted));
                async move {
                    {
                        let mut polls = counted.lock().unwrap();
                        polls.0 += 1;
                        polls.1.clone()?;
                    }
                    let leases = observed.observe(&Scope::Prefix(String::new())).await?;
                    Ok(leases.iter().flatten().map(Mark::from).collect())
                }
            });
            Polled { store, clock, polls, changes }
        }

        fn fail(&self, result: Result<()>) {
            self.polls.lock().unwrap().1 = result;
        }

        fn polls(&self) -> u32 {
            self.polls.lock().unwrap().0
        }

        /// All items that are available without waiting.
        fn ready(&mut self) -> Vec<Change> {
            let mut ready = Vec::new();
            while let Some(Some(change)) = self.changes.next().now_or_never() {
                ready.push(change);
            }
            ready
        }

        /// All items of the next poll.
        fn next_poll(&mut self) -> Vec<Change> {
            self.clock.advance(INTERVAL);
            self.ready()
        }
    }

    #[tokio::test]
    async fn a_watch_reports_grants_releases_expiry_and_revocations() {
        let mut polled = Polled::new();
        assert_eq!(polled.ready(), [Change::Look]);
        assert_eq!(polled.next_poll(), []);
        let store = polled.store.clone();
        let ttl = Duration::from_secs(10);
        let claim = Claim::new(name("a"), id("x"), Nonce::random(), ttl);
        let acquire = async |claim: &Claim| {
            let answers = store.acquire(std::slice::from_ref(claim)).await;
            answers.unwrap().remove(0).unwrap().held().unwrap().hold
        };
        let is_granted = |changes: &[Change], holder: &str| match changes {
            [Change::Granted { holder: found, .. }] => *found == Some(id(holder)),
            _ => false,
        };
        let hold = acquire(&claim).await;
        assert!(is_granted(&polled.next_poll(), "x"));
        store.renew(std::slice::from_ref(&hold), ttl).await.unwrap();
        assert_eq!(polled.next_poll(), [], "a renewal is no change");
        acquire(&Claim { note: Note::new("new").unwrap(), ..claim.clone() }).await;
        assert_eq!(polled.next_poll(), [Change::Look], "a note is one");
        store.release(&[Release { hold, next: Some(id("y")) }]).await.unwrap();
        assert_eq!(polled.next_poll(), [freed("a", Some("y"))]);
        acquire(&Claim { nonce: Nonce::random(), candidate: id("y"), ..claim.clone() }).await;
        assert!(is_granted(&polled.next_poll(), "y"));
        polled.clock.advance(ttl);
        assert_eq!(polled.ready(), [freed("a", None)], "the lease has expired");
        acquire(&Claim { nonce: Nonce::random(), ..claim }).await;
        assert!(is_granted(&polled.next_poll(), "x"));
        store.revoke(&name("a"), Revoke::InTime).await.unwrap();
        assert_eq!(polled.next_poll(), [Change::Look]);
        polled.clock.advance(ttl);
        assert_eq!(polled.ready(), [freed("a", None)]);
    }

    #[tokio::test]
    async fn a_watch_begins_when_the_store_answers_and_looks_after_every_error() {
        let mut polled = Polled::new();
        polled.fail(Err(Error::unavailable("down")));
        assert_eq!(polled.ready(), []);
        assert_eq!(polled.next_poll(), []);
        polled.fail(Ok(()));
        assert_eq!(polled.next_poll(), [Change::Look]);
        polled.fail(Err(Error::unavailable("down")));
        assert_eq!(polled.next_poll(), []);
        polled.fail(Ok(()));
        assert_eq!(polled.next_poll(), [Change::Look]);
        assert_eq!(polled.next_poll(), []);
    }

    #[tokio::test]
    async fn a_watch_polls_once_an_interval_and_never_after_it_was_dropped() {
        let mut polled = Polled::new();
        polled.ready();
        assert_eq!(polled.polls(), 1);
        polled.clock.advance(INTERVAL - Duration::from_nanos(1));
        polled.ready();
        assert_eq!(polled.polls(), 1, "not before the interval is over");
        polled.clock.advance(Duration::from_secs(60));
        polled.ready();
        assert_eq!(polled.polls(), 2, "missed polls are not repeated");
        polled.fail(Err(Error::unavailable("down")));
        polled.next_poll();
        polled.ready();
        assert_eq!(polled.polls(), 3, "an error is not retried at once");
        let Polled { clock, polls, changes, .. } = polled;
        drop(changes);
        clock.advance(INTERVAL);
        assert_eq!((polls.lock().unwrap().0, Arc::strong_count(&polls)), (3, 1));
        // An interval of zero does not loop without a pause.
        let mut changes = watch(clock, Duration::ZERO, async || Ok(Vec::new()));
        assert_eq!(changes.next().await, Some(Change::Look));
        assert!(changes.next().now_or_never().is_none());
    }
}
