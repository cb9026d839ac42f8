//! The values of a lease, shared by all modules: names, tokens, claims, holds, leases; their parsing and limits.

mod past_term;
mod startup_wait;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::entropy;
use crate::error::{Error, Result};

pub use past_term::{Ended, PastTerm, PastTermOutcome};
pub use startup_wait::{ClaimedWait, StartupWait, WaitReason};

/// The prefix of the names of Tenure's own leases. A user's name must not begin with it.
pub const OWN_PREFIX: &str = "tenure:";

const MAX_NAME_BYTES: usize = 200;
const MAX_ID_BYTES: usize = 100;
/// `tenure:node:NAME:ID` is the longest name of Tenure's own leases.
const MAX_STORED_NAME_BYTES: usize = MAX_NAME_BYTES + MAX_ID_BYTES + 20;
const MAX_NOTE_BYTES: usize = 512;
const MAX_CHECKPOINT_BYTES: usize = 4096;

/// Tokens stay below this, so that every language reads them exactly, including those whose numbers are doubles.
const TOKEN_END: u64 = 1 << 53;

/// The name of a lease: 1 to 200 bytes of `A–Z a–z 0–9 . _ : / -`.
///
/// ```
/// let name = tenure::Name::new("billing:nightly")?;
/// assert_eq!(name.as_str(), "billing:nightly");
/// assert!(tenure::Name::new("tenure:mine").is_err()); // that prefix is Tenure's own
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Checks a name that a user has chosen.
    pub fn new(name: &str) -> Result<Self> {
        check("a lease name", name, MAX_NAME_BYTES, "")?;
        if name.starts_with(OWN_PREFIX) {
            return Err(Error::invalid(format!(
                "the name '{name}' begins with '{OWN_PREFIX}', which is kept for Tenure's own leases: choose another"
            )));
        }
        Ok(Name(name.into()))
    }

    /// Checks a name that was found in a store. This includes Tenure's own names, and names with a `%`, which a fleet writes
    /// into the names of its shards' leases (see [`Shard`](crate::fleet::Shard)).
    pub fn stored(name: &str) -> Result<Self> {
        check("a lease name", name, MAX_STORED_NAME_BYTES, "%")?;
        Ok(Name(name.into()))
    }

    /// Creates a name from parts that were checked.
    pub(crate) fn own(name: String) -> Self {
        debug_assert!(Self::stored(&name).is_ok(), "{name}");
        Name(name.into())
    }

    /// The name of the lease that carries a request to the leader of `self`.
    #[must_use]
    pub fn request_name(&self) -> Name {
        Name(format!("{OWN_PREFIX}ask:{self}").into())
    }

    /// The name whose leader gets the request, if `self` is the name of a request lease.
    pub(crate) fn request_target(&self) -> Option<Name> {
        let of = self.0.strip_prefix(OWN_PREFIX)?.strip_prefix("ask:")?;
        Name::stored(of).ok()
    }

    /// The name of the presence lease of the candidate `id` of `self`.
    #[must_use]
    pub fn node(&self, id: &CandidateId) -> Name {
        Name(format!("{}{id}", self.nodes()).into())
    }

    /// The common prefix of the names of all presence leases of `self`. A longer name may begin like this too: see
    /// [`present`](crate::presence::present).
    pub(crate) fn nodes(&self) -> String {
        format!("{OWN_PREFIX}node:{self}:")
    }

    /// Whether this is the name of one of Tenure's own leases.
    pub fn is_own(&self) -> bool {
        self.0.starts_with(OWN_PREFIX)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The readable id of a candidate: the alphabet of a [`Name`], up to 100 bytes.
///
/// It may be stable over restarts; the [`Nonce`] distinguishes two campaigns.
///
/// ```
/// let id = tenure::CandidateId::new("web-1")?;
/// let other = tenure::CandidateId::generate();
/// assert_ne!(id, other);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CandidateId(Arc<str>);

impl CandidateId {
    /// Checks an id that the caller has chosen.
    pub fn new(id: &str) -> Result<Self> {
        check("a candidate id", id, MAX_ID_BYTES, "")?;
        Ok(CandidateId(id.into()))
    }

    /// Generates `HOSTNAME-PID-RANDOM`: readable, and different for every call.
    pub fn generate() -> Self {
        let system = rustix::system::uname();
        let host: String = system
            .nodename()
            .to_string_lossy()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '-' })
            .take(60)
            .collect();
        let host = if host.is_empty() { "host".to_owned() } else { host };
        let random = entropy::random_u128() & 0xffff_ffff;
        CandidateId(format!("{host}-{}-{random:08x}", std::process::id()).into())
    }

    /// The id as shared text, without a copy.
    pub(crate) fn shared(&self) -> Arc<str> {
        self.0.clone()
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks a name, an id, or a part of a name. Each error is one sentence.
pub(crate) fn check(what: &str, text: &str, max: usize, also: &str) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(format!("{what} must not be empty")));
    }
    if text.len() > max {
        return Err(Error::invalid(format!(
            "{what} may have at most {max} bytes, this one has {}",
            text.len()
        )));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:/-".contains(c) || also.contains(c);
    match text.chars().find(|&c| !allowed(c)) {
        None => Ok(()),
        Some(bad) => Err(Error::invalid(format!(
            "{what} may contain only A-Z a-z 0-9 . _ : / -, not {bad:?}: '{}'",
            text.escape_debug()
        ))),
    }
}

