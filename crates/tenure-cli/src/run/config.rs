//! The validated settings of `tenure run` (with a name and work, or as a whole instance) and of `tenure serve`.

use std::ffi::OsString;
use std::time::Duration;

use tenure::timing::TimingOptions;
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

/// The default period of work that is not a command.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The default heartbeat period of a whole instance.
const INSTANCE_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
const DEFAULT_PORT: u16 = 3000;

/// The validated settings of one `tenure run` or `tenure serve`.
pub(super) struct RunConfig<'a> {
    pub(super) args: &'a Args,
    pub(super) name: Name,
    pub(super) id: CandidateId,
    pub(super) chosen_store: ChosenStore,
    pub(super) options: TimingOptions,
    pub(super) priority: i32,
    pub(super) service: &'a ServiceArgs,
    pub(super) kind: RunKind<'a>,
    /// Where the HTTP server listens if no option or setting says so.
    pub(super) listen: Option<Listen>,
    pub(super) heartbeat: Option<Duration>,
}

/// What the candidate does while it leads.
pub(super) enum RunKind<'a> {
    Work {
        work: &'a WorkArgs,
        every: Option<Duration>,
    },
    /// Only answers over HTTP.
    Serve {
        answer_for: Option<Duration>,
    },
}

impl RunConfig<'_> {
    /// The config of `tenure run`, or an exit code if its work can never run.
    pub(super) fn run<'a>(args: &'a Args, run: &'a RunArgs) -> Result<Result<RunConfig<'a>, Exit>> {
        let RunArgs { lease, timing, work, service } = run;
        let named = lease.name()?;
        let is_instance = named.is_none() && work.task.command.is_empty();
        if let Some(exit) = check_work(args, work, is_instance)? {
            return Ok(Err(exit));
        }
        let instance_env =
            if is_instance { InstanceEnv::read(args)? } else { InstanceEnv::default() };
        let name = match named {
            Some(name) => name.clone(),
            None if is_instance => instance_env.name()?,
            None => return Err(missing_name()),
        };
        let mut config =
            RunConfig::of(args, name, timing, service, instance_env.chosen_store(args)?)?;
        config.options.ttl = match config.options.ttl {
            None => instance_env.ttl()?,
            given => given,
        };
        let mut every = work.task.command.is_empty().then_some(DEFAULT_POLL_INTERVAL);
        if is_instance {
            every = Some(instance_env.every()?.unwrap_or(DEFAULT_POLL_INTERVAL));
            config.listen = Some(Listen::port(instance_env.port()?.unwrap_or(DEFAULT_PORT)));
            config.heartbeat = config.heartbeat.or(Some(INSTANCE_HEARTBEAT_INTERVAL));
        }
        // Validated here so that a mistake is reported before anything is started.
        work.schedule.schedule(every)?;
        if let Some(GivenWork::Get(url)) = work.task.given()? {
            HttpPoll::read(url)?;
        }
        config.kind = RunKind::Work { work, every };
        Ok(Ok(config))
    }

    /// The config of `tenure serve`.
    pub(super) fn serve<'a>(args: &'a Args, serve: &'a ServeArgs) -> Result<RunConfig<'a>> {
        let ServeArgs { lease, timing, service, answers } = serve;
        let name = lease.name()?.ok_or_else(missing_name)?.clone();
        let mut config = RunConfig::of(args, name, timing, service, ChosenStore::of(args)?)?;
        config.listen = Some(Listen::port(DEFAULT_PORT));
        config.kind = RunKind::Serve { answer_for: answers.answer_for };
        Ok(config)
    }

    fn of<'a>(
        args: &'a Args,
        name: Name,
        timing: &TimingArgs,
        service: &'a ServiceArgs,
        chosen_store: ChosenStore,
    ) -> Result<RunConfig<'a>> {
        check_periods(service)?;
        check_store_is_shared(&chosen_store)?;
        Ok(RunConfig {
            args,
            name,
            id: timing.node_id.clone().unwrap_or_else(CandidateId::generate),
            chosen_store,
            options: timing.options(),
            priority: timing.priority,
            service,
            kind: RunKind::Serve { answer_for: None },
            listen: None,
            heartbeat: service.heartbeat,
        })
    }

    /// How long to wait for leadership; `None` waits forever.
    pub(super) fn wait(&self) -> Option<Duration> {
        match &self.kind {
            RunKind::Work { work, .. } => work.wait,
            RunKind::Serve { .. } => None,
        }
    }

    pub(super) fn once(&self) -> bool {
        matches!(&self.kind, RunKind::Work { work, .. } if work.once)
    }

    /// The program of the command, if there is a command.
    pub(super) fn program(&self) -> Option<&OsString> {
        match &self.kind {
            RunKind::Work { work, .. } => work.task.command.first(),
            RunKind::Serve { .. } => None,
        }
    }

    /// Whether the command keeps running if this process dies, because no guard ends it.
    pub(super) fn unguarded(&self) -> bool {
        match &self.kind {
            RunKind::Work { work, .. } => work.task.no_guard && !work.task.command.is_empty(),
            RunKind::Serve { .. } => false,
        }
    }

    /// Whether the work ends with this process, so that the death of the process may free the lease as soon as the store
    /// detects it. What clients do with an answer of `serve` does not end with it.
    pub(super) fn ends_with_process(&self) -> bool {
        matches!(self.kind, RunKind::Work { .. }) && !self.unguarded()
    }
}

/// Refuses a store that only one process can see: every candidate would lead.
pub(crate) fn check_store_is_shared(chosen_store: &ChosenStore) -> Result<()> {
    chosen_store.refuse_private("so everybody would lead")
}

fn missing_name() -> Error {
    Error::invalid(
        "a lease needs a name: type 'tenure run NAME -- CMD', or give --lock-name or TENURE_LOCK_NAME",
    )
}

/// Refuses work that can never run, before this candidate campaigns for it.
fn check_work(args: &Args, work: &WorkArgs, is_instance: bool) -> Result<Option<Exit>> {
    match work.task.given()? {
        None if !is_instance => Err(Error::invalid(
            "nothing to run: type the command behind '--', as in 'tenure run NAME -- CMD', \
             or give --get URL, or --mock to see an election without any work",
        )),
        Some(GivenWork::Command([command, ..])) => Ok(report_unrunnable(args, command)),
        _ => Ok(None),
    }
}

/// Reports why this command can never run, if it cannot.
pub(crate) fn report_unrunnable(args: &Args, command: &OsString) -> Option<Exit> {
    if let Err(error) = proc_mount::check() {
        return Some(output::report_error_with_prefix(logs::prefix(args), &error, args.json));
    }
    let refusal = check_program(command).err()?;
    let prefix = if args.json { "" } else { logs::prefix(args) };
    output::print_error("invalid", &format!("{prefix}{}", refusal.sentence), args.json);
    Some(refusal.exit)
}

/// Refuses periods of zero, which would repeat without a pause.
pub(crate) fn check_periods(service: &ServiceArgs) -> Result<()> {
    let ServiceArgs { heartbeat, health_every, .. } = service;
    for (flag, period) in [("--heartbeat", *heartbeat), ("--health-every", Some(*health_every))] {
        if period == Some(Duration::ZERO) {
            return Err(Error::invalid(format!("{flag} must not be zero: give a period like 2s")));
        }
    }
    Ok(())
}
