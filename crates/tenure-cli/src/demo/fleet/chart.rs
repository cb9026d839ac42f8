//! A bar chart of each member's share: redrawn in place on a terminal, one line per change in a pipe.

use std::io::{self, IsTerminal, Write};

use crate::demo::scenario::ScenarioStop;

/// One member and the number of its shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberShare {
    pub(super) member: String,
    pub(super) shards: usize,
}

/// The text output of the fleet demo, with the chart below it.
pub(super) struct FleetChart {
    enabled: bool,
    /// The chart is redrawn in place.
    live: bool,
    shares: Vec<MemberShare>,
    /// Shards without an owner.
    unowned: usize,
    /// The number of lines of the chart, directly above the cursor.
    drawn: usize,
    finished: bool,
}

impl FleetChart {
    pub(super) fn new(enabled: bool) -> FleetChart {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let live = io::stdout().is_terminal() && !dumb;
        FleetChart { enabled, live, shares: Vec::new(), unowned: 0, drawn: 0, finished: false }
    }

    pub(super) fn enabled(&self) -> bool {
        self.enabled
    }

    /// Prints one line above the chart.
    pub(super) fn say(&mut self, text: impl AsRef<str>) -> Result<(), ScenarioStop> {
        self.write(&format!("{}\n", text.as_ref()))
    }

    /// Prints a log line of a member to stderr.
    pub(super) fn log(&mut self, line: &str) -> Result<(), ScenarioStop> {
        self.write("")?;
        // If stderr is closed, there is nowhere to report that.
        let _ = writeln!(io::stderr().lock(), "{line}");
        Ok(())
    }

    /// Draws the shares, if they have changed.
    pub(super) fn draw(
        &mut self,
        shares: Vec<MemberShare>,
        unowned: usize,
    ) -> Result<(), ScenarioStop> {
        if self.finished {
            return Ok(());
        }
        if (&self.shares, self.unowned) == (&shares, unowned) {
            // A line printed in the meantime may have erased the chart.
            return if self.live && self.drawn == 0 { self.redraw() } else { Ok(()) };
        }
        (self.shares, self.unowned) = (shares, unowned);
        match self.live {
            true => self.redraw(),
            false => self.write(&format!("   {}\n", in_a_line(&self.shares, unowned))),
        }
    }

    /// Leaves the chart as it is, and draws no more.
    pub(super) fn finish(&mut self) {
        (self.live, self.drawn, self.finished) = (false, 0, true);
    }

    fn redraw(&mut self) -> Result<(), ScenarioStop> {
        let rows = rows(&self.shares, self.unowned);
        self.write(&format!("{}\n", rows.join("\n")))?;
        self.drawn = rows.len();
        Ok(())
    }

    /// Erases the chart and writes text in its place.
    fn write(&mut self, text: &str) -> Result<(), ScenarioStop> {
        if !self.enabled {
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

fn rows(shares: &[MemberShare], unowned: usize) -> Vec<String> {
    let wide = shares.iter().map(|share| share.member.len()).max().unwrap_or(0);
    let row = |share: &MemberShare| {
        let bar = "█".repeat(share.shards);
        let gap = if share.shards == 0 { "" } else { " " };
        format!("   {:<wide$} {bar}{gap}{}", share.member, share.shards)
    };
    let mut rows: Vec<String> = shares.iter().map(row).collect();
    if unowned > 0 {
        rows.push(format!("   {:<wide$} {} {unowned} without an owner", "", "░".repeat(unowned)));
    }
    rows
}

fn in_a_line(shares: &[MemberShare], unowned: usize) -> String {
    let share = |share: &MemberShare| format!("{} {}", share.member, share.shards);
    let mut parts: Vec<String> = shares.iter().map(share).collect();
    if unowned > 0 {
        parts.push(format!("{unowned} without an owner"));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_unowned_shards_are_drawn_as_bars() {
        let share = |member: &str, shards| MemberShare { member: member.to_owned(), shards };
        let shares = [share("m1", 3), share("m10", 0)];
        assert_eq!(rows(&shares, 2), ["   m1  ███ 3", "   m10 0", "       ░░ 2 without an owner"]);
        assert_eq!(in_a_line(&shares, 2), "m1 3, m10 0, 2 without an owner");
        assert_eq!(in_a_line(&shares[..1], 0), "m1 3");
    }
}
