//! The specification: the rules of a lease ([`Leases`]), and around them, in plain words, what only Redis adds to them.
//!
//! A lease in Redis is two keys, which other programs, operators and eviction can change and delete one without the other:
//! the visible key and its companion, which is the record. [`Leases`] has only the record. So this model keeps the visible key
//! of each name too, and [`Model::standing`] says whether the rules alone decide:
//! - A visible key that is not the one of the recorded term (same value, same expiry) belongs to another program. Each claim,
//!   renewal and save is `Taken` by it, and nothing about the record is shown except its token.
//! - A term whose visible key is gone before its end was deleted. The lease is free, and no reader knows how the last term ended.
//!   The record begins anew (`origin` is the new token, before it was nothing, the checkpoint stays), and the new holder does not
//!   lead before the recorded end.
//! - Anything else that is not a record is Corrupt, and stays as it is.
//!
//! Where Redis differs from the rules on purpose:
//! - It counts milliseconds, and rounds TTLs and waits up: a lease that ended before its holder assumes it would allow two leaders.
//!   The clock of a history shows whole milliseconds, so nothing else is rounded.
//! - A key expires *after* the millisecond of its expiry. A term ends *with* it: the scripts compare the recorded end.
//! - Records are forgotten: a day after the end of the last term at the next full hour, never with a checkpoint; that of an
//!   ephemeral lease an hour after, with its checkpoint. A renewal moves that time, a release does not.
//! - A server that has started a short time ago may have lost a lease: see [`ServerModel`].
//! - A prefix shows the names that are in the index, and of ephemeral leases those whose term has not ended; no foreign keys.
//!
//! Not here: a clock that was set back, promoted replicas, and durability that is switched while the server runs. `Leases` takes
//! a clock that only moves forward; `tests/redis_faults` has the others.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::store::memory::Leases;
use tenure::store::{Revoke, Scope};
use tenure::{
    Answer, CandidateId, Checkpoint, Claim, ClaimedWait, Ended, Error, Grant, Hold, Holder, Lease,
    Lineage, Moment, Name, Note, Release, Result, StartupWait, StoreTime, Token, WaitReason,
};

use super::server_model::ServerModel;

pub(crate) const HOUR: u64 = 3_600_000;
pub(crate) const DAY: u64 = 24 * HOUR;
/// How much of a foreign value is shown.
const SHOWN_BYTES: usize = 256;

/// The leases of one history. Times are milliseconds on the server's clock.
pub(crate) struct Model {
    pub(crate) now: u64,
    leases: Leases,
    names: BTreeMap<Name, Keys>,
}

/// What lies under one name, as far as [`Leases`] does not know it.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    pub(crate) visible: Option<Visible>,
    /// The recorded term: it has neither been released nor revoked at once. It may have ended.
    pub(crate) term: Option<Term>,
    /// The companion is not a record.
    pub(crate) garbage: bool,
    /// When the companion expires.
    pub(crate) forgotten_at: Option<u64>,
    ephemeral: bool,
    indexed: bool,
    present_until: u64,
    /// The checkpoint of a record that began anew.
    carried_checkpoint: Option<Checkpoint>,
    /// When the term began in a record that began anew: its first token may be greater than the clock.
    carried_since: Option<u64>,
    /// When such terms began, for the history.
    began: BTreeMap<Token, u64>,
}

/// The visible key.
#[derive(Clone)]
pub(crate) struct Visible {
    /// `None` if it is not a string.
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) expires_at: Option<u64>,
}

/// A recorded term.
#[derive(Clone)]
pub(crate) struct Term {
    candidate: CandidateId,
    ttl: u64,
    pub(crate) ends: u64,
}

/// What decides about a name.
enum Standing {
    /// The rules alone.
    Rules,
    /// Another program's key.
    Foreign(Lease),
    /// The visible key of a live term was deleted: the lease as the rules still see it.
    Deleted(Lease),
}

