//! Each member's share, drawn as it changes: in place on a terminal, one line a change in a pipe.

use std::io::{self, IsTerminal, Write};

use crate::demo::scenario::ScenarioStop;

/// One member, and how many shards it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberShare {
    pub(super) member: String,
    pub(super) shards: usize,
}

/// What is told, and what is drawn below it.
pub(super) struct Board {
    tells: bool,
    /// Drawn in place.
    live: bool,
    shares: Vec<MemberShare>,
    /// Shards without an owner.
    nobody: usize,
    /// So many lines are drawn, right above the cursor.
    drawn: usize,
    over: bool,
}

impl Board {
    pub(super) fn new(tells: bool) -> Board {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let live = io::stdout().is_terminal() && !dumb;
        Board { tells, live, shares: Vec::new(), nobody: 0, drawn: 0, over: false }
    }

    pub(super) fn tells(&self) -> bool {
        self.tells
    }

    /// One line of the story, above what is drawn.
    pub(super) fn say(&mut self, text: impl AsRef<str>) -> Result<(), ScenarioStop> {
        self.write(&format!("{}\n", text.as_ref()))
    }

    /// What a member has to say to somebody who reads its log.
    pub(super) fn log(&mut self, line: &str) -> Result<(), ScenarioStop> {
        self.write("")?;
        // Nothing is left to tell it to if stderr is gone.
        let _ = writeln!(io::stderr().lock(), "{line}");
        Ok(())
    }

    /// Draws the shares, if they are others than before.
    pub(super) fn draw(
        &mut self,
        shares: Vec<MemberShare>,
        nobody: usize,
    ) -> Result<(), ScenarioStop> {
        if self.over {
            return Ok(());
        }
        if (&self.shares, self.nobody) == (&shares, nobody) {
            // A line may have been told in the meantime.
            return if self.live && self.drawn == 0 { self.redraw() } else { Ok(()) };
        }
        (self.shares, self.nobody) = (shares, nobody);
        match self.live {
            true => self.redraw(),
            false => self.write(&format!("   {}\n", in_a_line(&self.shares, nobody))),
        }
    }

    /// What is drawn stays where it is, and nothing comes after it.
    pub(super) fn leave(&mut self) {
        (self.live, self.drawn, self.over) = (false, 0, true);
    }

    fn redraw(&mut self) -> Result<(), ScenarioStop> {
        let rows = rows(&self.shares, self.nobody);
        self.write(&format!("{}\n", rows.join("\n")))?;
        self.drawn = rows.len();
        Ok(())
    }

    /// Writes where the drawing was.
    fn write(&mut self, text: &str) -> Result<(), ScenarioStop> {
        if !self.tells {
            return Ok(());
        }
        let erased = match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        };
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(format!("{erased}{text}").as_bytes());
        written.and_then(|()| stdout.flush()).map_err(|_| ScenarioStop::OutputGone)
    }
}

fn rows(shares: &[MemberShare], nobody: usize) -> Vec<String> {
    let wide = shares.iter().map(|share| share.member.len()).max().unwrap_or(0);
    let row = |share: &MemberShare| {
        let bar = "█".repeat(share.shards);
        let gap = if share.shards == 0 { "" } else { " " };
        format!("   {:<wide$} {bar}{gap}{}", share.member, share.shards)
    };
    let mut rows: Vec<String> = shares.iter().map(row).collect();
    if nobody > 0 {
        rows.push(format!("   {:<wide$} {} {nobody} without an owner", "", "░".repeat(nobody)));
    }
    rows
}

fn in_a_line(shares: &[MemberShare], nobody: usize) -> String {
    let share = |share: &MemberShare| format!("{} {}", share.member, share.shards);
    let mut parts: Vec<String> = shares.iter().map(share).collect();
    if nobody > 0 {
        parts.push(format!("{nobody} without an owner"));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_bar_of_its_shards_and_what_nobody_has_is_another() {
        let share = |member: &str, shards| MemberShare { member: member.to_owned(), shards };
        let shares = [share("m1", 3), share("m10", 0)];
        assert_eq!(rows(&shares, 2), ["   m1  ███ 3", "   m10 0", "       ░░ 2 without an owner"]);
        assert_eq!(in_a_line(&shares, 2), "m1 3, m10 0, 2 without an owner");
        assert_eq!(in_a_line(&shares[..1], 0), "m1 3");
    }
}
