//! The checkpoint of a schedule, which the leader saves for its successor: how many runs there were, and how the last one
//! ended.
//!
//! PURE. It is the checkpoint of the lease, saved under the token, so only the leader writes it. Fields are only ever added:
//! fields of a newer version are kept.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use tenure::{Error, Result};

use super::{LAST_MS, Schedule, Slot};
use crate::{duration, time};

/// The most bytes of a lease's checkpoint.
const MAX_BYTES: usize = 4096;
/// The longest id of a candidate.
const MAX_BY_BYTES: usize = 100;
const MAX_DETAIL_BYTES: usize = 200;
const MAX_OUTCOME_BYTES: usize = 40;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScheduleCheckpoint {
    /// How many runs have begun.
    pub(crate) count: u64,
    #[serde(default)]
    pub(crate) last_run: Option<RunRecord>,
    /// Slots that came during a run.
    #[serde(default)]
    pub(crate) skipped: u64,
    /// Slots that passed without a leader, or without a leader that could save.
    #[serde(default)]
    pub(crate) missed: u64,
    /// Every slot that begins then or before is settled: it has been run, skipped or missed, and does not begin any more.
    #[serde(default, with = "moment")]
    pub(crate) settled_to: Option<u64>,
    /// Fields of a newer version.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunRecord {
    /// The number of its slot.
    pub(crate) slot: u64,
    /// When its slot begins; `None` in a checkpoint of an earlier version.
    #[serde(default, with = "moment", skip_serializing_if = "Option::is_none")]
    pub(crate) slot_at: Option<u64>,
    /// The candidate that began it.
    #[serde(default)]
    pub(crate) by: String,
    #[serde(default, with = "moment")]
    pub(crate) started_at: Option<u64>,
    /// `None` during the run, and if no leader observed its end.
    #[serde(default, with = "moment")]
    pub(crate) ended_at: Option<u64>,
    pub(crate) outcome: RunOutcome,
    /// An exit code or an HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
}

impl RunRecord {
    /// A readable line: `03:46:12 on e1, failed (exit code 3) after 2.5s`.
    pub(crate) fn summary(&self, now_ms: u64) -> String {
        let RunRecord { slot, slot_at, by, started_at, ended_at, outcome, detail } = self;
        // A checkpoint of an earlier version has only the number of the slot.
        let slot = slot_at
            .map_or_else(|| format!("slot {slot}"), |at| time::local_time_of_slot(at, now_ms));
        let detail = detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
        let took = started_at.zip(*ended_at).map(|(from, to)| to.saturating_sub(from));
        let took =
            took.map(|ms| format!(" after {}", duration::rounded(Duration::from_millis(ms))));
        format!("{slot} on {by}, {}{detail}{}", outcome.word(), took.unwrap_or_default())
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RunOutcome {
    Running,
    Ok,
    Failed,
    /// Its leader was lost, and it is not known how far the run came.
    Interrupted,
    /// Its leader has stopped it.
    Stopped,
    /// An outcome of a newer version.
    #[serde(untagged)]
    Other(String),
}

impl RunOutcome {
    /// The word used in messages and metrics.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            RunOutcome::Running => "running",
            RunOutcome::Ok => "ok",
            RunOutcome::Failed => "failed",
            RunOutcome::Interrupted => "interrupted",
            RunOutcome::Stopped => "stopped",
            RunOutcome::Other(_) => "other",
        }
    }
}

impl ScheduleCheckpoint {
    /// Parses a checkpoint.
    ///
    /// Returns `None` if there is none: only then the count starts at zero. Returns an error for anything else: it is then
    /// unknown which slot was begun last, and a leader that continued might run one twice.
    pub(crate) fn read(checkpoint: Option<&[u8]>) -> Result<Option<ScheduleCheckpoint>> {
        let Some(bytes) = checkpoint.filter(|bytes| !bytes.is_empty()) else { return Ok(None) };
        serde_json::from_slice(bytes).map(Some).map_err(|error| {
            Error::corrupt(
                "the checkpoint of this lease does not tell what was run last, so something else wrote it: use another name",
            )
            .caused_by(error)
        })
    }

