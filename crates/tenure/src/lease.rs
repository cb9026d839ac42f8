//! The values everything else speaks in: names, tokens, claims, holds, leases; their parsing and limits.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::entropy;
use crate::error::{Error, Result};

/// The first name of every lease that is Tenure's own; a user's name may not begin with it.
pub const OWN_PREFIX: &str = "tenure:";

const NAME_MAX: usize = 200;
const ID_MAX: usize = 100;
/// `tenure:node:NAME:ID` is the longest name of our own.
const STORED_MAX: usize = NAME_MAX + ID_MAX + 20;
const NOTE_MAX: usize = 512;
const CHECKPOINT_MAX: usize = 4096;

/// Tokens stay below this, so that every language reads them exactly, also those whose numbers are doubles.
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
    /// A user's name.
    pub fn new(name: &str) -> Result<Self> {
        check("a lease name", name, NAME_MAX, "")?;
        if name.starts_with(OWN_PREFIX) {
            return Err(Error::invalid(format!(
                "the name '{name}' begins with '{OWN_PREFIX}', which is kept for Tenure's own leases: choose another"
            )));
        }
        Ok(Name(name.into()))
    }

    /// A name as a store finds it, Tenure's own among them, and those with a `%`, which a fleet writes into the names of its
    /// shards' leases (see [`Shard`](crate::fleet::Shard)).
    pub fn stored(name: &str) -> Result<Self> {
        check("a lease name", name, STORED_MAX, "%")?;
        Ok(Name(name.into()))
    }

    /// A name put together from parts that were checked.
    pub(crate) fn own(name: String) -> Self {
        debug_assert!(Self::stored(&name).is_ok(), "{name}");
        Name(name.into())
    }

    /// The lease by which something is asked of the leader of `self`.
    #[must_use]
    pub fn ask(&self) -> Name {
        Name(format!("{OWN_PREFIX}ask:{self}").into())
    }

    /// The name of whose leader this lease asks something.
    pub(crate) fn asked_of(&self) -> Option<Name> {
        let of = self.0.strip_prefix(OWN_PREFIX)?.strip_prefix("ask:")?;
        Name::stored(of).ok()
    }

    /// The lease which the candidate `id` of `self` holds on itself while it is there.
    #[must_use]
    pub fn node(&self, id: &CandidateId) -> Name {
        Name(format!("{}{id}", self.nodes()).into())
    }

    /// How the names of all of those begin. A longer name may begin like this too: see [`present`](crate::presence::present).
    pub(crate) fn nodes(&self) -> String {
        format!("{OWN_PREFIX}node:{self}:")
    }

    /// Whether it is one of Tenure's own.
    pub fn is_own(&self) -> bool {
        self.0.starts_with(OWN_PREFIX)
    }

    /// The text.
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
/// It may be stable over restarts; what tells two campaigns apart is the [`Nonce`].
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
    /// An id of the caller's choice.
    pub fn new(id: &str) -> Result<Self> {
        check("a candidate id", id, ID_MAX, "")?;
        Ok(CandidateId(id.into()))
    }

    /// `HOSTNAME-PID-RANDOM`: readable, and different for every call.
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

    /// The text, without a copy of it.
    pub(crate) fn shared(&self) -> Arc<str> {
        self.0.clone()
    }

    /// The text.
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

