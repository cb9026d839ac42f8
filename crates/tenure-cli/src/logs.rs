//! Logging to stderr, so that stdout carries only data.

pub(crate) mod queue;
mod text;
pub(crate) mod throttle;

use clap::ValueEnum;
use tenure::trace::EVENT_TARGET;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::{Args, Command};
pub(crate) use queue::LogQueue;
use text::TextFormat;

/// The least severe level that is logged: `--log-level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// The spelling on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// The format of log lines: `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl LogFormat {
    /// The spelling on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

/// The log level: `--log-level`, `--quiet`, or the default of the command.
pub(crate) fn level(args: &Args) -> LogLevel {
    let default = match args.command {
        // The demo prints its own account; the library's log of the same events would hide it.
        Command::Demo(_) | Command::DemoNode => LogLevel::Warn,
        _ => LogLevel::Info,
    };
    args.log_level.unwrap_or(if args.quiet { LogLevel::Error } else { default })
}

/// The target of the lines that are spelled in `docs/CLI.md`: their text is complete without fields.
pub(crate) const LINE_TARGET: &str = "line";

/// The prefix of Tenure's lines where a command writes to the same stderr, to tell them apart.
pub(crate) fn prefix(args: &Args) -> &'static str {
    match &args.command {
        Command::Run(run) if !run.work.task.command.is_empty() => "tenure: ",
        Command::Fleet(fleet) if fleet.runs_a_command() => "tenure: ",
        _ => "",
    }
}

/// Starts logging, the same on a terminal and in a pipe. Dropping the queue writes what is left.
#[must_use]
pub(crate) fn start(args: &Args) -> LogQueue {
    let level = match level(args) {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let shows_events = matches!(args.command, Command::Run(_) | Command::Serve(_));
    let hides_events = shows_events && level < LevelFilter::DEBUG;
    let hides_clients = level < LevelFilter::DEBUG;
    // The lines of `run` and `serve` report the same events, and the store's errors say what its client met.
    let filter = filter_fn(move |event| {
        !(hides_events && event.target() == EVENT_TARGET
            || hides_clients && event.target().starts_with("kube_client"))
    });
    let (queue, writer) = queue::start();
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let registry = tracing_subscriber::registry().with(level);
    match args.log_format {
        LogFormat::Text => {
            let text = TextFormat { prefix: prefix(args) };
            registry.with(layer.event_format(text).with_filter(filter)).init();
        }
        LogFormat::Json => {
            // A line has the fields of docs/CLI.md, also inside a span of the library.
            let json = layer.with_target(false).json().flatten_event(true);
            let json = json.with_current_span(false).with_span_list(false);
            registry.with(json.with_filter(filter)).init();
        }
    }
    queue
}
