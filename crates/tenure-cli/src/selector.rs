//! The leases that a command selects: one name, all names with a prefix, or all.
//!
//! Clap calls these parsers, so that a value typed in the wrong place, for example a URL with its password, is quoted in one
//! place only.

use tenure::store::Scope;
use tenure::{CandidateId, Name, OWN_PREFIX, Result};

/// `NAME` or `'PREFIX*'`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selector {
    One(Name),
    Prefix(String),
}

impl Selector {
    /// All leases.
    pub(crate) fn all() -> Selector {
        Selector::Prefix(String::new())
    }

    pub(crate) fn scope(&self) -> Scope {
        match self {
            Selector::One(name) => Scope::name(name),
            Selector::Prefix(prefix) => Scope::Prefix(prefix.clone()),
        }
    }

    /// Whether to show `name`. Tenure's own leases are shown only if the selector names them explicitly.
    pub(crate) fn shows(&self, name: &Name) -> bool {
        match self {
            Selector::One(one) => one == name,
            Selector::Prefix(prefix) => {
                let explicit = prefix.starts_with(OWN_PREFIX);
                name.as_str().starts_with(prefix.as_str())
                    && (explicit || !name.as_str().starts_with(OWN_PREFIX))
            }
        }
    }
}

/// Parses `NAME` or `PREFIX*`.
pub(crate) fn target(text: &str) -> Result<Selector> {
    match text.strip_suffix('*') {
        Some("") => Ok(Selector::all()),
        Some(prefix) => Name::stored(prefix).map(|_| Selector::Prefix(prefix.to_owned())),
        None => Name::stored(text).map(Selector::One),
    }
}

/// Parses the name of a user's lease.
pub(crate) fn name(text: &str) -> Result<Name> {
    Name::new(text)
}

/// Parses a candidate's id.
pub(crate) fn id(text: &str) -> Result<CandidateId> {
    CandidateId::new(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_at_the_end_selects_a_prefix_and_elsewhere_is_an_error() {
        assert_eq!(target("a:*").unwrap(), Selector::Prefix("a:".to_owned()));
        assert_eq!(target("*").unwrap(), Selector::all());
        assert_eq!(target("a").unwrap(), Selector::One(Name::new("a").unwrap()));
        for wrong in ["", "a*b", "**", "a b", "a b*"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn own_names_are_shown_only_if_selected_explicitly() {
        let own = Name::stored("tenure:ask:a").unwrap();
        assert!(!Selector::all().shows(&own));
        assert!(!target("t*").unwrap().shows(&own));
        assert!(target("tenure:*").unwrap().shows(&own));
        assert!(target("tenure:ask:a").unwrap().shows(&own));
        assert!(Selector::all().shows(&Name::new("tenured").unwrap()));
        assert!(!target("a*").unwrap().shows(&Name::new("b").unwrap()));
    }
}