/// One sentence for every way in which a name or an id can be wrong.
fn check(what: &str, text: &str, max: usize, also: &str) -> Result<()> {
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

/// New for every campaign; kept only while one unanswered acquire is repeated.
// Bytes, highest first: a u128 would align everything that holds one to 16, and a fleet has very many.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// A nonce nobody else has.
    pub fn random() -> Self {
        Nonce::from_bits(entropy::random_u128())
    }

    /// The nonce with these bits: for stores that read it back, and for simulations.
    pub const fn from_bits(bits: u128) -> Self {
        Nonce(bits.to_be_bytes())
    }

    /// Its bits.
    pub const fn to_bits(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// Reads what [`Display`](fmt::Display) wrote: 32 lower-case hexadecimal digits, nothing else.
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

/// The number of a term: only grows, is never used for two terms, and stays below 2^53.
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
    /// The token with this number, if it is one: from 1 to 2^53 − 1.
    pub fn new(number: u64) -> Result<Self> {
        let token = NonZeroU64::new(number).filter(|_| number < TOKEN_END);
        token.map(Token).ok_or_else(|| {
            Error::corrupt(format!(
                "{number} is not a token: tokens are from 1 to 2^53 - 1. Somebody else wrote here; see 'tenure doctor'"
            ))
        })
    }

    /// The one rule for every counter: the last one plus one, or the minting clock if that is more.
    ///
    /// The clock is a floor under a counter that can be lost (a flushed server, a restored backup).
    pub fn mint(last: Option<Token>, clock_micros: u64) -> Result<Self> {
        let next = last.map_or(1, |last| last.get() + 1);
        Token::new(next.max(clock_micros))
    }

    /// The number.
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

/// A few words in the record for whoever looks: a URL, or what is asked. At most 512 bytes, no control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note(Arc<str>);

impl Note {
    /// A note with this text.
    pub fn new(text: &str) -> Result<Self> {
        if text.len() > NOTE_MAX {
            return Err(Error::invalid(format!(
                "a note may have at most {NOTE_MAX} bytes, this one has {}",
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

/// Up to 4 KiB which the leader leaves for its successor, written under its token.
///
/// ```
/// let checkpoint = tenure::Checkpoint::new("row 4711")?;
/// assert_eq!(checkpoint.as_bytes(), b"row 4711");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Checkpoint(Arc<[u8]>);

impl Checkpoint {
    /// A checkpoint with these bytes.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self> {
        let bytes = bytes.as_ref();
        if bytes.len() > CHECKPOINT_MAX {
            return Err(Error::invalid(format!(
                "a checkpoint may have at most {CHECKPOINT_MAX} bytes, this one has {}: keep the data elsewhere and its place here",
                bytes.len()
            )));
        }
        Ok(Checkpoint(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its contents are the application's and may be secret.
        write!(f, "Checkpoint({} bytes)", self.0.len())
    }
}

/// A request to acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What is wanted.
    pub name: Name,
    /// By whom.
    pub candidate: CandidateId,
    /// In which campaign.
    pub nonce: Nonce,
    /// For how long at a time.
    pub ttl: Duration,
    /// Shown to readers of the lease. The same claim again replaces it.
    pub note: Note,
    /// The work ends with this process, so its death may free the lease before it expires,
    /// where the store can see a process die (see the file store).
    pub ends_with_process: bool,
    /// How long the holder will wait before it leads.
    pub wait: ClaimedWait,
}

/// How long the holder of a claimed lease waits before it leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimedWait {
    /// As long as the store requires.
    #[default]
    AsRequired,
    /// At least this long, because the claimer remembers a leader that the store may have lost. The store records it, so
    /// that no reader names a leader meanwhile.
    AtLeast(StartupWait),
    /// Not at all: the lease grants no right (presence, membership, a request), so no earlier holder can be at work.
    Never,
}

/// A start-up wait: a candidate holds the lease and does not lead yet, because the store may have lost an earlier lease
/// that is still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupWait {
    /// How long the holder still waits.
    pub left: Duration,
    /// Why it waits.
    pub reason: WaitReason,
}

/// Why the holder of a lease does not lead yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// The store started a short time ago and is not durable, so it may have lost a lease.
    Restarted,
    /// The store started a short time ago, and the last term was not released: its holder may have renewed a lease of which
    /// the store kept an older state.
    Unreleased,
    /// The store was a replica until a short time ago and may lack what its primary granted.
    Promoted,
    /// The lease was deleted before it expired, so its holder may still be at work.
    Deleted,
    /// The candidate itself observed a leader whose lease the store has lost, or a store clock that was set forward.
    Observed,
}

impl WaitReason {
    const ALL: [WaitReason; 5] = [
        WaitReason::Restarted,
        WaitReason::Unreleased,
        WaitReason::Promoted,
        WaitReason::Deleted,
        WaitReason::Observed,
    ];

    /// The word used in records and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitReason::Restarted => "restarted",
            WaitReason::Unreleased => "unreleased",
            WaitReason::Promoted => "promoted",
            WaitReason::Deleted => "deleted",
            WaitReason::Observed => "observed",
        }
    }

    /// Reads what [`WaitReason::as_str`] wrote.
    pub fn parse(word: &str) -> Option<WaitReason> {
        WaitReason::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

impl fmt::Display for WaitReason {
    /// One clause for people: what happened, and what may follow from it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WaitReason::Restarted => {
                "the store started recently without a durable log and may have lost a lease that is still in use"
            }
            WaitReason::Unreleased => {
                "the store started recently and the last leader did not release its lease, so it may still be at work"
            }
            WaitReason::Promoted => {
                "the store was a replica until recently and may have lost a lease that is still in use"
            }
            WaitReason::Deleted => {
                "the lease was deleted before it expired, so its last holder may still be at work"
            }
            WaitReason::Observed => {
                "the store lost the lease of an earlier leader, or its clock was set, so that leader may still be at work"
            }
        })
    }
}

impl Claim {
    /// A claim without a note whose term does not end with the process, and that waits as the store requires.
    pub fn new(name: Name, candidate: CandidateId, nonce: Nonce, ttl: Duration) -> Self {
        Claim {
            name,
            candidate,
            nonce,
            ttl,
            note: Note::default(),
            ends_with_process: false,
            wait: ClaimedWait::AsRequired,
        }
    }

    /// The proof that this claim was granted in the term `token`: for stores.
    pub fn held_in(&self, token: Token) -> Hold {
        let (name, candidate) = (self.name.clone(), self.candidate.clone());
        Hold { name, candidate, nonce: self.nonce, token }
    }
}

/// The proof of holding: what a store compares before it changes anything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// What is held.
    pub name: Name,
    /// By whom.
    pub candidate: CandidateId,
    /// In which campaign.
    pub nonce: Nonce,
    /// In which term.
    pub token: Token,
}

