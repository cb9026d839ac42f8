//! `tenure run`: a command that runs only where this candidate leads. `tenure serve`: the same with nothing but answers.

mod board;
mod command;
mod config;
mod http_poll;
mod instance_env;
mod lead_term;
mod messages;
mod options;
mod schedule_messages;
mod scheduled;
pub(crate) mod sidecar;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tenure::timing::Timing;
use tenure::{
    CandidateId, CandidateState, Clock, Election, Error, Event, Kind as ErrorKind, Leadership,
    Name, Result, Store,
};

use crate::args::Args;
use crate::exit::Exit;
use crate::guard::{Log, adopt_orphans, changes_user, deaths, reap_orphans};
use crate::http::Listener;
use crate::logs::throttle::Throttle;
use crate::logs::{self, LINE, LogLevel};
use crate::messages::{CommonMessages as _, FAREWELL};
use crate::signals::Signals;
use crate::store_url::ChosenStore;
use crate::{duration, health_check, startup_wait};

use board::CandidateCount;
use command::CommandConfig;
use config::{RunConfig, RunKind};
pub(crate) use config::{cannot_run, check_periods, check_shared};
pub(crate) use http_poll::HttpPoll;
pub(crate) use instance_env::instance_store;
use lead_term::{Backoff, TermOutcome, TermSupervisor, TermWork};
use messages::RunMessages;
use options::WorkArgs;
pub(crate) use options::{GivenWork, RunArgs, ServeArgs, ServiceArgs, TaskArgs, TimingArgs};
use scheduled::{ScheduledTask, ScheduledWork};
use sidecar::Sidecar;

/// The first line waits so long for the store to say what it promises.
const FIRST_LINE: Duration = Duration::from_millis(300);

pub(crate) fn run(args: &Args, run: &RunArgs) -> Result<Exit> {
    match RunConfig::run(args, run)? {
        Ok(plan) => carry_out(&plan),
        Err(exit) => Ok(exit),
    }
}

pub(crate) fn serve(args: &Args, serve: &ServeArgs) -> Result<Exit> {
    carry_out(&RunConfig::serve(args, serve)?)
}

fn carry_out(plan: &RunConfig<'_>) -> Result<Exit> {
    let door = sidecar::door(plan.args, &plan.service.http, plan.listen.clone())?;
    let runtime = crate::runtime()?;
    let exit = runtime.block_on(campaign(plan, door));
    // What still hangs in a file system or a name server must not keep us here.
    runtime.shutdown_background();
    exit
}

async fn campaign(plan: &RunConfig<'_>, door: Option<Listener>) -> Result<Exit> {
    // Before anything is started that a signal would leave behind.
    let mut signals = Signals::catch()?;
    adopt_orphans().map_err(|error| Error::denied(format!("cannot adopt orphans: {error}")))?;
    tokio::spawn(reap_as_they_come()?);
    let store = tenure::open(&plan.choice.url).await?;
    let timing = Timing::new(&plan.options, &store.limits())?;
    let lines = RunMessages::new(&plan.id, &plan.name);
    let board = CandidateCount::default();
    let job = job(plan, &*store, &timing)?;
    first_line((&plan.name, &plan.id), &plan.choice, &*store, &timing, door.as_ref()).await;
    if plan.unguarded() {
        lines.trouble(
            "--no-guard: if this process is killed or frozen, the command runs on beside the next leader",
        );
    }
    if let Some(warning) = plan.program().and_then(changes_user) {
        lines.trouble(&warning);
    }
    if let TermWork::Scheduled(table) = &job
        && table.is_done(&plan.name, &*store, &lines).await
    {
        return Ok(Exit::Done);
    }
    let builder = builder(plan);
    // Told to try once, it does not wait for a store that is down.
    let election = match plan.wait() {
        Some(Duration::ZERO) => builder.try_start(store.clone()).await?,
        _ => builder.launch(store.clone())?,
    };
    lines.started();
    let chatter = tokio::spawn(chat(election.events(), lines.clone()));
    let election = Arc::new(election);
    let beside = (&board, &lines);
    let mut service = Sidecar::start(plan, door, &election, &store, &timing, beside)?;
    let crew = TermSupervisor {
        job,
        board: board.clone(),
        instance: service.instance().cloned(),
        election: &election,
        store: &*store,
        lines: &lines,
        stop_within: timing.stop_within,
        on_lead: plan.service.on_lead.clone(),
        on_lose: plan.service.on_lose.clone(),
        backoff: Backoff::default(),
        save_failures: Throttle::default(),
    };
    let ended = take_turns(plan, &crew, &mut signals).await;
    drop(crew);
    service.hush();
    let given_back = async { tokio::join!(election.stop(), service.leave()) };
    let clock = Clock::boot();
    tokio::select! {
        _ = given_back => {}
        () = clock.sleep(FAREWELL) => lines.left_behind(),
    }
    // It ends with the election, when the last event has been told.
    drop(election);
    let _ = chatter.await;
    ended
}

