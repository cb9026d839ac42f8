//! Lists the names that begin with a prefix: ephemeral leases from the presence set, all others from the index.

use super::script::{Call, INDEX, INDEX_KEY, MAX_BATCH, PRESENCE_KEY};
use super::session::Session;
use crate::error::{Error, Result};
use crate::lease::Name;
use crate::store::ephemeral::{has_only_ephemeral, only_ephemeral_below};

/// An action on the names of the index from one bound to another, in the syntax of ZRANGEBYLEX bounds.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    action: &'static str,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Range {
    fn new(action: &'static str, from: Vec<u8>, to: Vec<u8>) -> Self {
        Range { action, from, to }
    }
}

/// The ranges of the index with names that begin with `prefix`, in sorted order. The index has the keys of the leases, which
/// begin with `key_prefix`. Names of ephemeral leases do not belong in the index: those that an earlier build left there are
/// removed unread, because they can be many.
fn ranges(key_prefix: &str, prefix: &str) -> Vec<Range> {
    if has_only_ephemeral(prefix) {
        return Vec::new();
    }
    // No name contains a byte as large as this.
    let upper_bound =
        |prefix: &str| [b"(", key_prefix.as_bytes(), prefix.as_bytes(), b"\xff"].concat();
    let mut ranges = Vec::new();
    let mut from = format!("[{key_prefix}{prefix}").into_bytes();
    for ephemeral in only_ephemeral_below(prefix) {
        ranges.push(Range::new("list", from, format!("({key_prefix}{ephemeral}").into_bytes()));
        let first = format!("[{key_prefix}{ephemeral}").into_bytes();
        ranges.push(Range::new("remove", first, upper_bound(ephemeral)));
        from = upper_bound(ephemeral);
    }
    ranges.push(Range::new("list", from, upper_bound(prefix)));
    ranges
}

/// The rest of `ranges` after a page that ended with the key `last`.
fn ranges_after(ranges: Vec<Range>, last: &str) -> Vec<Range> {
    let is_left = |range: &Range| range.action == "list" && &range.to[1..] > last.as_bytes();
    let mut left: Vec<Range> = ranges.into_iter().filter(is_left).collect();
    if let Some(first) = left.first_mut().filter(|first| &first.from[1..] <= last.as_bytes()) {
        first.from = format!("({last}").into_bytes();
    }
    left
}

/// All names that begin with `prefix`, read page by page. Of the ephemeral leases only those that are live.
pub(super) async fn names_below(link: &Session, prefix: &str) -> Result<Vec<Name>> {
    let key_prefix = link.keys().as_str();
    let mut names: Vec<Name> = Vec::new();
    let mut ranges = ranges(key_prefix, prefix);
    let mut presences = format!("={key_prefix}{prefix}");
    loop {
        let mut call = Call::new(&INDEX);
        call.key(INDEX_KEY).key(PRESENCE_KEY).shown(10 * MAX_BATCH);
        call.argument(std::mem::take(&mut presences));
        for range in &ranges {
            call.argument(range.action).argument(&range.from).argument(&range.to);
        }
        let (state, page) = call.send(link).await?.names();
        if state == "corrupt" {
            let key = page.first().map_or(INDEX_KEY, String::as_str);
            return Err(Error::corrupt(format!(
                "'{key}' is not a set of the names of our leases: delete it, and the next \
                 renewals write it anew"
            )));
        }
        let stored = page.iter().filter_map(|key| key.strip_prefix(key_prefix));
        names.extend(stored.filter_map(|name| Name::stored(name).ok()));
        match page.last() {
            Some(last) if state == "more" => ranges = ranges_after(ranges, last),
            _ => break,
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges as text, where `~` is the byte that no name contains.
    fn shown(ranges: &[Range]) -> Vec<String> {
        let text = |bound: &[u8]| -> String {
            bound.iter().map(|&byte| if byte == 0xff { '~' } else { char::from(byte) }).collect()
        };
        let show =
            |range: &Range| format!("{} {} {}", range.action, text(&range.from), text(&range.to));
        ranges.iter().map(show).collect()
    }

    #[test]
    fn names_of_ephemeral_leases_are_never_listed_from_the_index() {
        assert_eq!(shown(&ranges("", "tenure:node:job:")), [""; 0]);
        assert_eq!(shown(&ranges("", "job")), ["list [job (job~"]);
        let all = [
            "list [ (tenure:ask:",
            "remove [tenure:ask: (tenure:ask:~",
            "list (tenure:ask:~ (tenure:node:",
            "remove [tenure:node: (tenure:node:~",
            "list (tenure:node:~ (~",
        ];
        assert_eq!(shown(&ranges("", "")), all);
        assert_eq!(
            shown(&ranges("", "tenure:n")),
            [
                "list [tenure:n (tenure:node:",
                "remove [tenure:node: (tenure:node:~",
                "list (tenure:node:~ (tenure:n~",
            ]
        );
    }

    #[test]
    fn every_bound_begins_with_the_key_prefix() {
        assert_eq!(shown(&ranges("app:", "job")), ["list [app:job (app:job~"]);
        let all = [
            "list [app: (app:tenure:ask:",
            "remove [app:tenure:ask: (app:tenure:ask:~",
            "list (app:tenure:ask:~ (app:tenure:node:",
            "remove [app:tenure:node: (app:tenure:node:~",
            "list (app:tenure:node:~ (app:~",
        ];
        assert_eq!(shown(&ranges("app:", "")), all);
        let after = ranges_after(ranges("app:", ""), "app:job");
        assert_eq!(shown(&after)[0], "list (app:job (app:tenure:ask:");
    }

    #[test]
    fn the_next_page_begins_after_the_last_name() {
        let after = |last| shown(&ranges_after(ranges("", ""), last));
        assert_eq!(
            after("job"),
            [
                "list (job (tenure:ask:",
                "list (tenure:ask:~ (tenure:node:",
                "list (tenure:node:~ (~"
            ]
        );
        assert_eq!(
            after("tenure:control:poll"),
            ["list (tenure:control:poll (tenure:node:", "list (tenure:node:~ (~"]
        );
        assert_eq!(after("zoo"), ["list (zoo (~"]);
    }
}
