//! PURE: holds on to the last good list. A source that fails drops no shard, and says so once, not at every reading.

use std::fmt;
use std::sync::Arc;

use super::{RefusedNames, Shards};
use crate::error::{Error, Result};

/// The last good list of a source, and whether the source works now.
///
/// ```
/// use tenure::Error;
/// use tenure::fleet::source::{Keeper, Shards};
///
/// let mut keeper = Keeper::default();
/// assert!(!keeper.take(Err(Error::unavailable("the server is down"))).changed);
/// assert_eq!(keeper.shards(), None); // not known is not none
/// assert!(keeper.take(Ok(Shards::default())).changed);
/// assert!(keeper.shards().is_some());
/// ```
#[derive(Debug, Default)]
pub struct LastGood {
    last: Option<Arc<Shards>>,
    failing: Option<Error>,
}

/// What a reading has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "there may be another list, and something to say"]
pub struct ListChange {
    /// There is another list than before: other shards, or others paused.
    pub changed: bool,
    /// What is new and should be said, in this order.
    pub words: Vec<SourceMessage>,
}

/// Something to be said about a source. Its [`Display`](fmt::Display) goes behind what the source is
/// [called](super::Source::shown): `the file '/etc/shards' cannot be read: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceMessage {
    /// It begins to fail.
    Fails {
        /// Why.
        error: Error,
        /// How many shards the list has that is kept; `None`: there was none yet.
        kept: Option<usize>,
    },
    /// It works again.
    Back,
    /// It had this many shards, and has none now. That is believed.
    Emptied(usize),
    /// Other things than before are in it that cannot be shards.
    Refuses(RefusedNames),
}

impl LastGood {
    /// The last good list; `None` before the first.
    pub fn shards(&self) -> Option<&Arc<Shards>> {
        self.last.as_ref()
    }

    /// Why the source fails, while it does.
    pub fn failing(&self) -> Option<&Error> {
        self.failing.as_ref()
    }

    /// Takes what came of a reading.
    pub fn take(&mut self, read: Result<Shards>) -> ListChange {
        match read {
            Ok(shards) => self.good(shards),
            Err(error) => {
                let mut change = ListChange::default();
                if self.failing.is_none() {
                    let kept = self.last.as_ref().map(|last| last.shards.len());
                    change.words.push(SourceMessage::Fails { error: error.clone(), kept });
                }
                self.failing = Some(error);
                change
            }
        }
    }

    fn good(&mut self, shards: Shards) -> ListChange {
        let mut change = ListChange::default();
        if self.failing.take().is_some() {
            change.words.push(SourceMessage::Back);
        }
        let before = self.last.as_deref();
        let same =
            |before: &Shards| before.shards == shards.shards && before.paused == shards.paused;
        change.changed = !before.is_some_and(same);
        let had = before.map_or(0, |before| before.shards.len());
        if had > 0 && shards.shards.is_empty() {
            change.words.push(SourceMessage::Emptied(had));
        }
        let refused_anew = before.is_none_or(|before| before.refused != shards.refused);
        if refused_anew && shards.refused.count() > 0 {
            change.words.push(SourceMessage::Refuses(shards.refused.clone()));
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
    use crate::fleet::Shard;

    fn of(names: &[&str]) -> Shards {
        let shards = names.iter().map(|name| Shard::new(name).unwrap()).collect();
        Shards { shards, ..Shards::default() }
    }

    fn down() -> Result<Shards> {
        Err(Error::unavailable("it is down"))
    }

    fn said(change: &ListChange) -> Vec<String> {
        change.words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_error_keeps_the_last_good_list_and_is_said_once() {
        let mut keeper = LastGood::default();
        assert_eq!(keeper.take(Ok(of(&["a", "b"]))), ListChange { changed: true, words: vec![] });
        let first = keeper.take(down());
        assert!(!first.changed);
        let says = "cannot be read, so its last 2 shards are kept: it is down";
        assert_eq!(said(&first), [says]);
        assert_eq!(keeper.take(down()), ListChange::default());
        assert_eq!(keeper.shards().unwrap().shards.len(), 2);
        assert!(keeper.failing().is_some());
        let back = keeper.take(Ok(of(&["a", "b"])));
        assert_eq!(back, ListChange { changed: false, words: vec![SourceMessage::Back] });
        assert!(keeper.failing().is_none());
        assert_eq!(keeper.take(Ok(of(&["a", "b"]))), ListChange::default());
    }

    #[test]
    fn an_error_at_the_start_is_not_zero_shards() {
        let mut keeper = LastGood::default();
        assert_eq!(said(&keeper.take(down())), ["cannot be read: it is down"]);
        assert_eq!(keeper.shards(), None);
        let first = keeper.take(Ok(of(&[])));
        assert_eq!(first, ListChange { changed: true, words: vec![SourceMessage::Back] });
        assert_eq!(keeper.shards().unwrap().shards, []);
    }

    #[test]
    fn none_after_many_is_believed_and_said() {
        let mut keeper = LastGood::default();
        let _ = keeper.take(Ok(of(&["a", "b"])));
        let change = keeper.take(Ok(of(&[])));
        assert_eq!(change, ListChange { changed: true, words: vec![SourceMessage::Emptied(2)] });
        assert_eq!(said(&change), ["had 2 shards and has none now"]);
        assert_eq!(keeper.take(Ok(of(&[]))), ListChange::default());
    }

    #[test]
    fn a_pause_is_another_list() {
        let mut keeper = LastGood::default();
        let _ = keeper.take(Ok(of(&["a"])));
        let paused = Shards { paused: of(&["a"]).shards, ..of(&["a"]) };
        assert!(keeper.take(Ok(paused.clone())).changed);
        assert!(keeper.shards().unwrap().is_paused("a"));
        assert!(!keeper.take(Ok(paused)).changed);
    }

    #[test]
    fn what_is_refused_is_said_when_it_is_new() {
        let mut keeper = LastGood::default();
        let refused = |more| RefusedNames { sentences: vec!["line 2: no".to_owned()], more };
        let bad = |more| Shards { refused: refused(more), ..of(&["a"]) };
        let change = keeper.take(Ok(bad(3)));
        assert_eq!(said(&change), ["has 4 that cannot be shards: line 2: no; and 3 more"]);
        assert_eq!(keeper.take(Ok(bad(3))), ListChange::default());
        let change = keeper.take(Ok(bad(4)));
        assert!(!change.changed && change.words == [SourceMessage::Refuses(refused(4))]);
        assert_eq!(keeper.take(Ok(of(&["a"]))), ListChange::default());
        assert_eq!(keeper.shards().unwrap().refused.count(), 0);
    }
}
