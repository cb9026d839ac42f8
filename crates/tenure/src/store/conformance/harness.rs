//! What the properties are written in: one store, names of one's own, and questions with one
//! expected answer.

use std::sync::Arc;
use std::time::Duration;

use super::{Capability, Fixture};
use crate::error::{Kind, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, Grant, Hold, Lease, Name, Nonce, Release, Token,
};
use crate::store::memory::Corruption;
use crate::store::{Revoke, Scope, Store};

/// A TTL that does not run out while a property runs, however busy the machine.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// How long something may take that must come: against hanging, not a bound on anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What a property says: `Err` if the fixture cannot do what it needs. A violation panics.
pub(super) type PropertyResult = Result<(), Capability>;

/// One property on one store.
pub(super) struct Harness<'a> {
    pub(super) fixture: &'a dyn Fixture,
    prefix: String,
}

impl<'a> Harness<'a> {
    pub(super) fn new(property: &str, fixture: &'a dyn Fixture) -> Self {
        // Random, so that a store that keeps what it had can be tested twice.
        let run = Nonce::random().to_bits() & 0xffff_ffff;
        Harness { fixture, prefix: format!("{property}:{run:08x}") }
    }

    /// A handle of its own, as another process would have it.
    pub(super) async fn open(&self) -> HarnessStore {
        HarnessStore(self.fixture.open().await)
    }

    /// What every [`Scene::name`] begins with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A name nobody else uses.
    pub(super) fn name(&self, part: &str) -> Name {
        name(&format!("{}:{part}", self.prefix))
    }

    /// A first claim of a new campaign, for long.
    pub(super) fn claim(&self, part: &str, who: &str) -> Claim {
        claim(&self.name(part), who)
    }

    /// The same, for a time that the property waits out.
    pub(super) fn short(&self, part: &str, who: &str) -> Claim {
        Claim { ttl: self.fixture.short_ttl(), ..self.claim(part, who) }
    }

    /// Waits until a [`Scene::short`] lease has run out.
    pub(super) async fn wait_out(&self) {
        let ttl = self.fixture.short_ttl();
        self.fixture.pass(self.fixture.frees_within(ttl)).await;
    }

    /// Puts garbage under the name.
    pub(super) async fn garbage(&self, name: &Name) -> PropertyResult {
        let done = self.fixture.spoil(name, Corruption::Garbage).await;
        done.then_some(()).ok_or(Capability::Garbage)
    }

    /// Locks the name.
    pub(super) async fn lock(&self, name: &Name) -> PropertyResult {
        let done = self.fixture.spoil(name, Corruption::Locked).await;
        done.then_some(()).ok_or(Capability::Lock)
    }

    /// Makes `last` the last token of the name.
    pub(super) async fn set_token(&self, name: &Name, last: u64) -> PropertyResult {
        let last = Token::new(last).expect("the property sets a valid token");
        let done = self.fixture.set_token(name, last).await;
        done.then_some(()).ok_or(Capability::Tokens)
    }

    /// Restarts the store.
    pub(super) async fn restart(&self) -> PropertyResult {
        let done = self.fixture.restart().await;
        done.then_some(()).ok_or(Capability::Restart)
    }

    /// Lets a stranger take the name.
    pub(super) async fn stranger(&self, name: &Name, id: &str, ttl: Duration) -> PropertyResult {
        let done = self.fixture.take_as_stranger(name, id, ttl).await;
        done.then_some(()).ok_or(Capability::Stranger)
    }
}

pub(super) fn name(text: &str) -> Name {
    Name::stored(text).expect("the property's names are valid")
}

pub(super) fn id(text: &str) -> CandidateId {
    CandidateId::new(text).expect("the property's ids are valid")
}

/// A first claim of a new campaign, for long.
pub(super) fn claim(name: &Name, who: &str) -> Claim {
    Claim::new(name.clone(), id(who), Nonce::random(), LONG)
}

/// The same candidate in a new campaign.
pub(super) fn anew(claim: &Claim) -> Claim {
    Claim { nonce: Nonce::random(), ..claim.clone() }
}

pub(super) fn checkpoint(bytes: impl AsRef<[u8]>) -> Checkpoint {
    Checkpoint::new(bytes).expect("the property's checkpoints are within the limit")
}

/// A store, asked one thing at a time; an answer other than the expected one is a violation.
#[derive(Clone)]
pub(super) struct HarnessStore(pub(super) Arc<dyn Store>);

impl HarnessStore {
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<Answer<Grant>> {
        only(self.0.acquire(std::slice::from_ref(claim)).await?)
    }

    /// Claims what must be granted.
    pub(super) async fn granted(&self, claim: &Claim) -> Grant {
        match self.acquire(claim).await {
            Ok(Answer::Held(grant)) => {
                let hold = &grant.hold;
                assert_eq!(
                    (&hold.name, &hold.candidate, hold.nonce),
                    (&claim.name, &claim.candidate, claim.nonce),
                    "a grant must name what was claimed"
                );
                grant
            }
            other => panic!("{claim:?}: expected Held, got {other:?}"),
        }
    }

    /// Claims what must be granted, and gives the proof alone.
    pub(super) async fn hold(&self, claim: &Claim) -> Hold {
        self.granted(claim).await.hold
    }

    /// Claims what somebody else must have.
    pub(super) async fn refused(&self, claim: &Claim) -> Lease {
        match self.acquire(claim).await {
            Ok(Answer::Taken(lease)) => {
                assert_eq!(lease.name, claim.name, "Taken must name what was claimed");
                *lease
            }
            other => panic!("{claim:?}: expected Taken, got {other:?}"),
        }
    }

