//! PURE: what the machine learns about a lease that another candidate holds: answers, notifications, and what it warns about.

use std::sync::Arc;
use std::time::Duration;

use super::sightings::RoundTrip;
use super::{
    AFTER_EXPIRY_DELAY, Effect, HINT_OBSERVE_DELAY, Machine, Recheck, RequestId, State, leads_at,
};
use crate::clock::Moment;
use crate::error::Result;
use crate::lease::{Lease, Lineage};
use crate::store::Change;
use crate::timing::align_to_grid;

impl Machine {
    pub(super) fn observed(
        &mut self,
        now: Moment,
        request: RequestId,
        answer: Result<Option<Lease>>,
        out: &mut Vec<Effect>,
    ) {
        let State::Observing { request: expected, sent, recheck } = self.state else {
            return;
        };
        if request != expected {
            return;
        }
        match answer {
            Err(error) => self.failed(now, error, out),
            Ok(lease) => {
                self.answered(out);
                let trip = RoundTrip { sent, back: now };
                if self.campaigns() {
                    self.observed_campaigning(trip, lease.as_ref(), out);
                    return self.schedule_recheck(recheck);
                }
                // This candidate does not campaign, so it does not hurry when the lease is free or expires.
                let mut poll_at = align_to_grid(now + self.timing.retry, self.timing.retry);
                if let Some(lease) = lease {
                    poll_at = leads_at(trip, &lease).map_or(poll_at, |at| poll_at.min(at));
                    self.observe_lease(trip, &lease, out);
                }
                self.state = State::Waiting { poll_at };
                self.schedule_recheck(recheck);
            }
        }
    }

    /// Another candidate holds the lease: polls when the lease expires, or after the retry period if that is sooner.
    pub(super) fn wait_for(&mut self, trip: RoundTrip, lease: &Lease, out: &mut Vec<Effect>) {
        self.observe_lease(trip, lease, out);
        let jitter = self.rng.below((self.timing.ttl / 100).min(Duration::from_millis(10)));
        let expiry = trip.back + lease.left + AFTER_EXPIRY_DELAY + jitter;
        let at_the_latest = trip.back + self.timing.retry;
        // A poll just before the expiry would be useless.
        let soon_after = at_the_latest + self.timing.ttl / 10;
        let poll_at = if expiry <= soon_after { expiry } else { at_the_latest };
        let poll_at = leads_at(trip, lease).map_or(poll_at, |at| poll_at.min(at));
        self.state = State::Waiting { poll_at };
    }

    pub(super) fn changed(&mut self, now: Moment, change: &Change, out: &mut Vec<Effect>) {
        if self.accept_hint(now, change, out) {
            return;
        }
        // Poll to learn the current holder, or what was missed. The jitter keeps the candidates from polling at the same
        // instant.
        let jittered_now = now + self.rng.below(Duration::from_millis(5));
        let soon = match change {
            Change::Look => Recheck { at: jittered_now, unless: None },
            Change::Granted { token, .. } => {
                self.claim_from = None;
                Recheck { at: jittered_now, unless: Some(*token) }
            }
            Change::Freed { next, .. } => {
                Recheck { at: self.freed(now, next.as_ref()), unless: None }
            }
        };
        match &mut self.state {
            // Until then an observation would show nothing new, and a claim would be too early.
            State::Waiting { poll_at } if matches!(change, Change::Freed { .. }) => {
                *poll_at = soon.at;
            }
            State::Waiting { .. } => self.schedule_recheck(Some(soon)),
            State::Acquiring { recheck, .. } | State::Observing { recheck, .. }
                if recheck
                    .is_none_or(|recheck| soon.at <= recheck.at || recheck.unless.is_some()) =>
            {
                *recheck = Some(soon);
            }
            _ => {}
        }
    }