impl Keys {
    /// Whether the visible key is the one of the recorded term.
    fn is_ours(&self) -> bool {
        let (Some(visible), Some(term)) = (&self.visible, &self.term) else { return false };
        let value = visible.value.as_deref();
        value == Some(term.candidate.as_str().as_bytes()) && visible.expires_at == Some(term.ends)
    }

    fn is_live(&self, now: u64) -> bool {
        self.term.as_ref().is_some_and(|term| now < term.ends)
    }

    /// The term ends `ttl` from now, and the visible key with it.
    fn extend(&mut self, now: u64, candidate: &CandidateId, ttl: u64, has_checkpoint: bool) {
        let ends = now + ttl;
        self.term = Some(Term { candidate: candidate.clone(), ttl, ends });
        let value = Some(candidate.as_str().as_bytes().to_vec());
        self.visible = Some(Visible { value, expires_at: Some(ends) });
        let after = if self.ephemeral { HOUR } else { DAY };
        let forgotten_at = ends.div_ceil(HOUR) * HOUR + after;
        self.forgotten_at = (self.ephemeral || !has_checkpoint).then_some(forgotten_at);
        match self.ephemeral {
            true => self.present_until = ends,
            false => self.indexed = true,
        }
    }

    /// The record is gone; the visible key stays.
    fn lose_record(&mut self) {
        let Keys { visible, indexed, present_until, .. } = std::mem::take(self);
        *self = Keys { visible, indexed, present_until, ..Keys::default() };
    }
}

fn corrupt(name: &Name) -> Error {
    Error::corrupt(format!("'{name}' is not a lease"))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).expect("a short time")
}

fn in_whole_millis(claim: &Claim) -> Claim {
    let mut claim = claim.clone();
    claim.ttl = Duration::from_millis(millis(claim.ttl));
    if let ClaimedWait::AtLeast(wait) = &mut claim.wait {
        wait.left = Duration::from_millis(millis(wait.left));
    }
    claim
}

/// Whether the record of a claim is forgotten soon after its end.
fn is_ephemeral(claim: &Claim) -> bool {
    claim.wait == ClaimedWait::Never && claim.name.as_str().contains(":node:")
}

impl Model {
    pub(crate) fn new(now: u64, names: &[Name]) -> Self {
        let names = names.iter().map(|name| (name.clone(), Keys::default())).collect();
        Model { now, leases: Leases::default(), names }
    }

    pub(crate) fn keys(&self, name: &Name) -> &Keys {
        &self.names[name]
    }

    fn keys_mut(&mut self, name: &Name) -> &mut Keys {
        self.names.get_mut(name).expect("a name of this history")
    }

    fn moment(&self) -> Moment {
        Moment::from_nanos(self.now * 1_000_000)
    }

    fn micros(&self) -> u64 {
        self.now * 1_000
    }

