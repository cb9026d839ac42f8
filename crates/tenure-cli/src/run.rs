//! `tenure run`: a command that runs only where this candidate leads.

mod lines;
mod mock;
mod options;
mod term;
mod ward;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tenure::election::Phase;
use tenure::timing::{Options, Timing};
use tenure::{CandidateId, Clock, Election, Error, Event, Kind, Name, Result, Store};

use crate::args::Args;
use crate::choice::Choice;
use crate::exit::Exit;
use crate::guard::{Hook, Log, adopt_orphans, check_program, deaths, reap_orphans};
use crate::logs::{self, LINE, Level};
use crate::signals::Signals;
use crate::{duration, output};

use lines::Lines;
pub(crate) use options::RunArgs;
use options::{ServiceArgs, TimingArgs};
use term::{After, Crew, Job};
use ward::Recipe;

/// The first line waits so long for the store to say what it promises.
const FIRST_LINE: Duration = Duration::from_millis(300);

pub(crate) fn run(args: &Args, run: &RunArgs) -> Result<Exit> {
    let name = name(run)?;
    if let Some(exit) = nothing_to_run(args, run)? {
        return Ok(exit);
    }
    check_periods(run)?;
    let choice = Choice::of(args)?;
    if choice.url.starts_with("memory:") {
        return Err(Error::invalid(
            "'memory:' is seen by one process only, so everybody would lead: give another store",
        ));
    }
    let runtime = crate::runtime()?;
    let exit = runtime.block_on(campaign(args, run, &name, &choice));
    // What still hangs in a file system or a name server must not keep us here.
    runtime.shutdown_background();
    exit
}

fn name(run: &RunArgs) -> Result<Name> {
    if run.name.is_some() && run.lock_name.is_some() {
        return Err(Error::invalid("NAME and --lock-name both name the lease: give one"));
    }
    run.name.clone().or_else(|| run.lock_name.clone()).ok_or_else(|| {
        Error::invalid(
            "a lease needs a name: type 'tenure run NAME -- CMD', or give --lock-name or TENURE_LOCK_NAME",
        )
    })
}

/// Refuses what can never run, before anybody campaigns for it.
fn nothing_to_run(args: &Args, run: &RunArgs) -> Result<Option<Exit>> {
    match (&*run.work.command, run.work.mock) {
        ([], false) => Err(Error::invalid(
            "nothing to run: type the command behind '--', as in 'tenure run NAME -- CMD', \
             or give --mock to see an election without one",
        )),
        ([_, ..], true) => {
            Err(Error::invalid("--mock and a command are two kinds of work: give one of them"))
        }
        ([command, ..], false) => Ok(check_program(command).err().map(|refusal| {
            let prefix = if args.json { "" } else { logs::prefix(args) };
            output::tell("invalid", &format!("{prefix}{}", refusal.sentence), args.json);
            refusal.exit
        })),
        ([], true) => Ok(None),
    }
}

/// What would be done over and over without a pause.
fn check_periods(run: &RunArgs) -> Result<()> {
    let ServiceArgs { heartbeat, health_every, .. } = &run.service;
    for (flag, period) in [("--heartbeat", *heartbeat), ("--health-every", Some(*health_every))] {
        if period == Some(Duration::ZERO) {
            return Err(Error::invalid(format!("{flag} must not be zero: give a period like 2s")));
        }
    }
    Ok(())
}

fn timing_options(timing: &TimingArgs) -> Options {
    Options {
        ttl: timing.lease_duration,
        renew_every: timing.renew_interval,
        retry: timing.retry_period,
        grace: timing.grace_period,
        margin: timing.margin,
        stop_within: timing.stop_within,
        drift_ppm: timing.drift,
    }
}

async fn campaign(args: &Args, run: &RunArgs, name: &Name, choice: &Choice) -> Result<Exit> {
    // Before anything is started that a signal would leave behind.
    let mut signals = Signals::catch()?;
    adopt_orphans().map_err(|error| Error::denied(format!("cannot adopt orphans: {error}")))?;
    tokio::spawn(reap_as_they_come()?);
    let store = tenure::open(&choice.url).await?;
    let timing = Timing::new(&timing_options(&run.timing), &store.limits())?;
    let id = run.timing.node_id.clone().unwrap_or_else(CandidateId::generate);
    let lines = Lines::new(&id);
    first_line(name, &id, choice, &*store, &timing).await;
    if run.work.no_guard && !run.work.command.is_empty() {
        lines.trouble(
            "--no-guard: if this process is killed or frozen, the command runs on beside the next leader",
        );
    }
    let builder = builder(run, name, &id);
    // Told to try once, it does not wait for a store that is down.
    let election = match run.work.wait {
        Some(Duration::ZERO) => builder.try_start(store.clone()).await?,
        _ => builder.launch(store.clone())?,
    };
    lines.started();
    let chatter = tokio::spawn(chat(election.events(), lines.clone()));
    let election = Arc::new(election);
    let heart = run
        .service
        .heartbeat
        .map(|every| tokio::spawn(beat(Arc::clone(&election), lines.clone(), every)));
    let crew = Crew {
        job: job(args, run, choice, &*store, &timing),
        election: &election,
        store: &*store,
        lines: &lines,
        stop_within: timing.stop_within,
    };
    let ended = take_turns(run, &crew, &mut signals).await;
    if let Some(heart) = heart {
        heart.abort();
    }
    election.stop().await;
    // It ends with the election, when the last event has been told.
    drop(crew);
    drop(election);
    let _ = chatter.await;
    ended
}

