//! PURE: notices a second living candidate with this candidate's id.
//!
//! A candidate with a stable id that crashed and came back finds the lease of its earlier run. That lease expires and is no
//! reason to warn. A lease that is renewed, or granted again, under the same id and another nonce has a living holder.

use super::sightings::RoundTrip;
use crate::clock::Moment;
use crate::lease::{Lease, Token};

#[derive(Debug, Default)]
pub(super) struct SameId {
    /// The first observation of a term under this id: its token, and the latest moment at which it expires unless renewed.
    first: Option<Box<(Token, Moment)>>,
    reported: bool,
}

impl SameId {
    /// Another nonce holds `lease` under this candidate's id. Returns whether to report it: once, and only if the holder lives.
    pub(super) fn observe(&mut self, trip: RoundTrip, lease: &Lease) -> bool {
        let Some(token) = lease.token else { return false };
        let lives = match self.first.as_deref() {
            // Clocks drift, and a store may round: a renewal moves the expiry by far more.
            Some((known, expires)) if *known == token => {
                trip.sent + lease.left > *expires + lease.ttl / 20
            }
            Some(_) => true,
            None => {
                self.first = Some(Box::new((token, trip.back + lease.left)));
                false
            }
        };
        let report = lives && !self.reported;
        self.reported |= lives;
        report
    }
}
