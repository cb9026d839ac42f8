//! `tenure run`, which runs work only while this candidate leads, and `tenure serve`, which only answers over HTTP whether it
//! leads.
//!
//! Both execute one [`RunConfig`]: [`campaign`] opens the store, starts the election and the sidecar, then runs one term after
//! another with a [`TermSupervisor`] until there is a reason to exit.

mod command;
mod config;
mod http_poll;
mod instance_env;
mod lead_term;
mod messages;
mod options;
mod run_reporter;
mod schedule_messages;
mod scheduled;
pub(crate) mod sidecar;

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tenure::store::Visibility;
use tenure::timing::Timing;
use tenure::{
    CandidateId, CandidateState, Clock, Election, Error, Event, Kind as ErrorKind, Leadership,
    Name, Result, Store, supervise,
};

use crate::args::Args;
use crate::exit::Exit;
use crate::guard::{Log, adopt_orphans, changes_user, deaths, reap_orphans};
use crate::http::Listener;
use crate::logs::throttle::Throttle;
use crate::logs::{self, LINE_TARGET, LogLevel};
use crate::messages::{CommonMessages as _, RELEASE_TIMEOUT};
use crate::signals::Signals;
use crate::store_url::ChosenStore;
use crate::{duration, health_check, startup_wait};

use command::CommandConfig;
use config::{RunConfig, RunKind};
pub(crate) use config::{check_periods, check_store_is_shared, report_unrunnable};
pub(crate) use http_poll::HttpPoll;
pub(crate) use instance_env::instance_store;
use lead_term::{Backoff, TermOutcome, TermSupervisor, TermWork};
use messages::RunMessages;
use options::WorkArgs;
pub(crate) use options::{GivenWork, RunArgs, ServeArgs, ServiceArgs, TaskArgs, TimingArgs};
use run_reporter::RunReporter;
use scheduled::{ScheduledTask, ScheduledWork};
use sidecar::Sidecar;

/// How long the first log line waits for the store's report, which names its grade.
const EXAMINE_TIMEOUT: Duration = Duration::from_millis(300);

pub(crate) fn run(args: &Args, run: &RunArgs) -> Result<Exit> {
    match RunConfig::run(args, run)? {
        Ok(config) => execute(&config),
        Err(exit) => Ok(exit),
    }
}

pub(crate) fn serve(args: &Args, serve: &ServeArgs) -> Result<Exit> {
    execute(&RunConfig::serve(args, serve)?)
}

fn execute(config: &RunConfig<'_>) -> Result<Exit> {
    let listener =
        sidecar::open_listener(config.args, &config.service.http, config.listen.clone())?;
    let runtime = crate::runtime()?;
    let exit = runtime.block_on(campaign(config, listener));
    // A blocking call that hangs in a file system or a name server must not delay the exit.
    runtime.shutdown_background();
    exit
}

async fn campaign(config: &RunConfig<'_>, listener: Option<Listener>) -> Result<Exit> {
    // Signals are caught before anything is started that a signal would leave behind.
    let mut signals = Signals::catch()?;
    adopt_orphans().map_err(|error| Error::denied(format!("cannot adopt orphans: {error}")))?;
    tokio::spawn(reap_adopted_orphans()?);
    let store = tenure::open(&config.chosen_store.url).await?;
    let timing = Timing::new(&config.options, &store.limits())?;
    let messages = RunMessages::new(&config.id, &config.name);
    let run_reporter = RunReporter::default();
    let work = term_work(config, &*store, &timing)?;
    log_first_line(
        (&config.name, &config.id),
        &config.chosen_store,
        &*store,
        &timing,
        listener.as_ref(),
    )
    .await;
    if config.unguarded() {
        messages.warning(
            "--no-guard: if this process is killed or frozen, the command runs on beside the next leader",
        );
    }
    if let Some(warning) = config.program().and_then(changes_user) {
        messages.warning(&warning);
    }
    if let TermWork::Scheduled(scheduled) = &work
        && scheduled.is_done(&config.name, &*store, &messages).await
    {
        return Ok(Exit::Done);
    }
    let builder = builder(config);
    // With `--wait 0s` this candidate tries once and does not wait for a store that is down.
    let election = match config.wait() {
        Some(Duration::ZERO) => builder.try_start(store.clone()).await?,
        _ => builder.launch(store.clone())?,
    };
    messages.started();
    let event_logger = tokio::spawn(log_events(election.events(), messages.clone()));
    let election = Arc::new(election);
    let reporting = (&run_reporter, &messages);
    let mut sidecar = Sidecar::start(config, listener, &election, &store, &timing, reporting)?;
    let supervisor = TermSupervisor {
        work,
        run_reporter: run_reporter.clone(),
        instance: sidecar.instance().cloned(),
        election: &election,
        store: &*store,
        messages: &messages,
        stop_within: timing.stop_within,
        on_lead: config.service.on_lead.clone(),
        on_lose: config.service.on_lose.clone(),
        backoff: Backoff::default(),
        save_failures: Throttle::default(),
    };
    let (ended, leadership) = lead_terms(config, &supervisor, &mut signals).await;
    drop(supervisor);
    sidecar.stop_services();
    // Stop before the handle is dropped: a term without a handle would end for another reason.
    let stopped = election.stop();
    drop(leadership);
    let released = async { tokio::join!(stopped, sidecar.leave()) };
    let clock = Clock::boot();
    tokio::select! {
        _ = released => {}
        () = clock.sleep(RELEASE_TIMEOUT) => messages.not_released(),
    }
    // The task ends with the election, after it has logged the last event.
    drop(election);
    let _ = event_logger.await;
    ended
}

