//! `tenure doctor NAME`: why nobody leads it, or why not the one that should.
//!
//! What is seen is turned into sentences by a pure function, so that each case can be tried without
//! a store that is in it.

use std::time::Duration;

use serde::Serialize;
use tenure::presence::present;
use tenure::request::RemoteRequest;
use tenure::store::{Scope, Store};
use tenure::{Clock, Ended, Error, Holder, Lease, Name, OWN_PREFIX, Result};

use crate::candidate::Candidate;
use crate::settings::nearest;
use crate::{duration, output, startup_wait, store_access, time};

use super::candidates;

/// A lease between two leaders is taken long before that.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// What Redis shows for a key of somebody else's that never expires.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

/// What lies under a name.
#[derive(Debug)]
pub(super) struct LeaseSnapshot {
    name: Name,
    lease: Option<Result<Lease>>,
    /// The candidates that show themselves.
    candidates: Vec<Candidate>,
    /// What is being asked of its candidates.
    ask: Option<Lease>,
    /// The other names on this store; read only where the one asked for was never used.
    others: Vec<Name>,
    /// Whether other machines see this store.
    shared: bool,
    /// The store and where its URL came from.
    store: String,
}

/// What is made of it.
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
    /// Nobody can lead before an operator has acted.
    #[serde(skip)]
    pub(super) is_stuck: bool,
}

/// Looks. A lease that is free is looked at twice: it may be on its way to the next.
pub(super) async fn look(store: &dyn Store, origin: &str, name: &Name) -> Result<LeaseSnapshot> {
    let mut lease = one(store, name).await?;
    if matches!(&lease, Some(Ok(lease)) if lease.holder.is_none()) {
        Clock::boot().sleep(SECOND_LOOK).await;
        lease = one(store, name).await?;
    }
    let lease = lease.filter(|lease| !matches!(lease, Ok(lease) if is_unused(lease)));
    let nodes =
        store_access::patiently(&store.url(), store_access::PATIENCE, present(store, name)).await?;
    let held = lease.as_ref().and_then(|lease| lease.as_ref().ok());
    let holder = held.and_then(|lease| {
        let state = if lease.wait.is_some() { "starting" } else { "leading" };
        Some((lease.holder.as_ref()?.id.as_str(), state))
    });
    let candidates = nodes.iter().map(|node| Candidate::new(node, holder)).collect();
    let ask = one(store, &name.ask()).await?.and_then(Result::ok);
    let others = match lease {
        Some(_) => Vec::new(),
        None => others(store).await?,
    };
    Ok(LeaseSnapshot {
        name: name.clone(),
        lease,
        candidates,
        ask: ask.filter(|ask| ask.holder.is_some()),
        others,
        shared: store.limits().shared,
        store: format!("{} {origin}", store.url()),
    })
}

async fn one(store: &dyn Store, name: &Name) -> Result<Option<Result<Lease>>> {
    Ok(store_access::observe(store, &Scope::name(name)).await?.pop())
}

async fn others(store: &dyn Store) -> Result<Vec<Name>> {
    let all = store_access::observe(store, &Scope::Prefix(String::new())).await?;
    let names = all.into_iter().flatten().filter(|lease| !is_unused(lease)).map(|lease| lease.name);
    Ok(names.filter(|name| !name.as_str().starts_with(OWN_PREFIX)).collect())
}

/// A store may answer for a name of which it has no record.
fn is_unused(lease: &Lease) -> bool {
    lease.holder.is_none() && lease.token.is_none()
}

