//! Tests of the whole system, from outside: three candidates run the real command, a fault hits one of them, and the judge
//! checks the history that their workers have written.
//!
//! Only correctness is asserted: never two leaders at a time, always one again, nothing left behind. The bench `failover`
//! measures how fast it is. A trial that cannot run here is shown as ignored, with the reason.

#![allow(clippy::unwrap_used)] // A trial fails by panicking.

mod descriptors;
mod etcd;
mod faults;
mod fleet;
mod fleet_polls;
mod fleet_sets;
mod fleet_storm;
mod frozen_guard;
mod frozen_with_lock;
mod kill_refused;
mod no_command;
mod pid_namespace;
mod priority;
mod resolver;
mod secrets;
mod slot_storm;
mod slots;
mod startup_wait;
mod stderr;
mod store_errors;
mod store_outages;
mod storm;
mod stubborn_commands;
mod term_start;
mod thread_limit;
mod untrusted;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use tenure_rig::system::trial_store::{SERVER, StoreKind};

/// The trials that run at a time: they wait more than they compute.
const TEST_THREADS: usize = 6;

fn main() -> ExitCode {
    if let Some(code) = tenure_rig::system::run_role() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TEST_THREADS);
    let mut trials = vec![trial(
        "judge::sees_what_is_wrong".to_owned(),
        StoreKind::File,
        tenure_rig::system::checker::controls,
    )];
    let freezer = "freezer::leaves_nothing_in_its_group".to_owned();
    trials.push(trial(freezer, StoreKind::File, tenure_rig::system::freezer::control));
    // The longest first.
    trials.extend(storm::trials());
    trials.extend(fleet_storm::trials());
    trials.extend(pid_namespace::trials());
    trials.extend(fleet::trials());
    trials.extend(slot_storm::trials());
    trials.extend(slots::trials());
    trials.extend(priority::trials());
    trials.extend(term_start::trials());
    trials.extend(store_outages::trials());
    trials.extend(store_errors::trials());
    trials.extend(etcd::trials());
    trials.extend(faults::trials());
    trials.extend(stubborn_commands::trials());
    trials.extend(stderr::trials());
    trials.extend(frozen_guard::trials());
    trials.extend(kill_refused::trials());
    trials.extend(descriptors::trials());
    trials.extend(frozen_with_lock::trials());
    trials.extend(secrets::trials());
    trials.extend(fleet_sets::trials());
    trials.extend(fleet_polls::trials());
    trials.extend(startup_wait::trials());
    trials.extend(no_command::trials());
    trials.extend(untrusted::trials());
    trials.extend(thread_limit::trials());
    trials.extend(resolver::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A trial on a store of this kind, ignored where it is not available and not required.
fn trial(name: String, place: StoreKind, run: impl FnOnce() + Send + 'static) -> Trial {
    let missing = place.missing();
    let why = missing.clone();
    let trial = Trial::test(name, move || {
        if let Some(why) = why {
            return Err(why.into());
        }
        run();
        Ok(())
    });
    match missing {
        Some(why) if !(place.is_server() && required()) => {
            trial.with_kind(why).with_ignored_flag(true)
        }
        _ => trial,
    }
}

fn required() -> bool {
    let required = std::env::var("TENURE_REQUIRE_STORES").unwrap_or_default();
    required.split([',', ' ']).any(|word| word == "all" || word == SERVER)
}
