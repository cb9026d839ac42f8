//! PURE: an incremental parser of shard names, one per line.

use super::Shards;
use super::shard_set::ShardSet;
use crate::error::{Error, Result};

/// The size limit: a larger text is not a list of shards.
pub(super) const MAX_BYTES: u64 = 1 << 30;
/// The limit of a buffered line: enough for the longest name with space around it, while garbage may have no line end.
const MAX_LINE_BYTES: usize = 4096;
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Reads shards from text that arrives in pieces: one shard a line, as [`file`](super::file()) does. For a [source](super::Source) of your own.
#[derive(Debug, Default)]
pub struct LineParser {
    shard_set: ShardSet,
    line: Vec<u8>,
    /// The current line is longer than the buffered part.
    cut: bool,
    number: u64,
    bytes: u64,
}

impl LineParser {
    /// Parses the next piece of the text.
    pub fn push(&mut self, mut piece: &[u8]) -> Result<()> {
        self.bytes += piece.len() as u64;
        if self.bytes > MAX_BYTES {
            return Err(Error::invalid("there is more than a GiB: that is not a list of shards"));
        }
        while let Some(at) = piece.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&piece[..at], &piece[at + 1..]);
            if self.line.is_empty() && !self.cut && line.len() <= MAX_LINE_BYTES {
                self.number += 1;
                add_line(&mut self.shard_set, line, self.number)?;
            } else {
                self.buffer(line);
                self.end_line()?;
            }
            piece = rest;
        }
        self.buffer(piece);
        Ok(())
    }

    /// Returns all shards. Text after the last line end is a line too.
    pub fn finish(mut self) -> Result<Shards> {
        if !self.line.is_empty() || self.cut {
            self.end_line()?;
        }
        self.shard_set.finish()
    }

    fn buffer(&mut self, piece: &[u8]) {
        let room = MAX_LINE_BYTES - self.line.len();
        self.cut |= piece.len() > room;
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    fn end_line(&mut self) -> Result<()> {
        self.number += 1;
        let number = self.number;
        if self.cut {
            self.shard_set
                .refuse(|| format!("line {number} is longer than {MAX_LINE_BYTES} bytes"));
        } else {
            add_line(&mut self.shard_set, &self.line, number)?;
        }
        self.line.clear();
        self.cut = false;
        Ok(())
    }
}

fn add_line(shard_set: &mut ShardSet, line: &[u8], number: u64) -> Result<()> {
    let location = || format!("line {number}");
    let Ok(text) = std::str::from_utf8(line) else { return shard_set.add(line, location) };
    let text = if number == 1 { text.trim_start_matches(BYTE_ORDER_MARK) } else { text };
    match text.trim() {
        "" => Ok(()),
        remark if remark.starts_with('#') => Ok(()),
        name => shard_set.add_text(name, location),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::Shard;

    fn read(pieces: &[&[u8]]) -> (Vec<String>, Vec<String>) {
        let mut lines = LineParser::default();
        for piece in pieces {
            lines.push(piece).unwrap();
        }
        let read = lines.finish().unwrap();
        let names = read.shards.iter().map(|shard: &Shard| shard.as_str().to_owned()).collect();
        (names, read.refused.sentences)
    }

    #[test]
    fn comments_space_and_empty_lines_are_ignored() {
        let text = "\u{feff}b\r\n\r\n  # not this\r\n\t a b \n#nor this\nc#d\nb\n\nlast";
        let (names, refused) = read(&[text.as_bytes()]);
        assert_eq!(names, ["a b", "b", "c#d", "last"]);
        assert!(refused.is_empty());
        assert_eq!(read(&[]).0, [""; 0]);
        assert_eq!(read(&[b"\n\n# none\n"]).0, [""; 0]);
    }

    #[test]
    fn garbage_is_refused_line_by_line() {
        let long = [b'x'; 600];
        let endless = vec![b'y'; 3 * MAX_LINE_BYTES];
        let padded = [&[b' '; 2000][..], b"ok"].concat();
        let text = [&b"a"[..], b"\xff\xfe", &long, &endless, &padded, b"b\0c"].join(&b'\n');
        for size in [1, 7, 4096, text.len()] {
            let (names, refused) = read(&text.chunks(size).collect::<Vec<_>>());
            assert_eq!(names, ["a", "b\0c", "ok"]);
            assert_eq!(refused.len(), 3, "{refused:?}");
            assert_eq!(refused[0], "line 2 is not UTF-8: '\\xff\\xfe'");
            assert!(refused[1].starts_with("line 3: the name of a shard may have at most"));
            assert_eq!(refused[2], "line 4 is longer than 4096 bytes");
        }
    }

    proptest! {
        #[test]
        fn the_split_into_pieces_makes_no_difference(
            text in "([a-c \r\n#ä]|\u{0}){0,200}", cuts in prop::collection::vec(0..200_usize, 0..6),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(read(&pieces), read(&[bytes]));
        }
    }
}
