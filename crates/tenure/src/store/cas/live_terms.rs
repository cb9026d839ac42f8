//! The live terms of other holders that this store has read, in a service that says how long a session lives only on request.
//!
//! Such a service does not say why a session ended: it expired, or an operator ended it before its time. In the second case its
//! holder still relies on it, and may have kept it alive until just before. So a term that this store has read alive counts as
//! expired only if its last reading showed that it was about to end ([`Backend::time_left`](super::Backend::time_left) is
//! zero). A reading at the earliest moment at which the term can expire shows exactly that, unless the holder has renewed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Document, is_revoked};
use crate::clock::Moment;
use crate::lease::{Name, Token};

/// How long a term that is about to end is left alone before it is read again.
const ENDING_POLL: Duration = Duration::from_millis(200);

/// How long only the remaining time is read again before the document is read again too: a notification may be lost.
const DOCUMENT_MAX_AGE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct LiveTerms<V>(Mutex<HashMap<Name, LiveTerm<V>>>);

impl<V> Default for LiveTerms<V> {
    fn default() -> Self {
        LiveTerms(Mutex::default())
    }
}

/// The last reading of a live term.
#[derive(Debug)]
struct LiveTerm<V> {
    document: Document<V>,
    document_read_at: Moment,
    /// When the term can expire at the earliest. Until then a candidate does not ask again, unless it was notified.
    expires_from: Moment,
    is_ending: bool,
}

impl<V: Clone> LiveTerms<V> {
    /// Records that the term of `document` has at least this much time left. Returns the time after which to read it again.
    pub(super) fn read(
        &self,
        name: &Name,
        document: &Document<V>,
        left: Duration,
        now: Moment,
    ) -> Duration {
        let live = LiveTerm {
            document: document.clone(),
            document_read_at: now,
            expires_from: now + poll_after(left),
            is_ending: left.is_zero(),
        };
        self.terms().insert(name.clone(), live);
        poll_after(left)
    }

    /// The document of a term that can have expired by now, if it was read recently: its remaining time shows whether it has.
    pub(super) fn due(&self, name: &Name, now: Moment) -> Option<Document<V>> {
        let terms = self.terms();
        let live = terms.get(name)?;
        let is_recent = now.since(live.document_read_at) < DOCUMENT_MAX_AGE;
        (now >= live.expires_from && is_recent).then(|| live.document.clone())
    }

    /// Records that the term that was [due](LiveTerms::due) has at least this much time left.
    pub(super) fn read_again(&self, name: &Name, left: Duration, now: Moment) -> Duration {
        if let Some(live) = self.terms().get_mut(name) {
            live.expires_from = now + poll_after(left);
            live.is_ending = left.is_zero();
        }
        poll_after(left)
    }

    /// Whether the term with this token was read alive and not about to end. It is over now: so it ended before its time, or
    /// its holder renewed it before it ended.
    pub(super) fn ended_early(&self, name: &Name, token: Token) -> bool {
        let terms = self.terms();
        let last = terms.get(name).filter(|live| live.document.record.token == token);
        // The time of a revoked term is judged by observation.
        last.is_some_and(|live| !live.is_ending && !is_revoked(&live.document))
    }

    /// The name has another holder now, or none.
    pub(super) fn forget(&self, name: &Name) {
        self.terms().remove(name);
    }

    fn terms(&self) -> MutexGuard<'_, HashMap<Name, LiveTerm<V>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn poll_after(left: Duration) -> Duration {
    left.max(ENDING_POLL)
}
