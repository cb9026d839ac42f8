//! Writes whose effect is not known yet, in a service where many leases share a session.
//!
//! A claim or a release can be lost, or arrive after its caller has given up. Elsewhere the TTL decides then. Under a session
//! that other leases keep alive, a document that no caller holds would stay for ever. So every such write is recorded before it
//! is sent, and forgotten only when its effect is known.
//!
//! While a call is in flight its writes are not touched: its caller may get the answer that it holds the lease. When the call has
//! returned without an answer, or was dropped, no caller relies on what it wrote.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Swap, TermTime};
use crate::lease::{Claim, Hold, Name, Nonce, Release};

/// The lease and the campaign of an unconfirmed write.
pub(super) type UnconfirmedKey = (Name, Nonce);

#[derive(Debug)]
pub(super) struct Unconfirmed<V>(Mutex<UnconfirmedWrites<V>>);

#[derive(Debug)]
struct UnconfirmedWrites<V> {
    writes: HashMap<UnconfirmedKey, UnconfirmedWrite<V>>,
    /// How many calls in flight may write for a campaign.
    in_flight: HashMap<UnconfirmedKey, u32>,
}

impl<V> Default for Unconfirmed<V> {
    fn default() -> Self {
        let (writes, in_flight) = (HashMap::new(), HashMap::new());
        Unconfirmed(Mutex::new(UnconfirmedWrites { writes, in_flight }))
    }
}

/// Campaigns with a call in flight, until it returns or is dropped.
pub(super) struct ClaimsInFlight<'a, V: Clone + PartialEq> {
    unconfirmed: &'a Unconfirmed<V>,
    keys: Vec<UnconfirmedKey>,
}

impl<V: Clone + PartialEq> Drop for ClaimsInFlight<'_, V> {
    fn drop(&mut self) {
        let mut state = self.unconfirmed.state();
        for key in &self.keys {
            if let Some(count) = state.in_flight.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    state.in_flight.remove(key);
                }
            }
        }
    }
}

#[derive(Debug)]
enum UnconfirmedWrite<V> {
    /// It replaces this version. While that is the current one, the write may still arrive.
    Claim(Option<V>),
    /// A release that arrives late does no harm.
    Release,
}

impl<V: Clone + PartialEq> Unconfirmed<V> {
    /// Marks the campaigns of these claims as in flight.
    pub(super) fn in_flight(&self, claims: &[Claim]) -> ClaimsInFlight<'_, V> {
        let keys: Vec<_> = claims.iter().map(|claim| (claim.name.clone(), claim.nonce)).collect();
        let mut state = self.state();
        for key in &keys {
            *state.in_flight.entry(key.clone()).or_default() += 1;
        }
        drop(state);
        ClaimsInFlight { unconfirmed: self, keys }
    }

    /// Records the claims among these swaps, before they are sent.
    pub(super) fn claims(&self, swaps: &[Swap<V>]) {
        for swap in swaps.iter().filter(|swap| swap.time == TermTime::Begins) {
            if let Some(key) = key(swap) {
                let expected = swap.expected.clone();
                self.state().writes.insert(key, UnconfirmedWrite::Claim(expected));
            }
        }
    }

    /// Records releases, before they are sent.
    pub(super) fn releases(&self, releases: &[Release]) {
        for Release { hold, .. } in releases {
            let key = (hold.name.clone(), hold.nonce);
            self.state().writes.insert(key, UnconfirmedWrite::Release);
        }
    }

    /// The service refused this swap.
    pub(super) fn refused(&self, swap: &Swap<V>) {
        if let Some(key) = key(swap).filter(|_| swap.time == TermTime::Begins) {
            self.state().writes.remove(&key);
        }
    }

    /// The effect of the write is known, and its caller holds what it left behind.
    pub(super) fn forget(&self, name: &Name, nonce: Nonce) {
        self.state().writes.remove(&(name.clone(), nonce));
    }

    /// Forgets a write that has left nothing behind, unless it may still arrive: it replaces the version that is the current
    /// one.
    pub(super) fn forget_unless_pending(&self, name: &Name, nonce: Nonce, current: Option<&V>) {
        let key = (name.clone(), nonce);
        let mut state = self.state();
        let pending = match state.writes.get(&key) {
            Some(UnconfirmedWrite::Claim(expected)) => expected.as_ref() == current,
            Some(UnconfirmedWrite::Release) | None => false,
        };
        if !pending {
            state.writes.remove(&key);
        }
    }

    /// Whether the write is still unconfirmed, and no call in flight may answer for it.
    pub(super) fn is_abandoned(&self, name: &Name, nonce: Nonce) -> bool {
        let key = (name.clone(), nonce);
        let state = self.state();
        state.writes.contains_key(&key) && !state.in_flight.contains_key(&key)
    }

    /// What is unconfirmed, not in flight, and not among these holds.
    pub(super) fn except(&self, held: &[Hold]) -> Vec<UnconfirmedKey> {
        let mut state = self.state();
        if state.writes.is_empty() {
            return Vec::new();
        }
        // What is renewed is held, so its claim has arrived.
        for hold in held {
            state.writes.remove(&(hold.name.clone(), hold.nonce));
        }
        state.abandoned().cloned().collect()
    }

    /// What earlier campaigns for these names have left unconfirmed.
    pub(super) fn other_campaigns(&self, claims: &[Claim]) -> Vec<UnconfirmedKey> {
        let state = self.state();
        if state.writes.is_empty() {
            return Vec::new();
        }
        let is_other = |key: &&UnconfirmedKey| {
            claims.iter().any(|claim| claim.name == key.0 && claim.nonce != key.1)
        };
        state.abandoned().filter(is_other).cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, UnconfirmedWrites<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> UnconfirmedWrites<V> {
    /// The writes that no call in flight may still answer for.
    fn abandoned(&self) -> impl Iterator<Item = &UnconfirmedKey> {
        self.writes.keys().filter(|key| !self.in_flight.contains_key(*key))
    }
}

fn key<V>(swap: &Swap<V>) -> Option<UnconfirmedKey> {
    Some((swap.name.clone(), swap.record.term.as_ref()?.nonce?))
}
