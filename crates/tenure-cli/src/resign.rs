//! `tenure resign`, `drain`, `undrain`: asks. Only the holder ends a term; we wait and report.

pub(crate) mod successor;

use std::time::Duration;

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::fleet::overrides::{self, Overrides};
use tenure::presence::present;
use tenure::request::{RemoteRequest, RequestOutcome, send};
use tenure::store::{Scope, Store};
use tenure::{CandidateId, Clock, Name, Result};

use crate::args::Args;
use crate::candidate::Candidate;
use crate::exit::Exit;
use crate::{duration, output, selector, store_access};
use successor::SuccessorCheck;

/// How long we wait for the next leader after a release.
const SUCCESSION: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure resign billing:nightly
  tenure resign billing:nightly --to web-2 --wait 30s

Exit codes: 0 done, or nobody led; 1 no answer in time, the named successor is not running, drained or
unhealthy, or in the end another candidate does not lead; 122 store unreachable; 123 an operator must
act; 125 usage.")]
pub(crate) struct ResignArgs {
    /// The lease
    #[arg(value_parser = selector::name)]
    name: Name,

    /// Who should lead next: a hint, no right
    #[arg(long, value_name = "ID", value_parser = selector::id)]
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
    #[arg(value_parser = selector::name)]
    name: Name,

    /// The candidate
    #[arg(value_parser = selector::id)]
    id: CandidateId,

    /// How long to wait for it
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration::parse)]
    wait: Duration,
}

pub(crate) fn resign(args: &Args, resign: &ResignArgs) -> Result<Exit> {
    let ResignArgs { name, to, wait } = resign;
    crate::runtime()?.block_on(async {
        let store = store_access::open(args).await?;
        let before = leader(&*store, name).await?;
        if let (Some(before), Some(to)) = (&before, to)
            && before != to.as_str()
        {
            match successor::check(name, before, to, &candidates(&*store, name).await?) {
                SuccessorCheck::Ready => {}
                SuccessorCheck::Unknown => tracing::warn!(
                    "no candidate of '{name}' shows itself (--no-presence), so it is not known whether '{to}' is running"
                ),
                SuccessorCheck::Refused(why) => return refused(args, name, before, &why),
            }
        }
        let wish = RemoteRequest::Resign { to: to.as_ref().map(CandidateId::to_string) };
        // With a named successor, all of the time is for it.
        let patience = to.as_ref().map_or(SUCCESSION, |_| SUCCESSION.max(*wait));
        let reply = request(&*store, name, &wish, *wait, before.as_deref(), patience).await?;
        let kept = match (&reply, &before) {
            (RequestOutcome::Done(now), Some(before)) => came_to(before, to.as_ref(), now.as_deref()),
            _ => None,
        };
        let kept = match kept {
            Some(DrainPersisted::LeadsAgain(before)) => {
                Some(successor::leads_again(&before, &candidates(&*store, name).await?))
            }
            Some(DrainPersisted::NotTaken(sentence)) => Some(sentence),
            None => None,
        };
        if args.json {
            output::json(&RequestJson::new(name, &reply, kept.as_deref()))?;
        } else {
            let sentence = kept.clone();
            let sentence = sentence
                .unwrap_or_else(|| self::sentence(name, &wish, *wait, before.as_deref(), &reply));
            output::line(sentence)?;
        }
        let done = matches!(reply, RequestOutcome::Done(_)) && kept.is_none();
        Ok(if done { Exit::Done } else { Exit::No })
    })
}

/// How a leader resigned without the wanted result.
enum DrainPersisted {
    LeadsAgain(String),
    /// The named successor does not lead; a sentence.
    NotTaken(String),
}

/// What is wrong with `now` as the leader after `before` has resigned.
fn came_to(before: &str, to: Option<&CandidateId>, now: Option<&str>) -> Option<DrainPersisted> {
    let to = to.map(CandidateId::as_str);
    match (to, now) {
        (Some(to), Some(now)) if now == to => None,
        // It was asked for what was so already.
        (Some(to), _) if to == before => None,
        (_, Some(now)) if now == before => Some(DrainPersisted::LeadsAgain(before.to_owned())),
        (Some(to), now) => {
            let now = now.map_or("nobody".to_owned(), output::printable);
            let before = output::printable(before);
            Some(DrainPersisted::NotTaken(format!(
                "{before} handed over, but {to} has not taken over: {now} leads"
            )))
        }
        (None, _) => None,
    }
}

/// Says that the leader was not disturbed, and why.
fn refused(args: &Args, name: &Name, leader: &str, why: &str) -> Result<Exit> {
    if args.json {
        let reply = RequestOutcome::NoAnswer(Some(leader.to_owned()));
        output::json(&RequestJson::new(name, &reply, Some(why)))?;
    } else {
        output::line(why)?;
    }
    Ok(Exit::No)
}

/// The candidates of `name` that show themselves.
async fn candidates(store: &dyn Store, name: &Name) -> Result<Vec<Candidate>> {
    let nodes =
        store_access::patiently(&store.url(), store_access::PATIENCE, present(store, name)).await?;
    let holder = leader(store, name).await?;
    let holder = holder.as_deref().map(|holder| (holder, "leading"));
    Ok(nodes.iter().map(|node| Candidate::new(node, holder)).collect())
}

pub(crate) fn drain(args: &Args, drain: &DrainArgs) -> Result<Exit> {
    run(args, drain, &RemoteRequest::Drain { id: drain.id.to_string() }, |overrides| {
        overrides.drained.insert(drain.id.clone());
    })
}

