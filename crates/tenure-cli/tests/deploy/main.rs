//! Deployment: the container files, the installed files, and three instances configured as in the compose file.
//!
//! No container engine is needed: the files are linted, and their environment is given to plain processes. A trial that cannot
//! run here is shown as ignored, with the reason.

#![allow(clippy::unwrap_used)] // A trial fails by panicking.

mod compose;
mod files;
mod installed;
mod instances;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let mut trials = instances::trials();
    trials.extend(files::trials());
    trials.extend(installed::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A trial that is ignored if something is missing.
fn trial(name: &str, missing: Option<String>, run: fn()) -> Trial {
    let trial = Trial::test(name, move || {
        run();
        Ok(())
    });
    match missing {
        Some(why) => trial.with_kind(why).with_ignored_flag(true),
        None => trial,
    }
}

/// Why the program cannot be used here; `None` if it can.
fn needs(program: &str, args: &[&str]) -> Option<String> {
    let ran = Command::new(program).args(args).output();
    let works = ran.is_ok_and(|output| output.status.success());
    (!works).then(|| format!("needs '{program} {}'", args.join(" ")))
}

/// The root of the repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn text(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}