fn builder(plan: &RunConfig<'_>) -> tenure::Builder {
    let mut builder = Election::builder(plan.name.as_str())
        .id(plan.id.as_str())
        .options(plan.options.clone())
        .priority(plan.priority)
        .ends_with_process(plan.ends_with_process());
    if let Some(health) = &plan.service.health {
        let gate = plan.service.gate();
        let (health, name, id) = (health.clone(), plan.name.clone(), plan.id.clone());
        builder = builder.health(gate, move || {
            let (health, name, id) = (health.clone(), name.clone(), id.clone());
            async move { health_check::run(&health, &name, &id).await }
        });
    }
    builder
}

/// What the guard opens: the very directory that we use, and not a new one where that was moved away from.
pub(crate) fn guards_url(choice: &ChosenStore, store: &dyn Store) -> String {
    if !choice.url.starts_with("file:") {
        return choice.url.clone();
    }
    let url = store.url();
    let and = if url.contains('?') { '&' } else { '?' };
    format!("{url}{and}create=0")
}

/// How a guard logs the few lines it has.
pub(crate) fn guards_log(args: &Args) -> Log {
    Log {
        json: args.log_format == logs::Format::Json,
        only_errors: logs::level(args) == LogLevel::Error,
    }
}

fn job(plan: &RunConfig<'_>, store: &dyn Store, timing: &Timing) -> Result<TermWork> {
    let RunKind::Work { work, every } = &plan.kind else { return Ok(TermWork::Serve) };
    let WorkArgs { task: TaskArgs { command, no_guard, .. }, schedule, once, .. } = work;
    let recipe = CommandConfig {
        command: command.clone(),
        store_url: guards_url(&plan.choice, store),
        stop_within: timing.stop_within,
        on_lose: plan.service.on_lose.clone(),
        log: guards_log(plan.args),
        guarded: !no_guard,
    };
    let Some(times) = schedule.schedule(*every)? else { return Ok(TermWork::Command(recipe)) };
    let rest_guard = CommandConfig { command: Vec::new(), ..recipe.clone() };
    let rest_guard = recipe.guarded.then_some(rest_guard);
    let task = match work.task.given()? {
        Some(GivenWork::Command(_)) => ScheduledTask::Command(recipe),
        Some(GivenWork::Get(url)) => ScheduledTask::Get(HttpPoll::new(url, work.task.timeout())?),
        Some(GivenWork::Mock) | None => ScheduledTask::Mock,
    };
    let started = Clock::boot().minting_micros() / 1_000;
    let policy = schedule.policy(once.then_some(started));
    Ok(TermWork::Scheduled(Box::new(ScheduledWork { schedule: times, policy, task, rest_guard })))
}

/// Leads whenever it is this candidate's turn, until there is a reason to end.
async fn take_turns(
    plan: &RunConfig<'_>,
    crew: &TermSupervisor<'_>,
    signals: &mut Signals,
) -> Result<Exit> {
    let mut answered = false;
    loop {
        let leadership = tokio::select! {
            biased;
            _ = signals.end() => return Ok(Exit::Done),
            leadership = next_leadership(crew.election) => leadership?,
            given_up = give_up(plan.wait(), crew, answered) => return given_up,
        };
        // A grant is an answer.
        answered = true;
        match crew.term(leadership, signals).await {
            TermOutcome::Ended(exit) => return Ok(exit),
            TermOutcome::Failed(error) => return Err(error),
            TermOutcome::Lost | TermOutcome::Paused(_) if plan.once() => {
                return Ok(Exit::LeadershipLost);
            }
            TermOutcome::Lost => {}
            TermOutcome::Paused(pause) => {
                let clock = Clock::boot();
                tokio::select! {
                    biased;
                    _ = signals.end() => return Ok(Exit::Done),
                    () = clock.sleep(pause) => {}
                }
            }
        }
    }
}

/// Waits until this candidate leads. An error if the election has ended by itself: only [`campaign`] stops it, and later.
async fn next_leadership(election: &Election) -> Result<Leadership> {
    election.leadership().await.ok_or_else(|| {
        Error::unavailable(
            "the thread that renews the lease ended unexpectedly: the lease expires by itself; start this again",
        )
    })
}

