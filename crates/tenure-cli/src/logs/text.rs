//! The text format of log lines: the message, its fields, and nothing else.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use super::LINE_TARGET;

/// The text format, with the prefix of every line.
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
        if metadata.target() == LINE_TARGET {
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
            // A process has one name and one candidate, which its first line has logged.
            "name" | "candidate" => {}
            name => self.fields += &format!(" {name}={value:?}"),
        }
    }
}
