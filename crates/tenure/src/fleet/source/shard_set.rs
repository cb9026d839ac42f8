//! [`ShardSet`] collects the names that a source has found into a list of shards. A name that cannot be a shard does not affect
//! the others.

use super::Shards;
use crate::error::{Error, Result};
use crate::fleet::Shard;

/// The limit of shards per source: a source with more is probably not a list of shards.
pub const MAX_SHARDS: usize = 2_000_000;

/// How many refused names are described; the rest is counted.
const MAX_SENTENCES: usize = 10;
const MAX_QUOTED_BYTES: usize = 40;

/// The names in a source that cannot be a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedNames {
    /// One sentence for each of the first ten names: where it is, and what is wrong with it.
    pub sentences: Vec<String>,
    /// How many more names were refused.
    pub more: usize,
}

impl RefusedNames {
    /// The total number of refused names.
    pub fn count(&self) -> usize {
        self.sentences.len() + self.more
    }

    fn add(&mut self, sentence: impl FnOnce() -> String) {
        if self.sentences.len() < MAX_SENTENCES {
            self.sentences.push(sentence());
        } else {
            self.more += 1;
        }
    }

    /// Adds the names of another list.
    pub(super) fn append(&mut self, other: RefusedNames) {
        for sentence in other.sentences {
            self.add(|| sentence);
        }
        self.more += other.more;
    }
}

/// The names found so far.
#[derive(Debug, Default)]
pub(super) struct ShardSet {
    shards: Vec<Shard>,
    refused: RefusedNames,
}

impl ShardSet {
    /// Collects the names of a list.
    pub(super) fn of_names(
        names: impl IntoIterator<Item = impl AsRef<str>>,
        list: &str,
    ) -> Result<ShardSet> {
        let mut set = ShardSet::default();
        for (number, name) in names.into_iter().enumerate() {
            set.add_text(name.as_ref(), || format!("number {} of {list}", number + 1))?;
        }
        Ok(set)
    }

    /// Adds a name; `location` describes where it was found.
    pub(super) fn add(&mut self, name: &[u8], location: impl FnOnce() -> String) -> Result<()> {
        match std::str::from_utf8(name) {
            Ok(name) => self.add_text(name, location),
            Err(_) => {
                self.refuse(|| {
                    let begin = &name[..name.len().min(MAX_QUOTED_BYTES)];
                    format!("{} is not UTF-8: '{}'", location(), begin.escape_ascii())
                });
                Ok(())
            }
        }
    }

    pub(super) fn add_text(&mut self, name: &str, location: impl FnOnce() -> String) -> Result<()> {
        match Shard::new(name) {
            Ok(shard) => self.shards.push(shard),
            Err(error) => self.refuse(|| format!("{}: {error}", location())),
        }
        // Duplicates are removed only when the limit is exceeded twofold, so that memory stays bounded without sorting too
        // often.
        if self.shards.len() >= 2 * MAX_SHARDS { self.deduplicate() } else { Ok(()) }
    }

    pub(super) fn refuse(&mut self, sentence: impl FnOnce() -> String) {
        self.refused.add(sentence);
    }

    fn deduplicate(&mut self) -> Result<()> {
        self.shards.sort_unstable();
        self.shards.dedup();
        if self.shards.len() > MAX_SHARDS {
            return Err(Error::invalid(format!(
                "there are more than {MAX_SHARDS} shards, which is more than a fleet takes: is it \
                 the right source? If so, make several fleets of it"
            )));
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Shards> {
        self.deduplicate()?;
        self.shards.shrink_to_fit();
        Ok(Shards { shards: self.shards, paused: Vec::new(), refused: self.refused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn invalid_names_are_counted_and_the_others_are_used() {
        let mut set = ShardSet::default();
        for name in [&b"b"[..], b"", b"a", b"\xff\n", b"b", &[b'x'; 513]] {
            set.add(name, || "there".to_owned()).unwrap();
        }
        for number in 0..20 {
            set.add(b"", || format!("number {number}")).unwrap();
        }
        let shards = set.finish().unwrap();
        assert_eq!(shards.shards.iter().map(Shard::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((shards.refused.count(), shards.refused.sentences.len()), (23, 10));
        let sentences = &shards.refused.sentences;
        assert_eq!(sentences[0], "there: the name of a shard must not be empty");
        assert_eq!(sentences[1], "there is not UTF-8: '\\xff\\n'");
        assert!(sentences[2].contains("at most 512 bytes"), "{}", sentences[2]);
        assert!(shards.contains("a") && !shards.contains("c") && !shards.is_paused("a"));
    }

    #[test]
    fn paused_names_that_are_refused_are_counted_with_the_others() {
        let names = |many| (0..many).map(|_| "");
        let shards = Shards::new(names(4)).unwrap().with_paused(names(8)).unwrap();
        assert_eq!((shards.refused.count(), shards.refused.sentences.len()), (12, 10));
        let sentence = "number 6 of the paused shards: the name of a shard must not be empty";
        assert_eq!(shards.refused.sentences[9], sentence);
        let shards = Shards::new(["b", "a"]).unwrap().with_paused(["z", "b", "z"]).unwrap();
        assert_eq!(shards.paused.iter().map(Shard::as_str).collect::<Vec<_>>(), ["b", "z"]);
        assert!(shards.is_paused("z") && !shards.contains("z"));
    }

    #[test]
    fn too_many_shards_are_refused_and_duplicates_count_once() {
        let mut set = ShardSet::default();
        for number in 0..=2 * MAX_SHARDS {
            set.add_text(&(number % MAX_SHARDS).to_string(), String::new).unwrap();
        }
        assert_eq!(set.finish().unwrap().shards.len(), MAX_SHARDS);
        let mut set = ShardSet::default();
        let error = (0..3 * MAX_SHARDS)
            .find_map(|number| set.add_text(&number.to_string(), String::new).err())
            .expect("memory is not filled without end");
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("more than 2000000 shards"), "{error}");
    }
}
