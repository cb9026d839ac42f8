//! Shards and members for people: tables that are aligned, and as many names as fit on a screen. A fleet may have a hundred
//! thousand shards, called whatever their owners call them.

use tenure::fleet::Shard;

use crate::output;

/// So many shards are named at most.
pub(super) const NAMED: usize = 50;
/// And no more than so much of each name.
const LONGEST: usize = 60;
const WIDTH: usize = 100;

/// Some shards that have something in common.
pub(super) struct MemberShards<'a> {
    pub(super) title: String,
    pub(super) shards: Vec<&'a Shard>,
}

/// A title and some names for each group, and how many more there are altogether.
pub(super) fn groups(groups: &[MemberShards<'_>]) -> String {
    let groups: Vec<&MemberShards<'_>> =
        groups.iter().filter(|group| !group.shards.is_empty()).collect();
    let all: usize = groups.iter().map(|group| group.shards.len()).sum();
    let each = if all <= NAMED { NAMED } else { (NAMED / groups.len()).max(1) };
    let mut lines = Vec::new();
    let mut named = 0;
    for group in groups.iter().take(NAMED) {
        lines.push(format!("{} ({})", group.title, number(group.shards.len())));
        let names = group.shards.iter().take(each).map(|shard| name(shard));
        lines.extend(filled(names));
        named += group.shards.len().min(each);
    }
    lines.extend(more(all - named));
    lines.join("\n")
}

/// Some names in a sentence, and how many more there are.
pub(super) fn some<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SOME: usize = 5;
    let more = names.len().saturating_sub(SOME);
    let mut text = names.take(SOME).map(cut).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {} more", number(more));
    }
    text
}

/// The last line of a list that was too long.
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

/// A shard in a list: where it begins and ends can be seen.
pub(super) fn name(shard: &Shard) -> String {
    let text = cut(shard.as_str());
    if text.contains([' ', '\'']) { format!("'{text}'") } else { text }
}

/// `12,345`.
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

/// Of a stranger's text what can be shown, and not all of a long one.
fn cut(text: &str) -> String {
    let text = output::printable(text);
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// Words in lines, each a little to the right.
fn filled(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + word.chars().count() <= WIDTH => {
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
    fn numbers_are_easy_to_read() {
        for (value, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn however_many_there_are_a_screen_holds_what_is_said() {
        let shards = many(100_000);
        let group = |title: &str, range: std::ops::Range<usize>| MemberShards {
            title: title.to_owned(),
            shards: shards[range].iter().collect(),
        };
        let text = groups(&[group("a", 0..99_999), group("b", 99_999..100_000)]);
        assert!(text.starts_with("a (99,999)\n  tenant-0  tenant-1  "), "{text}");
        assert!(
            text.ends_with("\nb (1)\n  tenant-99999\n… and 99,974 more: --json shows all"),
            "{text}"
        );
        // More owners than there is room for.
        let owners: Vec<MemberShards<'_>> =
            (0..1_000).map(|at| group(&format!("web-{at}"), at * 10..at * 10 + 10)).collect();
        let text = groups(&owners);
        assert_eq!(text.lines().count(), 2 * NAMED + 1, "{text}");
        assert!(text.ends_with("… and 9,950 more: --json shows all"), "{text}");
        assert_eq!(groups(&[group("a", 0..0)]), "");
    }

    #[test]
    fn a_hostile_name_neither_acts_nor_fills_the_screen() {
        let shards =
            ["\x1b[2J", "a  b", &"\u{202e}".repeat(170)].map(|name| Shard::new(name).unwrap());
        let text =
            groups(&[MemberShards { title: "a".to_owned(), shards: shards.iter().collect() }]);
        assert!(text.contains("  \\u{1b}[2J  'a  b'"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(!text.contains(['\x1b', '\u{202e}']), "{text}");
    }

    #[test]
    fn a_sentence_names_a_few() {
        assert_eq!(some(["a", "b"].into_iter()), "a, b");
        let names = ["a", "b", "c", "d", "e", "f", "\n"];
        assert_eq!(some(names.into_iter()), "a, b, c, d, e and 2 more");
    }
}