impl LeaseSnapshot {
    pub(super) fn finding(&self) -> LeaseFinding {
        let mut said = Vec::new();
        let mut is_stuck = false;
        // Presence first: it says what to do next.
        said.extend(candidates::sentence(&self.name, &self.candidates));
        let led = matches!(&self.lease, Some(Ok(lease)) if lease.holder.is_some());
        let none_could = self.candidates.iter().all(|candidate| !candidate.could_lead());
        let held_back = !led && !self.candidates.is_empty() && none_could;
        match &self.lease {
            None => self.never_used(&mut said),
            Some(Err(error)) => is_stuck = self.unreadable(error, &mut said),
            Some(Ok(lease)) => match &lease.holder {
                None => self.free(lease, &mut said),
                Some(_) if lease.wait.is_some() => said.extend(starting(lease)),
                Some(holder) if holder.nonce.is_some() => self.held(lease, holder, &mut said),
                Some(holder) if lease.lineage.is_some() => self.revoked(lease, holder, &mut said),
                Some(holder) => is_stuck = self.foreign(lease, holder, &mut said),
            },
        }
        said.extend(self.asked());
        let lease = self.lease.as_ref().and_then(|lease| lease.as_ref().ok());
        let holder = lease.and_then(|lease| lease.holder.as_ref());
        let runs_out = lease.filter(|lease| holder.is_some() && !never_expires(lease));
        let left = runs_out.map(|lease| lease.left.as_millis());
        LeaseFinding {
            name: self.name.to_string(),
            current_leader: lease.and_then(Lease::leader).map(str::to_owned),
            starts_in_ms: lease.and_then(|lease| Some(startup_wait::in_millis(lease.wait?.left))),
            token: lease.and_then(|lease| lease.token).map(|token| token.get()),
            expires_in_ms: left.map(|left| u64::try_from(left).unwrap_or(u64::MAX)),
            candidates: self.candidates.clone(),
            findings: said,
            is_stuck: is_stuck || held_back,
        }
    }

    fn never_used(&self, said: &mut Vec<String>) {
        let LeaseSnapshot { name, store, .. } = self;
        if !self.candidates.is_empty() {
            said.insert(0, format!("Nobody has led '{name}' on this store yet."));
            return;
        }
        said.push(format!(
            "Nobody has ever led '{name}' on {store}: nobody has campaigned for it, or under another \
             name, or on another store."
        ));
        let near = nearest(name.as_str(), self.others.iter().map(Name::as_str));
        said.push(match (near, self.others.len()) {
            (_, 0) => "There is no lease at all on this store.".to_owned(),
            (Some(near), _) => format!("There is '{near}', which is spelt almost the same."),
            (None, 1) => "There is another lease here: 'tenure status' shows it.".to_owned(),
            (None, n) => format!("There are {n} others here: 'tenure status' shows them."),
        });
        if !self.shared {
            said.push(
                "Only this machine sees this store: candidates on other machines need one that all can \
                 reach."
                    .to_owned(),
            );
        }
        said.push(format!(
            "Where a candidate should run, 'tenure run {name} --print-config' says which name and \
             store it uses, and why."
        ));
    }

    fn unreadable(&self, error: &Error, said: &mut Vec<String>) -> bool {
        let name = &self.name;
        said.push(output::printable(&error.to_string()));
        said.push(format!(
            "What cannot be read is never overwritten, so nobody can lead '{name}' until an operator \
             has looked at it and taken it away."
        ));
        true
    }

    fn free(&self, lease: &Lease, said: &mut Vec<String>) {
        let name = &self.name;
        let ended = match lease.lineage.map(|lineage| lineage.before) {
            Some(Ended::Released(token)) => format!("its holder released it in term {token}"),
            Some(Ended::Expired(token)) => format!(
                "term {token} ran out: its holder was frozen, cut off or gone, or it was revoked"
            ),
            Some(Ended::Died(token)) => format!("its holder died in term {token}"),
            Some(Ended::Nothing) | None => "how its last term ended is not known".to_owned(),
        };
        said.push(format!("Nobody leads '{name}': {ended}."));
        if !self.candidates.is_empty() {
            return;
        }
        said.push(format!(
            "No candidate shows itself here. A candidate that campaigns would have the lease by now: none is running, or \
             each uses --no-presence and is drained ('tenure undrain {name} ID') or unhealthy (--health), or cannot reach \
             this store."
        ));
        if let Some(next) = &lease.next {
            said.push(format!("The last holder asked '{next}' to come next, and it has not."));
        }
        said.push(format!("Candidates must use this store: {}.", self.store));
        said.push(format!(
            "Where a candidate should run, 'tenure run {name} --print-config' says what it uses, and \
             why."
        ));
    }

