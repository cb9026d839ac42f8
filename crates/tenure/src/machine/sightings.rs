//! PURE: what a waiting candidate remembers of earlier holders, so that it can detect a store that lost or rewound a lease.
//!
//! A store can forget (a flush, an eviction, a restart without persistence, a failover to a replica that was behind) or its
//! clock can be set forward. Either frees a lease whose holder still relies on it. A waiting candidate that observed this
//! holder alive notices: the record's origin has changed, or the store's time ran ahead of the candidate's own. Then the
//! candidate holds and renews the lease that it was granted, but leads only when the remembered holder must have stopped.
//!
//! A candidate that held the lease before, or only received a notification, has not observed the current holder, but it knows
//! an earlier token. It notices that the record begins after the last term that it knows: the store may have forgotten a holder
//! in between.

use crate::clock::Moment;
use crate::lease::{Ended, Grant, Lease, StoreTime, Token};
use crate::observation::lengthened;
use crate::timing::Timing;
use std::time::Duration;

/// When a request was sent and when its answer arrived. What the answer shows was true at some moment in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    pub(super) sent: Moment,
    pub(super) back: Moment,
}

#[derive(Debug, Default)]
pub(super) struct Sightings {
    /// Boxed: a holder has none, and one member of a fleet holds very many leases.
    last: Option<Box<Sighting>>,
    /// This candidate must not lead any term before this moment, even if the store grants it.
    not_before: Moment,
    /// The greatest token that this candidate ever observed or was granted for this name.
    greatest: Option<Token>,
}

/// The last observation of a live holder.
#[derive(Debug)]
struct Sighting {
    token: Token,
    origin: Token,
    ttl: Duration,
    store_time: Option<StoreTime>,
    back: Moment,
    /// When the lease expires at the earliest, according to the store.
    floor: Moment,
}

impl Sightings {
    /// Compares the origin of a record with the last known term. A record that begins after a known term does not show who held
    /// the lease next: that holder may have renewed until just before the record began. `latest_token` is the latest term from
    /// a notification. It counts only if nothing better is known, because it is a hint and may be forged. Call this before the
    /// answer is remembered.
    pub(super) fn check_origin(
        &mut self,
        trip: RoundTrip,
        origin: Token,
        latest_token: Option<Token>,
        timing: &Timing,
    ) {
        if self.greatest.or(latest_token).is_some_and(|known| origin > known) {
            let over = trip.back + lengthened(timing.ttl, timing.drift_ppm);
            self.not_before = self.not_before.max(over);
        }
    }

    /// Remembers an observation of the lease.
    pub(super) fn observe(&mut self, trip: RoundTrip, lease: &Lease, timing: &Timing) {
        let (Some(token), Some(lineage)) = (lease.token, lease.lineage) else {
            return; // A foreign record: its rules are unknown.
        };
        self.greatest = self.greatest.max(Some(token));
        if lease.holder.is_none() {
            return;
        }
        let floor = (trip.back + lease.left).before(timing.tolerance(lease.ttl));
        let mut now = Sighting {
            token,
            origin: lineage.origin,
            ttl: lease.ttl,
            store_time: lease.store_time,
            back: trip.back,
            floor,
        };
        if let Some(last) = self.last.take() {
            let credible = last.credible(lineage.origin, lease.store_time, trip, timing);
            if last.token == token && credible {
                now.floor = floor.max(last.floor);
            } else {
                let before = if last.token == token { Ended::Nothing } else { lineage.before };
                self.not_before = self.not_before.max(last.over_at(credible, before, trip, timing));
            }
        }
        self.last = Some(Box::new(now));
    }

    /// Whether the last live holder that was observed belongs to an earlier term than `token`.
    pub(super) fn lags_behind(&self, token: Token) -> bool {
        self.last.as_ref().is_some_and(|last| last.token < token)
    }

    /// Whether a term with this token or a greater one was observed already.
    pub(super) fn knows(&self, token: Token) -> bool {
        self.greatest >= Some(token)
    }

