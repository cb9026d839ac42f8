//! `tenure doctor NAME`: explains why a lease has no leader, or not the expected one.
//!
//! A pure function turns the observed state into sentences, so that tests need no store in that state.

use std::time::Duration;

use serde::Serialize;
use tenure::presence::present;
use tenure::request::RemoteRequest;
use tenure::store::{Scope, Store, Visibility};
use tenure::{Clock, Ended, Error, Holder, Lease, Name, OWN_PREFIX, Result};

use crate::candidate::Candidate;
use crate::settings::nearest;
use crate::{duration, output, startup_wait, store_access, time};

use super::candidates;

/// The time between two observations of a free lease. A handover between two leaders takes much less.
const FREE_RECHECK_DELAY: Duration = Duration::from_secs(1);
/// The remaining time that the Redis store reports for a foreign key without expiry.
const NO_EXPIRY: Duration = Duration::from_secs(24 * 60 * 60);

/// The observed state of one lease and its surroundings.
#[derive(Debug)]
pub(super) struct LeaseSnapshot {
    name: Name,
    lease: Option<Result<Lease>>,
    /// The candidates that have a presence.
    candidates: Vec<Candidate>,
    /// The pending remote request to the candidates, if there is one.
    request: Option<Lease>,
    /// The other names on this store; read only if the requested name was never used.
    others: Vec<Name>,
    /// Whether other machines see this store.
    visibility: Visibility,
    /// The store and where its URL came from.
    store: String,
}

/// The conclusions from a [`LeaseSnapshot`]: part of the JSON output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LeaseFinding {
    pub(super) name: String,
    current_leader: Option<String>,
    starts_in_ms: Option<u64>,
    token: Option<u64>,
    expires_in_ms: Option<u64>,
    candidates: Vec<Candidate>,
    pub(super) findings: Vec<String>,
    /// No candidate can lead before an operator has acted.
    #[serde(skip)]
    pub(super) is_stuck: bool,
}

/// Observes a lease. A free lease is observed twice, because it may be in a handover to the next leader.
pub(super) async fn observe(store: &dyn Store, origin: &str, name: &Name) -> Result<LeaseSnapshot> {
    let mut lease = observe_one(store, name).await?;
    if matches!(&lease, Some(Ok(lease)) if lease.holder.is_none()) {
        Clock::boot().sleep(FREE_RECHECK_DELAY).await;
        lease = observe_one(store, name).await?;
    }
    let lease = lease.filter(|lease| !matches!(lease, Ok(lease) if is_unused(lease)));
    let nodes =
        store_access::with_timeout(&store.url(), store_access::STORE_TIMEOUT, present(store, name))
            .await?;
    let held = lease.as_ref().and_then(|lease| lease.as_ref().ok());
    let holder = held.and_then(|lease| {
        let state = if lease.wait.is_some() { "starting" } else { "leading" };
        Some((lease.holder.as_ref()?.id.as_str(), state))
    });
    let candidates = nodes.iter().map(|node| Candidate::new(node, holder)).collect();
    let request = observe_one(store, &name.request_name()).await?.and_then(Result::ok);
    let others = match lease {
        Some(_) => Vec::new(),
        None => observe_other_names(store).await?,
    };
    Ok(LeaseSnapshot {
        name: name.clone(),
        lease,
        candidates,
        request: request.filter(|request| request.holder.is_some()),
        others,
        visibility: store.limits().visibility,
        store: format!("{} {origin}", store.url()),
    })
}

async fn observe_one(store: &dyn Store, name: &Name) -> Result<Option<Result<Lease>>> {
    Ok(store_access::observe(store, &Scope::name(name)).await?.pop())
}

async fn observe_other_names(store: &dyn Store) -> Result<Vec<Name>> {
    let all = store_access::observe(store, &Scope::Prefix(String::new())).await?;
    let names = all.into_iter().flatten().filter(|lease| !is_unused(lease)).map(|lease| lease.name);
    Ok(names.filter(|name| !name.as_str().starts_with(OWN_PREFIX)).collect())
}

/// Whether the name was never used. A store may return a lease for a name that has no record.
fn is_unused(lease: &Lease) -> bool {
    lease.holder.is_none() && lease.token.is_none()
}

