//! Logs: on stderr, so that data on stdout stays data.

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{Args, Command};

/// `--log-level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    /// The word on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }
}

/// `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

impl Format {
    /// The word on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Json => "json",
        }
    }
}

/// What is logged when nobody says how much.
pub(crate) fn level(args: &Args) -> Level {
    let default = match args.command {
        // The demo tells its story itself; the same again from the library would drown it.
        Command::Demo(_) | Command::DemoNode => Level::Warn,
        _ => Level::Info,
    };
    args.log_level.unwrap_or(if args.quiet { Level::Error } else { default })
}

/// Starts logging, the same on a terminal and in a pipe.
pub(crate) fn start(args: &Args) {
    let level = match level(args) {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let logs = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false);
    match args.log_format {
        Format::Text => logs.init(),
        Format::Json => logs.json().flatten_event(true).init(),
    }
}
