//! PURE: what a waiter has seen of the holder, and so what it need not believe of the store.
//!
//! A store can forget (a flush, an eviction, a restart without persistence, a failover to a replica that was behind)
//! or its clock can be set forward; each frees a lease whose holder still counts on it. A waiter that has seen that holder
//! alive notices: the record's origin is another one, or the store's time ran ahead of its own. Then it holds
//! and renews what it was granted, but leads only when the holder it remembers must have stopped.
//!
//! Whoever had the lease itself, or only heard that it was granted, has seen no holder since. It notices that the record
//! begins after the last term it knows of: somebody may have come in between whom the store has forgotten.

use crate::clock::Moment;
use crate::lease::{Ended, Grant, Lease, StoreTime, Token};
use crate::observation::lengthened;
use crate::timing::Timing;
use std::time::Duration;

/// When a request was sent and when its answer was there: what it tells was true at some moment in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    pub(super) sent: Moment,
    pub(super) back: Moment,
}

#[derive(Debug, Default)]
pub(super) struct Sightings {
    /// Boxed: a holder has none, and one member of a fleet holds very many.
    seen: Option<Box<Sighting>>,
    /// No term may be led before this, whatever the store says.
    not_before: Moment,
    /// The greatest token this name ever showed.
    greatest: Option<Token>,
}

/// The last sight of a live holder.
#[derive(Debug)]
struct Sighting {
    token: Token,
    origin: Token,
    ttl: Duration,
    store_time: Option<StoreTime>,
    back: Moment,
    /// The store has said that the lease would last until then.
    floor: Moment,
}

impl Sightings {
    /// A record that begins after a term we know of tells nothing of who came next, who may have been renewed until just
    /// before it began. `heard` is the last term that we were told of: it counts where nothing better is known, for it is
    /// a hint and may be made up. To be asked before an answer is remembered.
    pub(super) fn doubt(
        &mut self,
        trip: RoundTrip,
        origin: Token,
        heard: Option<Token>,
        timing: &Timing,
    ) {
        if self.greatest.or(heard).is_some_and(|known| origin > known) {
            let over = trip.back + lengthened(timing.ttl, timing.drift_ppm);
            self.not_before = self.not_before.max(over);
        }
    }

    /// A look at the lease showed this.
    pub(super) fn saw(&mut self, trip: RoundTrip, lease: &Lease, timing: &Timing) {
        let (Some(token), Some(lineage)) = (lease.token, lease.lineage) else {
            return; // A stranger, whose rules we do not know.
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
        if let Some(seen) = self.seen.take() {
            let credible = seen.credible(lineage.origin, lease.store_time, trip, timing);
            if seen.token == token && credible {
                now.floor = floor.max(seen.floor);
            } else {
                let before = if seen.token == token { Ended::Nothing } else { lineage.before };
                self.not_before = self.not_before.max(seen.over_at(credible, before, trip, timing));
            }
        }
        self.seen = Some(Box::new(now));
    }

    /// Whether the last live holder that was seen is of an earlier term than this one.
    pub(super) fn lags_behind(&self, token: Token) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.token < token)
    }

    /// Whether a term this late was seen already.
    pub(super) fn knows(&self, token: Token) -> bool {
        self.greatest >= Some(token)
    }

    /// From when a term granted like this may be led; `Err` if its token is one this name has already had.
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
        let from = match self.seen.take() {
            Some(seen) => {
                let credible = seen.credible(lineage.origin, grant.store_time, trip, timing);
                seen.over_at(credible, lineage.before, trip, timing)
            }
            None => trip.back,
        };
        // Whoever was seen last may itself have been held back, so the store's own doubt counts for everybody.
        let required = grant.wait.map_or(Duration::ZERO, |wait| wait.left);
        self.not_before = self.not_before.max(from).max(trip.back + required);
        Ok(self.not_before.max(trip.back))
    }
}

impl Sighting {
    /// Whether the store still has the record we saw, and its clock has not run ahead of ours since.
    fn credible(
        &self,
        origin: Token,
        store_time: Option<StoreTime>,
        trip: RoundTrip,
        timing: &Timing,
    ) -> bool {
        let alike = match (self.store_time, store_time) {
            (Some(then), Some(now)) => {
                let ours = lengthened(trip.sent.since(self.back), timing.drift_ppm);
                now.since(then) <= ours + timing.tolerance(self.ttl)
            }
            // It has no clock of its own: expiry was judged by ours.
            _ => true,
        };
        origin == self.origin && alike
    }

