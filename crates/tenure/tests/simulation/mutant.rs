//! Mutants: each removes one safeguard, by changing messages between the machine and the world. The library itself has no
//! switch.
//!
//! | mutant | what it undoes | caught by |
//! |---|---|---|
//! | `DeadlineFromReply` | the deadline counts from before the request was sent | I5, I1 |
//! | `CachedBool` | "am I leader" compares with the clock at every call | I1 |
//! | `NoncePerProcess` | a new campaign has a new nonce | I8 (a used token is refused by the machine itself) |
//! | `RenewalAfterRelease` | nothing is renewed after a release | I8 |
//! | `ReleaseBeforeStop` | the work has ended before the lease is released | I9 |
//! | `ReleaseAnybody` | a release compares nonce and token | I7 |
//! | `OwnTtl` | a challenger waits for the record's TTL, not for its own | I1 |
//! | `GarbageIsFree` | what cannot be read is not free | I10 |
//! | `SaveWithoutNumber` | a delayed save cannot undo a newer one | I4 |
//! | `NoMemory` | a waiter trusts its own observations more than a store that lost its records | I1 |
//! | `LateAnswers` | answers to abandoned requests are ignored | I5, I1 |
//! | `NoStartupWait` | the holder waits on a store that restarted and lost everything | I1 |

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    None,
    DeadlineFromReply,
    CachedBool,
    NoncePerProcess,
    RenewalAfterRelease,
    ReleaseBeforeStop,
    ReleaseAnybody,
    OwnTtl,
    GarbageIsFree,
    SaveWithoutNumber,
    NoMemory,
    LateAnswers,
    NoStartupWait,
}

impl Mutant {
    pub(crate) const ALL: &[Mutant] = &[
        Mutant::DeadlineFromReply,
        Mutant::CachedBool,
        Mutant::NoncePerProcess,
        Mutant::RenewalAfterRelease,
        Mutant::ReleaseBeforeStop,
        Mutant::ReleaseAnybody,
        Mutant::OwnTtl,
        Mutant::GarbageIsFree,
        Mutant::SaveWithoutNumber,
        Mutant::NoMemory,
        Mutant::LateAnswers,
        Mutant::NoStartupWait,
    ];

    pub(crate) fn caught_by(self) -> &'static [&'static str] {
        match self {
            Mutant::None => &[],
            Mutant::DeadlineFromReply | Mutant::LateAnswers => &["I5 ", "I1 "],
            Mutant::CachedBool | Mutant::OwnTtl | Mutant::NoMemory | Mutant::NoStartupWait => {
                &["I1 "]
            }
            Mutant::NoncePerProcess => &["I8 "],
            Mutant::RenewalAfterRelease => &["I8 "],
            Mutant::ReleaseBeforeStop => &["I9 "],
            Mutant::ReleaseAnybody => &["I7 "],
            Mutant::GarbageIsFree => &["I10 "],
            Mutant::SaveWithoutNumber => &["I4 "],
        }
    }

    /// Selects a mutant for a replayed seed, for example `TENURE_MUTANT=CachedBool`.
    pub(crate) fn from_env() -> Self {
        let wanted = std::env::var("TENURE_MUTANT").unwrap_or_default();
        let found = Mutant::ALL.iter().find(|mutant| format!("{mutant:?}") == wanted);
        found.copied().unwrap_or(Mutant::None)
    }
}
