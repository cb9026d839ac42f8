//! PURE: the leases that a watcher has observed; comparing a new observation with them gives the events.

use std::collections::BTreeMap;

use serde::Serialize;
use tenure::{Ended, Lease, Name, Token};

use crate::startup_wait;

/// One line of `tenure watch --json`, without the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatchEvent {
    /// `state` first, then `starting` (a new holder in its start-up wait), `became` (a new leader), `lost` (freed),
    /// `changed` (the same leader in another term), `store`.
    pub(super) event: &'static str,
    pub(super) name: Option<String>,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) token: Option<u64>,
    pub(super) reason: Option<String>,
    /// The candidate that holds the lease but does not lead yet; the next field has its remaining wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) starts_in_ms: Option<u64>,
}

/// The last observed state of one lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KnownLease {
    leader: Option<String>,
    /// The holder in its start-up wait, which does not lead yet.
    starting: Option<String>,
    token: Option<Token>,
}

/// The last observed state of each lease. The store may repeat hints, so only a difference is an event.
#[derive(Debug, Default)]
pub(super) struct KnownLeases(BTreeMap<Name, KnownLease>);

impl KnownLeases {
    /// Records the first observation, and returns one `state` event for each lease.
    pub(super) fn open(&mut self, leases: &[Lease]) -> Vec<WatchEvent> {
        let state = |lease: &Lease| {
            let known = KnownLease::of(lease);
            let event = known.event("state", &lease.name, None, None).with_wait(lease);
            self.0.insert(lease.name.clone(), known);
            event
        };
        leases.iter().map(state).collect()
    }

    /// Records an observation, and returns the events. A name that is not among `leases` is gone, unless some leases could not
    /// be read.
    pub(super) fn update(&mut self, leases: &[Lease], all_read: bool) -> Vec<WatchEvent> {
        let mut events: Vec<WatchEvent> =
            leases.iter().flat_map(|lease| self.compare(lease)).collect();
        if all_read {
            for (name, known) in &mut self.0 {
                let is_gone = !leases.iter().any(|lease| lease.name == *name);
                if let Some(from) = known.leader.take_if(|_| is_gone) {
                    let reason = Some("the record is gone".to_owned());
                    events.push(known.event("lost", name, Some(from), reason));
                }
            }
        }
        events
    }

    fn compare(&mut self, lease: &Lease) -> impl Iterator<Item = WatchEvent> + use<> {
        let now = KnownLease::of(lease);
        let before = self.0.insert(lease.name.clone(), now.clone()).unwrap_or_default();
        let starts = now.starting.is_some()
            && (&now.starting, now.token) != (&before.starting, before.token);
        let starting =
            starts.then(|| now.event("starting", &lease.name, None, None).with_wait(lease));
        Self::leader_change(&before, &now, lease).into_iter().chain(starting)
    }

    fn leader_change(before: &KnownLease, now: &KnownLease, lease: &Lease) -> Option<WatchEvent> {
        let ended = lease.lineage.and_then(|lineage| how(lineage.before)).map(str::to_owned);
        let from = before.leader.clone();
        let (event, reason) = match (&before.leader, &now.leader) {
            (None, None) => return None,
            (Some(_), None) => ("lost", ended),
            (None, Some(_)) => ("became", None),
            (Some(old), Some(new)) if old != new => ("became", ended),
            _ if before.token == now.token => return None,
            _ if is_revoked(lease) => ("changed", Some("revoked".to_owned())),
            _ => ("changed", ended),
        };
        Some(now.event(event, &lease.name, from, reason))
    }
}

impl KnownLease {
    fn of(lease: &Lease) -> KnownLease {
        let starting = lease.holder.as_ref().filter(|_| lease.wait.is_some());
        KnownLease {
            leader: lease.leader().map(str::to_owned),
            starting: starting.map(|holder| holder.id.clone()),
            token: lease.token,
        }
    }

    fn event(
        &self,
        event: &'static str,
        name: &Name,
        from: Option<String>,
        reason: Option<String>,
    ) -> WatchEvent {
        let token = self.token.map(Token::get);
        let (name, to) = (Some(name.to_string()), self.leader.clone());
        WatchEvent { event, name, from, to, token, reason, holder: None, starts_in_ms: None }
    }
}