impl LeaseSnapshot {
    pub(super) fn finding(&self) -> LeaseFinding {
        let mut findings = Vec::new();
        let mut is_stuck = false;
        // Presence comes first: it shows what to do next.
        findings.extend(candidates::sentence(&self.name, &self.candidates));
        let led = matches!(&self.lease, Some(Ok(lease)) if lease.holder.is_some());
        let none_can_lead = self.candidates.iter().all(|candidate| !candidate.could_lead());
        let held_back = !led && !self.candidates.is_empty() && none_can_lead;
        match &self.lease {
            None => self.never_used(&mut findings),
            Some(Err(error)) => is_stuck = self.unreadable(error, &mut findings),
            Some(Ok(lease)) => match &lease.holder {
                None => self.free(lease, &mut findings),
                Some(_) if lease.wait.is_some() => findings.extend(starting(lease)),
                Some(holder) if holder.nonce.is_some() => self.held(lease, holder, &mut findings),
                Some(holder) if lease.lineage.is_some() => {
                    self.revoked(lease, holder, &mut findings)
                }
                Some(holder) => is_stuck = self.foreign(lease, holder, &mut findings),
            },
        }
        findings.extend(self.pending_request());
        let lease = self.lease.as_ref().and_then(|lease| lease.as_ref().ok());
        let holder = lease.and_then(|lease| lease.holder.as_ref());
        let expiring = lease.filter(|lease| holder.is_some() && !never_expires(lease));
        let left = expiring.map(|lease| lease.left.as_millis());
        LeaseFinding {
            name: self.name.to_string(),
            current_leader: lease.and_then(Lease::leader).map(str::to_owned),
            starts_in_ms: lease.and_then(|lease| Some(startup_wait::in_millis(lease.wait?.left))),
            token: lease.and_then(|lease| lease.token).map(|token| token.get()),
            expires_in_ms: left.map(|left| u64::try_from(left).unwrap_or(u64::MAX)),
            candidates: self.candidates.clone(),
            findings,
            is_stuck: is_stuck || held_back,
        }
    }

    fn never_used(&self, findings: &mut Vec<String>) {
        let LeaseSnapshot { name, store, .. } = self;
        if !self.candidates.is_empty() {
            findings.insert(0, format!("Nobody has led '{name}' on this store yet."));
            return;
        }
        findings.push(format!(
            "Nobody has ever led '{name}' on {store}: nobody has campaigned for it, or under another \
             name, or on another store."
        ));
        let near = nearest(name.as_str(), self.others.iter().map(Name::as_str));
        findings.push(match (near, self.others.len()) {
            (_, 0) => "There is no lease at all on this store.".to_owned(),
            (Some(near), _) => format!("There is '{near}', which is spelt almost the same."),
            (None, 1) => "There is another lease here: 'tenure status' shows it.".to_owned(),
            (None, n) => format!("There are {n} others here: 'tenure status' shows them."),
        });
        if self.visibility != Visibility::Network {
            findings.push(
                "Only this machine sees this store: candidates on other machines need one that all can \
                 reach."
                    .to_owned(),
            );
        }
        findings.push(format!(
            "Where a candidate should run, 'tenure run {name} --print-config' says which name and \
             store it uses, and why."
        ));
    }

    fn unreadable(&self, error: &Error, findings: &mut Vec<String>) -> bool {
        let name = &self.name;
        findings.push(output::printable(&error.to_string()));
        findings.push(format!(
            "What cannot be read is never overwritten, so nobody can lead '{name}' until an operator \
             has looked at it and taken it away."
        ));
        true
    }

    fn free(&self, lease: &Lease, findings: &mut Vec<String>) {
        let name = &self.name;
        let ended = match lease.lineage.map(|lineage| lineage.before) {
            Some(Ended::Released(token)) => format!("its holder released it in term {token}"),
            Some(Ended::Expired(token)) => format!(
                "term {token} ran out: its holder was frozen, cut off or gone, or it was revoked"
            ),
            Some(Ended::Died(token)) => format!("its holder died in term {token}"),
            _ => "how its last term ended is not known".to_owned(),
        };
        findings.push(format!("Nobody leads '{name}': {ended}."));
        if !self.candidates.is_empty() {
            return;
        }
        findings.push(format!(
            "No candidate shows itself here. A candidate that campaigns would have the lease by now: none is running, or \
             each uses --no-presence and is drained ('tenure undrain {name} ID') or unhealthy (--health), or cannot reach \
             this store."
        ));
        if let Some(next) = &lease.next {
            findings.push(format!("The last holder asked '{next}' to come next, and it has not."));
        }
        findings.push(format!("Candidates must use this store: {}.", self.store));
        findings.push(format!(
            "Where a candidate should run, 'tenure run {name} --print-config' says what it uses, and \
             why."
        ));
    }

