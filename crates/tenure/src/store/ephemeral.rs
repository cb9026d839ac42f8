//! PURE: decides which leases a store may forget after they end: those of participants (presence, membership, requests).

use crate::lease::{Claim, ClaimedWait, Name};

/// The prefixes of request and presence names, in sorted order.
const OWN: [&str; 2] = ["tenure:ask:", "tenure:node:"];
/// Separators between a fleet and its member, and between a fleet and its shard. No fleet name contains one of them.
const NODE: &str = ":node:";
const LEASE: &str = ":lease:";

/// The common prefix of all participants' leases of an election or a fleet, if `name` may be one of them: `tenure:node:`,
/// `tenure:ask:`, `FLEET:node:`. A user's name may begin like the last one, so only a claim decides whether a lease is
/// ephemeral.
pub(super) fn participants(name: &Name) -> Option<&str> {
    let name = name.as_str();
    if let Some(own) = OWN.into_iter().find(|own| name.starts_with(own)) {
        return Some(own);
    }
    let (fleet, _) = name.split_once(NODE)?;
    // A shard's lease may have any name after the separator.
    (!fleet.contains(LEASE)).then(|| &name[..fleet.len() + NODE.len()])
}

/// Whether all names that begin with `prefix` belong to ephemeral leases.
#[cfg(feature = "redis")]
pub(super) fn has_only_ephemeral(prefix: &str) -> bool {
    OWN.iter().any(|own| prefix.starts_with(own))
}

/// The shortest prefixes that begin with `prefix` and for which [`has_only_ephemeral`] is true, in sorted order.
#[cfg(feature = "redis")]
pub(super) fn only_ephemeral_below(prefix: &str) -> impl Iterator<Item = &'static str> {
    OWN.into_iter().filter(move |own| own.starts_with(prefix))
}

/// Whether the claim is for a participant's lease. Such a lease grants no right, and no candidate needs its record after it has
/// ended, so a store may forget it then.
pub(super) fn is_ephemeral(claim: &Claim) -> bool {
    claim.wait == ClaimedWait::Never && participants(&claim.name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_participant_names_have_a_common_prefix() {
        let of = |name| participants(&Name::stored(name).unwrap()).map(str::to_owned);
        assert_eq!(of("tenure:node:job:web-1").as_deref(), Some("tenure:node:"));
        assert_eq!(of("tenure:ask:job").as_deref(), Some("tenure:ask:"));
        assert_eq!(of("poll:node:web-1").as_deref(), Some("poll:node:"));
        for name in ["job", "tenure:control:poll", "poll:lease:a:node:b", "node:a"] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
