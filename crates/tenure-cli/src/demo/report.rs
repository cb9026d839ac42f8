//! How the demo begins and ends, for people and for programs.

use std::path::Path;

use serde::Serialize;
use tenure::Result;
use tenure::store::Grade;

use super::display::{NEXT, millis, table};
use super::ports;
use super::scenario::ScenarioStop;
use super::summary::{self, ErrorAnswer};
use super::{DemoConfig, DemoOutcome};
use crate::args::Args;
use crate::doctor;

/// What somebody who sees it for the first time has to know.
pub(super) fn opening(setting: &DemoConfig, grade: Grade, given: &[u16]) -> String {
    let DemoConfig { store, origin, ttl, .. } = setting;
    let (store, nodes) = (store.url(), given.len());
    let http = if ports::are_usual(given) {
        String::new()
    } else {
        let given: Vec<String> = given.iter().map(u16::to_string).collect();
        let (first, given) = (ports::FIRST, given.join(", "));
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

/// Tells the result.
pub(super) fn close(
    args: &Args,
    outcome: &DemoOutcome,
    played: &Result<(), ScenarioStop>,
    kept: Option<&Path>,
) -> Result<()> {
    let next = outcome.is_well().then_some(&NEXT[..]);
    summary::tell(args, played, &DemoJson::new(outcome, played, kept), table(outcome), next)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DemoJson<'a> {
    ok: bool,
    /// It ran to its end.
    complete: bool,
    store: String,
    name: &'a str,
    nodes: usize,
    candidates: Vec<CandidateAnswer<'a>>,
    ttl_ms: u128,
    faults: Vec<FaultAnswer<'a>>,
    counts: u64,
    terms: usize,
    two_leaders: u64,
    lost: u64,
    doubled: u64,
    interrupted: u64,
    directory: Option<&'a Path>,
    error: Option<ErrorAnswer>,
}

/// Spelled as in `tenure status`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CandidateAnswer<'a> {
    candidate_id: &'a str,
    /// Where it answered; `None` if it could not.
    url: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FaultAnswer<'a> {
    fault: &'static str,
    node: &'a str,
    pid: Option<u32>,
    new_leader: Option<&'a str>,
    gap_ms: Option<f64>,
    two_leaders: u64,
    lost: u64,
    doubled: u64,
    interrupted: u64,
    trouble: Option<&'a str>,
}

impl<'a> DemoJson<'a> {
    fn new(
        outcome: &'a DemoOutcome,
        played: &Result<(), ScenarioStop>,
        kept: Option<&'a Path>,
    ) -> DemoJson<'a> {
        let total = outcome.verdict.total();
        let faults = outcome.scenes.iter().map(|(scene, found)| FaultAnswer {
            fault: scene.fault.as_str(),
            node: &scene.node,
            pid: scene.pid,
            new_leader: scene.new_leader.as_deref(),
            gap_ms: scene.gap.map(millis),
            two_leaders: found.two_leaders,
            lost: found.lost,
            doubled: found.doubled,
            interrupted: found.interrupted,
            trouble: scene.trouble.as_deref(),
        });
        let candidates = outcome.nodes.iter().map(|(id, port)| CandidateAnswer {
            candidate_id: id,
            url: port.map(|port| format!("http://127.0.0.1:{port}")),
        });
        DemoJson {
            ok: outcome.is_well(),
            complete: played.is_ok(),
            store: outcome.setting.store.url(),
            name: outcome.setting.name.as_str(),
            nodes: outcome.nodes.len(),
            candidates: candidates.collect(),
            ttl_ms: outcome.setting.ttl.as_millis(),
            faults: faults.collect(),
            counts: outcome.verdict.counts,
            terms: outcome.verdict.terms.len(),
            two_leaders: total.two_leaders,
            lost: total.lost,
            doubled: total.doubled,
            interrupted: total.interrupted,
            directory: kept,
            error: ErrorAnswer::of(played),
        }
    }
}
