//! The harness of the properties: one store, unique names, and operations with one expected answer.

use std::sync::Arc;
use std::time::Duration;

use super::{Capability, Fixture};
use crate::error::{Kind, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, Grant, Hold, Lease, Name, Nonce, Release, Token,
};
use crate::store::memory::Corruption;
use crate::store::{Revoke, Scope, Store};

/// A TTL that does not expire while a property runs, however busy the machine.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// A timeout for something that must happen: it detects hanging and is not a bound on any duration.
pub(super) const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a property: `Err` if the fixture lacks a capability. A violation panics.
pub(super) type PropertyResult = Result<(), Capability>;

/// One property on one store.
pub(super) struct Harness<'a> {
    pub(super) fixture: &'a dyn Fixture,
    prefix: String,
}

impl<'a> Harness<'a> {
    pub(super) fn new(property: &str, fixture: &'a dyn Fixture) -> Self {
        // Random, so that a store that keeps its data can be tested twice.
        let run = Nonce::random().to_bits() & 0xffff_ffff;
        Harness { fixture, prefix: format!("{property}:{run:08x}") }
    }

    /// A new handle, as another process would have it.
    pub(super) async fn open(&self) -> HarnessStore {
        HarnessStore(self.fixture.open().await)
    }

    /// The prefix of every [`Harness::name`].
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A name that no other property uses.
    pub(super) fn name(&self, part: &str) -> Name {
        name(&format!("{}:{part}", self.prefix))
    }

    /// The first claim of a new campaign, with a long TTL.
    pub(super) fn claim(&self, part: &str, who: &str) -> Claim {
        claim(&self.name(part), who)
    }

    /// The same with a short TTL, whose expiry the property waits for.
    pub(super) fn short_claim(&self, part: &str, who: &str) -> Claim {
        Claim { ttl: self.fixture.short_ttl(), ..self.claim(part, who) }
    }

    /// Waits until a lease of [`Harness::short_claim`] has expired.
    pub(super) async fn wait_for_expiry(&self) {
        let ttl = self.fixture.short_ttl();
        self.fixture.pass(self.fixture.frees_within(ttl)).await;
    }

    /// Puts garbage under the name.
    pub(super) async fn garbage(&self, name: &Name) -> PropertyResult {
        let done = self.fixture.corrupt(name, Corruption::Garbage).await;
        done.then_some(()).ok_or(Capability::Garbage)
    }

    /// Locks the name.
    pub(super) async fn lock(&self, name: &Name) -> PropertyResult {
        let done = self.fixture.corrupt(name, Corruption::Locked).await;
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

    /// Takes the name as another program would.
    pub(super) async fn foreign_holder(
        &self,
        name: &Name,
        id: &str,
        ttl: Duration,
    ) -> PropertyResult {
        let done = self.fixture.take_as_foreign_holder(name, id, ttl).await;
        done.then_some(()).ok_or(Capability::ForeignHolder)
    }
}

pub(super) fn name(text: &str) -> Name {
    Name::stored(text).expect("the property's names are valid")
}

pub(super) fn id(text: &str) -> CandidateId {
    CandidateId::new(text).expect("the property's ids are valid")
}

/// The first claim of a new campaign, with a long TTL.
pub(super) fn claim(name: &Name, who: &str) -> Claim {
    Claim::new(name.clone(), id(who), Nonce::random(), LONG)
}

/// The same candidate in a new campaign.
pub(super) fn new_campaign(claim: &Claim) -> Claim {
    Claim { nonce: Nonce::random(), ..claim.clone() }
}

pub(super) fn checkpoint(bytes: impl AsRef<[u8]>) -> Checkpoint {
    Checkpoint::new(bytes).expect("the property's checkpoints are within the limit")
}

/// A store with single-item operations; an answer other than the expected one is a violation.
#[derive(Clone)]
pub(super) struct HarnessStore(pub(super) Arc<dyn Store>);

impl HarnessStore {
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<Answer<Grant>> {
        only(self.0.acquire(std::slice::from_ref(claim)).await?)
    }

    /// Claims a lease that must be granted.
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

    /// Claims a lease that must be granted, and returns only the hold.
    pub(super) async fn hold(&self, claim: &Claim) -> Hold {
        self.granted(claim).await.hold
    }

    /// Claims a lease that another holder must have.
    pub(super) async fn refused(&self, claim: &Claim) -> Lease {
        match self.acquire(claim).await {
            Ok(Answer::Taken(lease)) => {
                assert_eq!(lease.name, claim.name, "Taken must name what was claimed");
                *lease
            }
            other => panic!("{claim:?}: expected Taken, got {other:?}"),
        }
    }