/// Identifies one campaign. Each campaign has a new nonce; a repeated claim keeps it only while it is unanswered.
// Bytes, highest first: a u128 would align every struct that contains one to 16, and a fleet has very many of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// Generates a unique nonce.
    pub fn random() -> Self {
        Nonce::from_bits(entropy::random_u128())
    }

    /// Creates the nonce with these bits: for stores that read it back, and for simulations.
    pub const fn from_bits(bits: u128) -> Self {
        Nonce(bits.to_be_bytes())
    }

    /// The bits of the nonce.
    pub const fn to_bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// Parses the output of [`Display`](fmt::Display): exactly 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if text.len() != 32 || !digits {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Nonce::from_bits)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.to_bits())
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of a term. It only grows, is never used for two terms, and stays below 2^53.
///
/// ```
/// use tenure::Token;
///
/// let first = Token::mint(None, 1_750_258_800_000_000)?;
/// let second = Token::mint(Some(first), 0)?; // a clock that went back changes nothing
/// assert!(second > first);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(NonZeroU64);

impl Token {
    /// Creates the token with this number, which must be from 1 to 2^53 − 1.
    pub fn new(number: u64) -> Result<Self> {
        let token = NonZeroU64::new(number).filter(|_| number < TOKEN_END);
        token.map(Token).ok_or_else(|| {
            Error::corrupt(format!(
                "{number} is not a token: tokens are from 1 to 2^53 - 1. Another program wrote here; see 'tenure doctor'"
            ))
        })
    }

    /// Computes the next token, for every store: the last one plus one, or the minting clock if that is greater.
    ///
    /// The clock is a lower bound for a counter that can be lost (a flushed server, a restored backup).
    pub fn mint(last: Option<Token>, clock_micros: u64) -> Result<Self> {
        let next = last.map_or(1, |last| last.get() + 1);
        Token::new(next.max(clock_micros))
    }

    /// The token as a number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A short text in the record for its readers: a URL, or a request. At most 512 bytes, no control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note(Arc<str>);

impl Note {
    /// Checks the text of a note.
    pub fn new(text: &str) -> Result<Self> {
        if text.len() > MAX_NOTE_BYTES {
            return Err(Error::invalid(format!(
                "a note may have at most {MAX_NOTE_BYTES} bytes, this one has {}",
                text.len()
            )));
        }
        if text.chars().any(char::is_control) {
            return Err(Error::invalid("a note must not contain control characters"));
        }
        Ok(Note(text.into()))
    }

    /// The text; empty if there is none.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Up to 4 KiB that the leader saves for its successor, under its token.
///
/// ```
/// let checkpoint = tenure::Checkpoint::new("row 4711")?;
/// assert_eq!(checkpoint.as_bytes(), b"row 4711");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Checkpoint(Arc<[u8]>);

impl Checkpoint {
    /// Checks the length of a checkpoint.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self> {
        let bytes = bytes.as_ref();
        if bytes.len() > MAX_CHECKPOINT_BYTES {
            return Err(Error::invalid(format!(
                "a checkpoint may have at most {MAX_CHECKPOINT_BYTES} bytes, this one has {}: keep the data elsewhere and its place here",
                bytes.len()
            )));
        }
        Ok(Checkpoint(bytes.into()))
    }

    /// The content of the checkpoint.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The content belongs to the application and may be secret.
        write!(f, "Checkpoint({} bytes)", self.0.len())
    }
}

/// A request to acquire. Created by [`Claim::new`]; then set what differs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The name of the lease that is claimed.
    pub name: Name,
    /// The id of the candidate that claims.
    pub candidate: CandidateId,
    /// The campaign that the claim belongs to.
    pub nonce: Nonce,
    /// The length of the lease, from each grant or renewal.
    pub ttl: Duration,
    /// Shown to readers of the lease. Repeating the claim replaces it.
    pub note: Note,
    /// The work ends with this process. So its death may free the lease before it expires, if the store can detect it (see the
    /// file store).
    pub ends_with_process: bool,
    /// How long the holder will wait before it leads.
    pub wait: ClaimedWait,
    /// Whether the record keeps the last terms that ended ([`Lease::history`]). Elections do; a fleet with very many shards
    /// does not.
    pub keeps_history: bool,
}

