//! The real binary, as people and programs meet it: exit codes, text, JSON, and what it leaves
//! behind.

// clippy.toml allows it in tests, but does not know a test's helpers for such.
#![allow(clippy::unwrap_used)]

mod candidates;
mod demo;
mod doctor;
mod fleet;
mod fleet_lists;
mod fleet_run;
mod fleet_source;
mod guard;
mod hooks;
mod instance;
mod leftovers;
mod node;
mod pages;
mod run;
mod scheduled;
mod secrets;
mod serve;
mod settings;
mod shell_code;
mod status;
mod steer;
mod support;
mod usage;
mod watch;
mod web;
