//! The targets and spans of the library's `tracing` output. The chapter [`docs::observability`](crate::docs::observability) has
//! the table of their fields.
//!
//! ```
//! // Hide the log lines of events that the application shows itself, and show every renewal.
//! let filter = format!("info,{}=off,{}=debug", tenure::trace::EVENT_TARGET, tenure::trace::RENEWAL_TARGET);
//! assert_eq!(filter, "info,tenure::event=off,tenure::renewal=debug");
//! ```

use std::time::Duration;

use tracing::{Span, field};

use crate::error::Result;
use crate::lease::{Answer, CandidateId, Name, Token};
use crate::machine::EndReason;
use crate::metrics::RenewalFailure;

/// The target of log lines that duplicate an [`Event`](crate::Event): an application that shows the events can filter these
/// lines out.
pub const EVENT_TARGET: &str = "tenure::event";

/// The target of the span [`TERM_SPAN`].
pub const TERM_TARGET: &str = "tenure::term";

/// The target of the span [`RENEWAL_SPAN`], and of the line about each renewal.
pub const RENEWAL_TARGET: &str = "tenure::renewal";

/// The span of one term of this candidate, at level `INFO`, with the fields `name`, `candidate`, `token` and, once the term has
/// ended, `reason`.
pub const TERM_SPAN: &str = "term";

/// The span of one call that renews leases, at level `DEBUG`, with the field `leases`: their number.
pub const RENEWAL_SPAN: &str = "renewal";

/// The span of a term. It has no parent: the driver's thread has none that belongs to the application.
pub(crate) fn term_span(name: &Name, candidate: &CandidateId, token: Token) -> Span {
    tracing::info_span!(
        target: TERM_TARGET,
        parent: None,
        TERM_SPAN,
        name = %name,
        candidate = %candidate,
        token = token.get(),
        reason = field::Empty,
    )
}

/// Records why the term of this span ended.
pub(crate) fn term_ended(span: &Span, reason: &EndReason) {
    span.record("reason", reason.as_str());
}

/// The span of a call that renews this many leases.
pub(crate) fn renewal_span(leases: usize) -> Span {
    tracing::debug_span!(target: RENEWAL_TARGET, parent: None, RENEWAL_SPAN, leases)
}

/// Logs the outcome of one renewal: `renewed`, or the word of a [`RenewalFailure`].
pub(crate) fn renewal_ended(name: &Name, took: Duration, answer: &Result<Answer>) {
    let outcome = RenewalFailure::of(answer).map_or("renewed", RenewalFailure::as_str);
    let took_ms = took.as_secs_f64() * 1_000.0;
    match answer {
        Ok(_) => {
            tracing::debug!(target: RENEWAL_TARGET, name = %name, took_ms, outcome, "renewal");
        }
        Err(error) => {
            tracing::debug!(target: RENEWAL_TARGET, name = %name, took_ms, outcome, %error, "renewal");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::error::Error;

    /// Keeps each span and each log line as one line of text.
    #[derive(Clone, Default)]
    struct TracedLines(Arc<Mutex<Vec<String>>>);

    struct FieldText(String);

    impl Visit for FieldText {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0 += &format!(" {}={value:?}", field.name());
        }
    }

    impl TracedLines {
        fn push(&self, kind: &str, metadata: &Metadata<'_>, record: impl FnOnce(&mut FieldText)) {
            let mut text = FieldText(String::new());
            record(&mut text);
            let (level, target, name) = (metadata.level(), metadata.target(), metadata.name());
            let name = if metadata.is_span() { name } else { "line" };
            self.0.lock().unwrap().push(format!("{kind} {level} {target} {name}{}", text.0));
        }
    }

    impl Subscriber for TracedLines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, span: &Attributes<'_>) -> Id {
            assert!(span.is_root());
            self.push("span", span.metadata(), |text| span.record(text));
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, values: &Record<'_>) {
            let mut text = FieldText(String::new());
            values.record(&mut text);
            self.0.lock().unwrap().push(format!("record{}", text.0));
        }
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            self.push("event", event.metadata(), |text| event.record(text));
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn spans_and_lines_have_the_documented_targets_and_fields() {
        let lines = TracedLines::default();
        let name = Name::new("job").unwrap();
        let candidate = CandidateId::new("a").unwrap();
        tracing::subscriber::with_default(lines.clone(), || {
            let term = term_span(&name, &candidate, Token::new(7).unwrap());
            term_ended(&term, &EndReason::Paused(Duration::from_secs(60)));
            drop(renewal_span(1));
            renewal_ended(&name, Duration::from_micros(1_500), &Ok(Answer::Held(())));
            let error = Err(Error::unavailable("cut off"));
            renewal_ended(&name, Duration::from_micros(1_500), &error);
        });
        assert_eq!(
            *lines.0.lock().unwrap(),
            [
                "span INFO tenure::term term name=job candidate=a token=7",
                "record reason=\"process-paused\"",
                "span DEBUG tenure::renewal renewal leases=1",
                "event DEBUG tenure::renewal line message=renewal name=job took_ms=1.5 outcome=\"renewed\"",
                "event DEBUG tenure::renewal line message=renewal name=job took_ms=1.5 \
                 outcome=\"unavailable\" error=cut off",
            ]
        );
    }
}
