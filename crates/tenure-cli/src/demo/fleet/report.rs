//! The first and the last output of the fleet demo, as text and as JSON.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tenure::Result;
use tenure::store::Grade;

use super::FleetDemoOutcome;
use super::checker::ShardFinding;
use super::scenario::{FleetFault, FleetFaultResult};
use crate::args::Args;
use crate::demo::DemoConfig;
use crate::demo::display::millis;
use crate::demo::scenario::ScenarioStop;
use crate::demo::summary::{self, DemoErrorJson};
use crate::{doctor, duration};

/// The introduction for new users.
pub(super) fn opening(config: &DemoConfig, grade: Grade, nodes: usize, shards: usize) -> String {
    let DemoConfig { store, origin, ttl, .. } = config;
    format!(
        "tenure {}: a fleet of {nodes} members and {shards} shards, TTL {}s, grade {grade} ({})\n\
         Store: {} {origin}\n\
         Each shard is worked on by a process of the member that owns it, and by no other.\n",
        env!("CARGO_PKG_VERSION"),
        ttl.as_secs_f64(),
        doctor::meaning(grade),
        store.url(),
    )
}

/// Commands to type in another terminal while the demo runs.
pub(super) fn by_hand(config: &DemoConfig, shards: &Path, member: &str) -> Vec<String> {
    let (url, name) = (quoted(&config.store.url()), &config.name);
    let (ttl, shards) = (duration::shown(config.ttl), quoted(&shards.display().to_string()));
    let lines = [
        format!("export TENURE_STORE={url}"),
        format!("tenure fleet status {name}"),
        format!("tenure fleet who {name} shard-07"),
        format!("tenure fleet drain {name} {member}         and undrain"),
        format!("tenure fleet pause {name} shard-07   and resume"),
        format!("tenure fleet run {name} --mock --lease-duration {ttl} --shards-file {shards}"),
    ];
    let lines = lines.iter().map(|line| format!("  {line}"));
    std::iter::once("In another terminal:".to_owned()).chain(lines).collect()
}

/// The result of an event, once the shares are even again.
pub(super) fn settled(event_result: &FleetFaultResult, finding: &ShardFinding) -> String {
    let shares = event_result.shares.as_ref().map(shares).unwrap_or_default();
    let took = millis(finding.took);
    if event_result.what == FleetFault::Start {
        return format!("   {shares}, every shard at work after {took:.0} ms.");
    }
    let (moved, besides) = (finding.moved - finding.besides, finding.besides);
    let others = match besides {
        0 => "and no other".to_owned(),
        many => format!("and {many} others"),
    };
    let longest = millis(finding.longest().unwrap_or_default());
    format!(
        "   {shares} after {took:.0} ms: {moved} shards moved {others}, none was without an owner for longer than {longest:.0} ms."
    )
}

/// Quotes text so that a shell reads it as one word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Prints the result.
pub(super) fn close(
    args: &Args,
    outcome: &FleetDemoOutcome,
    run_result: &Result<(), ScenarioStop>,
) -> Result<()> {
    let next = outcome.is_success().then_some(&NEXT[..]);
    summary::print(args, run_result, &FleetDemoJson::new(outcome, run_result), table(outcome), next)
}

/// The result as text: a table and a summary.
fn table(outcome: &FleetDemoOutcome) -> Vec<String> {
    let mut lines = Vec::new();
    if !outcome.event_results.is_empty() {
        lines.push(
            "what happened     shares        all at work (ms)   moved   besides   unowned (ms)   overlaps"
                .to_owned(),
        );
    }
    for (event_result, finding) in outcome.rows() {
        let what = match event_result.what {
            FleetFault::Start => format!("{} members start", outcome.nodes),
            FleetFault::Kill => format!("{} is killed", event_result.member),
            FleetFault::Join => format!("{} joins", event_result.member),
            FleetFault::Leave => format!("{} leaves", event_result.member),
            FleetFault::ByHand => "by hand".to_owned(),
            FleetFault::End => "the end".to_owned(),
        };
        let shares = event_result.shares.as_ref().map_or_else(|| "-".to_owned(), shares);
        let took = shown(took(event_result, finding));
        let unowned = shown(finding.longest());
        let ShardFinding { moved, besides, overlaps, .. } = finding;
        lines.push(format!(
            "{what:<16}  {shares:<12}  {took:>16}   {moved:>5}   {besides:>7}   {unowned:>12}   {overlaps:>8}"
        ));
    }
    lines.push(String::new());
    let verdict = &outcome.verdict;
    lines.push(format!(
        "{} effects in {} terms of {} shards: {} while another member was at the same shard.",
        verdict.effects, verdict.terms, outcome.shards, verdict.overlaps
    ));
    lines.extend(outcome.complaints());
    if !outcome.config.private {
        let DemoConfig { store, name, .. } = &outcome.config;
        lines.push(format!(
            "On {} stay the records of '{name}:lease:…' and '{name}:node:…', so that no token ever comes again.",
            store.url()
        ));
    }
    lines
}

