//! `tenure status`: the leader and the candidates of each lease, observed once.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::presence::{Node, all_present, nodes};
use tenure::store::Store;
use tenure::{Lease, Name, Result};

use crate::args::Args;
use crate::candidate::Candidate;
use crate::exit::Exit;
use crate::schedule::{RunRecord, ScheduleCheckpoint};
use crate::selector::{Selector, target};
use crate::{duration, output, startup_wait, store_access, time};

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure status
  tenure status billing:nightly
  tenure status 'billing:*' --json

Exit codes: 0 done, or somebody leads NAME; 1 nobody leads NAME; 122 store unreachable;
123 an operator must act; 125 usage.")]
pub(crate) struct StatusArgs {
    /// One lease, or those that begin like this [default: all but Tenure's own, 'tenure:*']
    #[arg(value_name = "NAME | 'PREFIX*'", value_parser = target)]
    target: Option<Selector>,
}

pub(crate) fn run(args: &Args, status: &StatusArgs) -> Result<Exit> {
    let target = status.target.clone().unwrap_or_else(Selector::all);
    crate::runtime()?.block_on(async {
        let (choice, store) = store_access::open_chosen(args).await?;
        let found = store_access::observe(&*store, &target.scope()).await?;
        let candidates = candidates_of(&*store, &target, &found).await?;
        match &target {
            Selector::One(name) => {
                let lease = found.into_iter().next().transpose()?;
                let row =
                    lease.as_ref().map_or_else(|| LeaseJson::never_used(name), LeaseJson::from);
                let store_shown = format!("{} {}", store.url(), choice.origin());
                let row = row.with_candidates(candidates.as_deref());
                print_one(args, name, &row, &store_shown)
            }
            Selector::Prefix(_) => {
                let leases = readable(found, args.json);
                let shown = leases.iter().filter(|lease| target.shows(&lease.name));
                let mut rows: BTreeMap<&Name, LeaseJson> =
                    shown.map(|lease| (&lease.name, LeaseJson::from(lease))).collect();
                // A name that has candidates but never had a leader has no lease.
                let known = candidates.iter().flatten();
                for (name, _) in known.filter(|(name, _)| target.shows(name)) {
                    rows.entry(name).or_insert_with(|| LeaseJson::never_used(name));
                }
                let rows = rows.into_values().map(|row| row.with_candidates(candidates.as_deref()));
                print_many(args, &rows.collect::<Vec<_>>(), &target, &store.url())
            }
        }
    })
}

/// The candidates of the selected leases; `None` where candidates do not make themselves visible. If all leases were observed,
/// `found` includes the presence leases already.
async fn candidates_of(
    store: &dyn Store,
    target: &Selector,
    found: &[Result<Lease>],
) -> Result<Option<Vec<(Name, Node)>>> {
    if !store.limits().presence {
        return Ok(None);
    }
    if *target == Selector::all() {
        return Ok(Some(nodes(found.iter().flatten())));
    }
    let present = all_present(store);
    store_access::with_timeout(&store.url(), store_access::STORE_TIMEOUT, present).await.map(Some)
}

/// The leases that can be read; the others are reported on stderr.
fn readable(found: Vec<Result<Lease>>, json: bool) -> Vec<Lease> {
    let report = |error: &tenure::Error| {
        output::print_error(error.kind().as_str(), &output::printable(&error.to_string()), json);
    };
    found.into_iter().filter_map(|lease| lease.inspect_err(report).ok()).collect()
}

fn print_one(args: &Args, name: &Name, row: &LeaseJson, store_shown: &str) -> Result<Exit> {
    if args.json {
        output::json(&row)?;
    } else if row.current_leader.is_some() {
        output::line(table(&[row]))?;
    } else {
        let starting = row.starting.as_ref().map(|starting| format!(" {starting}."));
        output::line(format!("Nobody leads '{name}'.{}", starting.unwrap_or_default()))?;
        output::line(format!("Asked: {store_shown}"))?;
    }
    match &row.candidates {
        _ if args.json => {}
        None => {
            output::line("\nCandidates are unknown: on this store they do not show themselves.")?
        }
        Some(candidates) if candidates.is_empty() => {}
        Some(candidates) => output::line(format!("\n{}", candidates_table(candidates)))?,
    }
    if let (false, Some(run)) = (args.json, &row.last_run) {
        output::line(format!("\nLast run: {}", output::printable(&run.summary(time::unix_ms()))))?;
    }
    Ok(if row.current_leader.is_some() { Exit::Done } else { Exit::No })
}

fn print_many(args: &Args, rows: &[LeaseJson], target: &Selector, url: &str) -> Result<Exit> {
    if args.json {
        output::json(&rows)?;
    } else if rows.is_empty() && *target == Selector::all() {
        output::line(format!("No leases yet on {url}."))?;
    } else if rows.is_empty() {
        output::line(format!("No such lease on {url}."))?;
    } else {
        output::line(table(&rows.iter().collect::<Vec<_>>()))?;
    }
    Ok(Exit::Done)
}

