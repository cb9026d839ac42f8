//! `tenure doctor`: examines the store (kind, speed, grade), and explains why a lease has no leader.

mod candidates;
mod lease;

use std::time::Duration;

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::store::{Check, Grade, Limits, Report, Store, Verdict, Visibility};
use tenure::{Name, Result};

use crate::args::Args;
use crate::exit::Exit;
use crate::store_url::ChosenStore;
use crate::{output, selector, store_access};
use lease::LeaseFinding;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure doctor
  tenure doctor billing:nightly                 and why nobody leads it
  tenure doctor --store redis://127.0.0.1:6379 --json

Exit codes: 0 all is well, 1 a check failed, 122 unreachable, 123 denied or corrupt, 125 usage.")]
pub(crate) struct DoctorArgs {
    /// Look at this lease too: who leads it, or why nobody does
    #[arg(value_parser = selector::name)]
    name: Option<Name>,
}

pub(crate) fn run(args: &Args, doctor: &DoctorArgs) -> Result<Exit> {
    let choice = ChosenStore::of(args)?;
    choice.hint_other_store(args);
    crate::runtime()?.block_on(async {
        let store = tenure::store::open_existing(&choice.url).await?;
        let report = examine(&*store).await?;
        let lease = match &doctor.name {
            Some(name) => Some(lease::observe(&*store, &choice.origin(), name).await?.finding()),
            None => None,
        };
        let ok = all_checks_pass(&report) && lease.as_ref().is_none_or(|lease| !lease.is_stuck);
        if args.json {
            output::json(&DoctorJson::new(&*store, &report, ok, lease))?;
        } else {
            output::line(text(&*store, &choice, &report, lease.as_ref()))?;
        }
        Ok(if ok { Exit::Done } else { Exit::No })
    })
}

/// Examines the store, with a timeout.
pub(crate) async fn examine(store: &dyn Store) -> Result<Report> {
    store_access::with_timeout(&store.url(), store_access::STORE_TIMEOUT, store.examine()).await
}

fn all_checks_pass(report: &Report) -> bool {
    report.checks.iter().all(|check| check.verdict != Verdict::Bad)
}

/// The meaning of a grade, in the words of `docs/DESIGN.md`.
pub(crate) fn meaning(grade: Grade) -> &'static str {
    match grade {
        Grade::A => "linearizable and durable",
        Grade::B => "one durable node",
        Grade::C => "may grant twice in a failover; fence what must not happen twice",
    }
}

fn visibility(limits: &Limits) -> &'static str {
    match limits.visibility {
        Visibility::Network => "every machine that reaches it",
        Visibility::Machine | Visibility::Process => {
            "this machine only; candidates on another machine would not see it"
        }
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn text(
    store: &dyn Store,
    choice: &ChosenStore,
    report: &Report,
    lease: Option<&LeaseFinding>,
) -> String {
    // The findings about the lease come first: they answer the question.
    let mut lines = Vec::new();
    if let Some(lease) = lease {
        lines.extend(lease.findings.iter().map(|finding| format!("- {finding}")));
        lines.push(String::new());
    }
    lines.extend([
        format!("store       {} {}", store.url(), choice.origin()),
        format!("what        {}", report.what),
        format!("grade       {}: {}", report.grade, meaning(report.grade)),
        format!("seen by     {}", visibility(&store.limits())),
        format!("round trip  {:.3} ms", millis(report.round_trip)),
        String::new(),
    ]);
    let width = report.checks.iter().map(|check| check.what.chars().count()).max().unwrap_or(0);
    lines.extend(report.checks.iter().map(|check| {
        let Check { what, verdict, found } = check;
        let mark = match verdict {
            Verdict::Good => "✅",
            Verdict::Weak => "⚠️ ",
            Verdict::Bad => "❌",
        };
        format!("{mark} {what:width$}  {:4}  {found}", verdict.as_str())
    }));
    lines.push(String::new());
    lines.push(summary(report, lease));
    lines.join("\n")
}

fn summary(report: &Report, lease: Option<&LeaseFinding>) -> String {
    let count = |verdict| report.checks.iter().filter(|check| check.verdict == verdict).count();
    if let Some(lease) = lease.filter(|lease| lease.is_stuck) {
        return format!("Nobody can lead '{}' as it is: why is said above.", lease.name);
    }
    match (count(Verdict::Bad), count(Verdict::Weak)) {
        (0, 0) => "The store is well.".to_owned(),
        (0, weak) => format!("Usable, with {weak} weak point(s), named above."),
        (bad, _) => format!("Not usable as it is: {bad} check(s) failed, named above."),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DoctorJson {
    store: String,
    what: String,
    grade: String,
    grade_means: &'static str,
    shared: bool,
    round_trip_ms: f64,
    ok: bool,
    checks: Vec<CheckJson>,
    /// Null if no NAME is given.
    lease: Option<LeaseFinding>,
}

#[derive(Serialize)]
struct CheckJson {
    what: &'static str,
    verdict: &'static str,
    found: String,
}

impl DoctorJson {
    fn new(
        store: &dyn Store,
        report: &Report,
        ok: bool,
        lease: Option<LeaseFinding>,
    ) -> DoctorJson {
        let checks = report.checks.iter().map(|check| CheckJson {
            what: check.what,
            verdict: check.verdict.as_str(),
            found: check.found.clone(),
        });
        DoctorJson {
            store: store.url(),
            what: report.what.clone(),
            grade: report.grade.to_string(),
            grade_means: meaning(report.grade),
            shared: store.limits().visibility == Visibility::Network,
            round_trip_ms: millis(report.round_trip),
            ok,
            checks: checks.collect(),
            lease,
        }
    }
}