    fn held(&self, lease: &Lease, holder: &Holder, said: &mut Vec<String>) {
        let name = &self.name;
        let token = lease.token.map_or_else(String::new, |token| format!(" in term {token}"));
        let since = lease.since.map(time::rfc3339);
        let since = since.map_or_else(String::new, |since| format!(" since {since}"));
        said.push(format!(
            "{} leads '{name}'{token}{since}; its lease runs out in {} unless it renews.",
            quoted(holder),
            left(lease)
        ));
        said.push(match lease.lineage.map(|lineage| lineage.before) {
            Some(Ended::Released(_)) => "The term before was released.".to_owned(),
            Some(Ended::Expired(_)) => "The term before ran out, or was revoked.".to_owned(),
            Some(Ended::Died(_)) => "The holder before has died.".to_owned(),
            Some(Ended::Nothing) | None => "No term before this one is known.".to_owned(),
        });
        let silent = lease.ttl.saturating_sub(lease.left);
        if silent > lease.ttl / 2 {
            said.push(format!(
                "It has not renewed for {}: it may be frozen, cut off or gone. If so, another leads \
                 when its time has run out.",
                duration::shown(silent)
            ));
        }
        said.push(format!(
            "Other candidates wait, as they should. 'tenure resign {name} --to ID' asks it to hand over; \
             'tenure revoke {name}' is for a leader that does not answer."
        ));
    }

    fn revoked(&self, lease: &Lease, holder: &Holder, said: &mut Vec<String>) {
        let (name, left) = (&self.name, left(lease));
        said.push(format!(
            "'{name}' was revoked: {} cannot renew it any more, and others can have it in {left}, when \
             its time has run out.",
            quoted(holder)
        ));
    }

    /// Whether it stays so until somebody acts.
    fn foreign(&self, lease: &Lease, holder: &Holder, said: &mut Vec<String>) -> bool {
        let name = &self.name;
        said.push(format!(
            "'{name}' is held by a program that is not Tenure: there is a key of that name with the \
             value {}.",
            quoted(holder)
        ));
        if !never_expires(lease) {
            said.push(format!(
                "It expires in {} unless that program extends it; then a candidate of ours can lead.",
                left(lease)
            ));
            return false;
        }
        said.push(format!(
            "It has no expiry: nobody else can lead before it is deleted. If that program is gone, \
             'redis-cli del {name}' on this store does it."
        ));
        true
    }

    /// What somebody is just asking of a candidate.
    fn asked(&self) -> Option<String> {
        let ask = self.ask.as_ref()?;
        let what = match serde_json::from_str(ask.note.as_str()).ok()? {
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
        Some(format!("Just now {what}; that waits for an answer for another {}.", left(ask)))
    }
}

/// The holder does not lead yet.
fn starting(lease: &Lease) -> Option<String> {
    let wait = lease.wait.as_ref()?;
    Some(format!(
        "Nobody leads '{}': {}{}.",
        lease.name,
        startup_wait::of(lease)?,
        startup_wait::hint(wait.reason)
    ))
}

/// Whether it is a key of somebody else's that stays until it is deleted.
fn never_expires(lease: &Lease) -> bool {
    lease.lineage.is_none() && lease.left == NEVER
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
        Lease {
            name: Name::new("a").unwrap(),
            holder: holder.map(|nonce| Holder { id: "x\x1b".to_owned(), nonce }),
            token: Some(token(7)),
            ttl: Duration::from_secs(4),
            left: Duration::from_secs(3),
            since: Some(0),
            note: Note::default(),
            next: None,
            lineage: before.map(|before| Lineage { origin: token(1), before }),
            checkpoint: None,
            store_time: None,
            wait: None,
        }
    }

    fn seen(lease: Option<Result<Lease>>) -> LeaseSnapshot {
        LeaseSnapshot {
            name: Name::new("a").unwrap(),
            lease,
            candidates: Vec::new(),
            ask: None,
            others: Vec::new(),
            shared: true,
            store: "redis://h (from --store)".to_owned(),
        }
    }

    #[track_caller]
    fn says(seen: &LeaseSnapshot, is_stuck: bool, texts: &[&str]) {
        let finding = seen.finding();
        let said = finding.findings.join("\n");
        assert_eq!(finding.is_stuck, is_stuck, "{said}");
        assert!(!said.contains('\x1b'), "{said:?}");
        for text in texts {
            assert!(said.contains(text), "no {text:?} in {said}");
        }
    }