    /// Time passes: keys expire.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = now;
        let is_over = |at: Option<u64>| at.is_some_and(|at| now > at);
        for (name, keys) in &mut self.names {
            if keys.visible.as_ref().is_some_and(|visible| is_over(visible.expires_at)) {
                keys.visible = None;
            }
            if is_over(keys.forgotten_at) {
                self.leases.forget(name);
                keys.lose_record();
            }
        }
    }

    /// The record as the rules show it, whatever the visible key says.
    fn recorded(&self, name: &Name) -> Option<Lease> {
        let keys = self.keys(name);
        let found = self.leases.observe(self.moment(), &Scope::name(name)).pop()?;
        let mut lease = found.expect("the rules have nothing corrupt here");
        lease.checkpoint = lease.checkpoint.or_else(|| keys.carried_checkpoint.clone());
        lease.since = lease.since.map(|since| keys.carried_since.unwrap_or(since));
        for term in &mut lease.history {
            term.from = keys.began.get(&term.token).copied().unwrap_or(term.from);
        }
        Some(lease)
    }

    pub(crate) fn has_record(&self, name: &Name) -> bool {
        self.recorded(name).is_some()
    }

    /// Whether the visible key of a live term is gone.
    pub(crate) fn is_deleted(&self, name: &Name) -> bool {
        matches!(self.standing(name), Ok(Standing::Deleted(_)))
    }

    /// When the holder's start-up wait ends.
    pub(crate) fn wait_ends(&self, name: &Name) -> Option<u64> {
        let wait = self.recorded(name)?.wait?;
        Some(self.now + millis(wait.left))
    }

    fn standing(&self, name: &Name) -> Result<Standing> {
        let keys = self.keys(name);
        if keys.garbage || keys.visible.as_ref().is_some_and(|visible| visible.value.is_none()) {
            return Err(corrupt(name));
        }
        match &keys.visible {
            Some(visible) if !keys.is_ours() => {
                Ok(Standing::Foreign(self.foreign_lease(name, visible)))
            }
            None if keys.is_live(self.now) => {
                Ok(Standing::Deleted(self.recorded(name).expect("it has a term")))
            }
            _ => Ok(Standing::Rules),
        }
    }

    /// Another program's lock: a key without expiry counts as one that lasts a day.
    fn foreign_lease(&self, name: &Name, visible: &Visible) -> Lease {
        let value = visible.value.as_deref().unwrap_or_default();
        let shown = &value[..value.len().min(SHOWN_BYTES)];
        let left = Duration::from_millis(visible.expires_at.map_or(DAY, |at| at - self.now));
        let mut lease = Lease::free(name.clone());
        lease.holder = Some(Holder::new(String::from_utf8_lossy(shown), None));
        lease.token = self.recorded(name).and_then(|lease| lease.token);
        (lease.ttl, lease.left) = (left, left);
        lease.store_time = Some(StoreTime(self.micros()));
        lease
    }

    /// What every reader gets. `None`: the name was never used, or is forgotten.
    fn shown(&self, name: &Name) -> Result<Option<Lease>> {
        Ok(match self.standing(name)? {
            Standing::Rules => self.recorded(name),
            Standing::Foreign(lease) => Some(lease),
            Standing::Deleted(lease) => Some(deleted(lease)),
        })
    }

    /// The lease of a `Taken` answer.
    fn taken<T>(&self, name: &Name) -> Result<Answer<T>> {
        let lease = self.shown(name)?.unwrap_or_else(|| Lease::free(name.clone()));
        Ok(Answer::Taken(Box::new(lease)))
    }

    pub(crate) fn acquire(
        &mut self,
        claim: &Claim,
        server: &mut ServerModel,
    ) -> Result<Answer<Grant>> {
        let mut claim = in_whole_millis(claim);
        let ephemeral = is_ephemeral(&claim);
        let name = claim.name.clone();
        let now = self.moment();
        let (mut minting_micros, mut since) = (self.micros(), None);
        match self.standing(&name)? {
            Standing::Foreign(_) => return self.taken(&name),
            Standing::Deleted(last) => {
                let token = Token::mint(last.token, self.micros())?;
                claim.wait = self.required_wait(&claim, last.wait, server);
                self.leases.forget(&name);
                self.keys_mut(&name).carried_checkpoint = last.checkpoint;
                let now = self.now;
                self.keys_mut(&name).began.insert(token, now);
                (minting_micros, since) = (token.get(), Some(now));
            }
            Standing::Rules if !self.is_repeat(&claim) => {
                if self.is_grantable(&name) {
                    claim.wait = self.required_wait(&claim, None, server);
                }
            }
            Standing::Rules => since = self.keys(&name).carried_since,
        }
        let Answer::Held(mut grant) = self.leases.acquire(now, minting_micros, &claim)? else {
            return self.taken(&name);
        };
        let at = self.now;
        let keys = self.keys_mut(&name);
        keys.ephemeral = ephemeral;
        keys.carried_since = since;
        grant.checkpoint = grant.checkpoint.or_else(|| keys.carried_checkpoint.clone());
        keys.extend(at, &claim.candidate, millis(claim.ttl), grant.checkpoint.is_some());
        Ok(Answer::Held(grant))
    }

    /// Whether the claimer holds the lease already.
    fn is_repeat(&self, claim: &Claim) -> bool {
        let holder = self.recorded(&claim.name).and_then(|lease| lease.holder);
        holder.is_some_and(|holder| {
            holder.nonce == Some(claim.nonce) && holder.id == claim.candidate.as_str()
        })
    }

    /// Whether the rules grant a claim now: the lease is free and has a next token.
    fn is_grantable(&self, name: &Name) -> bool {
        let lease = self.recorded(name);
        let last = lease.as_ref().and_then(|lease| lease.token);
        Token::mint(last, self.micros()).is_ok() && !self.keys(name).is_live(self.now)
    }

    /// The wait of a new term: the longest of the recorded wait, what is left of a term whose key was deleted, what the server
    /// requires, and what the claimer asks for. Of two that end together the earlier in this list.
    fn required_wait(
        &self,
        claim: &Claim,
        recorded: Option<StartupWait>,
        server: &mut ServerModel,
    ) -> ClaimedWait {
        let asked = match claim.wait {
            ClaimedWait::Never => return ClaimedWait::Never,
            ClaimedWait::AsRequired => None,
            ClaimedWait::AtLeast(wait) => Some(wait),
        };
        let term = self.keys(&claim.name).term.as_ref();
        let deleted = term.filter(|term| self.now < term.ends);
        let deleted = deleted.map(|term| self.wait_until(term.ends, WaitReason::Deleted));
        let last_ttl = term.map(|term| term.ttl);
        let server = server.required_wait(self.now, millis(claim.ttl), last_ttl);
        let server = server.map(|(at, reason)| self.wait_until(at, reason));
        let mut longest = recorded;
        for wait in [deleted, server, asked].into_iter().flatten() {
            if wait.left > longest.map_or(Duration::ZERO, |longest| longest.left) {
                longest = Some(wait);
            }
        }
        longest.map_or(ClaimedWait::AsRequired, ClaimedWait::AtLeast)
    }

    fn wait_until(&self, at: u64, reason: WaitReason) -> StartupWait {
        StartupWait::new(Duration::from_millis(at.saturating_sub(self.now)), reason)
    }

    pub(crate) fn renew(&mut self, hold: &Hold, ttl: Duration) -> Result<Answer> {
        let ttl = millis(ttl);
        let Standing::Rules = self.standing(&hold.name)? else { return self.taken(&hold.name) };
        match self.leases.renew(self.moment(), hold, Duration::from_millis(ttl))? {
            Answer::Taken(_) => self.taken(&hold.name),
            Answer::Held(()) => {
                let lease = self.recorded(&hold.name).expect("it is held");
                let now = self.now;
                let keys = self.keys_mut(&hold.name);
                keys.extend(now, &hold.candidate, ttl, lease.checkpoint.is_some());
                Ok(Answer::Held(()))
            }
        }
    }

    pub(crate) fn release(&mut self, release: &Release) -> Result<()> {
        let name = &release.hold.name;
        let Standing::Rules = self.standing(name)? else { return Ok(()) };
        if self.leases.release(self.moment(), self.micros(), release)? {
            let keys = self.keys_mut(name);
            (keys.term, keys.visible, keys.carried_since) = (None, None, None);
            if keys.ephemeral {
                keys.present_until = 0;
            }
        }
        Ok(())
    }

    pub(crate) fn save(
        &mut self,
        hold: &Hold,
        number: u64,
        checkpoint: &Checkpoint,
    ) -> Result<Answer> {
        let Standing::Rules = self.standing(&hold.name)? else { return self.taken(&hold.name) };
        match self.leases.save(self.moment(), hold, number, checkpoint)? {
            Answer::Taken(_) => self.taken(&hold.name),
            Answer::Held(()) => {
                let keys = self.keys_mut(&hold.name);
                if !keys.ephemeral {
                    keys.forgotten_at = None;
                }
                Ok(Answer::Held(()))
            }
        }
    }

    /// A revocation acts on the record, whatever the visible key says. It never deletes another program's key.
    pub(crate) fn revoke(&mut self, name: &Name, when: Revoke) -> Result<Lease> {
        if let Standing::Foreign(_) = self.standing(name)?
            && !self.has_record(name)
        {
            return Err(Error::invalid(format!(
                "'{name}' was set by another program, not by Tenure: there is nothing to revoke; \
                 to take it away, delete the key"
            )));
        }
        self.leases.revoke(self.moment(), self.micros(), name, when)?;
        let now = self.now;
        let keys = self.keys_mut(name);
        if when == Revoke::Now || !keys.is_live(now) {
            if keys.is_ours() {
                keys.visible = None;
            }
            (keys.term, keys.carried_since) = (None, None);
        }
        Ok(self.shown(name)?.expect("it has a record"))
    }

    /// All names of the history.
    pub(crate) fn observe(&mut self) -> Vec<Result<Lease>> {
        let names = self.names.keys().cloned().collect();
        self.observe_names(names)
    }

    /// The same by their common prefix.
    pub(crate) fn observe_prefix(&mut self) -> Vec<Result<Lease>> {
        let is_listed = |keys: &Keys| keys.indexed || keys.present_until > self.now;
        let listed = self.names.iter().filter(|(_, keys)| is_listed(keys));
        let names = listed.map(|(name, _)| name.clone()).collect();
        self.observe_names(names)
    }

    /// A name under which nothing was found is not listed any more.
    fn observe_names(&mut self, names: Vec<Name>) -> Vec<Result<Lease>> {
        let mut found = Vec::new();
        for name in names {
            match self.shown(&name).transpose() {
                Some(lease) => found.push(lease),
                None => *self.keys_mut(&name) = Keys::default(),
            }
        }
        found
    }

    pub(crate) fn set_key(
        &mut self,
        name: &Name,
        value: Vec<u8>,
        only_if_absent: bool,
        expires_in: Option<u64>,
    ) {
        let expires_at = expires_in.map(|time| self.now + time);
        let keys = self.keys_mut(name);
        if !only_if_absent || keys.visible.is_none() {
            keys.visible = Some(Visible { value: Some(value), expires_at });
        }
    }

    pub(crate) fn expire_key(&mut self, name: &Name, expires_in: Option<u64>) {
        let expires_at = expires_in.map(|time| self.now + time);
        if let Some(visible) = &mut self.keys_mut(name).visible {
            visible.expires_at = expires_at;
        }
    }

    pub(crate) fn delete_key(&mut self, name: &Name) {
        self.keys_mut(name).visible = None;
    }

    pub(crate) fn delete_companion(&mut self, name: &Name) {
        self.leases.forget(name);
        self.keys_mut(name).lose_record();
    }

    /// The visible key becomes a list.
    pub(crate) fn corrupt_key(&mut self, name: &Name) {
        self.keys_mut(name).visible = Some(Visible { value: None, expires_at: None });
    }

    pub(crate) fn corrupt_companion(&mut self, name: &Name) {
        self.delete_companion(name);
        self.keys_mut(name).garbage = true;
    }

    /// Both keys are deleted, and a free record with this token takes their place.
    pub(crate) fn set_token(&mut self, name: &Name, token: Token) {
        self.delete_companion(name);
        self.delete_key(name);
        self.leases.set_token(name, token);
    }

    /// The server has lost everything.
    pub(crate) fn lose_all(&mut self) {
        for (name, keys) in &mut self.names {
            self.leases.forget(name);
            *keys = Keys::default();
        }
    }
}

/// A live term whose visible key was deleted, as readers see it: free, and no one knows how it ended.
fn deleted(mut lease: Lease) -> Lease {
    lease.lineage = lease.lineage.map(|lineage| Lineage::new(lineage.origin, Ended::Nothing));
    lease.holder = None;
    (lease.ttl, lease.left) = (Duration::ZERO, Duration::ZERO);
    lease.since = None;
    lease.note = Note::default();
    lease.wait = None;
    lease
}
