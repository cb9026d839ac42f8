//! PURE: the content of a presence lease's note, as versioned JSON of at most 512 bytes.

use serde::{Deserialize, Serialize};

use crate::election::CandidateState;
use crate::lease::Note;

const VERSION: u64 = 1;
/// With all other fields at their longest, the record still fits into a note.
const MAX_URL_BYTES: usize = 250;
const MAX_REASON_BYTES: usize = 120;

/// What a candidate announces about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) url: Option<String>,
    pub(super) priority: i32,
    /// `None`: unknown.
    pub(super) state: Option<CandidateState>,
}

/// The stored format. Readers ignore fields that they do not know.
#[derive(Serialize, Deserialize)]
struct AnnouncementRecord {
    v: u64,
    state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default)]
    priority: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

impl Announcement {
    pub(super) fn note(&self) -> Note {
        let state = self.state.clone().unwrap_or_default();
        let mut record = AnnouncementRecord {
            v: VERSION,
            state: state.as_str().to_owned(),
            reason: state.reason().map(truncated),
            priority: self.priority,
            url: self.url.clone().filter(|url| url.len() <= MAX_URL_BYTES),
        };
        record
            .to_note()
            .or_else(|| {
                // Characters that JSON escapes need more bytes.
                record.reason = None;
                record.to_note()
            })
            .unwrap_or_default()
    }

    /// Reads a note. An earlier version wrote the URL alone; the state is unknown for that version and for later ones.
    pub(super) fn read(note: &str) -> Announcement {
        match serde_json::from_str::<AnnouncementRecord>(note) {
            Ok(record) if record.v == VERSION => Announcement {
                state: CandidateState::parse(&record.state, record.reason.as_deref()),
                url: record.url,
                priority: record.priority,
            },
            _ => Announcement {
                url: note.contains("://").then(|| note.to_owned()).filter(|url| !url.contains('{')),
                ..Announcement::default()
            },
        }
    }
}

impl AnnouncementRecord {
    fn to_note(&self) -> Option<Note> {
        Note::new(&serde_json::to_string(self).ok()?).ok()
    }
}

/// The beginning of a reason, at most [`MAX_REASON_BYTES`] long.
fn truncated(reason: &str) -> String {
    let fits = reason.char_indices().take_while(|(at, c)| at + c.len_utf8() <= MAX_REASON_BYTES);
    fits.map(|(_, c)| c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(url: &str, state: CandidateState) -> Announcement {
        Announcement { url: Some(url.to_owned()), priority: -7, state: Some(state) }
    }

    #[test]
    fn an_announcement_is_read_back() {
        let states = [
            CandidateState::Waiting,
            CandidateState::Starting,
            CandidateState::Leading,
            CandidateState::Stopping,
            CandidateState::Drained,
            CandidateState::Unhealthy("exit 127: sh: 1: chekc: not found".to_owned()),
        ];
        for state in states {
            let announced = announcement("http://10.0.0.1:3000", state);
            assert_eq!(Announcement::read(announced.note().as_str()), announced);
        }
    }

    #[test]
    fn a_note_always_fits_and_always_has_the_state() {
        for reason in ["\u{1}".repeat(5_000), "é".repeat(5_000), "\"".repeat(5_000)] {
            let announced = announcement(
                &format!("http://{}", "h".repeat(240)),
                CandidateState::Unhealthy(reason),
            );
            let read = Announcement::read(announced.note().as_str());
            assert_eq!((read.priority, &read.url), (-7, &announced.url));
            assert_eq!(read.state.unwrap().as_str(), "unhealthy");
        }
        let long = announcement(&"u".repeat(600), CandidateState::Drained);
        let read = Announcement::read(long.note().as_str());
        assert_eq!((read.url, read.state), (None, Some(CandidateState::Drained)));
    }

    #[test]
    fn an_old_or_foreign_note_has_no_known_state() {
        let url = Announcement::read("http://10.0.0.1:3000");
        assert_eq!((url.url.as_deref(), url.state), (Some("http://10.0.0.1:3000"), None));
        for note in ["", "{", r#"{"v":2,"state":"leading"}"#, r#"{"state":"leading"}"#, "[]"] {
            assert_eq!(Announcement::read(note), Announcement::default(), "{note}");
        }
        let newer = Announcement::read(r#"{"v":1,"state":"asleep","priority":3,"more":[]}"#);
        assert_eq!((newer.state, newer.priority), (None, 3));
    }
}
