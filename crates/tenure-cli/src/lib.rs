//! The command `tenure`, as a library: [`main`] is all of it.
//!
//! One file, and where needed a folder, for each subcommand. Shared parts: `guard` (the process that stops a command
//! whose leader died), `http`, `schedule`, `settings`, `output`, `logs`, `exit`.
//!
//! This is not a public API: it may change with any release.

mod args;
mod candidate;
mod child_env;
mod demo;
mod doctor;
mod duration;
mod exit;
mod fleet;
mod generate;
#[doc(hidden)] // The guard is tested through its client.
pub mod guard;
mod health_check;
mod http;
mod logs;
mod messages;
mod open_files;
mod output;
mod permit;
mod process;
mod resign;
mod revoke;
mod run;
mod schedule;
mod selector;
mod settings;
mod shutdown;
mod signals;
mod startup_wait;
mod status;
mod store_access;
mod store_url;
mod time;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Args, Command};
use demo::fleet::{member_process, worker};
use exit::Exit;

/// Runs the command with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    // Roles that the command starts itself in come first: a guard stays small, and a command starts without delay.
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.split_first() {
        Some((word, rest)) if word == guard::GUARD => return guard::run(rest).into(),
        Some((word, _)) if word == guard::MANY => return guard::run_many().into(),
        Some((word, rest)) if word == guard::CHILD => return guard::run_child(rest).into(),
        Some((word, rest)) if word == member_process::DEMO_MEMBER_COMMAND => {
            return member_process::run(rest).into();
        }
        Some((word, rest)) if word == worker::DEMO_WORKER_COMMAND => {
            return worker::run(rest).into();
        }
        _ => {}
    }
    match Args::read(std::env::args_os()) {
        Ok(args) => run(&args).into(),
        Err(exit) => exit.into(),
    }
}

fn run(args: &Args) -> Exit {
    let _written_at_the_end = logs::start(args);
    let done = match &args.command {
        Command::Demo(demo) => demo::run(args, demo),
        Command::DemoNode => demo::node::run(),
        Command::Run(run) => run::run(args, run),
        Command::Serve(serve) => run::serve(args, serve),
        Command::Fleet(fleet) => fleet::run(args, fleet),
        Command::Doctor(doctor) => doctor::run(args, doctor),
        Command::Status(status) => status::run(args, status),
        Command::Resign(resign) => resign::resign(args, resign),
        Command::Drain(drain) => resign::drain(args, drain),
        Command::Undrain(drain) => resign::undrain(args, drain),
        Command::Revoke(revoke) => revoke::run(args, revoke),
        Command::Watch(watch) => watch::run(args, watch),
        Command::Completions { shell } => generate::completions(*shell),
        Command::Man(man) => generate::man(man),
    };
    done.unwrap_or_else(|error| {
        output::report_error_with_prefix(logs::prefix(args), &error, args.json)
    })
}

/// A runtime of one thread: renewals run on a thread of their own.
fn runtime() -> tenure::Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| tenure::Error::denied(format!("cannot start a runtime: {error}")))
}
