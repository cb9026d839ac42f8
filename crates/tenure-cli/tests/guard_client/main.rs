//! Tests of a fleet member's guard, from outside: members hold leases and run commands, and the tests check what is left of
//! those when a member, or its guard, is killed or frozen.
//!
//! This program has every role itself: the trials, the member, and, because a guard is always its member's own program, the
//! guard too. So it is built from the command's own source files.

#![allow(clippy::unwrap_used)] // A trial fails by panicking.

mod fixture;
mod guard_faults;
mod many_members;
mod member;
mod one_member;
mod stray_processes;

use std::ffi::OsString;
use std::process::ExitCode;

use fixture::Kind;
use libtest_mimic::{Arguments, Trial};
use tenure_cli::guard;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.split_first() {
        Some((word, _)) if word == guard::MANY => return guard::run_many().into(),
        Some((word, rest)) if word == guard::CHILD => return guard::run_child(rest).into(),
        Some((word, _)) if word == member::ROLE => return member::run(),
        Some((word, _)) if word == guard_faults::PANICKING_GUARD_ROLE => {
            return guard_faults::run_panicking_guard();
        }
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    // The trials measure time and count processes.
    arguments.test_threads.get_or_insert(2);
    let mut trials = Vec::new();
    for kind in [Kind::File, Kind::Redis] {
        trials.extend(many_members::trials(kind));
    }
    trials.extend(one_member::trials());
    trials.extend(stray_processes::trials());
    trials.extend(guard_faults::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A trial on a store of this kind, ignored where the store is not installed and not required.
fn trial(name: &str, kind: Kind, run: impl FnOnce(Kind) + Send + 'static) -> Trial {
    let missing = kind.missing();
    let required = std::env::var("TENURE_REQUIRE_STORES").unwrap_or_default();
    let required = required.split([',', ' ']).any(|word| word == "all" || word == fixture::SERVER);
    let why = missing.clone();
    let trial = Trial::test(format!("{name}::{kind:?}").to_lowercase(), move || {
        if let Some(why) = why {
            return Err(why.into());
        }
        run(kind);
        Ok(())
    });
    match missing {
        Some(why) if !required => trial.with_kind(why).with_ignored_flag(true),
        _ => trial,
    }
}

/// The function that the command's files expect in the crate root.
fn runtime() -> tenure::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap())
}