    #[test]
    fn each_state_has_its_sentence() {
        let ours = Some(Nonce::from_bits(1));
        let held = |before| seen(Some(Ok(lease(Some(ours), Some(before)))));
        let free = |before| seen(Some(Ok(lease(None, Some(before)))));
        says(&held(Ended::Nothing), false, &["leads 'a' in term 7 since 1970", "runs out in 3s"]);
        says(&held(Ended::Died(token(6))), false, &["before has died"]);
        says(
            &free(Ended::Released(token(7))),
            false,
            &["released it in term 7", "tenure undrain a"],
        );
        says(&free(Ended::Expired(token(7))), false, &["term 7 ran out"]);
        says(&free(Ended::Died(token(7))), false, &["died in term 7"]);
        let revoked = seen(Some(Ok(lease(Some(None), Some(Ended::Nothing)))));
        says(&revoked, false, &["was revoked", "others can have it in 3s"]);
        let foreign = seen(Some(Ok(lease(Some(None), None))));
        says(&foreign, false, &["not Tenure", "x\\u{1b}", "expires in 3s"]);
        let forever = Lease { left: NEVER, ..lease(Some(None), None) };
        let forever = seen(Some(Ok(forever)));
        says(&forever, true, &["no expiry", "redis-cli del a"]);
        assert_eq!(forever.finding().expires_in_ms, None);
        let wait = StartupWait { left: Duration::from_secs(2), reason: WaitReason::Restarted };
        let starting = Lease { wait: Some(wait), ..lease(Some(ours), Some(Ended::Nothing)) };
        let starting = seen(Some(Ok(starting)));
        says(&starting, false, &["Nobody leads 'a'", "starts in 2s", "startup_wait=0s"]);
        assert_eq!(starting.finding().current_leader, None);
        says(&seen(Some(Err(Error::corrupt("odd")))), true, &["odd", "never overwritten"]);
        let silent = Lease { left: Duration::from_secs(1), ..lease(Some(ours), None) };
        says(&seen(Some(Ok(silent))), false, &["has not renewed for 3s"]);
    }

    #[test]
    fn a_name_never_used_is_compared_with_those_there_are() {
        says(&seen(None), false, &["Nobody has ever led 'a'", "no lease at all", "(from --store)"]);
        let others = |names: &[&str]| LeaseSnapshot {
            others: names.iter().map(|name| Name::new(name).unwrap()).collect(),
            shared: false,
            ..seen(None)
        };
        says(&others(&["b"]), false, &["There is 'b'", "Only this machine"]);
        says(&others(&["xyz", "uvw"]), false, &["There are 2 others"]);
    }

    #[test]
    fn candidates_that_are_held_back_are_the_answer() {
        let candidate = |id: &str, state, reason: Option<&str>| Candidate {
            candidate_id: id.to_owned(),
            url: None,
            state,
            reason: reason.map(str::to_owned),
            priority: 0,
        };
        let seen = |lease, candidates| LeaseSnapshot { candidates, ..seen(lease) };
        let first = |seen: &LeaseSnapshot| seen.finding().findings[0].clone();
        let free = || Some(Ok(lease(None, Some(Ended::Released(token(7))))));
        let drained =
            vec![candidate("web-1", "drained", None), candidate("web-2", "drained", None)];
        let drained = seen(free(), drained);
        says(&drained, true, &["released it in term 7"]);
        assert_eq!(
            first(&drained),
            "2 candidates are running, both drained: tenure undrain a web-1"
        );
        let unhealthy = vec![candidate("h1", "unhealthy", Some("exit 127"))];
        let unhealthy = seen(None, unhealthy).finding();
        assert_eq!(
            unhealthy.findings.join(" "),
            "Nobody has led 'a' on this store yet. Candidate h1 is running; its health check fails (exit 127)."
        );
        assert!(unhealthy.is_stuck);
        let mixed = vec![candidate("web-1", "waiting", None), candidate("web-2", "drained", None)];
        says(&seen(free(), mixed), false, &["web-1 is waiting and web-2 is drained"]);
    }

    #[test]
    fn a_request_is_reported() {
        let note = Note::new(r#"{"ask":"drain","id":"b"}"#).unwrap();
        let ask = Lease { note, ..lease(Some(Some(Nonce::from_bits(2))), None) };
        let seen = LeaseSnapshot { ask: Some(ask), ..seen(None) };
        says(&seen, false, &["'b' is asked to drain", "for another 3s"]);
    }
}