    /// From when the candidate may lead the granted term. `Err` if the name has already had this token or a greater one.
    pub(super) fn lead_from(
        &mut self,
        trip: RoundTrip,
        grant: &Grant,
        timing: &Timing,
    ) -> Result<Moment, Token> {
        let token = grant.hold.token;
        if let Some(greatest) = self.greatest.filter(|greatest| *greatest >= token) {
            return Err(greatest);
        }
        self.greatest = Some(token);
        let lineage = grant.lineage;
        let from = match self.last.take() {
            Some(last) => {
                let credible = last.credible(lineage.origin, grant.store_time, trip, timing);
                last.over_at(credible, lineage.before, trip, timing)
            }
            None => trip.back,
        };
        // The last observed holder may itself have been in a start-up wait, so the wait that the store requires applies to
        // every candidate.
        let required = grant.wait.map_or(Duration::ZERO, |wait| wait.left);
        self.not_before = self.not_before.max(from).max(trip.back + required);
        Ok(self.not_before.max(trip.back))
    }
}

impl Sighting {
    /// Whether the store still has the observed record, and its clock has not run ahead of the local clock since.
    fn credible(
        &self,
        origin: Token,
        store_time: Option<StoreTime>,
        trip: RoundTrip,
        timing: &Timing,
    ) -> bool {
        let alike = match (self.store_time, store_time) {
            (Some(then), Some(now)) => {
                let elapsed = lengthened(trip.sent.since(self.back), timing.drift_ppm);
                now.since(then) <= elapsed + timing.tolerance(self.ttl)
            }
            // The store has no clock of its own: expiry was judged by the local clock.
            _ => true,
        };
        origin == self.origin && alike
    }