pub(crate) fn undrain(args: &Args, drain: &DrainArgs) -> Result<Exit> {
    run(args, drain, &RemoteRequest::Undrain { id: drain.id.to_string() }, |overrides| {
        overrides.drained.remove(&drain.id);
    })
}

/// Changes the record that a candidate reads when it starts, and then asks the candidate that runs.
fn run(
    args: &Args,
    drain: &DrainArgs,
    wish: &RemoteRequest,
    edit: impl FnOnce(&mut Overrides) + Send,
) -> Result<Exit> {
    let DrainArgs { name, wait, .. } = drain;
    let wait = *wait;
    crate::runtime()?.block_on(async {
        let store = store_access::open(args).await?;
        let me = CandidateId::generate();
        let change = overrides::change(&*store, name, &me, store_access::PATIENCE, edit);
        store_access::patiently(&store.url(), store_access::PATIENCE * 2, change).await?;
        let before = leader(&*store, name).await?;
        let reply = request(&*store, name, wish, wait, before.as_deref(), SUCCESSION).await?;
        if args.json {
            output::json(&RequestJson::new(name, &reply, None))?;
        } else {
            output::line(sentence(name, wish, wait, before.as_deref(), &reply))?;
        }
        Ok(if matches!(reply, RequestOutcome::Done(_)) { Exit::Done } else { Exit::No })
    })
}

/// Makes the request and waits for the answer, and if `before` led and no candidate does now, up to `succession` for the
/// next leader.
async fn request(
    store: &dyn Store,
    name: &Name,
    wish: &RemoteRequest,
    wait: Duration,
    before: Option<&str>,
    succession: Duration,
) -> Result<RequestOutcome> {
    // The request ends by itself after `wait`; only a store that hangs takes longer.
    let patience = wait.saturating_add(store_access::PATIENCE);
    let reply =
        store_access::patiently(&store.url(), patience, send(store, name, wish, wait)).await?;
    Ok(match reply {
        RequestOutcome::Done(None) if before.is_some() => {
            RequestOutcome::Done(next_leader(store, name, succession).await?)
        }
        reply => reply,
    })
}

async fn leader(store: &dyn Store, name: &Name) -> Result<Option<String>> {
    let lease = store_access::observe(store, &Scope::name(name)).await?.pop().transpose()?;
    Ok(lease.and_then(|lease| lease.leader().map(str::to_owned)))
}

/// The leader after a release. The next candidate needs a moment to take the lease.
async fn next_leader(store: &dyn Store, name: &Name, wait: Duration) -> Result<Option<String>> {
    let clock = Clock::boot();
    let give_up = clock.now() + wait;
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
struct RequestJson<'a> {
    name: &'a str,
    done: bool,
    current_leader: Option<&'a str>,
    /// Why it was not done, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl<'a> RequestJson<'a> {
    fn new(name: &'a Name, reply: &'a RequestOutcome, reason: Option<&'a str>) -> RequestJson<'a> {
        let (done, leader) = match reply {
            RequestOutcome::Done(leader) => (true, leader),
            RequestOutcome::NoAnswer(leader) => (false, leader),
        };
        let done = done && reason.is_none();
        RequestJson { name: name.as_str(), done, current_leader: leader.as_deref(), reason }
    }
}

/// What came of it, and who leads now.
fn sentence(
    name: &Name,
    wish: &RemoteRequest,
    wait: Duration,
    before: Option<&str>,
    reply: &RequestOutcome,
) -> String {
    let leads = |leader: &Option<String>| match leader {
        Some(id) => format!("'{}' leads '{name}' now", output::printable(id)),
        None => format!("nobody leads '{name}' now"),
    };
    let wait = duration::shown(wait);
    let before = before.map(output::printable);
    match (wish, reply, before) {
        (RemoteRequest::Resign { .. }, RequestOutcome::Done(_), None) => {
            format!("Nobody led '{name}', so there was nothing to resign from.")
        }
        (RemoteRequest::Resign { to: Some(to) }, RequestOutcome::Done(Some(now)), Some(before))
            if *to == before =>
        {
            format!("'{}' leads '{name}' already.", output::printable(now))
        }
        (RemoteRequest::Resign { .. }, RequestOutcome::Done(now), Some(before)) => {
            format!("'{before}' has resigned: {}.", leads(now))
        }
        (RemoteRequest::Resign { .. }, RequestOutcome::NoAnswer(now), _) => {
            format!("The leader has not resigned within {wait}: {}.", leads(now))
        }
        (RemoteRequest::Drain { id }, RequestOutcome::Done(now), _) => {
            format!("'{id}' is drained: {}.", leads(now))
        }
        (RemoteRequest::Undrain { id }, RequestOutcome::Done(now), _) => {
            format!("'{id}' campaigns again: {}.", leads(now))
        }
        (RemoteRequest::Drain { id }, RequestOutcome::NoAnswer(now), _) => format!(
            "'{id}' has not answered within {wait}: {}. The drain is kept: a candidate '{id}' that starts does not campaign, \
             until 'tenure undrain {name} {id}'.",
            leads(now)
        ),
        (RemoteRequest::Undrain { id }, RequestOutcome::NoAnswer(now), _) => format!(
            "'{id}' has not answered within {wait}: {}. It is not drained any more: it campaigns when it starts.",
            leads(now)
        ),
    }
}