/// A lease in JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaseJson {
    name: String,
    pub(crate) current_leader: Option<String>,
    /// `leading`; `starting`: the holder does not lead yet; `free`.
    state: &'static str,
    /// The remaining time of the holder's start-up wait, and its reason.
    starts_in_ms: Option<u64>,
    start_reason: Option<&'static str>,
    /// The start-up wait in one sentence.
    #[serde(skip)]
    starting: Option<String>,
    #[serde(skip)]
    holder: Option<String>,
    /// The token of the current term, or of the last term if there is no leader.
    token: Option<u64>,
    pub(crate) expires_in_ms: Option<u64>,
    since: Option<String>,
    /// For work on a schedule: the number of runs, and the last run.
    count: Option<u64>,
    last_run: Option<RunRecord>,
    /// `null` where candidates do not make themselves visible.
    candidates: Option<Vec<Candidate>>,
}

impl LeaseJson {
    fn never_used(name: &Name) -> LeaseJson {
        LeaseJson {
            name: name.to_string(),
            current_leader: None,
            state: "free",
            starts_in_ms: None,
            start_reason: None,
            starting: None,
            holder: None,
            token: None,
            expires_in_ms: None,
            since: None,
            count: None,
            last_run: None,
            candidates: Some(Vec::new()),
        }
    }

    /// Adds the candidates among `nodes` that campaign for this lease; `None` if they are unknown.
    pub(crate) fn with_candidates(mut self, nodes: Option<&[(Name, Node)]>) -> LeaseJson {
        let holder = self.holder.as_deref().map(|holder| (holder, self.state));
        self.candidates = nodes.map(|nodes| {
            let ours = nodes.iter().filter(|(of, _)| of.as_str() == self.name);
            ours.map(|(_, node)| Candidate::new(node, holder)).collect()
        });
        self
    }
}

impl From<&Lease> for LeaseJson {
    fn from(lease: &Lease) -> LeaseJson {
        let held = lease.holder.is_some();
        let left = u64::try_from(lease.left.as_millis()).unwrap_or(u64::MAX);
        // A checkpoint in another format belongs to the user's program and is ignored.
        let checkpoint_bytes = lease.checkpoint.as_ref().map(|checkpoint| checkpoint.as_bytes());
        let schedule = ScheduleCheckpoint::read(checkpoint_bytes).ok().flatten();
        LeaseJson {
            current_leader: lease.leader().map(str::to_owned),
            state: match (held, &lease.wait) {
                (false, _) => "free",
                (true, None) => "leading",
                (true, Some(_)) => "starting",
            },
            starts_in_ms: lease.wait.map(|wait| startup_wait::in_millis(wait.left)),
            start_reason: lease.wait.map(|wait| wait.reason.as_str()),
            starting: startup_wait::of(lease),
            holder: lease.holder.as_ref().map(|holder| holder.id.clone()),
            token: lease.token.map(|token| token.get()),
            expires_in_ms: held.then_some(left),
            since: lease.since.filter(|_| held).map(time::rfc3339),
            count: schedule.as_ref().map(|schedule| schedule.count),
            last_run: schedule.and_then(|schedule| schedule.last_run),
            ..LeaseJson::never_used(&lease.name)
        }
    }
}

/// The candidates of one lease, as a text table.
fn candidates_table(candidates: &[Candidate]) -> String {
    let head = ["", "CANDIDATE", "STATE", "PRIORITY", "URL"].map(str::to_owned);
    let cells = |candidate: &Candidate| {
        let mark = if candidate.state == "leading" { "👑" } else { "👥" };
        [
            mark.to_owned(),
            candidate.candidate_id.clone(),
            candidate.shown_state(),
            candidate.priority.to_string(),
            candidate.url.as_deref().map(output::printable).unwrap_or_default(),
        ]
    };
    let rows = candidates.iter().map(cells);
    let lines: Vec<_> = std::iter::once(head).chain(rows).collect();
    columns(&lines)
}

/// The number of candidates of a lease, and how many of them cannot lead: `3 (1 drained)`.
fn candidate_count(row: &LeaseJson) -> String {
    let Some(candidates) = &row.candidates else { return "unknown".to_owned() };
    let all = candidates.len();
    let count = |state: &str| candidates.iter().filter(|it| it.state == state).count();
    let states = ["drained", "unhealthy"].into_iter().map(|state| (state, count(state)));
    let states: Vec<String> = states
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    match &states[..] {
        [] => all.to_string(),
        states => format!("{all} ({})", states.join(", ")),
    }
}

/// The leader of a lease; during a start-up wait, the time until it has one.
fn leader(row: &LeaseJson) -> String {
    match (&row.current_leader, row.starts_in_ms) {
        (Some(leader), _) => output::printable(leader),
        (None, Some(ms)) => format!("(starts in {})", duration::shown(Duration::from_millis(ms))),
        (None, None) => "-".to_owned(),
    }
}

/// The leases as a text table.
fn table(rows: &[&LeaseJson]) -> String {
    let head = ["NAME", "LEADER", "TOKEN", "EXPIRES IN", "CANDIDATES", "SINCE"].map(str::to_owned);
    let none = || "-".to_owned();
    let cells = |row: &&LeaseJson| {
        let left = row.expires_in_ms.map(|ms| duration::shown(Duration::from_millis(ms)));
        [
            row.name.clone(),
            leader(row),
            row.token.map_or_else(none, |token| token.to_string()),
            left.unwrap_or_else(none),
            candidate_count(row),
            row.since.clone().unwrap_or_else(none),
        ]
    };
    let lines: Vec<_> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    columns(&lines)
}

/// Aligns cells: each column is as wide as its widest cell.
fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let text = lines.iter().map(|line| {
        let padded = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    text.collect::<Vec<_>>().join("\n")
}