    /// When the observed term is certainly over, according to an answer that shows a later term.
    fn over_at(&self, credible: bool, before: Ended, trip: RoundTrip, timing: &Timing) -> Moment {
        // The term before the later one is never earlier than the observed term, unless the store has lost the observed term.
        let lost = before.token().is_some_and(|before| before < self.token);
        if lost || !credible {
            // The holder may have renewed until just before the store lost the record. The TTL of a later term that was not
            // observed is unknown: it is assumed to be the local one.
            let unobserved = before.token() != Some(self.token);
            let ttl = if unobserved { self.ttl.max(timing.ttl) } else { self.ttl };
            return trip.back + lengthened(ttl, timing.drift_ppm);
        }
        match before {
            Ended::Released(token) | Ended::Died(token) if token == self.token => Moment::PAST,
            // It ended before its time, as a session of the store's server can: its holder may have renewed since this
            // candidate observed it.
            Ended::Expired(token) if token == self.token && trip.back < self.floor => {
                trip.back + lengthened(self.ttl, timing.drift_ppm)
            }
            // A store that lost its last writes can expire a term before the time that it had promised.
            _ => self.floor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{
        CandidateId, Hold, Holder, Lineage, Name, Nonce, Note, StartupWait, WaitReason,
    };
    use crate::store::{Grade, Limits};
    use crate::timing::TimingOptions;

    const TTL: Duration = Duration::from_secs(4);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(1_000_000_000_000) + Duration::from_millis(ms)
    }

    fn trip(ms: u64) -> RoundTrip {
        RoundTrip { sent: at(ms), back: at(ms + 2) }
    }

    fn timing() -> Timing {
        Timing::new(&TimingOptions::default(), &Limits::new(Grade::B)).unwrap()
    }

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn lease(number: u64, origin: u64, before: Ended, store_ms: u64, left: u64) -> Lease {
        Lease {
            name: Name::new("n").unwrap(),
            holder: Some(Holder { id: "a".into(), nonce: None }),
            token: Some(token(number)),
            ttl: TTL,
            left: Duration::from_millis(left),
            since: None,
            note: Note::default(),
            next: None,
            lineage: Some(Lineage { origin: token(origin), before }),
            checkpoint: None,
            store_time: Some(StoreTime(store_ms * 1_000)),
            wait: None,
            history: Vec::new(),
        }
    }

    fn grant(number: u64, origin: u64, before: Ended, store_ms: u64) -> Grant {
        Grant {
            hold: Hold {
                name: Name::new("n").unwrap(),
                candidate: CandidateId::new("b").unwrap(),
                nonce: Nonce::from_bits(1),
                token: token(number),
            },
            lineage: Lineage { origin: token(origin), before },
            checkpoint: None,
            store_time: Some(StoreTime(store_ms * 1_000)),
            wait: None,
            counts_from: None,
        }
    }

    fn wait(seconds: u64) -> Option<StartupWait> {
        let left = Duration::from_secs(seconds);
        Some(StartupWait { left, reason: WaitReason::Restarted })
    }

    /// A waiting candidate observes term 5 at 0 ms with 4 s left. Returns from when it may lead what it is granted at `ms`.
    fn after_observation(ms: u64, granted: Grant) -> u64 {
        let mut sightings = Sightings::default();
        sightings.observe(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        let from = sightings.lead_from(trip(ms), &granted, &timing()).unwrap();
        u64::try_from(from.since(at(0)).as_millis()).unwrap()
    }

    fn after_origin_check(
        sightings: &mut Sightings,
        ms: u64,
        granted: &Grant,
        latest_token: Option<Token>,
    ) -> Result<Moment, Token> {
        sightings.check_origin(trip(ms), granted.lineage.origin, latest_token, &timing());
        sightings.lead_from(trip(ms), granted, &timing())
    }

    #[test]
    fn the_term_after_one_that_ended_normally_is_led_at_once() {
        assert_eq!(after_observation(500, grant(6, 1, Ended::Released(token(5)), 500)), 502);
        assert_eq!(after_observation(500, grant(6, 1, Ended::Died(token(5)), 500)), 502);
        assert_eq!(after_observation(4_003, grant(6, 1, Ended::Expired(token(5)), 4_003)), 4_005);
        // The lease was renewed and taken over in between, all on a correct store.
        assert_eq!(after_observation(9_000, grant(8, 1, Ended::Released(token(7)), 9_000)), 9_002);
    }

    #[test]
    fn a_record_that_vanished_is_led_only_after_the_remembered_ttl() {
        assert_eq!(after_observation(500, grant(6, 6, Ended::Nothing, 500)), 502 + 4_004);
        // Another candidate held and released the lease in between: the origin still shows the flush.
        assert_eq!(
            after_observation(500, grant(7, 6, Ended::Released(token(6)), 500)),
            502 + 4_004
        );
    }

    #[test]
    fn a_term_missing_from_the_record_is_treated_as_lost() {
        // The store went back to a state in which term 4 was the last.
        assert_eq!(
            after_observation(500, grant(6, 1, Ended::Released(token(4)), 500)),
            502 + 4_004
        );
        assert_eq!(after_observation(500, grant(6, 1, Ended::Expired(token(4)), 500)), 502 + 4_004);
    }

    #[test]
    fn a_store_whose_time_ran_ahead_is_not_trusted() {
        assert_eq!(
            after_observation(500, grant(6, 1, Ended::Expired(token(5)), 60_500)),
            502 + 4_004
        );
        // A difference within the holder's margin is accepted.
        assert_eq!(after_observation(3_700, grant(6, 1, Ended::Expired(token(5)), 4_001)), 3_702);
    }

    #[test]
    fn a_term_that_ended_before_its_time_is_treated_as_lost() {
        // Its holder may have renewed at 3,200 ms, and this candidate observed it at 0 ms.
        assert_eq!(
            after_observation(3_300, grant(6, 1, Ended::Expired(token(5)), 3_300)),
            3_302 + 4_004
        );
    }

    #[test]
    fn an_unobserved_later_term_counts_with_the_local_ttl() {
        let mut sightings = Sightings::default();
        let short = Lease { ttl: TTL / 4, ..lease(5, 1, Ended::Nothing, 0, 1_000) };
        sightings.observe(trip(0), &short, &timing());
        // Term 6 began and ended while the clock was set forward.
        let grant = grant(7, 1, Ended::Expired(token(6)), 60_500);
        assert_eq!(sightings.lead_from(trip(500), &grant, &timing()), Ok(at(502 + 4_004)));
    }

    #[test]
    fn observing_a_later_holder_keeps_the_wait_for_the_first() {
        let mut sightings = Sightings::default();
        sightings.observe(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        sightings.observe(trip(1_000), &lease(6, 6, Ended::Nothing, 1_000, 4_000), &timing());
        let grant = grant(7, 6, Ended::Released(token(6)), 1_100);
        assert_eq!(sightings.lead_from(trip(1_100), &grant, &timing()), Ok(at(1_002 + 4_004)));
    }

    #[test]
    fn a_clock_set_forward_between_two_observations_of_one_term_is_remembered() {
        let mut sightings = Sightings::default();
        sightings.observe(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        sightings.observe(trip(100), &lease(5, 1, Ended::Nothing, 3_100, 900), &timing());
        let grant = grant(6, 1, Ended::Expired(token(5)), 4_001);
        assert_eq!(sightings.lead_from(trip(1_001), &grant, &timing()), Ok(at(102 + 4_004)));
    }

    #[test]
    fn the_wait_of_the_store_applies_to_new_and_waiting_candidates() {
        let mut young = grant(6, 6, Ended::Nothing, 0);
        young.wait = wait(12);
        let from = Sightings::default().lead_from(trip(0), &young, &timing());
        assert_eq!(from, Ok(at(12_002)));
        // It observed only the previous holder, which was in a start-up wait too and released without having led.
        let mut released = grant(6, 1, Ended::Released(token(5)), 500);
        released.wait = wait(9);
        assert_eq!(after_observation(500, released), 502 + 9_000);
    }

    #[test]
    fn a_former_holder_waits_when_the_store_has_lost_the_record() {
        let mut sightings = Sightings::default();
        let own = grant(5, 1, Ended::Nothing, 0);
        assert_eq!(after_origin_check(&mut sightings, 0, &own, None), Ok(at(2)));
        // It released term 5, another candidate held term 6, and the store has lost both.
        let anew = grant(7, 7, Ended::Nothing, 900);
        assert_eq!(after_origin_check(&mut sightings, 900, &anew, None), Ok(at(902 + 4_004)));
        // It knows everything that follows in the new record.
        let next = grant(9, 7, Ended::Released(token(8)), 9_000);
        assert_eq!(after_origin_check(&mut sightings, 9_000, &next, None), Ok(at(9_002)));
    }

    #[test]
    fn a_token_from_a_notification_is_kept_when_the_record_is_lost() {
        let latest_token = Some(token(5));
        let anew = grant(7, 6, Ended::Released(token(6)), 900);
        let from = after_origin_check(&mut Sightings::default(), 900, &anew, latest_token);
        assert_eq!(from, Ok(at(902 + 4_004)));
        let same = grant(7, 5, Ended::Released(token(6)), 900);
        let from = after_origin_check(&mut Sightings::default(), 900, &same, latest_token);
        assert_eq!(from, Ok(at(902)));
    }

    #[test]
    fn a_forged_hint_neither_refuses_a_grant_nor_hides_a_loss() {
        let mut sightings = Sightings::default();
        sightings.observe(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        let (made_up, anew) = (Some(token(1 << 52)), grant(7, 7, Ended::Nothing, 900));
        let from = after_origin_check(&mut sightings, 900, &anew, made_up);
        assert_eq!(from, Ok(at(902 + 4_004)));
    }

    #[test]
    fn a_holder_observed_after_a_loss_proves_nothing_about_earlier_terms() {
        let mut sightings = Sightings::default();
        sightings.lead_from(trip(0), &grant(5, 1, Ended::Nothing, 0), &timing()).unwrap();
        // It holds term 7 and waits, because the store may have lost a term 6; then it releases.
        sightings.check_origin(trip(900), token(7), None, &timing());
        sightings.observe(trip(900), &lease(7, 7, Ended::Nothing, 900, 4_000), &timing());
        let next = grant(8, 7, Ended::Released(token(7)), 1_000);
        assert_eq!(after_origin_check(&mut sightings, 1_000, &next, None), Ok(at(902 + 4_004)));
    }

    #[test]
    fn a_token_that_went_back_is_refused() {
        let mut sightings = Sightings::default();
        sightings.observe(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        let old = grant(5, 5, Ended::Nothing, 1_000);
        assert_eq!(sightings.lead_from(trip(1_000), &old, &timing()), Err(token(5)));
    }
}
