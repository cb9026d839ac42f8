//! Log lines for people: the message, what belongs to it, and nothing else.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use super::LINE;

/// The format, with what every line begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextFormat {
    pub(super) prefix: &'static str,
}

impl<S, N> FormatEvent<S, N> for TextFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut parts = EventFields::default();
        event.record(&mut parts);
        let (metadata, prefix) = (event.metadata(), self.prefix);
        if metadata.target() == LINE {
            return writeln!(writer, "{prefix}{}", parts.message);
        }
        let kind = match *metadata.level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        writeln!(writer, "{prefix}{kind}{}{}", parts.message, parts.fields)
    }
}

#[derive(Default)]
struct EventFields {
    message: String,
    fields: String,
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            // One process is about one of these, and its first line has said which.
            "name" | "candidate" => {}
            name => self.fields += &format!(" {name}={value:?}"),
        }
    }
}
