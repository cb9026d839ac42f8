//! How the demo of the fleet begins and ends, for people and for programs.

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
use crate::demo::summary::{self, ErrorAnswer};
use crate::{doctor, duration};

/// What somebody who sees it for the first time has to know.
pub(super) fn opening(setting: &DemoConfig, grade: Grade, nodes: usize, shards: usize) -> String {
    let DemoConfig { store, origin, ttl, .. } = setting;
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

/// What to type in another terminal while it runs.
pub(super) fn by_hand(setting: &DemoConfig, shards: &Path, member: &str) -> Vec<String> {
    let (url, name) = (quoted(&setting.store.url()), &setting.name);
    let (ttl, shards) = (duration::shown(setting.ttl), quoted(&shards.display().to_string()));
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

/// What came of an event, when everybody has the same again.
pub(super) fn settled(scene: &FleetFaultResult, finding: &ShardFinding) -> String {
    let shares = scene.shares.as_ref().map(shares).unwrap_or_default();
    let took = millis(finding.took);
    if scene.what == FleetFault::Start {
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

/// As a shell takes it for one word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Tells the result.
pub(super) fn close(
    args: &Args,
    outcome: &FleetDemoOutcome,
    played: &Result<(), ScenarioStop>,
) -> Result<()> {
    let next = outcome.is_well().then_some(&NEXT[..]);
    summary::tell(args, played, &FleetDemoJson::new(outcome, played), table(outcome), next)
}

/// The result for people: the table, and what it comes to.
fn table(outcome: &FleetDemoOutcome) -> Vec<String> {
    let mut lines = Vec::new();
    if !outcome.scenes.is_empty() {
        lines.push(
            "what happened     shares        all at work (ms)   moved   besides   unowned (ms)   overlaps"
                .to_owned(),
        );
    }
    for (scene, finding) in outcome.rows() {
        let what = match scene.what {
            FleetFault::Start => format!("{} members start", outcome.nodes),
            FleetFault::Kill => format!("{} is killed", scene.member),
            FleetFault::Join => format!("{} joins", scene.member),
            FleetFault::Leave => format!("{} leaves", scene.member),
            FleetFault::Hand => "by hand".to_owned(),
            FleetFault::End => "the end".to_owned(),
        };
        let shares = scene.shares.as_ref().map_or_else(|| "-".to_owned(), shares);
        let took = shown(took(scene, finding));
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
    if !outcome.setting.private {
        let DemoConfig { store, name, .. } = &outcome.setting;
        lines.push(format!(
            "On {} stay the records of '{name}:lease:…' and '{name}:node:…', so that no token ever comes again.",
            store.url()
        ));
    }
    lines
}

/// Long ones are cut: twenty members have one or two each.
fn shares(shares: &BTreeMap<String, usize>) -> String {
    let mut counts: Vec<usize> = shares.values().copied().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    match counts.len() {
        0..=5 => counts.iter().map(usize::to_string).collect::<Vec<_>>().join("/"),
        many if counts[0] == counts[many - 1] => format!("{many} × {}", counts[0]),
        many => format!("{many} × {} or {}", counts[many - 1], counts[0]),
    }
}

/// How long it took until every shard was worked on again; of what people do nobody knows when it began.
fn took(scene: &FleetFaultResult, finding: &ShardFinding) -> Option<Duration> {
    scene.shares.as_ref().map(|_| finding.took)
}

fn shown(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.1}", millis(time)))
}

/// Where to go from here.
const NEXT: [&str; 3] = [
    "tenure fleet run poll --shards a,b,c -- ./poll {}   a command of yours for each shard; start it twice",
    "tenure fleet status poll                            who is there, and who has what",
    "docs/GUIDE.md                                       the fleet: sources, pausing, what is promised",
];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FleetDemoJson<'a> {
    ok: bool,
    /// It ran to its end.
    complete: bool,
    store: String,
    name: &'a str,
    nodes: usize,
    shards: usize,
    ttl_ms: u128,
    events: Vec<EventAnswer<'a>>,
    effects: usize,
    terms: usize,
    overlaps: usize,
    error: Option<ErrorAnswer>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventAnswer<'a> {
    event: &'static str,
    member: Option<&'a str>,
    pid: Option<u32>,
    /// By member; null if it was never even.
    shares: Option<&'a BTreeMap<String, usize>>,
    all_at_work_ms: Option<f64>,
    moved: usize,
    besides: usize,
    unowned_ms: Option<f64>,
    unowned_median_ms: Option<f64>,
    overlaps: usize,
    trouble: Option<&'a str>,
}

impl<'a> FleetDemoJson<'a> {
    fn new(outcome: &'a FleetDemoOutcome, played: &Result<(), ScenarioStop>) -> FleetDemoJson<'a> {
        let event = |(scene, finding): (&'a FleetFaultResult, &'a ShardFinding)| EventAnswer {
            event: scene.what.as_str(),
            member: Some(scene.member.as_str()).filter(|member| !member.is_empty()),
            pid: scene.pid,
            shares: scene.shares.as_ref(),
            all_at_work_ms: took(scene, finding).map(millis),
            moved: finding.moved,
            besides: finding.besides,
            unowned_ms: finding.longest().map(millis),
            unowned_median_ms: finding.median().map(millis),
            overlaps: finding.overlaps,
            trouble: scene.trouble.as_deref(),
        };
        FleetDemoJson {
            ok: outcome.is_well(),
            complete: played.is_ok(),
            store: outcome.setting.store.url(),
            name: outcome.setting.name.as_str(),
            nodes: outcome.nodes,
            shards: outcome.shards,
            ttl_ms: outcome.setting.ttl.as_millis(),
            events: outcome.rows().map(event).collect(),
            effects: outcome.verdict.effects,
            terms: outcome.verdict.terms,
            overlaps: outcome.verdict.overlaps,
            error: ErrorAnswer::of(played),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_for_a_shell_is_quoted_only_if_it_must_be() {
        assert_eq!(quoted("file:/tmp/a-b_1"), "file:/tmp/a-b_1");
        assert_eq!(quoted("file:/my dir/it's"), r"'file:/my dir/it'\''s'");
    }

    #[test]
    fn shares_are_shown_one_by_one_until_there_are_too_many() {
        let of = |counts: &[usize]| {
            shares(&counts.iter().enumerate().map(|(n, count)| (format!("m{n}"), *count)).collect())
        };
        assert_eq!(of(&[10, 11, 9]), "11/10/9");
        assert_eq!(of(&[4, 5, 4, 4, 4, 4]), "6 × 4 or 5");
        assert_eq!(of(&[5; 6]), "6 × 5");
    }
}