    fn held(&self, lease: &Lease, holder: &Holder, findings: &mut Vec<String>) {
        let name = &self.name;
        let token = lease.token.map_or_else(String::new, |token| format!(" in term {token}"));
        let since = lease.since.map(time::rfc3339);
        let since = since.map_or_else(String::new, |since| format!(" since {since}"));
        findings.push(format!(
            "{} leads '{name}'{token}{since}; its lease runs out in {} unless it renews.",
            quoted(holder),
            left(lease)
        ));
        findings.push(match lease.lineage.map(|lineage| lineage.before) {
            Some(Ended::Released(_)) => "The term before was released.".to_owned(),
            Some(Ended::Expired(_)) => "The term before ran out, or was revoked.".to_owned(),
            Some(Ended::Died(_)) => "The holder before has died.".to_owned(),
            _ => "No term before this one is known.".to_owned(),
        });
        let silent = lease.ttl.saturating_sub(lease.left);
        if silent > lease.ttl / 2 {
            findings.push(format!(
                "It has not renewed for {}: it may be frozen, cut off or gone. If so, another leads \
                 when its time has run out.",
                duration::shown(silent)
            ));
        }
        findings.push(format!(
            "Other candidates wait, as they should. 'tenure resign {name} --to ID' asks it to hand over; \
             'tenure revoke {name}' is for a leader that does not answer."
        ));
    }

    fn revoked(&self, lease: &Lease, holder: &Holder, findings: &mut Vec<String>) {
        let (name, left) = (&self.name, left(lease));
        findings.push(format!(
            "'{name}' was revoked: {} cannot renew it any more, and others can have it in {left}, when \
             its time has run out.",
            quoted(holder)
        ));
    }

    /// Describes a lease held by a foreign key; returns whether it stays held until an operator acts.
    fn foreign(&self, lease: &Lease, holder: &Holder, findings: &mut Vec<String>) -> bool {
        let name = &self.name;
        findings.push(format!(
            "'{name}' is held by a program that is not Tenure: there is a key of that name with the \
             value {}.",
            quoted(holder)
        ));
        if !never_expires(lease) {
            findings.push(format!(
                "It expires in {} unless that program extends it; then a candidate of ours can lead.",
                left(lease)
            ));
            return false;
        }
        findings.push(format!(
            "It has no expiry: nobody else can lead before it is deleted. If that program is gone, \
             'redis-cli del {name}' on this store does it."
        ));
        true
    }

    /// A sentence about the pending remote request.
    fn pending_request(&self) -> Option<String> {
        let request = self.request.as_ref()?;
        let what = match serde_json::from_str(request.note.as_str()).ok()? {
            RemoteRequest::Resign { to: None } => "the leader is asked to resign".to_owned(),
            RemoteRequest::Resign { to: Some(to) } => {
                format!("the leader is asked to hand over to '{}'", output::printable(&to))
            }
            RemoteRequest::Drain { id } => {
                format!("'{}' is asked to drain", output::printable(&id))
            }
            RemoteRequest::Undrain { id } => {
                format!("'{}' is asked to campaign again", output::printable(&id))
            }
        };
        Some(format!("Just now {what}; that waits for an answer for another {}.", left(request)))
    }
}

/// A sentence about a holder in its start-up wait, which does not lead yet.
fn starting(lease: &Lease) -> Option<String> {
    let wait = lease.wait.as_ref()?;
    Some(format!(
        "Nobody leads '{}': {}{}.",
        lease.name,
        startup_wait::of(lease)?,
        startup_wait::hint(wait.reason)
    ))
}

/// Whether the lease is a foreign key without expiry, which stays until it is deleted.
fn never_expires(lease: &Lease) -> bool {
    lease.lineage.is_none() && lease.left == NO_EXPIRY
}

fn quoted(holder: &Holder) -> String {
    format!("'{}'", output::printable(&holder.id))
}

