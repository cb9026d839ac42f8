//! Mutants: each removes one safeguard, in the code around the library. The library itself has no switch for it.
//!
//! | mutant | the rule that it breaks | caught by |
//! |---|---|---|
//! | `ReleaseBeforeEnd` | nothing is released before its work has ended | I9 |
//! | `PlanIsRight` | the plan says which member should own a shard, only the lease says which member may | I1 |
//! | `MembershipIsRight` | membership grants no right to any shard | I1 |
//! | `LeaveWithoutWaiting` | a shard that moves is kept until its work has ended | I9 |
//! | `JoinsWithoutList` | a member joins only after it has read its list | L6 NO_LIST_NO_MEMBER |
//! | `IgnoresLists` | a shard is planned only for members that list it | L6 LISTED_IS_OWNED |
//! | `IgnoresLostMembership` | a process that loses its membership releases its shards | L6 |

use super::config::SimConfig;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    None,
    ReleaseBeforeEnd,
    PlanIsRight,
    MembershipIsRight,
    LeaveWithoutWaiting,
    IgnoresLostMembership,
    JoinsWithoutList,
    IgnoresLists,
}

impl Mutant {
    pub(crate) const ALL: &[Mutant] = &[
        Mutant::ReleaseBeforeEnd,
        Mutant::PlanIsRight,
        Mutant::MembershipIsRight,
        Mutant::LeaveWithoutWaiting,
        Mutant::IgnoresLostMembership,
        Mutant::JoinsWithoutList,
        Mutant::IgnoresLists,
    ];

    /// The configuration in which the mutant must be caught.
    pub(crate) fn config(self) -> fn(u64) -> SimConfig {
        match self {
            Mutant::JoinsWithoutList | Mutant::IgnoresLists => SimConfig::lists,
            _ => SimConfig::chaos,
        }
    }

    pub(crate) fn caught_by(self) -> &'static str {
        match self {
            Mutant::None => "nothing",
            Mutant::ReleaseBeforeEnd | Mutant::LeaveWithoutWaiting => "I9 ",
            Mutant::PlanIsRight | Mutant::MembershipIsRight => "I1 ",
            Mutant::IgnoresLostMembership => "L6 NO_MEMBER_NO_SHARD",
            Mutant::JoinsWithoutList => "L6 NO_LIST_NO_MEMBER",
            Mutant::IgnoresLists => "L6 LISTED_IS_OWNED",
        }
    }

    /// `TENURE_MUTANT=PlanIsRight` enables a mutant for a replayed seed.
    pub(crate) fn from_env() -> Self {
        let wanted = std::env::var("TENURE_MUTANT").unwrap_or_default();
        let found = Mutant::ALL.iter().find(|mutant| format!("{mutant:?}") == wanted);
        found.copied().unwrap_or(Mutant::None)
    }
}
