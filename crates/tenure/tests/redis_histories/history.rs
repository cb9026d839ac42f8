//! The steps of a history: what candidates, operators and other programs do to a few names, and how much time passes before.

/// One name of a history, as an index of [`NAMES`].
pub(crate) type NameIndex = usize;

/// What follows the prefix of the history. The last one is the name of a fleet's member: its lease can be ephemeral.
pub(crate) const NAMES: [&str; 3] = ["a", "b", "node:m"];
/// The name whose lease is ephemeral if its claim never waits.
pub(crate) const MEMBER: NameIndex = 2;

/// The ids of the candidates. Other programs use them too.
pub(crate) const CANDIDATES: [&str; 3] = ["c0", "c1", "c2"];

/// Time passes, then something happens.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) pause: Pause,
    pub(crate) operation: Operation,
}

/// How much time passes before an operation, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pause {
    None,
    Millis(u64),
    /// Until a time that is recorded for a name, or a millisecond before or after it. No time passes if there is none.
    Until(NameIndex, Boundary, i64),
}

/// A time that is recorded for a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Boundary {
    /// The end of the term.
    Term,
    /// The expiry of the visible key, whichever program has set it.
    Key,
    /// The end of the holder's start-up wait.
    Wait,
    /// The expiry of the companion.
    Companion,
}

/// What happens.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Acquire(Vec<ClaimStep>),
    Renew {
        holds: Vec<HoldChoice>,
        ttl_micros: u64,
    },
    Release(Vec<ReleaseStep>),
    Save {
        hold: HoldChoice,
        number: u64,
        checkpoint: &'static str,
    },
    Revoke {
        name: NameIndex,
        now: bool,
    },
    ObservePrefix,
    /// Another program sets the visible key.
    SetKey {
        name: NameIndex,
        value: ForeignValue,
        only_if_absent: bool,
        expires_in: Option<u64>,
    },
    /// Another program changes the expiry of the visible key.
    ExpireKey {
        name: NameIndex,
        expires_in: Option<u64>,
    },
    /// Another program, or eviction, removes the visible key.
    DeleteKey {
        name: NameIndex,
    },
    /// The same for the companion.
    DeleteCompanion {
        name: NameIndex,
    },
    /// Another program writes something that is not a lease.
    Corrupt {
        name: NameIndex,
        garbage: Garbage,
    },
    /// An operator cleans up: both keys are deleted.
    DeleteBoth {
        name: NameIndex,
    },
    /// A free record whose token is this far below 2^53.
    NearLastToken {
        name: NameIndex,
        below: u64,
    },
    /// The server is killed and started again.
    Restart,
}

#[derive(Clone, Debug)]
pub(crate) struct ClaimStep {
    pub(crate) name: NameIndex,
    pub(crate) candidate: usize,
    /// Few nonces, so that claims are repeated, also by another candidate and in a later term.
    pub(crate) nonce: u128,
    pub(crate) ttl_micros: u64,
    pub(crate) note: &'static str,
    pub(crate) wait: WaitChoice,
    pub(crate) keeps_history: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitChoice {
    /// As required; a fleet's member never waits.
    Usual,
    /// The other of the two.
    Unusual,
    /// At least these microseconds.
    AtLeast(u64),
}

/// One of the holds that were granted on a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldChoice {
    pub(crate) name: NameIndex,
    /// How many grants before the last one.
    pub(crate) age: usize,
    pub(crate) change: HoldChange,
}

/// What is wrong with a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HoldChange {
    Nothing,
    Candidate,
    Nonce,
    LowerToken,
    HigherToken,
}

#[derive(Clone, Debug)]
pub(crate) struct ReleaseStep {
    pub(crate) hold: HoldChoice,
    pub(crate) next: Option<usize>,
}

/// The value that another program writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ForeignValue {
    /// A candidate's id.
    Candidate(usize),
    Empty,
    /// Lines, and bytes that are not UTF-8.
    Bytes,
    /// Longer than what is shown.
    Long,
}

impl ForeignValue {
    pub(crate) fn bytes(self) -> Vec<u8> {
        match self {
            ForeignValue::Candidate(index) => CANDIDATES[index].into(),
            ForeignValue::Empty => Vec::new(),
            ForeignValue::Bytes => b"held\n1\n\xff\x00 \xc3\xbc".to_vec(),
            ForeignValue::Long => "0123456789".repeat(40).into_bytes(),
        }
    }
}

/// What is not a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Garbage {
    /// The visible key is a list.
    List,
    /// The companion is a string.
    Text,
    /// The companion has one field only.
    Half,
    /// The companion is of a later format.
    Format,
    /// The companion's token is 2^53.
    Token,
}