impl Claim {
    /// Creates a claim without a note and without a history, whose term does not end with the process, and which waits as the
    /// store requires.
    pub fn new(name: Name, candidate: CandidateId, nonce: Nonce, ttl: Duration) -> Self {
        Claim {
            name,
            candidate,
            nonce,
            ttl,
            note: Note::default(),
            ends_with_process: false,
            wait: ClaimedWait::AsRequired,
            keeps_history: false,
        }
    }

    /// The same claim for this name.
    #[must_use]
    pub fn with_name(mut self, name: Name) -> Self {
        self.name = name;
        self
    }

    /// The same claim with this TTL.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The same claim with this note for readers of the lease.
    #[must_use]
    pub fn with_note(mut self, note: Note) -> Self {
        self.note = note;
        self
    }

    /// The same claim with this start-up wait.
    #[must_use]
    pub fn with_wait(mut self, wait: ClaimedWait) -> Self {
        self.wait = wait;
        self
    }

    /// The same claim for work that ends with this process: see [`Claim::ends_with_process`].
    #[must_use]
    pub fn ending_with_process(mut self) -> Self {
        self.ends_with_process = true;
        self
    }

    /// The proof that this claim was granted in the term `token`: for stores.
    pub fn held_in(&self, token: Token) -> Hold {
        let (name, candidate) = (self.name.clone(), self.candidate.clone());
        Hold { name, candidate, nonce: self.nonce, token }
    }
}

/// The proof of holding a lease, which a store compares before it changes anything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Hold {
    /// The name of the lease.
    pub name: Name,
    /// The id of the holder.
    pub candidate: CandidateId,
    /// The campaign of the holder.
    pub nonce: Nonce,
    /// The token of the term.
    pub token: Token,
}

impl Hold {
    /// Creates the proof that `candidate` holds `name` in the campaign `nonce` and the term `token`: for a process that gets
    /// these from the holder.
    pub fn new(name: Name, candidate: CandidateId, nonce: Nonce, token: Token) -> Self {
        Hold { name, candidate, nonce, token }
    }
}

/// A request to release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The proof of the lease to release.
    pub hold: Hold,
    /// The preferred successor: a hint, no right.
    pub next: Option<CandidateId>,
}

impl Release {
    /// Creates a request to release the lease of `hold`, with the preferred successor.
    pub fn new(hold: Hold, next: Option<CandidateId>) -> Self {
        Release { hold, next }
    }
}

impl From<Hold> for Release {
    fn from(hold: Hold) -> Self {
        Release { hold, next: None }
    }
}

impl From<&Hold> for Release {
    fn from(hold: &Hold) -> Self {
        Release::from(hold.clone())
    }
}

/// The origin of a record. It lets a waiting candidate detect that the store has lost a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lineage {
    /// The first token of this record. It changes only if the record vanished and was created again.
    pub origin: Token,
    /// How the term before this one ended; for a free lease, how the last term ended.
    pub before: Ended,
}

impl Lineage {
    /// Creates the lineage of a record with this first token.
    pub fn new(origin: Token, before: Ended) -> Self {
        Lineage { origin, before }
    }
}

/// The time on the store's own clock, in microseconds. Compared only with other times of the same store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreTime(pub u64);

impl StoreTime {
    /// How far the store's clock has moved since `earlier`; zero if it went back.
    pub fn since(self, earlier: StoreTime) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// The content of a successful claim. A store creates it with [`Grant::new`], and sets what it knows besides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The proof of holding the lease.
    pub hold: Hold,
    /// The origin of the record, and how the last term ended.
    pub lineage: Lineage,
    /// The checkpoint that the last leader saved.
    pub checkpoint: Option<Checkpoint>,
    /// The store's clock when it granted the lease; `None` if the store has no clock.
    pub store_time: Option<StoreTime>,
    /// How long the holder must not lead yet, because the store may have lost an earlier lease.
    pub wait: Option<StartupWait>,
    /// The moment from which the TTL counts, on the clock of the caller, if that is before the request was sent. A store whose
    /// leases share a session of its server sets it: the session's time counts from its last keepalive, and an acquire does not
    /// extend it.
    pub counts_from: Option<Moment>,
}

impl Grant {
    /// Creates a grant without a checkpoint, from a store without a clock, whose holder leads at once.
    pub fn new(hold: Hold, lineage: Lineage) -> Self {
        Grant { hold, lineage, checkpoint: None, store_time: None, wait: None, counts_from: None }
    }
}

/// The answer of a store to a claim, a renewal or a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T = ()> {
    /// The caller holds the lease.
    Held(T),
    /// The caller does not hold the lease. What the store knows about it.
    Taken(Box<Lease>),
}

