//! PURE: which leases a store may forget after their end: those of participants (presence, membership, requests).

use crate::lease::{Claim, ClaimedWait, Name};

/// How the names of requests and presences begin, in their order.
const OWN: [&str; 2] = ["tenure:ask:", "tenure:node:"];
/// Between a fleet and its member, and between a fleet and its shard: no name of a fleet holds one of these.
const NODE: &str = ":node:";
const LEASE: &str = ":lease:";

/// How the leases of all participants of an election or a fleet begin, if `name` may be one of them: `tenure:node:`,
/// `tenure:ask:`, `FLEET:node:`. A user's name may begin like the last, so only a claim says whether a lease is ephemeral.
pub(super) fn participants(name: &Name) -> Option<&str> {
    let name = name.as_str();
    if let Some(own) = OWN.into_iter().find(|own| name.starts_with(own)) {
        return Some(own);
    }
    let (fleet, _) = name.split_once(NODE)?;
    // The lease of a shard may have any name behind this.
    (!fleet.contains(LEASE)).then(|| &name[..fleet.len() + NODE.len()])
}

/// Whether all names that begin with `prefix` are names of ephemeral leases.
#[cfg(feature = "redis")]
pub(super) fn has_only_ephemeral(prefix: &str) -> bool {
    OWN.iter().any(|own| prefix.starts_with(own))
}

/// The prefixes of which [`has_only_ephemeral`] is true, as short as possible, that begin with `prefix`, in their order.
#[cfg(feature = "redis")]
pub(super) fn only_ephemeral_below(prefix: &str) -> impl Iterator<Item = &'static str> {
    OWN.into_iter().filter(move |own| own.starts_with(prefix))
}

/// Whether the claim is for the lease of a participant: it grants no right, and its record is of use to no candidate after its
/// end, so a store may forget it then.
pub(super) fn is_ephemeral(claim: &Claim) -> bool {
    claim.wait == ClaimedWait::Never && participants(&claim.name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_participants_have_a_common_beginning() {
        let of = |name| participants(&Name::stored(name).unwrap()).map(str::to_owned);
        assert_eq!(of("tenure:node:job:web-1").as_deref(), Some("tenure:node:"));
        assert_eq!(of("tenure:ask:job").as_deref(), Some("tenure:ask:"));
        assert_eq!(of("poll:node:web-1").as_deref(), Some("poll:node:"));
        for name in ["job", "tenure:control:poll", "poll:lease:a:node:b", "node:a"] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
