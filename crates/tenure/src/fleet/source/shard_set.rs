//! From what a source has found to a list of shards. What cannot be a shard spoils none of the others.

use super::Shards;
use crate::blocking;
use crate::error::{Error, Result};
use crate::fleet::Shard;

/// More than this a source may not have: who has so many has mistaken something else for shards.
pub const MOST_SHARDS: usize = 2_000_000;

const SENTENCES: usize = 10;
const QUOTED: usize = 40;

/// What a source has that cannot be a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedNames {
    /// One for each of the first ten: where it is, and what is wrong with it.
    pub sentences: Vec<String>,
    /// How many more there are.
    pub more: usize,
}

impl RefusedNames {
    /// How many there are altogether.
    pub fn count(&self) -> usize {
        self.sentences.len() + self.more
    }

    fn add(&mut self, sentence: impl FnOnce() -> String) {
        if self.sentences.len() < SENTENCES {
            self.sentences.push(sentence());
        } else {
            self.more += 1;
        }
    }
}

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct ShardSet {
    shards: Vec<Shard>,
    refused: RefusedNames,
}

impl ShardSet {
    /// Takes a name; `place` says where it was found.
    pub(super) fn take(&mut self, name: &[u8], place: impl FnOnce() -> String) -> Result<()> {
        match std::str::from_utf8(name) {
            Ok(name) => self.take_text(name, place),
            Err(_) => {
                self.refuse(|| {
                    let begin = &name[..name.len().min(QUOTED)];
                    format!("{} is not UTF-8: '{}'", place(), begin.escape_ascii())
                });
                Ok(())
            }
        }
    }

    pub(super) fn take_text(&mut self, name: &str, place: impl FnOnce() -> String) -> Result<()> {
        match Shard::new(name) {
            Ok(shard) => self.shards.push(shard),
            Err(error) => self.refuse(|| format!("{}: {error}", place())),
        }
        // Many may be the same, so they are counted when there is twice the room for different ones.
        if self.shards.len() >= 2 * MOST_SHARDS { self.settle() } else { Ok(()) }
    }

    pub(super) fn refuse(&mut self, sentence: impl FnOnce() -> String) {
        self.refused.add(sentence);
    }

    fn settle(&mut self) -> Result<()> {
        self.shards.sort_unstable();
        self.shards.dedup();
        if self.shards.len() > MOST_SHARDS {
            return Err(Error::invalid(format!(
                "there are more than {MOST_SHARDS} shards, which is more than a fleet takes: is it \
                 the right source? If so, make several fleets of it"
            )));
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Shards> {
        self.settle()?;
        self.shards.shrink_to_fit();
        Ok(Shards { shards: self.shards, paused: Vec::new(), refused: self.refused })
    }
}

/// Sorting a million takes a while, which others on this thread need not wait for.
pub(super) async fn aside(
    finish: impl FnOnce() -> Result<Shards> + Send + 'static,
) -> Result<Shards> {
    blocking::run(finish).await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn what_cannot_be_a_shard_is_counted_and_the_rest_is_used() {
        let mut gather = ShardSet::default();
        for name in [&b"b"[..], b"", b"a", b"\xff\n", b"b", &[b'x'; 513]] {
            gather.take(name, || "there".to_owned()).unwrap();
        }
        for number in 0..20 {
            gather.take(b"", || format!("number {number}")).unwrap();
        }
        let shards = gather.finish().unwrap();
        assert_eq!(shards.shards.iter().map(Shard::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((shards.refused.count(), shards.refused.sentences.len()), (23, 10));
        let said = &shards.refused.sentences;
        assert_eq!(said[0], "there: the name of a shard must not be empty");
        assert_eq!(said[1], "there is not UTF-8: '\\xff\\n'");
        assert!(said[2].contains("at most 512 bytes"), "{}", said[2]);
        assert!(shards.contains("a") && !shards.contains("c") && !shards.is_paused("a"));
    }

    #[test]
    fn too_many_are_refused_and_the_same_ones_are_not_many() {
        let mut gather = ShardSet::default();
        for number in 0..=2 * MOST_SHARDS {
            gather.take_text(&(number % MOST_SHARDS).to_string(), String::new).unwrap();
        }
        assert_eq!(gather.finish().unwrap().shards.len(), MOST_SHARDS);
        let mut gather = ShardSet::default();
        let error = (0..3 * MOST_SHARDS)
            .find_map(|number| gather.take_text(&number.to_string(), String::new).err())
            .expect("memory is not filled without end");
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("more than 2000000 shards"), "{error}");
    }
}
