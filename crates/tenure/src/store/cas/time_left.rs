//! How [`CasStore`](super::CasStore) reads the remaining time of a term from a service that says it only on request.

use std::collections::VecDeque;
use std::time::Duration;

use super::{
    Backend, CasStoreInner, DRIFT_PPM, Document, Entry, FoundRecord, Operation, RuleContext,
    Standing, Timed, lease, same_count,
};
use crate::error::Result;
use crate::lease::{Answer, Claim, Grant, Lease, Name};
use crate::observation::lengthened;

impl<B: Backend> CasStoreInner<B> {
    /// Replaces the remaining time of live terms by what the service says about it on request.
    pub(super) async fn read_time_left(
        &self,
        names: &[Name],
        entries: &mut [Result<Option<Entry<B::Version>>>],
    ) -> Result<()> {
        let versions: Vec<B::Version> =
            entries.iter_mut().filter_map(live_document).map(|live| live.version.clone()).collect();
        if versions.is_empty() {
            return Ok(());
        }
        let Some(times) = self.backend.time_left(&versions).await else { return Ok(()) };
        let mut times = same_count(times?, versions.len())?.into_iter();
        let now = self.clock.now();
        for (name, entry) in names.iter().zip(entries) {
            let Some(document) = live_document(entry) else { continue };
            // A session that has ended since its key was read: the next reading shows it.
            let left = times.next().flatten().unwrap_or_default();
            document.left = self.live_terms.read(name, document, left, now);
        }
        Ok(())
    }

    /// Claims leases. A name whose term was read before, and can have expired by now, costs one request if its holder has
    /// renewed.
    pub(super) async fn claim(
        &self,
        claims: &[Claim],
    ) -> Result<Vec<Result<Timed<Answer<Grant>>>>> {
        let taken = self.still_taken(claims).await;
        if taken.iter().all(Option::is_none) {
            return self.run(claims).await;
        }
        let open = claims.iter().zip(&taken).filter(|(_, taken)| taken.is_none());
        let open: Vec<Claim> = open.map(|(claim, _)| claim.clone()).collect();
        let mut answers = VecDeque::from(self.run(&open).await?);
        let answer = |taken: Option<Lease>| match taken {
            Some(lease) => Some(Ok((Answer::Taken(Box::new(lease)), None))),
            None => answers.pop_front(),
        };
        Ok(taken.into_iter().filter_map(answer).collect())
    }

    /// The leases of other holders that were read before and whose sessions still live.
    async fn still_taken(&self, claims: &[Claim]) -> Vec<Option<Lease>> {
        let now = self.clock.now();
        let due = |claim: &Claim| {
            let due = self.live_terms.due(claim.name(), now)?;
            let nonce = due.record.term.as_ref()?.nonce;
            (nonce != Some(claim.nonce)).then_some(due)
        };
        let due: Vec<Option<Document<B::Version>>> = claims.iter().map(due).collect();
        let versions: Vec<B::Version> =
            due.iter().flatten().map(|due| due.version.clone()).collect();
        let times = match versions.is_empty() {
            true => None,
            false => self.backend.time_left(&versions).await,
        };
        let times = times.and_then(Result::ok).filter(|times| times.len() == versions.len());
        let mut times = times.unwrap_or_default().into_iter();
        let (now, context) = (self.clock.now(), self.context(None));
        let taken = |(claim, due): (&Claim, Option<Document<B::Version>>)| {
            let document = due?;
            let left = self.live_terms.read_again(&claim.name, times.next()??, now);
            let found = FoundRecord { record: &document.record, standing: Standing::Live(left) };
            Some(lease(Some(found), &claim.name, &context))
        };
        claims.iter().zip(due).map(taken).collect()
    }

    /// A term that ended before its time may still be led, until one TTL after its holder's last keepalive.
    pub(super) fn require_wait_if_ended_early(
        &self,
        name: &Name,
        document: &mut Document<B::Version>,
        context: &RuleContext,
    ) {
        let Document { record, left, .. } = document;
        let Some(ttl) = record.term.as_ref().map(|term| term.ttl) else { return };
        if left.is_zero() && self.live_terms.ended_early(name, record.token) {
            record.require_wait(lengthened(ttl, DRIFT_PPM), context);
        }
    }
}

/// The document of an entry, if its term is live.
fn live_document<V>(entry: &mut Result<Option<Entry<V>>>) -> Option<&mut Document<V>> {
    match entry {
        Ok(Some(Entry::Document(document))) if document.left > Duration::ZERO => Some(document),
        _ => None,
    }
}
