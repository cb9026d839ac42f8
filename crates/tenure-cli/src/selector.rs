//! What a command is about: one name, the names that begin like this, or all.
//!
//! Read by clap, so that whatever was typed in the wrong place, a URL with its password for one, is
//! quoted in one place only.

use tenure::store::Scope;
use tenure::{CandidateId, Name, OWN_PREFIX, Result};

/// `NAME` or `'PREFIX*'`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selector {
    One(Name),
    Prefix(String),
}

impl Selector {
    /// Everything.
    pub(crate) fn all() -> Selector {
        Selector::Prefix(String::new())
    }

    pub(crate) fn scope(&self) -> Scope {
        match self {
            Selector::One(name) => Scope::name(name),
            Selector::Prefix(prefix) => Scope::Prefix(prefix.clone()),
        }
    }

    /// Whether people who ask for this want to see `name`: our own leases only if they say so.
    pub(crate) fn shows(&self, name: &Name) -> bool {
        match self {
            Selector::One(one) => one == name,
            Selector::Prefix(prefix) => {
                let asked = prefix.starts_with(OWN_PREFIX);
                name.as_str().starts_with(prefix.as_str())
                    && (asked || !name.as_str().starts_with(OWN_PREFIX))
            }
        }
    }
}

/// Reads `NAME` or `PREFIX*`.
pub(crate) fn target(text: &str) -> Result<Selector> {
    match text.strip_suffix('*') {
        Some("") => Ok(Selector::all()),
        Some(prefix) => Name::stored(prefix).map(|_| Selector::Prefix(prefix.to_owned())),
        None => Name::stored(text).map(Selector::One),
    }
}

/// Reads the name of a lease that is a user's.
pub(crate) fn name(text: &str) -> Result<Name> {
    Name::new(text)
}

/// Reads a candidate's id.
pub(crate) fn id(text: &str) -> Result<CandidateId> {
    CandidateId::new(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_at_the_end_makes_a_prefix_and_elsewhere_a_mistake() {
        assert_eq!(target("a:*").unwrap(), Selector::Prefix("a:".to_owned()));
        assert_eq!(target("*").unwrap(), Selector::all());
        assert_eq!(target("a").unwrap(), Selector::One(Name::new("a").unwrap()));
        for wrong in ["", "a*b", "**", "a b", "a b*"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn our_own_names_are_shown_only_to_those_who_ask() {
        let ours = Name::stored("tenure:ask:a").unwrap();
        assert!(!Selector::all().shows(&ours));
        assert!(!target("t*").unwrap().shows(&ours));
        assert!(target("tenure:*").unwrap().shows(&ours));
        assert!(target("tenure:ask:a").unwrap().shows(&ours));
        assert!(Selector::all().shows(&Name::new("tenured").unwrap()));
        assert!(!target("a*").unwrap().shows(&Name::new("b").unwrap()));
    }
}
