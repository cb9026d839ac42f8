//! Signals that this process receives and forwards to its command.

use std::fs;
use std::time::Duration;

use futures_util::future::select_all;
use tenure::{Error, Moment, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The forwarded signals, and whether each asks this process to end.
const CAUGHT: [(i32, bool); 8] = [
    (HUP, true),
    (INT, true),
    (QUIT, true),
    (TERM, true),
    (10, false), // SIGUSR1
    (12, false), // SIGUSR2
    (18, false), // SIGCONT
    (28, false), // SIGWINCH
];

const HUP: i32 = 1;
const INT: i32 = 2;
const QUIT: i32 = 3;
const TERM: i32 = 15;

/// A signal that this process received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedSignal {
    pub(crate) number: i32,
    /// Whether the signal asks this process to end when no command runs.
    pub(crate) ends: bool,
}

impl ReceivedSignal {
    /// Whether it is SIGINT, which Ctrl-C sends.
    pub(crate) fn interrupts(self) -> bool {
        self.number == INT
    }
}

/// A second Ctrl-C within this time of the previous one kills the command. A later one may have another purpose.
pub(crate) const KILL_WINDOW: Duration = Duration::from_secs(2);

/// The time of the last Ctrl-C.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    last: Option<Moment>,
}

impl Interrupts {
    /// Records a Ctrl-C. Returns whether it kills the command.
    pub(crate) fn kills(&mut self, now: Moment) -> bool {
        self.last.replace(now).is_some_and(|last| now.since(last) <= KILL_WINDOW)
    }
}

/// The stream of all caught signals.
pub(crate) struct Signals(Vec<(ReceivedSignal, Signal)>);

impl Signals {
    /// Catches the signals: from now on they do not end this process.
    pub(crate) fn catch() -> Result<Signals> {
        let ignored = ignored();
        // `nohup` and a shell's background mode ignore these signals, and the command inherits that.
        let not_ignored = CAUGHT.iter().filter(|(number, _)| ignored & (1 << (number - 1)) == 0);
        let caught = not_ignored.map(|&(number, ends)| {
            let stream = signal(SignalKind::from_raw(number))
                .map_err(|error| Error::denied(format!("cannot catch signals: {error}")))?;
            Ok((ReceivedSignal { number, ends }, stream))
        });
        Ok(Signals(caught.collect::<Result<_>>()?))
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> ReceivedSignal {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let waits = self.0.iter_mut().map(|(caught, stream)| {
            Box::pin(async move {
                stream.recv().await;
                *caught
            })
        });
        select_all(waits).await.0
    }

    /// The next signal that asks this process to end.
    pub(crate) async fn end(&mut self) -> ReceivedSignal {
        loop {
            let caught = self.next().await;
            if caught.ends {
                return caught;
            }
        }
    }
}

/// Catches all signals and ignores them until this process ends.
pub(crate) fn catch_and_ignore() -> Result<()> {
    // The handler stays installed after its stream was dropped.
    Signals::catch().map(drop)
}

/// One bit for each signal that this process was started to ignore.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_interrupt_kills_only_within_two_seconds() {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        let mut interrupts = Interrupts::default();
        assert!(!interrupts.kills(at(1_000)));
        assert!(!interrupts.kills(at(3_001)), "counts as a first one");
        assert!(interrupts.kills(at(5_001)));
        assert!(!interrupts.kills(at(9_000)));
        assert!(interrupts.kills(at(9_000)));
    }
}