    /// When this term is certainly over, seen from an answer that shows a later one.
    fn over_at(&self, credible: bool, before: Ended, trip: RoundTrip, timing: &Timing) -> Moment {
        // The term before the later one is never earlier than the one that was seen, unless the store has lost that one.
        let lost = before.token().is_some_and(|before| before < self.token);
        if lost || !credible {
            // It may have been renewed until just before the store lost it. Of a later term that was not seen the TTL is
            // not known: it is taken to be our own.
            let unseen = before.token() != Some(self.token);
            let ttl = if unseen { self.ttl.max(timing.ttl) } else { self.ttl };
            return trip.back + lengthened(ttl, timing.drift_ppm);
        }
        match before {
            Ended::Released(token) | Ended::Died(token) if token == self.token => Moment::NEVER,
            // A store that lost its last writes can let a term run out before the time it had promised us.
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
    use crate::timing::Options;

    const TTL: Duration = Duration::from_secs(4);

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(1_000_000_000_000) + Duration::from_millis(ms)
    }

    fn trip(ms: u64) -> RoundTrip {
        RoundTrip { sent: at(ms), back: at(ms + 2) }
    }

    fn timing() -> Timing {
        Timing::new(&Options::default(), &Limits::new(Grade::B)).unwrap()
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
        }
    }

    fn wait(seconds: u64) -> Option<StartupWait> {
        let left = Duration::from_secs(seconds);
        Some(StartupWait { left, reason: WaitReason::Restarted })
    }