    /// Claims many leases; there must be one answer for each.
    pub(super) async fn acquire_all(&self, claims: &[Claim]) -> Vec<Result<Answer<Grant>>> {
        expect_count("acquire", claims.len(), self.0.acquire(claims).await)
    }

    /// Claims many leases, all of which must be granted.
    pub(super) async fn hold_all(&self, claims: &[Claim]) -> Vec<Hold> {
        let answers = self.acquire_all(claims).await;
        let holds = answers.into_iter().zip(claims).map(|(answer, claim)| match answer {
            Ok(Answer::Held(grant)) => grant.hold,
            other => panic!("{claim:?}: expected Held, got {other:?}"),
        });
        holds.collect()
    }

    /// Renews many leases; there must be one answer for each.
    pub(super) async fn renew_all(&self, holds: &[Hold], ttl: Duration) -> Vec<Result<Answer>> {
        expect_count("renew", holds.len(), self.0.renew(holds, ttl).await)
    }

    /// Releases many leases; there must be one answer for each.
    pub(super) async fn release_all(&self, holds: &[Hold]) -> Vec<Result<()>> {
        let releases: Vec<Release> = holds.iter().cloned().map(Release::from).collect();
        expect_count("release", holds.len(), self.0.release(&releases).await)
    }

    pub(super) async fn renew(&self, hold: &Hold, ttl: Duration) -> Result<Answer> {
        only(self.0.renew(std::slice::from_ref(hold), ttl).await?)
    }

    /// Renews a hold that must still be valid, with a long TTL.
    pub(super) async fn kept(&self, hold: &Hold) {
        let answer = self.renew(hold, LONG).await;
        assert!(
            matches!(answer, Ok(Answer::Held(()))),
            "renew {hold:?}: expected Held, got {answer:?}"
        );
    }

    /// Renews a hold that must not be valid any more.
    pub(super) async fn lost(&self, hold: &Hold) -> Lease {
        match self.renew(hold, LONG).await {
            Ok(Answer::Taken(lease)) => {
                assert_eq!(lease.name, hold.name, "Taken must name what was renewed");
                *lease
            }
            other => panic!("renew {hold:?}: expected Taken, got {other:?}"),
        }
    }

    /// Releases a hold. This is never an error, whether it frees a lease or not.
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

    /// Saves a checkpoint that must be accepted.
    pub(super) async fn saved(&self, hold: &Hold, number: u64, bytes: &[u8]) {
        let answer = self.save(hold, number, bytes).await;
        assert!(
            matches!(answer, Ok(Answer::Held(()))),
            "save {number} of {hold:?}: expected Held, got {answer:?}"
        );
    }

    /// Saves under a hold that is not valid any more.
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

    /// Observes a name that must have been used.
    pub(super) async fn observe_one(&self, name: &Name) -> Lease {
        let mut found = self.observe_leases(&Scope::name(name)).await;
        assert_eq!(found.len(), 1, "observe '{name}': expected one, got {found:?}");
        let lease = found.remove(0);
        assert_eq!(&lease.name, name, "observe must return the requested lease");
        lease
    }

    /// Observes a scope that must contain only valid leases.
    pub(super) async fn observe_leases(&self, scope: &Scope) -> Vec<Lease> {
        let found = self.observe(scope).await;
        let leases = found.into_iter().collect::<Result<Vec<_>>>();
        leases.unwrap_or_else(|error| panic!("observe {scope:?}: expected leases, got {error:?}"))
    }

    pub(super) async fn observe(&self, scope: &Scope) -> Vec<Result<Lease>> {
        let found = self.0.observe(scope).await;
        found.unwrap_or_else(|error| panic!("observe {scope:?}: expected Ok, got {error:?}"))
    }
}

/// The single answer to a single request.
fn only<T>(mut answers: Vec<Result<T>>) -> Result<T> {
    assert_eq!(answers.len(), 1, "one request must get one answer");
    answers.remove(0)
}

/// Checks that there are as many answers as requests.
fn expect_count<T>(operation: &str, count: usize, answers: Result<Vec<T>>) -> Vec<T> {
    let answers = answers.unwrap_or_else(|error| panic!("{operation} {count}: got {error:?}"));
    assert_eq!(answers.len(), count, "{operation}: as many answers as requests");
    answers
}

/// Checks that the answer is an error of this kind.
pub(super) fn expect_kind<T: std::fmt::Debug>(what: &str, answer: Result<T>, kind: Kind) {
    match answer {
        Err(error) if error.kind() == kind => {}
        other => panic!("{what}: expected an error of kind {}, got {other:?}", kind.as_str()),
    }
}

/// Waits for something that must happen within [`HANG_TIMEOUT`].
pub(super) async fn within_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(HANG_TIMEOUT, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: did not come within {HANG_TIMEOUT:?}"),
    }
}