    /// The JSON to save, which always fits into a checkpoint.
    pub(crate) fn to_json(&self) -> String {
        let text = bounded(self);
        if text.len() <= MAX_BYTES {
            return text;
        }
        // Unknown fields are dropped first. The known fields have limits of their own.
        bounded(&ScheduleCheckpoint { rest: Map::new(), ..self.clone() })
    }

    /// When the newest settled slot begins.
    pub(crate) fn settled(&self, schedule: &Schedule) -> Option<u64> {
        // Without the time there is only the number, which is assumed to belong to this schedule.
        let last = || self.last_run.as_ref().and_then(|run| schedule.slot(run.slot));
        self.settled_to.or_else(|| last().map(|slot: Slot| slot.at))
    }

    /// The last run, if no leader observed its end.
    pub(crate) fn unfinished(&self) -> Option<&RunRecord> {
        self.last_run.as_ref().filter(|run| run.outcome == RunOutcome::Running)
    }
}

fn bounded(checkpoint: &ScheduleCheckpoint) -> String {
    let mut checkpoint = checkpoint.clone();
    if let Some(run) = &mut checkpoint.last_run {
        run.by = truncated(&run.by, MAX_BY_BYTES);
        run.detail = run.detail.as_deref().map(|detail| truncated(detail, MAX_DETAIL_BYTES));
        if let RunOutcome::Other(word) = &mut run.outcome {
            *word = truncated(word, MAX_OUTCOME_BYTES);
        }
    }
    // It contains only numbers, strings and former JSON, so serialization cannot fail.
    serde_json::to_string(&checkpoint)
        .unwrap_or_else(|_| format!("{{\"count\":{}}}", checkpoint.count))
}

/// `text` without characters that grow when encoded as JSON, cut to `limit` bytes.
fn truncated(text: &str, limit: usize) -> String {
    let mut short = String::new();
    for c in text.chars() {
        let c = if c.is_control() || matches!(c, '"' | '\\') { ' ' } else { c };
        if short.len() + c.len_utf8() > limit {
            break;
        }
        short.push(c);
    }
    short
}

/// Serializes Unix milliseconds as RFC 3339 with milliseconds, or null.
mod moment {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        at: &Option<u64>,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        // A time that could not be parsed again is never written.
        at.map(|at| time::rfc3339(at.min(LAST_MS))).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Option<u64>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let at: jiff::Timestamp = text.parse().map_err(serde::de::Error::custom)?;
        u64::try_from(at.as_millisecond()).map(Some).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1_750_258_800_041;

    fn full() -> ScheduleCheckpoint {
        ScheduleCheckpoint {
            count: 42,
            last_run: Some(RunRecord {
                slot: 350_051_760,
                slot_at: Some(1_750_258_800_000),
                by: "worker-1".to_owned(),
                started_at: Some(AT),
                ended_at: Some(AT + 1_000),
                outcome: RunOutcome::Failed,
                detail: Some("exit code 3".to_owned()),
            }),
            skipped: 1,
            missed: 2,
            settled_to: Some(1_750_258_800_000),
            rest: Map::new(),
        }
    }

    fn read(text: &str) -> ScheduleCheckpoint {
        ScheduleCheckpoint::read(Some(text.as_bytes())).unwrap().unwrap()
    }

    #[test]
    fn the_json_is_spelled_as_documented() {
        assert_eq!(
            full().to_json(),
            r#"{"count":42,"lastRun":{"slot":350051760,"slotAt":"2025-06-18T15:00:00.000Z","by":"worker-1","startedAt":"2025-06-18T15:00:00.041Z","endedAt":"2025-06-18T15:00:01.041Z","outcome":"failed","detail":"exit code 3"},"skipped":1,"missed":2,"settledTo":"2025-06-18T15:00:00.000Z"}"#
        );
        assert_eq!(read(&full().to_json()), full());
    }

    #[test]
    fn a_run_is_summarized_in_one_line() {
        let mut run = full().last_run.unwrap();
        let at = time::local_time_of_slot(1_750_258_800_000, AT);
        assert_eq!(run.summary(AT), format!("{at} on worker-1, failed (exit code 3) after 1.0s"));
        run = RunRecord {
            slot_at: None,
            ended_at: None,
            detail: None,
            outcome: RunOutcome::Running,
            ..run
        };
        assert_eq!(run.summary(AT), "slot 350051760 on worker-1, running");
    }

