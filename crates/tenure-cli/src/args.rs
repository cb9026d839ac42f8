//! The command line, parsed by clap. `docs/CLI.md` specifies the spelling.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{ColorChoice, Parser, Subcommand};
use tenure::store::redact_url;

use crate::demo::DemoArgs;
use crate::doctor::DoctorArgs;
use crate::exit::Exit;
use crate::fleet::FleetArgs;
use crate::generate::{ManArgs, Shell};
use crate::logs::{LogFormat, LogLevel};
use crate::output;
use crate::resign::{DrainArgs, ResignArgs};
use crate::revoke::RevokeArgs;
use crate::run::{RunArgs, ServeArgs};
use crate::settings::{self, Settings, SettingsError};
use crate::status::StatusArgs;
use crate::watch::WatchArgs;

const EXAMPLES: &str = "\
Examples:
  tenure demo                                    a leader killed, stopped, frozen, and replaced
  tenure run backup -- /opt/backup.sh            a command, where this candidate leads
  tenure doctor                                  what the default directory promises
  tenure --store redis://127.0.0.1:6379 doctor   what that Redis promises
  tenure status                                  who leads what
  tenure fleet run poll --shards a,b -- ./poll {}  one process a shard, wherever there is a member

Exit codes: 0 done, 1 the answer is no, 120 to 127 see 'tenure run --help', 122 store
unreachable, 123 an operator must act, 125 usage.";

/// Exactly one owner for a task that must not be duplicated but must always be running.
#[derive(Debug, Parser)]
#[command(name = "tenure", version = env!("TENURE_VERSION"), after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where leases live: file:DIR, redis://HOST:PORT/0, ... [default: this user's directory]
    // The variable may contain a password, which the help must not show.
    #[arg(long, global = true, value_name = "URL", env = "TENURE_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// The same as --store file:DIR
    #[arg(long, global = true, value_name = "DIR", env = "TENURE_LOCK_DIR")]
    pub(crate) lock_dir: Option<PathBuf>,

    /// Answers and errors as JSON
    #[arg(long, global = true, env = "TENURE_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,

    /// How much to log, on stderr [default: info; demo: warn]
    #[arg(long, global = true, value_name = "LEVEL", env = "TENURE_LOG_LEVEL")]
    pub(crate) log_level: Option<LogLevel>,

    /// How to log
    #[arg(long, global = true, value_name = "FORMAT", env = "TENURE_LOG_FORMAT")]
    #[arg(default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Only results and errors
    #[arg(short, global = true)]
    pub(crate) quiet: bool,

    /// Settings from this file [default: ./tenure.toml, the user's, /etc/tenure's]
    #[arg(long, global = true, value_name = "FILE", env = "TENURE_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// TENURE_ variables from this file; those of the process win
    #[arg(long, global = true, value_name = "FILE", env = "TENURE_ENV_FILE")]
    pub(crate) env_file: Option<PathBuf>,

    /// Only print every setting, its value and where that comes from
    #[arg(long, global = true)]
    pub(crate) print_config: bool,

    /// Colours in help and in errors about usage
    #[arg(long, global = true, value_name = "WHEN", env = "TENURE_COLOR", default_value = "auto")]
    pub(crate) color: ColorChoice,

    #[command(subcommand)]
    pub(crate) command: Command,

    /// Where the settings came from.
    #[arg(skip)]
    pub(crate) settings: Settings,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Three processes, one leads and counts; it is killed, stopped, frozen, and another goes on
    Demo(DemoArgs),
    /// Runs a command only where this candidate leads
    // Boxed because it is the largest variant; there is only one value of it.
    Run(Box<RunArgs>),
    /// Answers over HTTP who leads, for programs that ask
    Serve(Box<ServeArgs>),
    /// Deals many leases out over however many members are running
    Fleet(FleetArgs),
    /// One process of the demo; its orders come on stdin
    #[command(hide = true)]
    DemoNode,
    /// Looks at the store: what it is, how fast, and what it promises; and why nobody leads
    Doctor(DoctorArgs),
    /// Who leads what, in which term, for how long
    Status(StatusArgs),
    /// Who leads what, and each change as it comes
    Watch(WatchArgs),
    /// Asks the leader to hand over, and reports who leads then
    Resign(ResignArgs),
    /// Asks a candidate to stop leading and not to campaign
    Drain(DrainArgs),
    /// Asks a candidate to campaign again
    Undrain(DrainArgs),
    /// Break-glass: takes a lease away from a leader that does not answer
    Revoke(RevokeArgs),
    /// Prints what a shell needs to complete our command line
    #[command(after_help = "\
Examples:
  tenure completions bash > ~/.local/share/bash-completion/completions/tenure
  tenure completions zsh > ~/.zfunc/_tenure
  tenure completions fish > ~/.config/fish/completions/tenure.fish

Exit codes: 0 done, 125 usage.")]
    Completions {
        /// For which shell
        shell: Shell,
    },
    /// Prints the manual page, or writes one for each command
    Man(ManArgs),
}

impl Args {
    /// Reads the command line and the settings. Reports an error itself, and returns the exit code.
    pub(crate) fn read(args: impl Iterator<Item = OsString>) -> Result<Args, Exit> {
        let typed: Vec<OsString> = args.collect();
        let mut json = false;
        settings::read(&typed, &mut json).map_err(|refused| match refused {
            SettingsError::Clap(error) => print_clap_error(&error, &typed, json),
            SettingsError::Wrong(error) => output::report_error(&error, json),
            SettingsError::Done(exit) => exit,
        })
    }
}

/// Prints what clap reports. Help and the version are results; everything else is a usage error.
fn print_clap_error(error: &clap::Error, typed: &[OsString], json: bool) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // A closed stdout is not an error.
        let _ = error.print();
        return Exit::Done;
    }
    let typed: Vec<String> = typed.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let secret = typed.iter().any(|arg| redact_url(arg) != *arg);
    // An unexpected argument is most often the command to run.
    let misplaced_command =
        error.kind() == ErrorKind::UnknownArgument && typed.iter().any(|arg| arg == "run");
    let hint = "the command stands behind '--', as in 'tenure run NAME -- CMD ARG'";
    if !secret && !json {
        let _ = error.print();
        if misplaced_command {
            output::print_error("invalid", &format!("\n  {hint}"), json);
        }
        return Exit::Usage;
    }
    // Clap quotes a URL in the wrong place, including its password.
    let option_values = typed.iter().filter_map(|arg| Some(arg.split_once('=')?.1.to_owned()));
    let quoted: Vec<String> = option_values.chain(typed.iter().cloned()).collect();
    let text = output::without_passwords(error.to_string(), &quoted);
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = if json { text.split("\n\n").next().unwrap_or(text) } else { text.trim_end() };
    output::print_error("invalid", text, json);
    Exit::Usage
}
