//! Text tables of shards and members: aligned columns, and as many names as fit on a screen.
//!
//! A fleet may have a hundred thousand shards, and users choose their names freely, so names are shortened and escaped.

use tenure::fleet::Shard;

use crate::output;

/// The greatest number of shards that a text lists by name.
pub(super) const MAX_NAMES: usize = 50;
/// The greatest number of characters shown of a name.
const MAX_NAME_CHARS: usize = 60;
const LINE_CHARS: usize = 100;

/// Shards that have an owner or a state in common.
pub(super) struct ShardGroup<'a> {
    pub(super) title: String,
    pub(super) shards: Vec<&'a Shard>,
}

/// A title and some names for each group, and the total number of names that are left out.
pub(super) fn groups(groups: &[ShardGroup<'_>]) -> String {
    let groups: Vec<&ShardGroup<'_>> =
        groups.iter().filter(|group| !group.shards.is_empty()).collect();
    let all: usize = groups.iter().map(|group| group.shards.len()).sum();
    let each = if all <= MAX_NAMES { MAX_NAMES } else { (MAX_NAMES / groups.len()).max(1) };
    let mut lines = Vec::new();
    let mut named = 0;
    for group in groups.iter().take(MAX_NAMES) {
        lines.push(format!("{} ({})", group.title, number(group.shards.len())));
        let names = group.shards.iter().take(each).map(|shard| name(shard));
        lines.extend(filled(names));
        named += group.shards.len().min(each);
    }
    lines.extend(more(all - named));
    lines.join("\n")
}

/// The first few names in a sentence, and how many more there are.
pub(super) fn some<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SOME: usize = 5;
    let more = names.len().saturating_sub(SOME);
    let mut text = names.take(SOME).map(shortened).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {} more", number(more));
    }
    text
}

/// The last line of a shortened list; `None` if nothing is left out.
pub(super) fn more(count: usize) -> Option<String> {
    (count > 0).then(|| format!("… and {} more: --json shows all", number(count)))
}

/// Columns as wide as their widest cell, two spaces apart. Those in `numbers` are aligned on the right.
pub(super) fn table<const N: usize>(lines: &[[String; N]], numbers: [bool; N]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let text = lines.iter().map(|line| {
        let cells =
            line.iter().zip(widths).zip(numbers).map(|((cell, width), right)| match right {
                true => format!("{cell:>width$}"),
                false => format!("{cell:width$}"),
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    text.collect::<Vec<_>>().join("\n")
}

/// A shard's name in a list, quoted if its start or end would not be visible.
pub(super) fn name(shard: &Shard) -> String {
    let text = shortened(shard.as_str());
    if text.contains([' ', '\'']) { format!("'{text}'") } else { text }
}

/// A number for people: `12,345`.
pub(super) fn number(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 shard`, `12 shards`.
pub(super) fn shards(count: usize) -> String {
    format!("{} {}", number(count), if count == 1 { "shard" } else { "shards" })
}

/// Untrusted text with control characters escaped, shortened to [`MAX_NAME_CHARS`].
fn shortened(text: &str) -> String {
    let text = output::printable(text);
    if text.chars().count() <= MAX_NAME_CHARS {
        return text;
    }
    text.chars().take(MAX_NAME_CHARS - 1).chain(['…']).collect()
}

/// Fills indented lines with words.
fn filled(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + word.chars().count() <= LINE_CHARS => {
                line.push_str("  ");
                line.push_str(&word);
            }
            _ => lines.push(format!("  {word}")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(count: usize) -> Vec<Shard> {
        (0..count).map(|number| Shard::new(&format!("tenant-{number}")).unwrap()).collect()
    }

    #[test]
    fn numbers_have_thousands_separators() {
        for (value, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn long_lists_are_shortened_to_a_screen() {
        let shards = many(100_000);
        let group = |title: &str, range: std::ops::Range<usize>| ShardGroup {
            title: title.to_owned(),
            shards: shards[range].iter().collect(),
        };
        let text = groups(&[group("a", 0..99_999), group("b", 99_999..100_000)]);
        assert!(text.starts_with("a (99,999)\n  tenant-0  tenant-1  "), "{text}");
        assert!(
            text.ends_with("\nb (1)\n  tenant-99999\n… and 99,974 more: --json shows all"),
            "{text}"
        );
        // More owners than fit on a screen.
        let owners: Vec<ShardGroup<'_>> =
            (0..1_000).map(|at| group(&format!("web-{at}"), at * 10..at * 10 + 10)).collect();
        let text = groups(&owners);
        assert_eq!(text.lines().count(), 2 * MAX_NAMES + 1, "{text}");
        assert!(text.ends_with("… and 9,950 more: --json shows all"), "{text}");
        assert_eq!(groups(&[group("a", 0..0)]), "");
    }

    #[test]
    fn a_hostile_name_is_escaped_and_shortened() {
        let shards =
            ["\x1b[2J", "a  b", &"\u{202e}".repeat(170)].map(|name| Shard::new(name).unwrap());
        let text = groups(&[ShardGroup { title: "a".to_owned(), shards: shards.iter().collect() }]);
        assert!(text.contains("  \\u{1b}[2J  'a  b'"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(!text.contains(['\x1b', '\u{202e}']), "{text}");
    }

    #[test]
    fn a_sentence_lists_the_first_five_names() {
        assert_eq!(some(["a", "b"].into_iter()), "a, b");
        let names = ["a", "b", "c", "d", "e", "f", "\n"];
        assert_eq!(some(names.into_iter()), "a, b, c, d, e and 2 more");
    }
}
