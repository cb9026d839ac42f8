//! PURE: the last good list of a source. A failing source drops no shard, and is reported once, not at every read.

use std::fmt;
use std::sync::Arc;

use super::{RefusedNames, Shards};
use crate::error::{Error, Result};

/// The last good list of a source, and whether the source works now.
///
/// ```
/// use tenure::Error;
/// use tenure::fleet::source::{LastGood, Shards};
///
/// let mut last_good = LastGood::default();
/// assert!(!last_good.take(Err(Error::unavailable("the server is down"))).changed);
/// assert_eq!(last_good.shards(), None); // unknown is not empty
/// assert!(last_good.take(Ok(Shards::default())).changed);
/// assert!(last_good.shards().is_some());
/// ```
#[derive(Debug, Default)]
pub struct LastGood {
    last: Option<Arc<Shards>>,
    failing: Option<Error>,
}

/// The change that a read has caused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "there may be another list, and something to say"]
pub struct ListChange {
    /// Whether the list differs from the one before: other shards, or other paused shards.
    pub changed: bool,
    /// The messages to report, in this order.
    pub messages: Vec<SourceMessage>,
}

/// A message about a source. Its [`Display`](fmt::Display) follows the [description](super::Source::shown) of the source:
/// `the file '/etc/shards' cannot be read: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceMessage {
    /// The source fails; it was readable before.
    Fails {
        /// The error of the read.
        error: Error,
        /// The number of shards in the list that is kept; `None` if there is no list yet.
        kept: Option<usize>,
    },
    /// The source can be read again.
    Back,
    /// The source had this many shards, and has none now. The empty list is accepted.
    Emptied(usize),
    /// The source contains names that cannot be shards, and they have changed since the last read.
    Refuses(RefusedNames),
}

impl LastGood {
    /// The last good list; `None` before the first successful read.
    pub fn shards(&self) -> Option<&Arc<Shards>> {
        self.last.as_ref()
    }

    /// The error of the source, while it fails.
    pub fn failing(&self) -> Option<&Error> {
        self.failing.as_ref()
    }

    /// Processes the result of a read.
    pub fn take(&mut self, read: Result<Shards>) -> ListChange {
        match read {
            Ok(shards) => self.good(shards),
            Err(error) => {
                let mut change = ListChange::default();
                if self.failing.is_none() {
                    let kept = self.last.as_ref().map(|last| last.shards.len());
                    change.messages.push(SourceMessage::Fails { error: error.clone(), kept });
                }
                self.failing = Some(error);
                change
            }
        }
    }

    fn good(&mut self, shards: Shards) -> ListChange {
        let mut change = ListChange::default();
        if self.failing.take().is_some() {
            change.messages.push(SourceMessage::Back);
        }
        let before = self.last.as_deref();
        let same =
            |before: &Shards| before.shards == shards.shards && before.paused == shards.paused;
        change.changed = !before.is_some_and(same);
        let had = before.map_or(0, |before| before.shards.len());
        if had > 0 && shards.shards.is_empty() {
            change.messages.push(SourceMessage::Emptied(had));
        }
        let refused_anew = before.is_none_or(|before| before.refused != shards.refused);
        if refused_anew && shards.refused.count() > 0 {
            change.messages.push(SourceMessage::Refuses(shards.refused.clone()));
        }
        if change.changed || refused_anew {
            self.last = Some(Arc::new(shards));
        }
        change
    }
}

impl fmt::Display for SourceMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceMessage::Fails { error, kept: Some(kept) } => {
                write!(f, "cannot be read, so its last {kept} shards are kept: {error}")
            }
            SourceMessage::Fails { error, kept: None } => write!(f, "cannot be read: {error}"),
            SourceMessage::Back => f.write_str("can be read again"),
            SourceMessage::Emptied(had) => write!(f, "had {had} shards and has none now"),
            SourceMessage::Refuses(refused) => {
                write!(f, "has {} that cannot be shards: ", refused.count())?;
                f.write_str(&refused.sentences.join("; "))?;
                if refused.more > 0 {
                    write!(f, "; and {} more", refused.more)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Shards {
        Shards::new(names).unwrap()
    }

    fn down() -> Result<Shards> {
        Err(Error::unavailable("it is down"))
    }

    fn texts(change: &ListChange) -> Vec<String> {
        change.messages.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_error_keeps_the_last_good_list_and_is_reported_once() {
        let mut last_good = LastGood::default();
        assert_eq!(
            last_good.take(Ok(of(&["a", "b"]))),
            ListChange { changed: true, messages: vec![] }
        );
        let first = last_good.take(down());
        assert!(!first.changed);
        let says = "cannot be read, so its last 2 shards are kept: it is down";
        assert_eq!(texts(&first), [says]);
        assert_eq!(last_good.take(down()), ListChange::default());
        assert_eq!(last_good.shards().unwrap().shards.len(), 2);
        assert!(last_good.failing().is_some());
        let back = last_good.take(Ok(of(&["a", "b"])));
        assert_eq!(back, ListChange { changed: false, messages: vec![SourceMessage::Back] });
        assert!(last_good.failing().is_none());
        assert_eq!(last_good.take(Ok(of(&["a", "b"]))), ListChange::default());
    }

    #[test]
    fn an_error_at_the_start_is_not_zero_shards() {
        let mut last_good = LastGood::default();
        assert_eq!(texts(&last_good.take(down())), ["cannot be read: it is down"]);
        assert_eq!(last_good.shards(), None);
        let first = last_good.take(Ok(of(&[])));
        assert_eq!(first, ListChange { changed: true, messages: vec![SourceMessage::Back] });
        assert_eq!(last_good.shards().unwrap().shards, []);
    }

    #[test]
    fn an_empty_list_is_accepted_and_reported() {
        let mut last_good = LastGood::default();
        let _ = last_good.take(Ok(of(&["a", "b"])));
        let change = last_good.take(Ok(of(&[])));
        assert_eq!(change, ListChange { changed: true, messages: vec![SourceMessage::Emptied(2)] });
        assert_eq!(texts(&change), ["had 2 shards and has none now"]);
        assert_eq!(last_good.take(Ok(of(&[]))), ListChange::default());
    }

    #[test]
    fn a_pause_changes_the_list() {
        let mut last_good = LastGood::default();
        let _ = last_good.take(Ok(of(&["a"])));
        let paused = of(&["a"]).with_paused(["a"]).unwrap();
        assert!(last_good.take(Ok(paused.clone())).changed);
        assert!(last_good.shards().unwrap().is_paused("a"));
        assert!(!last_good.take(Ok(paused)).changed);
    }

    #[test]
    fn refused_names_are_reported_when_they_change() {
        let mut last_good = LastGood::default();
        let refused = |more| RefusedNames { sentences: vec!["line 2: no".to_owned()], more };
        let bad = |more| Shards { refused: refused(more), ..of(&["a"]) };
        let change = last_good.take(Ok(bad(3)));
        assert_eq!(texts(&change), ["has 4 that cannot be shards: line 2: no; and 3 more"]);
        assert_eq!(last_good.take(Ok(bad(3))), ListChange::default());
        let change = last_good.take(Ok(bad(4)));
        assert!(!change.changed && change.messages == [SourceMessage::Refuses(refused(4))]);
        assert_eq!(last_good.take(Ok(of(&["a"]))), ListChange::default());
        assert_eq!(last_good.shards().unwrap().refused.count(), 0);
    }
}
