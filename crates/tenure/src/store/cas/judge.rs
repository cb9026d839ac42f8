//! The state of what was read: whether its term is live, and which other program excludes every candidate.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::{
    Backend, CasStoreInner, DRIFT_PPM, Document, Entry, Expiry, ForeignDocument, ForeignHolder,
};
use crate::clock::Moment;
use crate::error::Result;
use crate::lease::{Holder, Lease, Name};
use crate::store::record::{Record, RuleContext, Standing, unknown_lease};

/// What an operation is applied to.
pub(super) struct Found<V> {
    pub(super) record: Option<Record>,
    pub(super) standing: Standing,
    pub(super) version: Option<V>,
}

impl<B: Backend> CasStoreInner<B> {
    /// The record of an entry and the state of its term. The error is the lease of another program, which excludes every
    /// candidate.
    pub(super) fn judge(
        &self,
        name: &Name,
        entry: Option<Entry<B::Version>>,
        now: Moment,
        context: &RuleContext,
    ) -> Result<Found<B::Version>, Box<Lease>> {
        match entry {
            None => Ok(Found { record: None, standing: Standing::Free, version: None }),
            Some(Entry::Document(document)) => {
                let standing = self.standing(name, &document, now);
                let Document { record, version, .. } = document;
                Ok(Found { record: Some(record), standing, version: Some(version) })
            }
            Some(Entry::Foreign { id, left }) => {
                Err(Box::new(foreign_lease(name, id, left, left, context)))
            }
            Some(Entry::ForeignDocument(ForeignDocument { version, holder, record })) => {
                if let Some(ForeignHolder { id, ttl }) = holder {
                    let mark = mark(&version);
                    let left = self.observations().left(name, mark, ttl, DRIFT_PPM, now);
                    if !left.is_zero() {
                        return Err(Box::new(foreign_lease(name, id, ttl, left, context)));
                    }
                }
                // The other program could acquire the name only after the recorded term was over.
                let over = |record: &Record| Standing::of(record, Duration::ZERO);
                let standing = record.as_ref().map_or(Standing::Free, over);
                Ok(Found { record, standing, version: Some(version) })
            }
        }
    }

    fn standing(&self, name: &Name, document: &Document<B::Version>, now: Moment) -> Standing {
        let Document { record, version, left } = document;
        let Some(term) = &record.term else {
            self.observations().forget(name);
            return Standing::Free;
        };
        let by_observation = match B::EXPIRY {
            Expiry::StoreClock => false,
            // The session that holds a revoked term may be kept alive for other leases.
            Expiry::ServerLease => is_revoked(record) && !left.is_zero(),
            Expiry::Observation => true,
        };
        let left = match by_observation {
            true => self.observations().left(name, mark(version), term.ttl, DRIFT_PPM, now),
            false => *left,
        };
        Standing::of(record, left)
    }
}

pub(super) fn is_revoked(record: &Record) -> bool {
    record.term.as_ref().is_some_and(|term| term.nonce.is_none())
}

/// A value that differs for different versions.
pub(super) fn mark(version: &impl Hash) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        version.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

fn foreign_lease(
    name: &Name,
    id: String,
    ttl: Duration,
    left: Duration,
    context: &RuleContext,
) -> Lease {
    let holder = Some(Holder { id, nonce: None });
    Lease { holder, ttl, left, store_time: context.store_time, ..unknown_lease(name) }
}
