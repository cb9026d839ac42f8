//! `/events`: the state, then what happens, to everybody who listens.
//!
//! Each event is written once and shared. The last few are kept for those who come back with `Last-Event-ID`. Nobody is
//! waited for: who is too far behind is let go, and finds the state when coming back.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use serde::Serialize;
use tenure::Nonce;
use tokio::sync::broadcast;

use crate::time;

/// So many events are kept for those who come back, and so far may a listener be behind.
const KEPT: usize = 256;

/// A comment: there is nothing new, and we are still there.
const BEAT: &str = ": still here\n\n";

/// What stands on every event, and what it says besides.
#[derive(Debug, Serialize)]
struct EventJson<'a, T> {
    at: String,
    event: &'static str,
    name: &'a str,
    #[serde(flatten)]
    what: &'a T,
}

/// What happened, and who listens.
#[derive(Debug)]
pub(super) struct EventLog {
    /// Numbers begin anew with every process; those of another one mean nothing here.
    epoch: String,
    kept: Mutex<RecentEvents>,
    listeners: broadcast::Sender<Bytes>,
}

#[derive(Debug, Default)]
struct RecentEvents {
    last: u64,
    frames: VecDeque<(u64, Bytes)>,
}

/// What a new listener gets.
pub(super) struct Listening {
    /// The number of the state: whoever has seen it has seen everything up to here.
    pub(super) id: String,
    pub(super) missed: Vec<Bytes>,
    pub(super) live: broadcast::Receiver<Bytes>,
}

impl Default for EventLog {
    fn default() -> EventLog {
        let epoch = Nonce::random().to_string().chars().take(8).collect();
        EventLog { epoch, kept: Mutex::default(), listeners: broadcast::channel(KEPT).0 }
    }
}

impl EventLog {
    /// Tells of `what` happened to `name`.
    pub(super) fn tell(&self, name: &str, event: &'static str, what: &impl Serialize) {
        let item = EventJson { at: time::now(), event, name, what };
        if let Ok(data) = serde_json::to_string(&item) {
            self.push(event, &data);
        }
    }

    pub(super) fn push(&self, event: &str, data: &str) {
        let mut kept = self.kept();
        kept.last += 1;
        let last = kept.last;
        let frame = frame(&self.id(last), event, data);
        if kept.frames.len() == KEPT {
            kept.frames.pop_front();
        }
        kept.frames.push_back((last, frame.clone()));
        // Under the lock, so that a new listener has it in one place or the other. Nobody listening is fine.
        let _ = self.listeners.send(frame);
    }

    /// Keeps connections from looking dead; numbers are not used up for it.
    pub(super) fn beat(&self) {
        let _ = self.listeners.send(Bytes::from_static(BEAT.as_bytes()));
    }

    /// Begins to listen behind the event `last`, if that is one of ours.
    pub(super) fn listen(&self, last: Option<&str>) -> Listening {
        let kept = self.kept();
        let seen =
            last.and_then(|id| id.strip_prefix(&self.epoch)?.strip_prefix('-')?.parse().ok());
        let seen: u64 = seen.filter(|seen| *seen <= kept.last).unwrap_or(kept.last);
        let missed = kept.frames.iter().filter(|(number, _)| *number > seen);
        Listening {
            id: self.id(seen),
            missed: missed.map(|(_, frame)| frame.clone()).collect(),
            live: self.listeners.subscribe(),
        }
    }

    fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.epoch)
    }

    fn kept(&self) -> MutexGuard<'_, RecentEvents> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One event as it goes over the line. `data` is one line: it is JSON.
pub(super) fn frame(id: &str, event: &str, data: &str) -> Bytes {
    Bytes::from(format!("id: {id}\nevent: {event}\ndata: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(listening: &Listening) -> Vec<String> {
        let text = listening.missed.iter().map(|frame| String::from_utf8_lossy(frame).into_owned());
        text.map(|text| text.lines().last().unwrap_or_default().to_owned())
            .map(|text| text.trim_start_matches("data: ").to_owned())
            .collect()
    }

    #[test]
    fn who_comes_back_gets_what_was_missed_and_nobody_gets_more() {
        let news = EventLog::default();
        let first = news.listen(None);
        assert!(first.missed.is_empty());
        for number in 1..=3 {
            news.push("changed", &format!("{number}"));
        }
        let trimmed = |last: &str| {
            let listening = news.listen(Some(last));
            let data: Vec<String> = numbers(&listening);
            (data, listening.id)
        };
        let id = |number: u64| format!("{}-{number}", news.epoch);
        let (missed, state) = trimmed(&first.id);
        assert_eq!((missed.len(), state), (3, id(0)), "the state is numbered like what was seen");
        assert_eq!(trimmed(&id(2)).0.len(), 1);
        assert_eq!(trimmed(&id(3)).0.len(), 0);
        for strange in ["", "x", "0", "other-1", &id(99), &format!("{}-x", news.epoch)] {
            assert_eq!(trimmed(strange), (vec![], id(3)), "{strange}");
        }
        for number in 4..1000 {
            news.push("changed", &format!("{number}"));
        }
        assert_eq!(news.listen(Some(&id(1))).missed.len(), KEPT, "and no more is kept");
    }
}