    /// Claims many; the answers must be as many.
    pub(super) async fn acquire_all(&self, claims: &[Claim]) -> Vec<Result<Answer<Grant>>> {
        as_many("acquire", claims.len(), self.0.acquire(claims).await)
    }

    /// Claims many, all of which must be granted.
    pub(super) async fn hold_all(&self, claims: &[Claim]) -> Vec<Hold> {
        let answers = self.acquire_all(claims).await;
        let holds = answers.into_iter().zip(claims).map(|(answer, claim)| match answer {
            Ok(Answer::Held(grant)) => grant.hold,
            other => panic!("{claim:?}: expected Held, got {other:?}"),
        });
        holds.collect()
    }

    /// Renews many; the answers must be as many.
    pub(super) async fn renew_all(&self, holds: &[Hold], ttl: Duration) -> Vec<Result<Answer>> {
        as_many("renew", holds.len(), self.0.renew(holds, ttl).await)
    }

    /// Releases many; the answers must be as many.
    pub(super) async fn release_all(&self, holds: &[Hold]) -> Vec<Result<()>> {
        let releases: Vec<Release> = holds.iter().cloned().map(Release::from).collect();
        as_many("release", holds.len(), self.0.release(&releases).await)
    }

    pub(super) async fn renew(&self, hold: &Hold, ttl: Duration) -> Result<Answer> {
        only(self.0.renew(std::slice::from_ref(hold), ttl).await?)
    }

    /// Renews what must still be ours, for long.
    pub(super) async fn kept(&self, hold: &Hold) {
        let answer = self.renew(hold, LONG).await;
        assert!(
            matches!(answer, Ok(Answer::Held(()))),
            "renew {hold:?}: expected Held, got {answer:?}"
        );
    }

    /// Renews what must not be ours.
    pub(super) async fn lost(&self, hold: &Hold) -> Lease {
        match self.renew(hold, LONG).await {
            Ok(Answer::Taken(lease)) => {
                assert_eq!(lease.name, hold.name, "Taken must name what was renewed");
                *lease
            }
            other => panic!("renew {hold:?}: expected Taken, got {other:?}"),
        }
    }

    /// Releases, which is never an error, whether it frees anything or not.
    pub(super) async fn release(&self, hold: &Hold) {
        self.release_to(hold, None).await;
    }

    pub(super) async fn release_to(&self, hold: &Hold, next: Option<CandidateId>) {
        let hold = hold.clone();
        let answer = self.try_release(&Release { hold, next }).await;
        assert!(answer.is_ok(), "release must be Ok, got {answer:?}");
    }

    pub(super) async fn try_release(&self, release: &Release) -> Result<()> {
        only(self.0.release(std::slice::from_ref(release)).await?)
    }

    pub(super) async fn save(&self, hold: &Hold, number: u64, bytes: &[u8]) -> Result<Answer> {
        self.0.save(hold, number, &checkpoint(bytes)).await
    }

    /// Saves what must be taken.
    pub(super) async fn saved(&self, hold: &Hold, number: u64, bytes: &[u8]) {
        let answer = self.save(hold, number, bytes).await;
        assert!(
            matches!(answer, Ok(Answer::Held(()))),
            "save {number} of {hold:?}: expected Held, got {answer:?}"
        );
    }

    /// Saves under a hold that is over.
    pub(super) async fn unsaved(&self, hold: &Hold, number: u64) {
        let answer = self.save(hold, number, b"stale").await;
        assert!(
            matches!(answer, Ok(Answer::Taken(_))),
            "save {number} of {hold:?}: expected Taken, got {answer:?}"
        );
    }

    pub(super) async fn revoked(&self, name: &Name, when: Revoke) -> Lease {
        let answer = self.0.revoke(name, when).await;
        answer.unwrap_or_else(|error| panic!("revoke '{name}': expected Ok, got {error:?}"))
    }

    /// Looks at a name that must have been used.
    pub(super) async fn look(&self, name: &Name) -> Lease {
        let mut found = self.look_at(&Scope::name(name)).await;
        assert_eq!(found.len(), 1, "observe '{name}': expected one, got {found:?}");
        let lease = found.remove(0);
        assert_eq!(&lease.name, name, "observe must show what was asked for");
        lease
    }

    /// Looks where there must be nothing but leases.
    pub(super) async fn look_at(&self, scope: &Scope) -> Vec<Lease> {
        let found = self.observe(scope).await;
        let leases = found.into_iter().collect::<Result<Vec<_>>>();
        leases.unwrap_or_else(|error| panic!("observe {scope:?}: expected leases, got {error:?}"))
    }

    pub(super) async fn observe(&self, scope: &Scope) -> Vec<Result<Lease>> {
        let found = self.0.observe(scope).await;
        found.unwrap_or_else(|error| panic!("observe {scope:?}: expected Ok, got {error:?}"))
    }
}

/// The one answer to one question.
fn only<T>(mut answers: Vec<Result<T>>) -> Result<T> {
    assert_eq!(answers.len(), 1, "one question must get one answer");
    answers.remove(0)
}

/// The answers to so many questions.
fn as_many<T>(verb: &str, count: usize, answers: Result<Vec<T>>) -> Vec<T> {
    let answers = answers.unwrap_or_else(|error| panic!("{verb} {count}: got {error:?}"));
    assert_eq!(answers.len(), count, "{verb}: as many answers as questions");
    answers
}

/// The answer must be an error of this kind.
pub(super) fn expect_kind<T: std::fmt::Debug>(what: &str, answer: Result<T>, kind: Kind) {
    match answer {
        Err(error) if error.kind() == kind => {}
        other => panic!("{what}: expected an error of kind {}, got {other:?}", kind.as_str()),
    }
}

/// What must come within [`PATIENCE`].
pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: did not come within {PATIENCE:?}"),
    }
}