    #[test]
    fn every_outcome_reads_back() {
        use RunOutcome::*;
        for (outcome, word) in [
            (Running, "running"),
            (Ok, "ok"),
            (Failed, "failed"),
            (Interrupted, "interrupted"),
            (Stopped, "stopped"),
            (Other("melted".to_owned()), "melted"),
        ] {
            let mut checkpoint = full();
            checkpoint.last_run.as_mut().unwrap().outcome = outcome;
            let text = checkpoint.to_json();
            assert!(text.contains(&format!("\"outcome\":\"{word}\"")), "{text}");
            assert_eq!(read(&text), checkpoint);
        }
    }

    #[test]
    fn no_checkpoint_is_none_and_garbage_is_an_error() {
        assert_eq!(ScheduleCheckpoint::read(None).unwrap(), None);
        assert_eq!(ScheduleCheckpoint::read(Some(b"")).unwrap(), None);
        for garbage in [
            "{}",
            "[]",
            "42",
            "null",
            "hello",
            "\u{0}",
            r#"{"count":"42"}"#,
            r#"{"count":-1}"#,
            r#"{"count":1,"lastRun":{}}"#,
            r#"{"count":1,"settledTo":"yesterday"}"#,
            r#"{"count":1"#,
        ] {
            let error = ScheduleCheckpoint::read(Some(garbage.as_bytes())).unwrap_err();
            assert_eq!(error.kind(), tenure::Kind::Corrupt, "{garbage}");
        }
        assert!(ScheduleCheckpoint::read(Some(&[0xff, 0xfe])).is_err());
    }

    #[test]
    fn a_checkpoint_of_an_earlier_version_is_read_and_written_as_it_was() {
        let text = r#"{"count":42,"lastRun":{"slot":350051760,"by":"worker-1","startedAt":"2025-06-18T15:00:00.041Z","endedAt":null,"outcome":"running"},"skipped":1,"missed":2,"settledTo":"2025-06-18T15:00:00.000Z"}"#;
        assert_eq!(read(text).last_run.unwrap().slot_at, None);
        assert_eq!(read(text).to_json(), text);
    }

    #[test]
    fn a_count_alone_is_enough() {
        assert_eq!(
            read(r#"{"count":7}"#),
            ScheduleCheckpoint { count: 7, ..ScheduleCheckpoint::default() }
        );
    }

    #[test]
    fn fields_of_a_newer_version_are_kept() {
        let checkpoint = read(r#"{"count":7,"lastRun":null,"colour":{"of":["hats"]},"n":1}"#);
        let text = checkpoint.to_json();
        assert!(text.contains(r#""colour":{"of":["hats"]}"#), "{text}");
        read(r#"{"count":7,"lastRun":{"slot":1,"outcome":"ok","hat":"red"}}"#);
    }

    #[test]
    fn the_json_always_fits_into_a_checkpoint() {
        let mut checkpoint = full();
        checkpoint.count = u64::MAX;
        checkpoint.skipped = u64::MAX;
        checkpoint.missed = u64::MAX;
        checkpoint.settled_to = Some(u64::MAX);
        checkpoint.rest.insert("new".to_owned(), Value::String("x".repeat(5_000)));
        for nasty in ["\u{1}", "\"", "\\", "ö", "\u{10ffff}", "\u{7f}", "\u{2028}"] {
            let long = nasty.repeat(5_000);
            checkpoint.last_run = Some(RunRecord {
                slot: u64::MAX,
                slot_at: Some(u64::MAX),
                by: long.clone(),
                started_at: Some(u64::MAX),
                ended_at: Some(u64::MAX),
                outcome: RunOutcome::Other(long.clone()),
                detail: Some(long),
            });
            let text = checkpoint.to_json();
            assert!(text.len() <= 1_000, "{}", text.len());
            assert_eq!(read(&text).count, u64::MAX);
        }
    }

    #[test]
    fn without_the_time_of_a_slot_its_number_decides() {
        let schedule = Schedule::Every(5_000);
        let mut checkpoint = full();
        assert_eq!(checkpoint.settled(&schedule), Some(1_750_258_800_000));
        checkpoint.settled_to = None;
        assert_eq!(checkpoint.settled(&schedule), Some(1_750_258_800_000));
        checkpoint.last_run = None;
        assert_eq!(checkpoint.settled(&schedule), None);
    }
}
