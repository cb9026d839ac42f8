//! PURE: text, as it comes in pieces, into shards: one a line.

use super::Shards;
use super::shard_set::ShardSet;
use crate::error::{Error, Result};

/// More than this is not a list of shards.
pub(super) const MOST_BYTES: u64 = 1 << 30;
/// A line is not kept beyond this: there is space around the longest name, and no end to garbage.
const LONGEST_LINE: usize = 4096;
const BYTE_ORDER_MARK: &str = "\u{feff}";

#[derive(Debug, Default)]
pub(super) struct LineParser {
    gather: ShardSet,
    line: Vec<u8>,
    /// The line under way is longer than what was kept of it.
    cut: bool,
    number: u64,
    bytes: u64,
}

impl LineParser {
    /// Takes the next piece.
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Result<()> {
        self.bytes += piece.len() as u64;
        if self.bytes > MOST_BYTES {
            return Err(Error::invalid("there is more than a GiB: that is not a list of shards"));
        }
        while let Some(at) = piece.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&piece[..at], &piece[at + 1..]);
            if self.line.is_empty() && !self.cut && line.len() <= LONGEST_LINE {
                self.number += 1;
                take(&mut self.gather, line, self.number)?;
            } else {
                self.keep(line);
                self.end()?;
            }
            piece = rest;
        }
        self.keep(piece);
        Ok(())
    }

    /// All of them. What stands behind the last line's end is a line too.
    pub(super) fn finish(mut self) -> Result<Shards> {
        if !self.line.is_empty() || self.cut {
            self.end()?;
        }
        self.gather.finish()
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = LONGEST_LINE - self.line.len();
        self.cut |= piece.len() > room;
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    fn end(&mut self) -> Result<()> {
        self.number += 1;
        let number = self.number;
        if self.cut {
            self.gather.refuse(|| format!("line {number} is longer than {LONGEST_LINE} bytes"));
        } else {
            take(&mut self.gather, &self.line, number)?;
        }
        self.line.clear();
        self.cut = false;
        Ok(())
    }
}

fn take(gather: &mut ShardSet, line: &[u8], number: u64) -> Result<()> {
    let place = || format!("line {number}");
    let Ok(text) = std::str::from_utf8(line) else { return gather.take(line, place) };
    let text = if number == 1 { text.trim_start_matches(BYTE_ORDER_MARK) } else { text };
    match text.trim() {
        "" => Ok(()),
        remark if remark.starts_with('#') => Ok(()),
        name => gather.take_text(name, place),
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
    fn lines_are_read_as_people_write_them() {
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
        let endless = vec![b'y'; 3 * LONGEST_LINE];
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
        fn how_it_is_cut_makes_no_difference(
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
