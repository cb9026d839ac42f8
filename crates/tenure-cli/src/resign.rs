//! `tenure resign`, `drain`, `undrain`: remote requests to a candidate.
//!
//! Only the holder ends a term. The command sends the request, waits for the outcome and reports it.

pub(crate) mod successor;

use std::time::Duration;

use clap::Args as ClapArgs;
use serde::Serialize;
use tenure::fleet::overrides::{self, Overrides};
use tenure::presence::present;
use tenure::request::{RemoteRequest, RequestOutcome, send};
use tenure::store::Store;
use tenure::{CandidateId, Clock, Name, Result};

use crate::args::Args;
use crate::candidate::Candidate;
use crate::exit::Exit;
use crate::{duration, output, selector, store_access};
use successor::SuccessorCheck;

/// How long the command waits for the next leader after a release.
const SUCCESSION_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

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
                SuccessorCheck::Refused(reason) => return print_refusal(args, name, before, &reason),
            }
        }
        let remote_request = RemoteRequest::Resign { to: to.as_ref().map(CandidateId::to_string) };
        // A named successor gets the whole waiting time.
        let timeout = to.as_ref().map_or(SUCCESSION_TIMEOUT, |_| SUCCESSION_TIMEOUT.max(*wait));
        let reply = request(&*store, name, &remote_request, *wait, before.as_deref(), timeout).await?;
        let failure = match (&reply, &before) {
            (RequestOutcome::Done(now), Some(before)) => check_handover(before, to.as_ref(), now.as_deref()),
            _ => None,
        };
        let failure = match failure {
            Some(FailedHandover::LeadsAgain(before)) => {
                Some(successor::leads_again(&before, &candidates(&*store, name).await?))
            }
            Some(FailedHandover::NotTaken(sentence)) => Some(sentence),
            None => None,
        };
        if args.json {
            output::json(&RequestJson::new(name, &reply, failure.as_deref()))?;
        } else {
            let sentence = failure.clone();
            let sentence = sentence
                .unwrap_or_else(|| self::sentence(name, &remote_request, *wait, before.as_deref(), &reply));
            output::line(sentence)?;
        }
        let done = matches!(reply, RequestOutcome::Done(_)) && failure.is_none();
        Ok(if done { Exit::Done } else { Exit::No })
    })
}

/// A leader resigned, but the result is not the requested one.
enum FailedHandover {
    LeadsAgain(String),
    /// The named successor does not lead; a sentence that says so.
    NotTaken(String),
}

/// What is wrong with `now` as the leader after `before` has resigned; `None` if the result is the requested one.
fn check_handover(
    before: &str,
    to: Option<&CandidateId>,
    now: Option<&str>,
) -> Option<FailedHandover> {
    let to = to.map(CandidateId::as_str);
    match (to, now) {
        (Some(to), Some(now)) if now == to => None,
        // The requested leader led already.
        (Some(to), _) if to == before => None,
        (_, Some(now)) if now == before => Some(FailedHandover::LeadsAgain(before.to_owned())),
        (Some(to), now) => {
            let now = now.map_or("nobody".to_owned(), output::printable);
            let before = output::printable(before);
            Some(FailedHandover::NotTaken(format!(
                "{before} handed over, but {to} has not taken over: {now} leads"
            )))
        }
        (None, _) => None,
    }
}

/// Prints that no request was sent to the leader, and the reason.
fn print_refusal(args: &Args, name: &Name, leader: &str, reason: &str) -> Result<Exit> {
    if args.json {
        let reply = RequestOutcome::NoAnswer(Some(leader.to_owned()));
        output::json(&RequestJson::new(name, &reply, Some(reason)))?;
    } else {
        output::line(reason)?;
    }
    Ok(Exit::No)
}

/// The candidates of `name` that have a presence.
async fn candidates(store: &dyn Store, name: &Name) -> Result<Vec<Candidate>> {
    let nodes =
        store_access::with_timeout(&store.url(), store_access::STORE_TIMEOUT, present(store, name))
            .await?;
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

/// Changes the record that a candidate reads when it starts, and then sends the request to the running candidate.
fn run(
    args: &Args,
    drain: &DrainArgs,
    remote_request: &RemoteRequest,
    edit: impl FnOnce(&mut Overrides) + Send,
) -> Result<Exit> {
    let DrainArgs { name, wait, .. } = drain;
    let wait = *wait;
    crate::runtime()?.block_on(async {
        let store = store_access::open(args).await?;
        let me = CandidateId::generate();
        let change = overrides::change(&*store, name, &me, store_access::STORE_TIMEOUT, edit);
        store_access::with_timeout(&store.url(), store_access::STORE_TIMEOUT * 2, change).await?;
        let before = leader(&*store, name).await?;
        let reply =
            request(&*store, name, remote_request, wait, before.as_deref(), SUCCESSION_TIMEOUT)
                .await?;
        if args.json {
            output::json(&RequestJson::new(name, &reply, None))?;
        } else {
            output::line(sentence(name, remote_request, wait, before.as_deref(), &reply))?;
        }
        Ok(if matches!(reply, RequestOutcome::Done(_)) { Exit::Done } else { Exit::No })
    })
}

/// Sends the request and waits for the outcome. If `before` led and no candidate leads now, also waits up to `succession` for
/// the next leader.
async fn request(
    store: &dyn Store,
    name: &Name,
    remote_request: &RemoteRequest,
    wait: Duration,
    before: Option<&str>,
    succession: Duration,
) -> Result<RequestOutcome> {
    // The request ends by itself after `wait`; only an unresponsive store takes longer.
    let timeout = wait.saturating_add(store_access::STORE_TIMEOUT);
    let reply =
        store_access::with_timeout(&store.url(), timeout, send(store, name, remote_request, wait))
            .await?;
    Ok(match reply {
        RequestOutcome::Done(None) if before.is_some() => {
            RequestOutcome::Done(next_leader(store, name, succession).await?)
        }
        reply => reply,
    })
}

async fn leader(store: &dyn Store, name: &Name) -> Result<Option<String>> {
    let lease = store_access::observe_one(store, name).await?;
    Ok(lease.and_then(|lease| lease.leader().map(str::to_owned)))
}

/// The leader after a release. The next candidate needs a moment to acquire the lease.
async fn next_leader(store: &dyn Store, name: &Name, wait: Duration) -> Result<Option<String>> {
    let clock = Clock::boot();
    let timeout_at = clock.now() + wait;
    loop {
        let leader = leader(store, name).await?;
        if leader.is_some() || clock.now() >= timeout_at {
            return Ok(leader);
        }
        clock.sleep(POLL_INTERVAL).await;
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestJson<'a> {
    name: &'a str,
    done: bool,
    current_leader: Option<&'a str>,
    /// Why the request was not done, if that is known.
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

/// The outcome and the current leader, in a sentence.
fn sentence(
    name: &Name,
    remote_request: &RemoteRequest,
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
    match (remote_request, reply, before) {
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
