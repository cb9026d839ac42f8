//! What the tests and benches of this workspace share. Not published.
//!
//! | module | holds |
//! |---|---|
//! | [`servers`] | real servers, private to a test: found, started on free ports, and ended with it |
//! | [`redis_rig`] | a private Redis server and its administrator, with TLS or behind a delay line |
//! | [`kubernetes_rig`] | a private Kubernetes API server, its administrator and a restricted user |
//! | [`command`], [`background_process`], [`http_peer`] | the command `tenure` in a sandbox, and HTTP with it |
//! | [`system`] | trials with many processes: candidates of the real command, faults, and a checker for two leaders |
//! | [`document_service`] | a fake service that keeps documents, for the compare-and-swap layer |
//! | [`simulation`] | skewed clocks, an event queue, and seeds on all cores |
//! | [`descriptors`], [`stderr_faults`], [`slow_calls`] | faults of one process |
//! | [`stall_monitor`] | whether the machine itself stood still |
//! | [`figures`] | medians and maxima of the benches |

// It fails like a test, and its readers are the tests.
#![allow(clippy::unwrap_used, clippy::new_without_default)]
#![allow(missing_docs, missing_debug_implementations)]

pub mod background_process;
pub mod command;
pub mod descriptors;
pub mod document_service;
pub mod figures;
pub mod http_peer;
pub mod kubernetes_rig;
pub mod redis_rig;
pub mod servers;
pub mod simulation;
pub mod slow_calls;
pub mod stall_monitor;
pub mod stderr_faults;
pub mod system;

use std::path::PathBuf;

/// The command `tenure` of the same build as the running test: cargo places it above the test programs.
pub fn tenure_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(|deps| deps.parent()).unwrap().join("tenure")
}

/// A directory that outlives the tests, for what is looked at after a failure: `target/tmp`.
pub fn kept_directory() -> PathBuf {
    tenure_program().parent().and_then(|profile| profile.parent()).unwrap().join("tmp")
}
