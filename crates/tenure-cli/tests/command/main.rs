//! Tests of the real binary: exit codes, text, JSON, and what it leaves behind.

// clippy.toml allows it in tests, but does not recognize test helpers as tests.
#![allow(clippy::unwrap_used)]

mod demo;
mod doctor;
mod flags;
mod fleet;
mod fleet_lists;
mod fleet_run;
mod fleet_source;
mod generate;
mod guard;
mod hooks;
mod instance;
mod leftovers;
mod local_candidates;
mod presence;
mod resign;
mod run;
mod run_faults;
mod scheduled;
mod secrets;
mod serve;
mod settings;
mod shell_code;
mod status;
mod store_errors;
mod store_hint;
mod usage;
mod watch;
