//! PURE: which candidate claims a free lease first: a named successor, then the candidates by priority.
//!
//! A candidate that gives way to others never claims a lease that it does not know to be free: a claim that was due for
//! another reason would be granted if the holder has just released. It observes the lease. If the lease is free, the candidate
//! claims it after its delay, unless another candidate holds the lease by then.

use std::time::Duration;

use super::sightings::RoundTrip;
use super::{Effect, HOLD_BACK, Machine, State};
use crate::clock::Moment;
use crate::lease::{CandidateId, Lease};

/// How much longer a candidate waits on a free lease for each rank.
const RANK_STEP: Duration = Duration::from_millis(50);
/// Candidates with a higher rank wait as long as this one.
const RANK_MAX: u32 = 5;

/// The other candidates that would take a free lease, as last read. It delays a claim and grants no right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherCandidates {
    /// The priority of this candidate.
    pub own: i32,
    /// The present, healthy and undrained candidates besides this one, and their priorities.
    pub others: Vec<(CandidateId, i32)>,
}

impl OtherCandidates {
    /// 0 for the highest priority, one more for each higher priority that another candidate has: equal ones share a rank.
    /// The last holder is not counted: the lease is free because that candidate is gone or has released it.
    pub fn rank(&self, last_holder: Option<&str>) -> u32 {
        let counted = self.others.iter().filter(|(id, _)| last_holder != Some(id.as_str()));
        let mut higher: Vec<i32> =
            counted.map(|(_, priority)| *priority).filter(|other| *other > self.own).collect();
        higher.sort_unstable();
        higher.dedup();
        u32::try_from(higher.len()).unwrap_or(u32::MAX)
    }
}

impl Machine {
    fn rank_delay(&self) -> Duration {
        let rank = match &self.rivals {
            Some(rivals) => rivals.rank(self.holder.as_deref()),
            None => self.rank,
        };
        RANK_STEP * rank.min(RANK_MAX)
    }

    /// Whether this candidate must not claim at `now`, because another candidate comes first if the lease is free.
    pub(super) fn gives_way(&self, now: Moment) -> bool {
        if self.nonce.is_some() {
            // An unanswered claim may have been granted: only repeating it shows that.
            return false;
        }
        match self.claim_from {
            Some(from) => now < from,
            None => !self.rank_delay().is_zero(),
        }
    }

    /// The store says that the lease became free, and which candidate should come next. Returns when to claim.
    pub(super) fn freed(&mut self, now: Moment, next: Option<&CandidateId>) -> Moment {
        let delay = match next {
            Some(next) if *next == self.candidate => {
                self.held_off = Moment::PAST;
                Duration::ZERO
            }
            Some(_) => HOLD_BACK,
            None => self.rank_delay(),
        };
        *self.claim_from.insert(now + delay)
    }

    /// What this candidate does after it observed the lease instead of claiming it.
    pub(super) fn observed_campaigning(
        &mut self,
        trip: RoundTrip,
        lease: Option<&Lease>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(lease) = lease.filter(|lease| lease.holder.is_some()) {
            self.report_same_id(trip, lease, out);
            return self.wait_for(trip, lease, out);
        }
        // Before the observation is remembered: the last holder has no rank.
        let delay = self.rank_delay();
        if let Some(lease) = lease {
            self.observe_lease(trip, lease, out);
        }
        // A delay that has begun with a notification goes on.
        let poll_at = *self.claim_from.get_or_insert(trip.back + delay);
        self.state = State::Waiting { poll_at };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(own: i32, others: &[(&str, i32)], last_holder: Option<&str>) -> u32 {
        let others = others.iter().map(|(id, priority)| (CandidateId::new(id).unwrap(), *priority));
        OtherCandidates { own, others: others.collect() }.rank(last_holder)
    }

    #[test]
    fn the_highest_priority_comes_first_and_equal_ones_share_a_rank() {
        assert_eq!(rank(0, &[], None), 0);
        assert_eq!(rank(5, &[("b", 3), ("c", -1)], None), 0);
        assert_eq!(rank(3, &[("a", 5), ("c", -1)], None), 1);
        assert_eq!(rank(-1, &[("a", 5), ("b", 3)], None), 2);
        assert_eq!(rank(0, &[("b", 0), ("c", 0)], None), 0);
        assert_eq!(rank(0, &[("b", 7), ("c", 7)], None), 1);
    }

    #[test]
    fn the_last_holder_is_not_counted() {
        assert_eq!(rank(0, &[("a", 9), ("b", 1)], Some("a")), 1);
        assert_eq!(rank(0, &[("a", 9)], Some("a")), 0);
    }
}