/// A request to release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// What is given back.
    pub hold: Hold,
    /// Who is asked to take it next: a hint, no right.
    pub next: Option<CandidateId>,
}

impl From<Hold> for Release {
    fn from(hold: Hold) -> Self {
        Release { hold, next: None }
    }
}

/// How a term ended, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// No record was found: the name is new, or the store has lost it.
    Nothing,
    /// Its holder released it.
    Released(Token),
    /// Its time ran out, or it was revoked.
    Expired(Token),
    /// The store saw its holder die.
    Died(Token),
}

impl Ended {
    /// The term that ended, if one was found.
    pub fn token(self) -> Option<Token> {
        match self {
            Ended::Nothing => None,
            Ended::Released(token) | Ended::Expired(token) | Ended::Died(token) => Some(token),
        }
    }
}

/// Where a name's record comes from. Lets a waiter see that the store has forgotten something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The first token of this record. It changes only if the record vanished and was made anew.
    pub origin: Token,
    /// How the term before this one ended; of a free lease: how the last one did.
    pub before: Ended,
}

/// A reading of the store's own clock, in microseconds. Compared only with other readings of the same store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreTime(pub u64);

impl StoreTime {
    /// How far the store's clock has moved since `earlier`; zero if it went back.
    pub fn since(self, earlier: StoreTime) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// What comes with a lease that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The proof.
    pub hold: Hold,
    /// Where the record comes from and how the last term ended.
    pub lineage: Lineage,
    /// What the last leader left.
    pub checkpoint: Option<Checkpoint>,
    /// The store's clock when it granted; `None` where it has none.
    pub store_time: Option<StoreTime>,
    /// How long the holder must not lead yet, because the store may have lost an earlier lease.
    pub wait: Option<StartupWait>,
}

/// What a store says to a claim, a renewal or a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T = ()> {
    /// It is ours.
    Held(T),
    /// It is not: this is what is known about who has it.
    Taken(Box<Lease>),
}

impl<T> Answer<T> {
    /// What came with it, if it is ours.
    pub fn held(self) -> Option<T> {
        match self {
            Answer::Held(value) => Some(value),
            Answer::Taken(_) => None,
        }
    }

    /// Whether it is ours.
    pub fn is_held(&self) -> bool {
        matches!(self, Answer::Held(_))
    }
}

/// Who has a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id, as found: of a foreign holder it may be anything, so show it escaped.
    pub id: String,
    /// Its campaign; `None` for a holder that is not one of ours (a plain `SET NX` in Redis).
    pub nonce: Option<Nonce>,
}

/// A lease as a store shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub name: Name,
    /// Who has it now; `None` when it is free, whether released or run out.
    pub holder: Option<Holder>,
    /// The token of the current or last term; `None` where a foreign holder has none.
    pub token: Option<Token>,
    /// The holder's TTL.
    pub ttl: Duration,
    /// How long the holder has left on the store's clock; zero when free.
    pub left: Duration,
    /// When the current term began, on the store's wall clock in Unix milliseconds.
    pub since: Option<u64>,
    /// The holder's note.
    pub note: Note,
    /// Whom the last holder asked to come next.
    pub next: Option<CandidateId>,
    /// Where the record comes from; `None` where only a foreign holder was found.
    pub lineage: Option<Lineage>,
    /// What the leaders left.
    pub checkpoint: Option<Checkpoint>,
    /// The store's clock when it answered; `None` where it has none.
    pub store_time: Option<StoreTime>,
    /// The holder's start-up wait: until it is over, the holder does not lead.
    pub wait: Option<StartupWait>,
}

impl Lease {
    /// The id of the holder, unless it is still in its start-up wait: the leader of an election.
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
    fn a_generated_id_is_valid_and_unlike_the_next() {
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
    fn a_nonce_reads_back_and_nothing_else_does() {
        let nonce = Nonce::random();
        assert_eq!(Nonce::parse(&nonce.to_string()), Some(nonce));
        for bad in ["", "12", &"g".repeat(32), &"A".repeat(32), &format!("+{}", "1".repeat(31))] {
            assert_eq!(Nonce::parse(bad), None, "{bad}");
        }
    }
}