/// The shares in one cell. Many shares are summarized: twenty members have one or two shards each.
fn shares(shares: &BTreeMap<String, usize>) -> String {
    let mut counts: Vec<usize> = shares.values().copied().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    match counts.len() {
        0..=5 => counts.iter().map(usize::to_string).collect::<Vec<_>>().join("/"),
        many if counts[0] == counts[many - 1] => format!("{many} × {}", counts[0]),
        many => format!("{many} × {} or {}", counts[many - 1], counts[0]),
    }
}

/// The time until every shard was worked on again; `None` for actions of the user, whose start is not known.
fn took(event_result: &FleetFaultResult, finding: &ShardFinding) -> Option<Duration> {
    event_result.shares.as_ref().map(|_| finding.took)
}

fn shown(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.1}", millis(time)))
}

/// Suggested next steps.
const NEXT: [&str; 3] = [
    "tenure fleet run poll --shards a,b,c -- ./poll {}   a command of yours for each shard; start it twice",
    "tenure fleet status poll                            who is there, and who has what",
    "docs/GUIDE.md                                       the fleet: sources, pausing, what is promised",
];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FleetDemoJson<'a> {
    ok: bool,
    /// Whether the demo ran to its end.
    complete: bool,
    store: String,
    name: &'a str,
    nodes: usize,
    shards: usize,
    ttl_ms: u128,
    events: Vec<FleetDemoEventJson<'a>>,
    effects: usize,
    terms: usize,
    overlaps: usize,
    error: Option<DemoErrorJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FleetDemoEventJson<'a> {
    event: &'static str,
    member: Option<&'a str>,
    pid: Option<u32>,
    /// The share of each member; null if the shares were never even.
    shares: Option<&'a BTreeMap<String, usize>>,
    all_at_work_ms: Option<f64>,
    moved: usize,
    besides: usize,
    unowned_ms: Option<f64>,
    unowned_median_ms: Option<f64>,
    overlaps: usize,
    #[serde(rename = "trouble")]
    problem: Option<&'a str>,
}

impl<'a> FleetDemoJson<'a> {
    fn new(
        outcome: &'a FleetDemoOutcome,
        run_result: &Result<(), ScenarioStop>,
    ) -> FleetDemoJson<'a> {
        let event = |(event_result, finding): (&'a FleetFaultResult, &'a ShardFinding)| {
            FleetDemoEventJson {
                event: event_result.what.as_str(),
                member: Some(event_result.member.as_str()).filter(|member| !member.is_empty()),
                pid: event_result.pid,
                shares: event_result.shares.as_ref(),
                all_at_work_ms: took(event_result, finding).map(millis),
                moved: finding.moved,
                besides: finding.besides,
                unowned_ms: finding.longest().map(millis),
                unowned_median_ms: finding.median().map(millis),
                overlaps: finding.overlaps,
                problem: event_result.problem.as_deref(),
            }
        };
        FleetDemoJson {
            ok: outcome.is_success(),
            complete: run_result.is_ok(),
            store: outcome.config.store.url(),
            name: outcome.config.name.as_str(),
            nodes: outcome.nodes,
            shards: outcome.shards,
            ttl_ms: outcome.config.ttl.as_millis(),
            events: outcome.rows().map(event).collect(),
            effects: outcome.verdict.effects,
            terms: outcome.verdict.terms,
            overlaps: outcome.verdict.overlaps,
            error: DemoErrorJson::of(run_result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_for_a_shell_is_quoted_only_if_necessary() {
        assert_eq!(quoted("file:/tmp/a-b_1"), "file:/tmp/a-b_1");
        assert_eq!(quoted("file:/my dir/it's"), r"'file:/my dir/it'\''s'");
    }

    #[test]
    fn few_shares_are_listed_and_many_are_summarized() {
        let of = |counts: &[usize]| {
            shares(&counts.iter().enumerate().map(|(n, count)| (format!("m{n}"), *count)).collect())
        };
        assert_eq!(of(&[10, 11, 9]), "11/10/9");
        assert_eq!(of(&[4, 5, 4, 4, 4, 4]), "6 × 4 or 5");
        assert_eq!(of(&[5; 6]), "6 × 5");
    }
}
