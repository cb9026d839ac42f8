//! What is to be done, read off the command line: for `run`, for a whole instance, for `serve`.

use std::ffi::OsString;
use std::time::Duration;

use tenure::timing::Options;
use tenure::{CandidateId, Error, Name, Result};

use super::http_poll::HttpPoll;
use super::instance_env::InstanceEnv;
use super::options::{GivenWork, RunArgs, ServeArgs, ServiceArgs, TimingArgs, WorkArgs};
use crate::args::Args;
use crate::exit::Exit;
use crate::guard::{check_program, proc_mount};
use crate::http::Listen;
use crate::store_url::ChosenStore;
use crate::{logs, output};

/// How often work that is not a command is done, unless told otherwise.
const POLL_EVERY: Duration = Duration::from_secs(5);
/// How often a whole instance tells where it stands.
const HEARTBEAT: Duration = Duration::from_secs(5);
const PORT: u16 = 3000;

/// What is to be done.
pub(super) struct RunConfig<'a> {
    pub(super) args: &'a Args,
    pub(super) name: Name,
    pub(super) id: CandidateId,
    pub(super) choice: ChosenStore,
    pub(super) options: Options,
    pub(super) priority: i32,
    pub(super) service: &'a ServiceArgs,
    pub(super) kind: RunKind<'a>,
    /// Where HTTP is answered if nobody says so.
    pub(super) listen: Option<Listen>,
    pub(super) heartbeat: Option<Duration>,
}

/// What is done while leading.
pub(super) enum RunKind<'a> {
    Work {
        work: &'a WorkArgs,
        every: Option<Duration>,
    },
    /// Nothing but answers.
    Serve {
        answer_for: Option<Duration>,
    },
}

impl RunConfig<'_> {
    /// `tenure run`; or an exit code, where what is to be run cannot be.
    pub(super) fn run<'a>(args: &'a Args, run: &'a RunArgs) -> Result<Result<RunConfig<'a>, Exit>> {
        let RunArgs { lease, timing, work, service } = run;
        let named = lease.name()?;
        let whole = named.is_none() && work.task.command.is_empty();
        if let Some(exit) = nothing_to_run(args, work, whole)? {
            return Ok(Err(exit));
        }
        let names = if whole { InstanceEnv::read(args)? } else { InstanceEnv::default() };
        let name = match named {
            Some(name) => name.clone(),
            None if whole => names.name()?,
            None => return Err(nameless()),
        };
        let mut plan = RunConfig::of(args, name, timing, service, names.choice(args)?)?;
        plan.options.ttl = match plan.options.ttl {
            None => names.ttl()?,
            given => given,
        };
        let mut every = work.task.command.is_empty().then_some(POLL_EVERY);
        if whole {
            every = Some(names.every()?.unwrap_or(POLL_EVERY));
            plan.listen = Some(Listen::port(names.port()?.unwrap_or(PORT)));
            plan.heartbeat = plan.heartbeat.or(Some(HEARTBEAT));
        }
        // Found before anything is tried.
        work.schedule.schedule(every)?;
        if let Some(GivenWork::Get(url)) = work.task.given()? {
            HttpPoll::read(url)?;
        }
        plan.kind = RunKind::Work { work, every };
        Ok(Ok(plan))
    }

    /// `tenure serve`.
    pub(super) fn serve<'a>(args: &'a Args, serve: &'a ServeArgs) -> Result<RunConfig<'a>> {
        let ServeArgs { lease, timing, service, answers } = serve;
        let name = lease.name()?.ok_or_else(nameless)?.clone();
        let mut plan = RunConfig::of(args, name, timing, service, ChosenStore::of(args)?)?;
        plan.listen = Some(Listen::port(PORT));
        plan.kind = RunKind::Serve { answer_for: answers.answer_for };
        Ok(plan)
    }

    fn of<'a>(
        args: &'a Args,
        name: Name,
        timing: &TimingArgs,
        service: &'a ServiceArgs,
        choice: ChosenStore,
    ) -> Result<RunConfig<'a>> {
        check_periods(service)?;
        check_shared(&choice)?;
        Ok(RunConfig {
            args,
            name,
            id: timing.node_id.clone().unwrap_or_else(CandidateId::generate),
            choice,
            options: timing.options(),
            priority: timing.priority,
            service,
            kind: RunKind::Serve { answer_for: None },
            listen: None,
            heartbeat: service.heartbeat,
        })
    }

    /// How long to wait for leadership, if not for ever.
    pub(super) fn wait(&self) -> Option<Duration> {
        match &self.kind {
            RunKind::Work { work, .. } => work.wait,
            RunKind::Serve { .. } => None,
        }
    }

    pub(super) fn once(&self) -> bool {
        matches!(&self.kind, RunKind::Work { work, .. } if work.once)
    }

    /// The program that is run, if one is.
    pub(super) fn program(&self) -> Option<&OsString> {
        match &self.kind {
            RunKind::Work { work, .. } => work.task.command.first(),
            RunKind::Serve { .. } => None,
        }
    }

    /// A command runs on when we die, and nobody ends it.
    pub(super) fn unguarded(&self) -> bool {
        match &self.kind {
            RunKind::Work { work, .. } => work.task.no_guard && !work.task.command.is_empty(),
            RunKind::Serve { .. } => false,
        }
    }

    /// The work is over when this process is: so its death may free the lease where it is seen. What others do with
    /// an answer of `serve` is not.
    pub(super) fn ends_with_process(&self) -> bool {
        matches!(self.kind, RunKind::Work { .. }) && !self.unguarded()
    }
}

/// What one process alone sees makes everybody lead.
pub(crate) fn check_shared(choice: &ChosenStore) -> Result<()> {
    if choice.url.starts_with("memory:") {
        return Err(Error::invalid(
            "'memory:' is seen by one process only, so everybody would lead: give another store",
        ));
    }
    Ok(())
}

fn nameless() -> Error {
    Error::invalid(
        "a lease needs a name: type 'tenure run NAME -- CMD', or give --lock-name or TENURE_LOCK_NAME",
    )
}

/// Refuses what can never run, before anybody campaigns for it.
fn nothing_to_run(args: &Args, work: &WorkArgs, whole: bool) -> Result<Option<Exit>> {
    match work.task.given()? {
        None if !whole => Err(Error::invalid(
            "nothing to run: type the command behind '--', as in 'tenure run NAME -- CMD', \
             or give --get URL, or --mock to see an election without any work",
        )),
        Some(GivenWork::Command([command, ..])) => Ok(cannot_run(args, command)),
        _ => Ok(None),
    }
}

/// Says why this command can never run, if it cannot.
pub(crate) fn cannot_run(args: &Args, command: &OsString) -> Option<Exit> {
    if let Err(error) = proc_mount::check() {
        return Some(output::failed_beside(logs::prefix(args), &error, args.json));
    }
    let refusal = check_program(command).err()?;
    let prefix = if args.json { "" } else { logs::prefix(args) };
    output::tell("invalid", &format!("{prefix}{}", refusal.sentence), args.json);
    Some(refusal.exit)
}

/// What would be done over and over without a pause.
pub(crate) fn check_periods(service: &ServiceArgs) -> Result<()> {
    let ServiceArgs { heartbeat, health_every, .. } = service;
    for (flag, period) in [("--heartbeat", *heartbeat), ("--health-every", Some(*health_every))] {
        if period == Some(Duration::ZERO) {
            return Err(Error::invalid(format!("{flag} must not be zero: give a period like 2s")));
        }
    }
    Ok(())
}
