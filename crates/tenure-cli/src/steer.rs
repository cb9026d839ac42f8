//! `tenure resign`, `drain`, `undrain`: asks. Only the holder ends a term; we wait and report.

use std::time::Duration;

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::ask::{Reply, Wish, ask};
use tenure::store::{Scope, Store};
use tenure::{CandidateId, Clock, Name, Result};

use crate::args::Args;
use crate::exit::Exit;
use crate::{duration, output, reach, target};

/// How long we stay to see who comes next, once the last leader has let go.
const SUCCESSION: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure resign billing:nightly
  tenure resign billing:nightly --to web-2 --wait 30s

Exit codes: 0 done, or nobody led; 1 no answer in time; 122 store unreachable;
123 an operator must act; 125 usage.")]
pub(crate) struct ResignArgs {
    /// The lease
    #[arg(value_parser = target::name)]
    name: Name,

    /// Who should lead next: a hint, no right
    #[arg(long, value_name = "ID", value_parser = target::id)]
    to: Option<CandidateId>,

    /// How long to wait for it
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration::parse)]
    wait: Duration,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure drain billing:nightly web-1      it stops leading, and does not campaign
  tenure undrain billing:nightly web-1    it campaigns again

Exit codes: 0 done; 1 ID has not answered in time; 122 store unreachable;
123 an operator must act; 125 usage.")]
pub(crate) struct DrainArgs {
    /// The lease
    #[arg(value_parser = target::name)]
    name: Name,

    /// The candidate
    #[arg(value_parser = target::id)]
    id: CandidateId,

    /// How long to wait for it
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration::parse)]
    wait: Duration,
}

pub(crate) fn resign(args: &Args, resign: &ResignArgs) -> Result<Exit> {
    let wish = Wish::Resign { to: resign.to.as_ref().map(CandidateId::to_string) };
    run(args, &resign.name, &wish, resign.wait)
}

pub(crate) fn drain(args: &Args, drain: &DrainArgs) -> Result<Exit> {
    run(args, &drain.name, &Wish::Drain { id: drain.id.to_string() }, drain.wait)
}

pub(crate) fn undrain(args: &Args, drain: &DrainArgs) -> Result<Exit> {
    run(args, &drain.name, &Wish::Undrain { id: drain.id.to_string() }, drain.wait)
}

fn run(args: &Args, name: &Name, wish: &Wish, wait: Duration) -> Result<Exit> {
    crate::runtime()?.block_on(async {
        let store = reach::open(args).await?;
        let before = leader(&*store, name).await?;
        // The ask ends by itself after `wait`; only a store that hangs takes longer.
        let patience = wait.saturating_add(reach::PATIENCE);
        let mut reply =
            reach::patiently(&store.url(), patience, ask(&*store, name, wish, wait)).await?;
        if reply == Reply::Done(None) && before.is_some() {
            reply = Reply::Done(successor(&*store, name).await?);
        }
        if args.json {
            output::json(&Answer::new(name, &reply))?;
        } else {
            output::line(sentence(name, wish, wait, before.as_deref(), &reply))?;
        }
        Ok(if matches!(reply, Reply::Done(_)) { Exit::Done } else { Exit::No })
    })
}

async fn leader(store: &dyn Store, name: &Name) -> Result<Option<String>> {
    let lease = reach::observe(store, &Scope::name(name)).await?.pop().transpose()?;
    Ok(lease.and_then(|lease| lease.leader().map(str::to_owned)))
}

/// Who leads after somebody has let go. The next one needs a moment to come.
async fn successor(store: &dyn Store, name: &Name) -> Result<Option<String>> {
    let clock = Clock::boot();
    let give_up = clock.now() + SUCCESSION;
    loop {
        let leader = leader(store, name).await?;
        if leader.is_some() || clock.now() >= give_up {
            return Ok(leader);
        }
        clock.sleep(LOOK_EVERY).await;
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    name: &'a str,
    done: bool,
    current_leader: Option<&'a str>,
}

impl<'a> Answer<'a> {
    fn new(name: &'a Name, reply: &'a Reply) -> Answer<'a> {
        let (done, leader) = match reply {
            Reply::Done(leader) => (true, leader),
            Reply::NoAnswer(leader) => (false, leader),
        };
        Answer { name: name.as_str(), done, current_leader: leader.as_deref() }
    }
}

/// What came of it, and who leads now.
fn sentence(
    name: &Name,
    wish: &Wish,
    wait: Duration,
    before: Option<&str>,
    reply: &Reply,
) -> String {
    let leads = |leader: &Option<String>| match leader {
        Some(id) => format!("'{}' leads '{name}' now", output::printable(id)),
        None => format!("nobody leads '{name}' now"),
    };
    let wait = duration::shown(wait);
    let before = before.map(output::printable);
    match (wish, reply, before) {
        (Wish::Resign { .. }, Reply::Done(_), None) => {
            format!("Nobody led '{name}', so there was nothing to resign from.")
        }
        (Wish::Resign { to: Some(to) }, Reply::Done(Some(now)), Some(before)) if *to == before => {
            format!("'{}' leads '{name}' already.", output::printable(now))
        }
        (Wish::Resign { .. }, Reply::Done(now), Some(before)) => {
            format!("'{before}' has resigned: {}.", leads(now))
        }
        (Wish::Resign { .. }, Reply::NoAnswer(now), _) => {
            format!("The leader has not resigned within {wait}: {}.", leads(now))
        }
        (Wish::Drain { id }, Reply::Done(now), _) => format!("'{id}' is drained: {}.", leads(now)),
        (Wish::Undrain { id }, Reply::Done(now), _) => {
            format!("'{id}' campaigns again: {}.", leads(now))
        }
        (Wish::Drain { id } | Wish::Undrain { id }, Reply::NoAnswer(now), _) => {
            format!("'{id}' has not answered within {wait}: {}.", leads(now))
        }
    }
}
