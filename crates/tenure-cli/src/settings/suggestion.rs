//! Suggests the known name that a misspelt one probably means.

/// The member of `known` that is nearest to `typed`, if it is near enough for a typing error: at most a third of the characters,
/// and at most three, are inserted, deleted, replaced, or swapped with their neighbour.
pub(crate) fn nearest<'a>(
    typed: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let limit = typed.chars().count().div_ceil(3).clamp(1, 3);
    let measured = known.into_iter().map(|name| (strsim::osa_distance(typed, name), name));
    measured.filter(|(distance, _)| *distance <= limit).min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 5] = ["store", "lock-dir", "lease-duration", "json", "node-id"];

    #[test]
    fn a_typing_error_is_recognised() {
        for (typed, expected) in [
            ("lease-durtion", "lease-duration"),
            ("lease_duration", "lease-duration"),
            ("jsno", "json"),
            ("sotre", "store"),
            ("nodeid", "node-id"),
            ("Store", "store"),
        ] {
            assert_eq!(nearest(typed, KEYS), Some(expected), "{typed}");
        }
    }

    #[test]
    fn a_name_that_is_near_no_known_name_gets_no_suggestion() {
        for typed in ["", "x", "redis", "port", "lease"] {
            assert_eq!(nearest(typed, KEYS), None, "{typed}");
        }
    }
}
