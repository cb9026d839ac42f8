//! Signals that come to us and are meant for the command too.

use std::fs;
use std::time::Duration;

use futures_util::future::select_all;
use tenure::{Error, Moment, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Those that are passed on, and whether they mean that we should end.
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

/// A signal we got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedSignals {
    pub(crate) number: i32,
    /// With nothing running it is the end.
    pub(crate) ends: bool,
}

impl ReceivedSignals {
    /// Ctrl-C.
    pub(crate) fn interrupts(self) -> bool {
        self.number == INT
    }
}

/// A second Ctrl-C within this time of the one before kills. A later one may be meant for something else.
pub(crate) const KILL_WINDOW: Duration = Duration::from_secs(2);

/// When Ctrl-C was last pressed.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    last: Option<Moment>,
}

impl Interrupts {
    /// Records a Ctrl-C; whether it kills.
    pub(crate) fn kills(&mut self, now: Moment) -> bool {
        self.last.replace(now).is_some_and(|last| now.since(last) <= KILL_WINDOW)
    }
}

/// All of them, in the order they come.
pub(crate) struct Signals(Vec<(ReceivedSignals, Signal)>);

impl Signals {
    /// From now on they do not end us.
    pub(crate) fn catch() -> Result<Signals> {
        let ignored = ignored();
        // `nohup` and a shell's background have said that these are to be ignored, and the command inherits that.
        let heeded = CAUGHT.iter().filter(|(number, _)| ignored & (1 << (number - 1)) == 0);
        let caught = heeded.map(|&(number, ends)| {
            let stream = signal(SignalKind::from_raw(number))
                .map_err(|error| Error::denied(format!("cannot catch signals: {error}")))?;
            Ok((ReceivedSignals { number, ends }, stream))
        });
        Ok(Signals(caught.collect::<Result<_>>()?))
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> ReceivedSignals {
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

    /// The next one that means that we should end.
    pub(crate) async fn end(&mut self) -> ReceivedSignals {
        loop {
            let caught = self.next().await;
            if caught.ends {
                return caught;
            }
        }
    }
}

/// Catches all of them and does nothing about it, to the end of this process.
pub(crate) fn be_deaf() -> Result<()> {
    // A handler stays when its stream is gone.
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
