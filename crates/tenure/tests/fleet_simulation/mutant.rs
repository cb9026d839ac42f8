//! Guards taken away one at a time, by glue that lies; there is no switch in the library.
//!
//! | mutant | what it undoes | caught by |
//! |---|---|---|
//! | `ReleaseBeforeEnd` | nothing is released before its work has ended | I9 |
//! | `PlanIsRight` | the plan says who should, only the lease who may | I1 |
//! | `MembershipIsRight` | being a member gives no right to any shard | I1 |
//! | `LeaveWithoutWaiting` | a shard that moves is kept until its work has ended | I9 |
//! | `JoinsWithoutList` | a member joins only after it has read its list | L6 NO_LIST_NO_MEMBER |
//! | `IgnoresLists` | a shard is planned only for members that list it | L6 LISTED_IS_OWNED |
//! | `IgnoresUnseated` | whoever is no member gives up what it has | L6 |

use super::config::Plan;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    None,
    ReleaseBeforeEnd,
    PlanIsRight,
    MembershipIsRight,
    LeaveWithoutWaiting,
    IgnoresUnseated,
    JoinsWithoutList,
    IgnoresLists,
}

impl Mutant {
    pub(crate) const ALL: &[Mutant] = &[
        Mutant::ReleaseBeforeEnd,
        Mutant::PlanIsRight,
        Mutant::MembershipIsRight,
        Mutant::LeaveWithoutWaiting,
        Mutant::IgnoresUnseated,
        Mutant::JoinsWithoutList,
        Mutant::IgnoresLists,
    ];

    /// The worlds in which it is looked for.
    pub(crate) fn plan(self) -> fn(u64) -> Plan {
        match self {
            Mutant::JoinsWithoutList | Mutant::IgnoresLists => Plan::lists,
            _ => Plan::chaos,
        }
    }

    pub(crate) fn caught_by(self) -> &'static str {
        match self {
            Mutant::None => "nothing",
            Mutant::ReleaseBeforeEnd | Mutant::LeaveWithoutWaiting => "I9 ",
            Mutant::PlanIsRight | Mutant::MembershipIsRight => "I1 ",
            Mutant::IgnoresUnseated => "L6 NO_MEMBER_NO_SHARD",
            Mutant::JoinsWithoutList => "L6 NO_LIST_NO_MEMBER",
            Mutant::IgnoresLists => "L6 LISTED_IS_OWNED",
        }
    }

    /// `TENURE_MUTANT=PlanIsRight` puts one into a replayed seed.
    pub(crate) fn from_env() -> Self {
        let wanted = std::env::var("TENURE_MUTANT").unwrap_or_default();
        let found = Mutant::ALL.iter().find(|mutant| format!("{mutant:?}") == wanted);
        found.copied().unwrap_or(Mutant::None)
    }
}
