//! The first and the last output of the demo, as text and as JSON.

use std::path::Path;

use serde::Serialize;
use tenure::Result;
use tenure::store::Grade;

use super::display::{NEXT, millis, table};
use super::ports;
use super::scenario::ScenarioStop;
use super::summary::{self, DemoErrorJson};
use super::{DemoConfig, DemoOutcome};
use crate::args::Args;
use crate::doctor;

/// The introduction for new users.
pub(super) fn opening(config: &DemoConfig, grade: Grade, given: &[u16]) -> String {
    let DemoConfig { store, origin, ttl, .. } = config;
    let (store, nodes) = (store.url(), given.len());
    let http = if ports::are_default(given) {
        String::new()
    } else {
        let given: Vec<String> = given.iter().map(u16::to_string).collect();
        let (first, given) = (ports::FIRST_PORT, given.join(", "));
        format!("Some ports from {first} on are taken: they answer on {given}.\n")
    };
    format!(
        "tenure {}: {nodes} processes, TTL {}s, grade {grade} ({})\n\
         Store: {store} {origin}\n\
         One of them leads. It counts ten times a second, and leaves its count to the next leader.\n{http}",
        env!("CARGO_PKG_VERSION"),
        ttl.as_secs_f64(),
        doctor::meaning(grade),
    )
}

/// Prints the result.
pub(super) fn close(
    args: &Args,
    outcome: &DemoOutcome,
    run_result: &Result<(), ScenarioStop>,
    kept: Option<&Path>,
) -> Result<()> {
    let next = outcome.is_success().then_some(&NEXT[..]);
    summary::print(
        args,
        run_result,
        &DemoJson::new(outcome, run_result, kept),
        table(outcome),
        next,
    )
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DemoJson<'a> {
    ok: bool,
    /// Whether the demo ran to its end.
    complete: bool,
    store: String,
    name: &'a str,
    nodes: usize,
    candidates: Vec<DemoCandidateJson<'a>>,
    ttl_ms: u128,
    faults: Vec<DemoFaultJson<'a>>,
    counts: u64,
    terms: usize,
    two_leaders: u64,
    lost: u64,
    doubled: u64,
    interrupted: u64,
    directory: Option<&'a Path>,
    error: Option<DemoErrorJson>,
}

/// A candidate, with the field names of `tenure status`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DemoCandidateJson<'a> {
    candidate_id: &'a str,
    /// The URL of its HTTP server; `None` if it has none.
    url: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DemoFaultJson<'a> {
    fault: &'static str,
    node: &'a str,
    pid: Option<u32>,
    new_leader: Option<&'a str>,
    gap_ms: Option<f64>,
    two_leaders: u64,
    lost: u64,
    doubled: u64,
    interrupted: u64,
    #[serde(rename = "trouble")]
    problem: Option<&'a str>,
}

impl<'a> DemoJson<'a> {
    fn new(
        outcome: &'a DemoOutcome,
        run_result: &Result<(), ScenarioStop>,
        kept: Option<&'a Path>,
    ) -> DemoJson<'a> {
        let total = outcome.verdict.total();
        let faults = outcome.fault_results.iter().map(|(fault_result, found)| DemoFaultJson {
            fault: fault_result.fault.as_str(),
            node: &fault_result.node,
            pid: fault_result.pid,
            new_leader: fault_result.new_leader.as_deref(),
            gap_ms: fault_result.gap.map(millis),
            two_leaders: found.two_leaders,
            lost: found.lost,
            doubled: found.doubled,
            interrupted: found.interrupted,
            problem: fault_result.problem.as_deref(),
        });
        let candidates = outcome.nodes.iter().map(|(id, port)| DemoCandidateJson {
            candidate_id: id,
            url: port.map(|port| format!("http://127.0.0.1:{port}")),
        });
        DemoJson {
            ok: outcome.is_success(),
            complete: run_result.is_ok(),
            store: outcome.config.store.url(),
            name: outcome.config.name.as_str(),
            nodes: outcome.nodes.len(),
            candidates: candidates.collect(),
            ttl_ms: outcome.config.ttl.as_millis(),
            faults: faults.collect(),
            counts: outcome.verdict.counts,
            terms: outcome.verdict.terms.len(),
            two_leaders: total.two_leaders,
            lost: total.lost,
            doubled: total.doubled,
            interrupted: total.interrupted,
            directory: kept,
            error: DemoErrorJson::of(run_result),
        }
    }
}