fn builder(run: &RunArgs, name: &Name, id: &CandidateId) -> tenure::Builder {
    let options = timing_options(&run.timing);
    let mut builder = Election::builder(name.as_str())
        .id(id.as_str())
        .options(options)
        .priority(run.timing.priority)
        // The command ends with the guard, and mock polls with us. What is started without a guard ends with nobody.
        .ends_with_process(!run.work.no_guard || run.work.mock);
    if let Some(health) = &run.service.health {
        let gate = run.service.gate();
        let (health, name, id) = (health.clone(), name.clone(), id.clone());
        builder = builder.health(gate, move || {
            Hook::new(&health, &name, &id, None).quiet_within(gate.every).run()
        });
    }
    builder
}

/// What the guard opens: the very directory that we use, and not a new one where that was moved away from.
fn guards_url(choice: &Choice, store: &dyn Store) -> String {
    if !choice.url.starts_with("file:") {
        return choice.url.clone();
    }
    let url = store.url();
    let and = if url.contains('?') { '&' } else { '?' };
    format!("{url}{and}create=0")
}

fn job(args: &Args, run: &RunArgs, choice: &Choice, store: &dyn Store, timing: &Timing) -> Job {
    if run.work.mock {
        return Job::Mock { on_lose: run.service.on_lose.clone() };
    }
    Job::Command(Recipe {
        command: run.work.command.clone(),
        store_url: guards_url(choice, store),
        stop_within: timing.stop_within,
        on_lose: run.service.on_lose.clone(),
        log: match (logs::level(args), args.log_format) {
            (Level::Error, _) => Log::Silent,
            (_, logs::Format::Text) => Log::Text,
            (_, logs::Format::Json) => Log::Json,
        },
        guarded: !run.work.no_guard,
    })
}

/// Leads whenever it is this candidate's turn, until there is a reason to end.
async fn take_turns(run: &RunArgs, crew: &Crew<'_>, signals: &mut Signals) -> Result<Exit> {
    loop {
        let leadership = tokio::select! {
            biased;
            _ = signals.end() => return Ok(Exit::Done),
            leadership = crew.election.leadership() => leadership,
            given_up = give_up(run.work.wait, crew) => return given_up,
        };
        let Some(leadership) = leadership else { return Ok(Exit::Done) };
        match crew.term(leadership, signals).await {
            After::Ended(exit) => return Ok(exit),
            After::Lost if run.work.once => return Ok(Exit::LeadershipLost),
            After::Lost => {}
        }
    }
}

/// Returns when waiting any longer makes no sense: the store refuses us, or `--wait` has run out.
async fn give_up(wait: Option<Duration>, crew: &Crew<'_>) -> Result<Exit> {
    let answered = crew.election.answered();
    let Some(wait) = wait else {
        answered.await?;
        return std::future::pending().await;
    };
    let clock = Clock::boot();
    tokio::select! {
        refused = async { answered.await?; std::future::pending().await } => return refused,
        () = clock.sleep(wait) => {}
    }
    let status = crew.election.status();
    if status.store_reachable != Some(true) {
        let why = status.last_error.map_or("no answer".to_owned(), |error| error.to_string());
        let wait = duration::shown(wait);
        return Err(Error::unavailable(format!("gave up after --wait {wait}: {why}")));
    }
    let led = match (status.state, status.current_leader) {
        (Phase::Acquiring, _) => {
            "held it without leading, because somebody else may still be at work".to_owned()
        }
        (_, Some(by)) => format!("{by} leads"),
        (_, None) => "nobody leads yet".to_owned(),
    };
    let wait = duration::shown(wait);
    crew.lines.trouble(&format!("Gave up after --wait {wait}: {led}"));
    Ok(Exit::WaitedInVain)
}

/// `tenure 0.1.0: poll:leader as node-1 on redis://127.0.0.1:6379/0 (from TENURE_STORE), TTL 4s, grade B`
async fn first_line(
    name: &Name,
    id: &CandidateId,
    choice: &Choice,
    store: &dyn Store,
    timing: &Timing,
) {
    let limits = store.limits();
    let clock = Clock::boot();
    let grade = tokio::select! {
        report = store.examine() => report.map(|report| report.grade.to_string()).ok(),
        () = clock.sleep(FIRST_LINE) => None,
    };
    let grade = grade.unwrap_or_else(|| "not known yet".to_owned());
    let only = if limits.shared { "" } else { ", this machine only" };
    let (url, origin, ttl) = (store.url(), choice.origin(), duration::shown(timing.ttl));
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(
        target: LINE,
        candidate = %id,
        event = "first",
        "tenure {version}: {name} as {id} on {url} {origin}, TTL {ttl}, grade {grade}{only}"
    );
}

/// Tells of what is not told where it happens.
async fn chat(mut events: impl futures_util::Stream<Item = Event> + Unpin, lines: Lines) {
    // Why the term before ended, if there was one.
    let (mut why, mut answered) = (None, false);
    while let Some(event) = events.next().await {
        match event {
            // A store that refuses us from the first is the end, and told there.
            Event::StoreUnreachable(error) if error.kind() != Kind::Unavailable && !answered => {}
            Event::LostLeadership { why: lost, .. } => why = Some(lost),
            // What was held without leading is nobody's concern.
            Event::Released { .. } => {
                if let Some(why) = why.take() {
                    lines.released(&why);
                }
            }
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

async fn beat(election: Arc<Election>, lines: Lines, every: Duration) {
    let clock = Clock::boot();
    let mut next = clock.now() + every;
    loop {
        clock.sleep_until(next).await;
        lines.beat(election.is_leader());
        next = next.max(clock.now().before(every)) + every;
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