    /// A waiter sees term 5 at 0 ms with 4 s left; what it is granted at `ms` may be led from …
    fn after_sight(ms: u64, granted: Grant) -> u64 {
        let mut memory = Sightings::default();
        memory.saw(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        let from = memory.lead_from(trip(ms), &granted, &timing()).unwrap();
        u64::try_from(from.since(at(0)).as_millis()).unwrap()
    }

    fn after_doubt(
        memory: &mut Sightings,
        ms: u64,
        granted: &Grant,
        heard: Option<Token>,
    ) -> Result<Moment, Token> {
        memory.doubt(trip(ms), granted.lineage.origin, heard, &timing());
        memory.lead_from(trip(ms), granted, &timing())
    }

    #[test]
    fn what_ended_honestly_is_led_at_once() {
        assert_eq!(after_sight(500, grant(6, 1, Ended::Released(token(5)), 500)), 502);
        assert_eq!(after_sight(500, grant(6, 1, Ended::Died(token(5)), 500)), 502);
        assert_eq!(after_sight(4_003, grant(6, 1, Ended::Expired(token(5)), 4_003)), 4_005);
        // It was renewed and taken over in between, all on an honest store.
        assert_eq!(after_sight(9_000, grant(8, 1, Ended::Released(token(7)), 9_000)), 9_002);
    }

    #[test]
    fn a_record_that_vanished_is_led_only_after_the_remembered_ttl() {
        assert_eq!(after_sight(500, grant(6, 6, Ended::Nothing, 500)), 502 + 4_004);
        // Somebody else was there in between and released: the flush is still seen by the origin.
        assert_eq!(after_sight(500, grant(7, 6, Ended::Released(token(6)), 500)), 502 + 4_004);
    }

    #[test]
    fn a_term_that_is_missing_in_the_record_is_waited_for_like_a_lost_one() {
        // The store went back to a state in which term 4 was the last.
        assert_eq!(after_sight(500, grant(6, 1, Ended::Released(token(4)), 500)), 502 + 4_004);
        assert_eq!(after_sight(500, grant(6, 1, Ended::Expired(token(4)), 500)), 502 + 4_004);
    }

    #[test]
    fn a_store_whose_time_ran_ahead_is_not_believed() {
        assert_eq!(after_sight(500, grant(6, 1, Ended::Expired(token(5)), 60_500)), 502 + 4_004);
        // What the holder's margin makes up for is let through, but not before the promised time less that margin.
        assert_eq!(after_sight(3_700, grant(6, 1, Ended::Expired(token(5)), 4_001)), 3_702);
        assert_eq!(after_sight(3_300, grant(6, 1, Ended::Expired(token(5)), 3_300)), 3_602);
    }

    #[test]
    fn a_later_term_that_was_not_seen_counts_with_the_own_ttl() {
        let mut memory = Sightings::default();
        let short = Lease { ttl: TTL / 4, ..lease(5, 1, Ended::Nothing, 0, 1_000) };
        memory.saw(trip(0), &short, &timing());
        // Term 6 came and went while the clock was set forward.
        let grant = grant(7, 1, Ended::Expired(token(6)), 60_500);
        assert_eq!(memory.lead_from(trip(500), &grant, &timing()), Ok(at(502 + 4_004)));
    }

    #[test]
    fn a_sight_of_a_later_holder_does_not_wipe_out_the_doubt_about_the_first() {
        let mut memory = Sightings::default();
        memory.saw(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        memory.saw(trip(1_000), &lease(6, 6, Ended::Nothing, 1_000, 4_000), &timing());
        let grant = grant(7, 6, Ended::Released(token(6)), 1_100);
        assert_eq!(memory.lead_from(trip(1_100), &grant, &timing()), Ok(at(1_002 + 4_004)));
    }

    #[test]
    fn a_clock_set_forward_between_two_sights_of_one_term_is_remembered() {
        let mut memory = Sightings::default();
        memory.saw(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        memory.saw(trip(100), &lease(5, 1, Ended::Nothing, 3_100, 900), &timing());
        let grant = grant(6, 1, Ended::Expired(token(5)), 4_001);
        assert_eq!(memory.lead_from(trip(1_001), &grant, &timing()), Ok(at(102 + 4_004)));
    }

    #[test]
    fn the_stores_own_doubt_counts_for_newcomers_and_waiters_alike() {
        let mut young = grant(6, 6, Ended::Nothing, 0);
        young.wait = wait(12);
        let from = Sightings::default().lead_from(trip(0), &young, &timing());
        assert_eq!(from, Ok(at(12_002)));
        // It saw only the one before, who was held back too and released without having led.
        let mut released = grant(6, 1, Ended::Released(token(5)), 500);
        released.wait = wait(9);
        assert_eq!(after_sight(500, released), 502 + 9_000);
    }

    #[test]
    fn whoever_had_it_does_not_lead_at_once_what_the_store_has_forgotten() {
        let mut memory = Sightings::default();
        let own = grant(5, 1, Ended::Nothing, 0);
        assert_eq!(after_doubt(&mut memory, 0, &own, None), Ok(at(2)));
        // It gave term 5 back, somebody had term 6, and nothing of that is left.
        let anew = grant(7, 7, Ended::Nothing, 900);
        assert_eq!(after_doubt(&mut memory, 900, &anew, None), Ok(at(902 + 4_004)));
        // Of what comes next in the new record it knows everything.
        let next = grant(9, 7, Ended::Released(token(8)), 9_000);
        assert_eq!(after_doubt(&mut memory, 9_000, &next, None), Ok(at(9_002)));
    }

    #[test]
    fn what_was_only_heard_of_is_not_forgotten_with_the_record() {
        let heard = Some(token(5));
        let anew = grant(7, 6, Ended::Released(token(6)), 900);
        let from = after_doubt(&mut Sightings::default(), 900, &anew, heard);
        assert_eq!(from, Ok(at(902 + 4_004)));
        let same = grant(7, 5, Ended::Released(token(6)), 900);
        let from = after_doubt(&mut Sightings::default(), 900, &same, heard);
        assert_eq!(from, Ok(at(902)));
    }

    #[test]
    fn a_hint_that_is_made_up_neither_refuses_a_grant_nor_covers_a_loss() {
        let mut memory = Sightings::default();
        memory.saw(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        let (made_up, anew) = (Some(token(1 << 52)), grant(7, 7, Ended::Nothing, 900));
        let from = after_doubt(&mut memory, 900, &anew, made_up);
        assert_eq!(from, Ok(at(902 + 4_004)));
    }

    #[test]
    fn one_that_was_seen_after_the_store_forgot_is_no_proof_of_the_time_before() {
        let mut memory = Sightings::default();
        memory.lead_from(trip(0), &grant(5, 1, Ended::Nothing, 0), &timing()).unwrap();
        // It has term 7 and waits, for there may be a term 6 that nobody remembers; then it gives it back.
        memory.doubt(trip(900), token(7), None, &timing());
        memory.saw(trip(900), &lease(7, 7, Ended::Nothing, 900, 4_000), &timing());
        let next = grant(8, 7, Ended::Released(token(7)), 1_000);
        assert_eq!(after_doubt(&mut memory, 1_000, &next, None), Ok(at(902 + 4_004)));
    }

    #[test]
    fn a_token_that_went_back_is_refused() {
        let mut memory = Sightings::default();
        memory.saw(trip(0), &lease(5, 1, Ended::Nothing, 0, 4_000), &timing());
        let old = grant(5, 5, Ended::Nothing, 1_000);
        assert_eq!(memory.lead_from(trip(1_000), &old, &timing()), Err(token(5)));
    }
}