fn builder(config: &RunConfig<'_>) -> tenure::ElectionBuilder {
    let mut builder = Election::builder(config.name.as_str())
        .id(config.id.as_str())
        .options(config.options.clone())
        .priority(config.priority)
        .ends_with_process(config.ends_with_process());
    if let Some(health) = &config.service.health {
        let gate = config.service.gate();
        let (health, name, id) = (health.clone(), config.name.clone(), config.id.clone());
        builder = builder.health(gate, move || {
            let (health, name, id) = (health.clone(), name.clone(), id.clone());
            async move { health_check::run(&health, &name, &id).await }
        });
    }
    builder
}

/// The log format and level of a guard, which logs only a few lines.
pub(crate) fn guard_log(args: &Args) -> Log {
    Log {
        json: args.log_format == logs::LogFormat::Json,
        only_errors: logs::level(args) == LogLevel::Error,
    }
}

fn term_work(config: &RunConfig<'_>, store: &dyn Store, timing: &Timing) -> Result<TermWork> {
    let RunKind::Work { work, every } = &config.kind else { return Ok(TermWork::Serve) };
    let WorkArgs { task: TaskArgs { command, no_guard, .. }, schedule, once, .. } = work;
    let command_config = CommandConfig {
        command: command.clone(),
        store_url: supervise::store_url(&config.chosen_store.url, store),
        stop_within: timing.stop_within,
        on_lose: config.service.on_lose.clone(),
        log: guard_log(config.args),
        guarded: !no_guard,
    };
    let Some(times) = schedule.schedule(*every)? else {
        return Ok(TermWork::Command(command_config));
    };
    let idle_guard = CommandConfig { command: Vec::new(), ..command_config.clone() };
    let idle_guard = command_config.guarded.then_some(idle_guard);
    let task = match work.task.given()? {
        Some(GivenWork::Command(_)) => ScheduledTask::Command(command_config),
        Some(GivenWork::Get(url)) => ScheduledTask::Get(HttpPoll::new(url, work.task.timeout())?),
        Some(GivenWork::Mock) | None => ScheduledTask::Mock,
    };
    let started = Clock::boot().minting_micros() / 1_000;
    let policy = schedule.policy(once.then_some(started));
    Ok(TermWork::Scheduled(Box::new(ScheduledWork { schedule: times, policy, task, idle_guard })))
}