impl WatchEvent {
    /// Adds the holder of a lease that is in its start-up wait.
    fn with_wait(self, lease: &Lease) -> WatchEvent {
        let Some(wait) = &lease.wait else { return self };
        WatchEvent {
            holder: lease.holder.as_ref().map(|holder| holder.id.clone()),
            starts_in_ms: Some(startup_wait::in_millis(wait.left)),
            reason: Some(wait.reason.to_string()),
            ..self
        }
    }
}

/// Whether the lease was revoked: the holder has time left but no nonce to renew with. A foreign key has no lineage either.
fn is_revoked(lease: &Lease) -> bool {
    lease.lineage.is_some() && lease.holder.as_ref().is_some_and(|holder| holder.nonce.is_none())
}

/// How a term ended, if that is known.
fn how(ended: Ended) -> Option<&'static str> {
    (ended != Ended::Nothing).then_some(ended.as_str())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure::{Holder, Lineage, Nonce, StartupWait, WaitReason};

    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn lease(holder: Option<&str>, number: u64, before: Ended) -> Lease {
        let nonce = Some(Nonce::from_bits(1));
        let mut lease = Lease::free(Name::new("x").unwrap());
        lease.holder = holder.map(|id| Holder::new(id, nonce));
        lease.token = Some(token(number));
        lease.lineage = Some(Lineage::new(token(1), before));
        lease
    }

    /// Event, from, to and reason of the only event, if there is one.
    fn only_event(events: &[WatchEvent]) -> Option<(&str, &str, &str, &str)> {
        assert!(events.len() < 2, "{events:?}");
        let text = |field: &'static str| field;
        events.first().map(|event| {
            let or = |field: &Option<String>| field.clone().map_or(text("-"), |it| it.leak());
            (event.event, or(&event.from), or(&event.to), or(&event.reason))
        })
    }

    #[test]
    fn each_change_of_a_lease_is_reported_once() {
        let mut known = KnownLeases::default();
        assert_eq!(only_event(&known.open(&[])), None);
        let mut revoked = lease(Some("b"), 4, Ended::Released(token(1)));
        revoked.holder.as_mut().unwrap().nonce = None;
        for (lease, expected) in [
            (lease(Some("a"), 1, Ended::Nothing), ("became", "-", "a", "-")),
            (lease(None, 1, Ended::Released(token(1))), ("lost", "a", "-", "released")),
            (lease(Some("a"), 2, Ended::Released(token(1))), ("became", "-", "a", "-")),
            (lease(Some("b"), 3, Ended::Expired(token(2))), ("became", "a", "b", "expired")),
            (revoked, ("changed", "b", "b", "revoked")),
            (lease(Some("b"), 5, Ended::Died(token(4))), ("changed", "b", "b", "died")),
        ] {
            assert_eq!(
                only_event(&known.update(std::slice::from_ref(&lease), true)),
                Some(expected)
            );
            assert_eq!(only_event(&known.update(&[lease], true)), None, "once");
        }
        let wait = StartupWait::new(Duration::from_secs(4), WaitReason::Restarted);
        let mut starting = lease(Some("c"), 6, Ended::Nothing);
        starting.wait = Some(wait);
        let events = known.update(std::slice::from_ref(&starting), true);
        let kinds: Vec<_> = events.iter().map(|event| (event.event, event.to.as_deref())).collect();
        assert_eq!(kinds, [("lost", None), ("starting", None)], "it is not named as the leader");
        assert_eq!((events[1].holder.as_deref(), events[1].starts_in_ms), (Some("c"), Some(4_000)));
        assert_eq!(only_event(&known.update(&[starting], true)), None, "once");
        let leads = lease(Some("c"), 6, Ended::Nothing);
        assert_eq!(only_event(&known.update(&[leads], true)), Some(("became", "-", "c", "-")));
        let back = lease(Some("b"), 7, Ended::Released(token(6)));
        known.update(&[back], true);
        assert_eq!(
            only_event(&known.update(&[], false)),
            None,
            "it may be the one that was not read"
        );
        let gone = Some(("lost", "b", "-", "the record is gone"));
        assert_eq!(only_event(&known.update(&[], true)), gone);
        assert_eq!(only_event(&known.update(&[], true)), None);
    }
}
