//! PURE: what a candidate announces in the note of its presence lease, as versioned JSON of at most 512 bytes.

use serde::{Deserialize, Serialize};

use crate::driver::CandidateState;
use crate::lease::Note;

const VERSION: u64 = 1;
/// With everything else at its longest, the record still fits into a note.
const URL_MAX: usize = 250;
const REASON_MAX: usize = 120;

/// What a candidate says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) url: Option<String>,
    pub(super) priority: i32,
    /// `None`: not known.
    pub(super) state: Option<CandidateState>,
}

/// As it is stored. Readers ignore fields that they do not know.
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
            reason: state.reason().map(shortened),
            priority: self.priority,
            url: self.url.clone().filter(|url| url.len() <= URL_MAX),
        };
        record
            .written()
            .or_else(|| {
                // Characters that JSON escapes take more room.
                record.reason = None;
                record.written()
            })
            .unwrap_or_default()
    }

    /// Reads a note. An earlier version wrote the URL alone; the state of that and of a later version is not known.
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
    fn written(&self) -> Option<Note> {
        Note::new(&serde_json::to_string(self).ok()?).ok()
    }
}

/// The beginning of a reason that is too long.
fn shortened(reason: &str) -> String {
    let fits = reason.char_indices().take_while(|(at, c)| at + c.len_utf8() <= REASON_MAX);
    fits.map(|(_, c)| c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(url: &str, state: CandidateState) -> Announcement {
        Announcement { url: Some(url.to_owned()), priority: -7, state: Some(state) }
    }

    #[test]
    fn what_is_announced_is_read_back() {
        let states = [
            CandidateState::Waiting,
            CandidateState::Starting,
            CandidateState::Leading,
            CandidateState::Stopping,
            CandidateState::Drained,
            CandidateState::Unhealthy("exit 127: sh: 1: chekc: not found".to_owned()),
        ];
        for state in states {
            let said = announcement("http://10.0.0.1:3000", state);
            assert_eq!(Announcement::read(said.note().as_str()), said);
        }
    }

    #[test]
    fn a_note_always_fits_and_always_has_the_state() {
        for reason in ["\u{1}".repeat(5_000), "é".repeat(5_000), "\"".repeat(5_000)] {
            let said = announcement(
                &format!("http://{}", "h".repeat(240)),
                CandidateState::Unhealthy(reason),
            );
            let read = Announcement::read(said.note().as_str());
            assert_eq!((read.priority, &read.url), (-7, &said.url));
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