impl<T> Answer<T> {
    /// The value, if the caller holds the lease.
    pub fn held(self) -> Option<T> {
        match self {
            Answer::Held(value) => Some(value),
            Answer::Taken(_) => None,
        }
    }

    /// Whether the caller holds the lease.
    pub fn is_held(&self) -> bool {
        matches!(self, Answer::Held(_))
    }
}

/// The holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The id as found. The id of a foreign holder may be any text, so escape it for output.
    pub id: String,
    /// The campaign of the holder; `None` for a holder that does not use Tenure (a plain `SET NX` in Redis).
    pub nonce: Option<Nonce>,
}

impl Holder {
    /// Creates a holder; without a nonce it does not use Tenure.
    pub fn new(id: impl Into<String>, nonce: Option<Nonce>) -> Self {
        Holder { id: id.into(), nonce }
    }
}

/// A lease as a store returns it. A store creates it with [`Lease::free`], and sets what it knows besides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The name of the lease.
    pub name: Name,
    /// The current holder; `None` if the lease is free, whether released or expired.
    pub holder: Option<Holder>,
    /// The token of the current or last term; `None` for a foreign holder without a token.
    pub token: Option<Token>,
    /// The holder's TTL.
    pub ttl: Duration,
    /// The remaining time of the holder on the store's clock; zero if the lease is free.
    pub left: Duration,
    /// When the current term began, on the store's wall clock in Unix milliseconds.
    pub since: Option<u64>,
    /// The holder's note.
    pub note: Note,
    /// The preferred successor that the last holder named.
    pub next: Option<CandidateId>,
    /// The origin of the record; `None` if only a foreign holder was found.
    pub lineage: Option<Lineage>,
    /// The last checkpoint that a leader saved.
    pub checkpoint: Option<Checkpoint>,
    /// The store's clock when it answered; `None` if the store has no clock.
    pub store_time: Option<StoreTime>,
    /// The holder's start-up wait: the holder does not lead until it is over.
    pub wait: Option<StartupWait>,
    /// The last terms that ended, the oldest first; empty if the lease keeps none.
    pub history: Vec<PastTerm>,
}

impl Lease {
    /// Creates a lease that is free, and of which nothing else is known.
    pub fn free(name: Name) -> Self {
        Lease {
            name,
            holder: None,
            token: None,
            ttl: Duration::ZERO,
            left: Duration::ZERO,
            since: None,
            note: Note::default(),
            next: None,
            lineage: None,
            checkpoint: None,
            store_time: None,
            wait: None,
            history: Vec::new(),
        }
    }

    /// The id of the leader: the holder, unless it is still in its start-up wait.
    pub fn leader(&self) -> Option<&str> {
        let holder = self.holder.as_ref().filter(|_| self.wait.is_none())?;
        Some(&holder.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn names_are_checked_with_one_sentence_each() {
        let long = "x".repeat(201);
        for (name, says) in [
            ("", "must not be empty"),
            (long.as_str(), "at most 200 bytes, this one has 201"),
            ("a b", "' '"),
            ("a\n", "'\\n'"),
            ("naïve", "'ï'"),
            ("tenure:x", "begins with 'tenure:'"),
        ] {
            let error = Name::new(name).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(says), "{name:?}: {error}");
        }
        assert!(Name::new(&"x".repeat(200)).is_ok());
        assert!(Name::new("AZaz09._:/-").is_ok());
        assert!(Name::stored("tenure:ask:a").is_ok());
        assert!(Name::stored("a:lease:b%20c").is_ok());
        assert!(Name::new("a:lease:b%20c").is_err() && CandidateId::new("a%20").is_err());
        assert!(CandidateId::new(&"x".repeat(101)).is_err());
    }

    #[test]
    fn a_generated_id_is_valid_and_unique() {
        let id = CandidateId::generate();
        assert!(CandidateId::new(id.as_str()).is_ok(), "{id}");
        assert_ne!(id, CandidateId::generate());
    }

    #[test]
    fn a_token_is_refused_at_two_to_the_53() {
        let last = Token::new(TOKEN_END - 1).unwrap();
        assert_eq!(Token::mint(Some(last), 0).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(Token::mint(None, TOKEN_END).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(Token::new(0).unwrap_err().kind(), Kind::Corrupt);
        let token = |number| Token::new(number).unwrap();
        assert_eq!(Token::mint(Some(token(7)), 3).unwrap(), token(8));
        assert_eq!(Token::mint(Some(token(7)), 99).unwrap(), token(99));
    }

    #[test]
    fn only_a_written_nonce_is_parsed() {
        let nonce = Nonce::random();
        assert_eq!(Nonce::parse(&nonce.to_string()), Some(nonce));
        for bad in ["", "12", &"g".repeat(32), &"A".repeat(32), &format!("+{}", "1".repeat(31))] {
            assert_eq!(Nonce::parse(bad), None, "{bad}");
        }
    }
}
