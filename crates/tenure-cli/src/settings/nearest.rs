//! The word that was probably meant.

/// The one of `known` that is nearest to `typed`, if one is near enough to be a slip.
pub(crate) fn nearest<'a>(
    typed: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let near = typed.chars().count().div_ceil(3).clamp(1, 3);
    let measured = known.into_iter().map(|word| (distance(typed, word), word));
    measured.filter(|(apart, _)| *apart <= near).min().map(|(_, word)| word)
}

/// How many characters must be put in, left out, replaced or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Rows of the table: two back, one back, and the one being filled.
    let mut older: Vec<usize> = Vec::new();
    let mut old: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = old[j] + usize::from(x != y);
            let mut least = replaced.min(old[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(older[j - 1] + 1);
            }
            row.push(least);
        }
        older = std::mem::replace(&mut old, row);
    }
    old[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 5] = ["store", "lock-dir", "lease-duration", "json", "node-id"];

    #[test]
    fn a_slip_is_known_for_what_was_meant() {
        for (typed, meant) in [
            ("lease-durtion", "lease-duration"),
            ("lease_duration", "lease-duration"),
            ("jsno", "json"),
            ("sotre", "store"),
            ("nodeid", "node-id"),
            ("Store", "store"),
        ] {
            assert_eq!(nearest(typed, KEYS), Some(meant), "{typed}");
        }
    }

    #[test]
    fn what_is_like_nothing_is_taken_for_nothing() {
        for typed in ["", "x", "redis", "port", "lease"] {
            assert_eq!(nearest(typed, KEYS), None, "{typed}");
        }
    }

    #[test]
    fn distances() {
        for (a, b, apart) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("ab", "ba", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(a, b), apart, "{a} {b}");
        }
    }
}
