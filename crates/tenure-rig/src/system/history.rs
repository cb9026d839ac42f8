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
        let words: Vec<&str> = text.split(' ').collect();
        let [at, token, pid, candidate] = words[..] else { return Err(bad()) };
        Ok(Line {
            at: Moment::from_nanos(at.parse().map_err(|_| bad())?),
            token: token.parse().map_err(|_| bad())?,
            pid: pid.parse().map_err(|_| bad())?,
            candidate: candidate.to_owned(),
        })
    }
}

/// The writer of a history, in a worker.
pub struct EffectWriter {
    file: File,
    rest: String,
}

impl EffectWriter {
    pub fn new(path: &Path, token: u64, candidate: &str) -> EffectWriter {
        let file = File::options().append(true).open(path).unwrap();
        EffectWriter { file, rest: format!(" {token} {} {candidate}\n", std::process::id()) }
    }

    /// Writes one effect. One write call: the kernel appends it whole or not at all.
    pub fn stamp(&mut self) {
        // Nothing that takes time may come between the clock and the write.
        self.stamp_at(super::time::now());
    }

    /// Writes an effect that happened at an earlier moment.
    pub fn stamp_at(&mut self, at: Moment) {
        let mut line = String::with_capacity(64);
        line.push_str(&at.as_nanos().to_string());
        line.push_str(&self.rest);
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