    /// A passive observer trusts `Granted` hints, so that it does not read each of many leases that are granted. The hint may
    /// be false: the observer claims nothing because of it, and polls in time anyway. If it observed the previous holder, it
    /// polls soon: otherwise it would not learn how that holder's term ended, and would wait for it later. Returns whether the
    /// change needs no further action.
    pub(super) fn accept_hint(
        &mut self,
        now: Moment,
        change: &Change,
        out: &mut Vec<Effect>,
    ) -> bool {
        // While its own release is in flight, it may learn of the next term before it learns that the release is done.
        let own_token = match &self.state {
            State::Waiting { .. } => None,
            State::Releasing { hold, .. } => Some(hold.token),
            _ => return false,
        };
        if self.campaigns() {
            return false;
        }
        let (token, holder) = match change {
            Change::Granted { token, holder: Some(holder), .. } => (token, holder),
            // It knows no holder, so nothing changes.
            Change::Freed { .. } => return self.holder.is_none(),
            _ => return false,
        };
        if Some(*token) > self.latest_token.max(own_token) {
            self.latest_token = Some(*token);
            if let State::Waiting { poll_at } = &mut self.state
                && self.sightings.lags_behind(*token)
            {
                *poll_at = (*poll_at).min(now + HINT_OBSERVE_DELAY);
            }
            self.set_holder(Some(holder.shared()), true, out);
        }
        true
    }

    pub(super) fn schedule_recheck(&mut self, recheck: Option<Recheck>) {
        let Some(Recheck { at, unless }) = recheck else {
            return;
        };
        if let State::Waiting { poll_at } = &mut self.state
            && !unless.is_some_and(|token| self.sightings.knows(token))
        {
            *poll_at = (*poll_at).min(at);
        }
    }

    pub(super) fn poll_soon(&mut self, now: Moment) {
        match &mut self.state {
            State::Waiting { poll_at } => *poll_at = now,
            // The candidate observes because it did not campaign. Now it does, and must act again as soon as the answer
            // arrives.
            State::Observing { recheck, .. } => *recheck = Some(Recheck { at: now, unless: None }),
            _ => {}
        }
    }

    pub(super) fn observe_lease(&mut self, trip: RoundTrip, lease: &Lease, out: &mut Vec<Effect>) {
        self.check_origin(trip, lease.lineage);
        self.sightings.observe(trip, lease, &self.timing);
        self.learn(lease, out);
    }

    pub(super) fn check_origin(&mut self, trip: RoundTrip, lineage: Option<Lineage>) {
        if let Some(lineage) = lineage
            && !self.grants_no_right
        {
            self.sightings.check_origin(trip, lineage.origin, self.latest_token, &self.timing);
        }
    }

    pub(super) fn learn(&mut self, lease: &Lease, out: &mut Vec<Effect>) {
        self.latest_token = self.latest_token.max(lease.token);
        let holder = lease.holder.as_ref().map(|holder| Arc::from(holder.id.as_str()));
        self.set_holder(holder, lease.wait.is_none(), out);
        self.warn_other_ttl(lease, out);
    }

    pub(super) fn set_holder(
        &mut self,
        holder: Option<Arc<str>>,
        leads: bool,
        out: &mut Vec<Effect>,
    ) {
        let leads = leads && holder.is_some();
        if holder.is_some() {
            self.claim_from = None;
        }
        if (&holder, leads) != (&self.holder, self.holder_leads) {
            out.push(Effect::HolderChanged(holder.as_deref().map(str::to_owned), leads));
            (self.holder, self.holder_leads) = (holder, leads);
        }
    }

    /// A candidate that waits for a lease which the store has lost counts its own TTL, so all candidates should use the same
    /// TTL.
    pub(super) fn warn_other_ttl(&mut self, lease: &Lease, out: &mut Vec<Effect>) {
        let Some(holder) = lease.holder.as_ref().filter(|holder| holder.nonce.is_some()) else {
            return;
        };
        // A store may keep whole milliseconds.
        let differs = lease.ttl.abs_diff(self.timing.ttl) >= Duration::from_millis(1);
        if differs && !self.grants_no_right && !self.warned_other_ttl {
            self.warned_other_ttl = true;
            out.push(Effect::Warn(format!(
                "candidate '{}' holds '{}' with a TTL of {:?}, this one uses {:?}: give all candidates the same TTL, \
                 or two may lead after a store restart that loses the lease",
                holder.id, self.name, lease.ttl, self.timing.ttl
            )));
        }
    }

    pub(super) fn report_same_id(&mut self, trip: RoundTrip, lease: &Lease, out: &mut Vec<Effect>) {
        let Some(holder) = &lease.holder else { return };
        let own = holder.nonce.is_some_and(|nonce| Some(nonce) == self.nonce);
        if !own && holder.id == self.candidate.as_str() && self.same_id.observe(trip, lease) {
            out.push(Effect::SameId);
        }
    }
}