/// Leads one term after another, until there is a reason to exit. Returns the handle of a term whose work has ended by itself.
async fn lead_terms(
    config: &RunConfig<'_>,
    supervisor: &TermSupervisor<'_>,
    signals: &mut Signals,
) -> (Result<Exit>, Option<Leadership>) {
    let mut answered = false;
    loop {
        let leadership = tokio::select! {
            biased;
            _ = signals.end() => return (Ok(Exit::Done), None),
            leadership = next_leadership(supervisor.election) => leadership,
            given_up = give_up(config.wait(), supervisor, answered) => return (given_up, None),
        };
        let leadership = match leadership {
            // A panic must not drop it: the guard may still run the command then, and a term whose last handle is dropped is
            // released. The lease is left to the guard, or to its TTL.
            Ok(leadership) => ManuallyDrop::new(leadership),
            Err(error) => return (Err(error), None),
        };
        // A grant is an answer of the store.
        answered = true;
        let outcome = supervisor.term(&leadership, signals).await;
        let leadership = ManuallyDrop::into_inner(leadership);
        match outcome {
            TermOutcome::Ended(exit) => return (Ok(exit), Some(leadership)),
            TermOutcome::Failed(error) => return (Err(error), Some(leadership)),
            TermOutcome::Lost | TermOutcome::Paused(_) if config.once() => {
                return (Ok(Exit::LeadershipLost), Some(leadership));
            }
            TermOutcome::Lost => drop(leadership),
            TermOutcome::Paused(pause) => {
                drop(leadership);
                let clock = Clock::boot();
                tokio::select! {
                    biased;
                    _ = signals.end() => return (Ok(Exit::Done), None),
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

/// Returns when waiting longer makes no sense: either the store refuses this candidate before it has answered once, or `--wait`
/// has run out. A candidate that the store has `answered` before waits until the operator repairs the store, whether it has led
/// before or not.
async fn give_up(
    wait: Option<Duration>,
    supervisor: &TermSupervisor<'_>,
    answered: bool,
) -> Result<Exit> {
    let refused = async {
        if !answered {
            supervisor.election.answered().await?;
        }
        std::future::pending().await
    };
    let Some(wait) = wait else { return refused.await };
    let clock = Clock::boot();
    tokio::select! {
        refused = refused => return refused,
        () = clock.sleep(wait) => {}
    }
    let status = supervisor.election.status();
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
    supervisor.messages.warning(&format!("Gave up after --wait {wait}: {led}"));
    Ok(Exit::WaitedInVain)
}

/// Logs the first line: `tenure 0.1.0: poll:leader as node-1 on redis://127.0.0.1:6379/0 (from TENURE_STORE), TTL 4s, grade B`
pub(crate) async fn log_first_line(
    (name, id): (&Name, &CandidateId),
    chosen_store: &ChosenStore,
    store: &dyn Store,
    timing: &Timing,
    listener: Option<&Listener>,
) {
    let clock = Clock::boot();
    let grade = tokio::select! {
        report = store.examine() => report.map(|report| report.grade.to_string()).ok(),
        () = clock.sleep(EXAMINE_TIMEOUT) => None,
    };
    let grade = grade.unwrap_or_else(|| "not known yet".to_owned());
    let only = match store.limits().visibility {
        Visibility::Network => "",
        Visibility::Machine | Visibility::Process => ", this machine only",
    };
    let http =
        listener.map(|listener| format!(", http {}", listener.address())).unwrap_or_default();
    let (url, origin, ttl) = (store.url(), chosen_store.origin(), duration::shown(timing.ttl));
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(
        target: LINE_TARGET,
        candidate = %id,
        event = "first",
        "tenure {version}: {name} as {id} on {url} {origin}, TTL {ttl}, grade {grade}{only}{http}"
    );
}

/// Logs the events that are not logged where they happen.
async fn log_events(
    mut events: impl futures_util::Stream<Item = Event> + Unpin,
    messages: RunMessages,
) {
    // The reason why the previous term ended, if there was one.
    let (mut reason, mut answered) = (None, false);
    while let Some(event) = events.next().await {
        match event {
            // A store that refuses this candidate from the start ends the command, which logs the error itself.
            Event::StoreUnreachable(error)
                if error.kind() != ErrorKind::Unavailable && !answered => {}
            Event::LostLeadership { why: lost, .. } => reason = Some(lost),
            // A release of a lease that was held without leading is not logged.
            Event::Released { .. } => {
                if let Some(reason) = reason.take() {
                    messages.released(&reason);
                }
            }
            Event::Starting { wait, .. } => messages.starting(&wait),
            Event::LeaderChanged { to: Some(leader), .. } => messages.leads(&leader),
            Event::StoreUnreachable(error) => messages.unreachable(&error),
            Event::StoreBack => {
                answered = true;
                messages.back();
            }
            _ => answered = true,
        }
    }
}

fn reap_adopted_orphans() -> Result<impl Future<Output = ()>> {
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