fn left(lease: &Lease) -> String {
    duration::shown(lease.left.max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use tenure::{Lineage, Nonce, Note, StartupWait, Token, WaitReason};

    use super::*;

    fn token(number: u64) -> Token {
        Token::new(number).unwrap()
    }

    fn lease(holder: Option<Option<Nonce>>, before: Option<Ended>) -> Lease {
        let mut lease = Lease::free(Name::new("a").unwrap());
        lease.holder = holder.map(|nonce| Holder::new("x\x1b", nonce));
        lease.token = Some(token(7));
        lease.ttl = Duration::from_secs(4);
        lease.left = Duration::from_secs(3);
        lease.since = Some(0);
        lease.lineage = before.map(|before| Lineage::new(token(1), before));
        lease
    }

    fn snapshot(lease: Option<Result<Lease>>) -> LeaseSnapshot {
        LeaseSnapshot {
            name: Name::new("a").unwrap(),
            lease,
            candidates: Vec::new(),
            request: None,
            others: Vec::new(),
            visibility: Visibility::Network,
            store: "redis://h (from --store)".to_owned(),
        }
    }

    #[track_caller]
    fn assert_findings(snapshot: &LeaseSnapshot, is_stuck: bool, texts: &[&str]) {
        let finding = snapshot.finding();
        let findings = finding.findings.join("\n");
        assert_eq!(finding.is_stuck, is_stuck, "{findings}");
        assert!(!findings.contains('\x1b'), "{findings:?}");
        for text in texts {
            assert!(findings.contains(text), "no {text:?} in {findings}");
        }
    }

    #[test]
    fn every_state_is_described() {
        let nonce = Some(Nonce::from_bits(1));
        let held = |before| snapshot(Some(Ok(lease(Some(nonce), Some(before)))));
        let free = |before| snapshot(Some(Ok(lease(None, Some(before)))));
        assert_findings(
            &held(Ended::Nothing),
            false,
            &["leads 'a' in term 7 since 1970", "runs out in 3s"],
        );
        assert_findings(&held(Ended::Died(token(6))), false, &["before has died"]);
        assert_findings(
            &free(Ended::Released(token(7))),
            false,
            &["released it in term 7", "tenure undrain a"],
        );
        assert_findings(&free(Ended::Expired(token(7))), false, &["term 7 ran out"]);
        assert_findings(&free(Ended::Died(token(7))), false, &["died in term 7"]);
        let revoked = snapshot(Some(Ok(lease(Some(None), Some(Ended::Nothing)))));
        assert_findings(&revoked, false, &["was revoked", "others can have it in 3s"]);
        let foreign = snapshot(Some(Ok(lease(Some(None), None))));
        assert_findings(&foreign, false, &["not Tenure", "x\\u{1b}", "expires in 3s"]);
        let mut forever = lease(Some(None), None);
        forever.left = NO_EXPIRY;
        let forever = snapshot(Some(Ok(forever)));
        assert_findings(&forever, true, &["no expiry", "redis-cli del a"]);
        assert_eq!(forever.finding().expires_in_ms, None);
        let wait = StartupWait::new(Duration::from_secs(2), WaitReason::Restarted);
        let mut starting = lease(Some(nonce), Some(Ended::Nothing));
        starting.wait = Some(wait);
        let starting = snapshot(Some(Ok(starting)));
        assert_findings(&starting, false, &["Nobody leads 'a'", "starts in 2s", "startup_wait=0s"]);
        assert_eq!(starting.finding().current_leader, None);
        assert_findings(
            &snapshot(Some(Err(Error::corrupt("odd")))),
            true,
            &["odd", "never overwritten"],
        );
        let mut silent = lease(Some(nonce), None);
        silent.left = Duration::from_secs(1);
        assert_findings(&snapshot(Some(Ok(silent))), false, &["has not renewed for 3s"]);
    }

    #[test]
    fn an_unused_name_is_compared_with_existing_names() {
        assert_findings(
            &snapshot(None),
            false,
            &["Nobody has ever led 'a'", "no lease at all", "(from --store)"],
        );
        let others = |names: &[&str]| LeaseSnapshot {
            others: names.iter().map(|name| Name::new(name).unwrap()).collect(),
            visibility: Visibility::Machine,
            ..snapshot(None)
        };
        assert_findings(&others(&["b"]), false, &["There is 'b'", "Only this machine"]);
        assert_findings(&others(&["xyz", "uvw"]), false, &["There are 2 others"]);
    }

    #[test]
    fn drained_and_unhealthy_candidates_are_reported_first() {
        let candidate = |id: &str, state, reason: Option<&str>| Candidate {
            candidate_id: id.to_owned(),
            url: None,
            state,
            reason: reason.map(str::to_owned),
            priority: 0,
        };
        let snapshot = |lease, candidates| LeaseSnapshot { candidates, ..snapshot(lease) };
        let first = |snapshot: &LeaseSnapshot| snapshot.finding().findings[0].clone();
        let free = || Some(Ok(lease(None, Some(Ended::Released(token(7))))));
        let drained =
            vec![candidate("web-1", "drained", None), candidate("web-2", "drained", None)];
        let drained = snapshot(free(), drained);
        assert_findings(&drained, true, &["released it in term 7"]);
        assert_eq!(
            first(&drained),
            "2 candidates are running, both drained: tenure undrain a web-1"
        );
        let unhealthy = vec![candidate("h1", "unhealthy", Some("exit 127"))];
        let unhealthy = snapshot(None, unhealthy).finding();
        assert_eq!(
            unhealthy.findings.join(" "),
            "Nobody has led 'a' on this store yet. Candidate h1 is running; its health check fails (exit 127)."
        );
        assert!(unhealthy.is_stuck);
        let mixed = vec![candidate("web-1", "waiting", None), candidate("web-2", "drained", None)];
        assert_findings(
            &snapshot(free(), mixed),
            false,
            &["web-1 is waiting and web-2 is drained"],
        );
    }

    #[test]
    fn a_request_is_reported() {
        let note = Note::new(r#"{"ask":"drain","id":"b"}"#).unwrap();
        let mut request = lease(Some(Some(Nonce::from_bits(2))), None);
        request.note = note;
        let snapshot = LeaseSnapshot { request: Some(request), ..snapshot(None) };
        assert_findings(&snapshot, false, &["'b' is asked to drain", "for another 3s"]);
    }
}