/// Returns when waiting any longer makes no sense: the store refuses this candidate before it has answered once, or
/// `--wait` has run out. A candidate that the store has `answered` waits for the operator to repair the store, whether it
/// has led before or not.
async fn give_up(
    wait: Option<Duration>,
    crew: &TermSupervisor<'_>,
    answered: bool,
) -> Result<Exit> {
    let refused = async {
        if !answered {
            crew.election.answered().await?;
        }
        std::future::pending().await
    };
    let Some(wait) = wait else { return refused.await };
    let clock = Clock::boot();
    tokio::select! {
        refused = refused => return refused,
        () = clock.sleep(wait) => {}
    }
    let status = crew.election.status();
    if status.store_reachable != Some(true) {
        let error = status.last_error.unwrap_or_else(|| Error::unavailable("no answer"));
        let wait = duration::shown(wait);
        return Err(Error::new(error.kind(), format!("gave up after --wait {wait}: {error}")));
    }
    let led = match (status.state, status.current_leader) {
        (CandidateState::Starting, _) => {
            let starts = status.starting.as_ref().map(startup_wait::left).unwrap_or_default();
            format!("this candidate has the lease and starts in {starts}")
        }
        (_, Some(by)) => format!("{by} leads"),
        (_, None) => "nobody leads yet".to_owned(),
    };
    let wait = duration::shown(wait);
    crew.lines.trouble(&format!("Gave up after --wait {wait}: {led}"));
    Ok(Exit::WaitedInVain)
}

/// `tenure 0.1.0: poll:leader as node-1 on redis://127.0.0.1:6379/0 (from TENURE_STORE), TTL 4s, grade B`
pub(crate) async fn first_line(
    (name, id): (&Name, &CandidateId),
    choice: &ChosenStore,
    store: &dyn Store,
    timing: &Timing,
    door: Option<&Listener>,
) {
    let clock = Clock::boot();
    let grade = tokio::select! {
        report = store.examine() => report.map(|report| report.grade.to_string()).ok(),
        () = clock.sleep(FIRST_LINE) => None,
    };
    let grade = grade.unwrap_or_else(|| "not known yet".to_owned());
    let only = if store.limits().shared { "" } else { ", this machine only" };
    let http = door.map(|door| format!(", http {}", door.address())).unwrap_or_default();
    let (url, origin, ttl) = (store.url(), choice.origin(), duration::shown(timing.ttl));
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(
        target: LINE,
        candidate = %id,
        event = "first",
        "tenure {version}: {name} as {id} on {url} {origin}, TTL {ttl}, grade {grade}{only}{http}"
    );
}

/// Tells of what is not told where it happens.
async fn chat(mut events: impl futures_util::Stream<Item = Event> + Unpin, lines: RunMessages) {
    // Why the term before ended, if there was one.
    let (mut why, mut answered) = (None, false);
    while let Some(event) = events.next().await {
        match event {
            // A store that refuses us from the first is the end, and told there.
            Event::StoreUnreachable(error)
                if error.kind() != ErrorKind::Unavailable && !answered => {}
            Event::LostLeadership { why: lost, .. } => why = Some(lost),
            // What was held without leading is nobody's concern.
            Event::Released { .. } => {
                if let Some(why) = why.take() {
                    lines.released(&why);
                }
            }
            Event::Starting { wait, .. } => lines.starting(&wait),
            Event::LeaderChanged { to: Some(leader), .. } => lines.leads(&leader),
            Event::StoreUnreachable(error) => lines.unreachable(&error),
            Event::StoreBack => {
                answered = true;
                lines.back();
            }
            _ => answered = true,
        }
    }
}

fn reap_as_they_come() -> Result<impl Future<Output = ()>> {
    let mut deaths =
        deaths().map_err(|error| Error::denied(format!("cannot watch over children: {error}")))?;
    Ok(async move {
        while deaths.recv().await.is_some() {
            reap_orphans();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An election whose thread has ended looks the same whether it was stopped or has panicked.
    #[test]
    fn an_election_that_ends_by_itself_is_an_error_and_122() {
        crate::runtime().unwrap().block_on(async {
            let store = tenure::open("memory:").await.unwrap();
            let election = Election::builder("job").launch(store).unwrap();
            election.stop().await;
            let error = next_leadership(&election).await.unwrap_err();
            assert!(error.to_string().contains("ended unexpectedly"), "{error}");
            assert_eq!(Exit::from(error.kind()), Exit::Unreachable);
        });
    }
}
