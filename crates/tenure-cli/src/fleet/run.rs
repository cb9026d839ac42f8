//! `tenure fleet run`: this member's share of the shards, and a command, a poll or nothing for each.

use std::sync::Arc;
use std::time::Duration;

use tenure::timing::{Options, Timing};
use tenure::{CandidateId, Clock, Error, Fleet, Name, Result};

use super::messages::FleetMessages;
use super::options::FleetRunArgs;
use super::supervisor::FleetSupervisor;
use super::work::{FleetWork, WorkKind};
use crate::args::Args;
use crate::exit::Exit;
use crate::guard::{GuardClientConfig, adopt_orphans, changes_user, deaths, ended_orphans, reap};
use crate::health_check;
use crate::http::Listener;
use crate::messages::CommonMessages as _;
use crate::run::{
    cannot_run, check_periods, check_shared, first_line, guards_log, guards_url, sidecar,
};
use crate::signals::Signals;
use crate::store_url::ChosenStore;

const TTL: Duration = Duration::from_secs(30);
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// What is to be done.
struct FleetConfig<'a> {
    args: &'a Args,
    run: &'a FleetRunArgs,
    name: Name,
    id: CandidateId,
    choice: ChosenStore,
    options: Options,
    task: FleetWork,
}

pub(crate) fn run(args: &Args, run: &FleetRunArgs) -> Result<Exit> {
    if let [command, ..] = &run.work.task.command[..]
        && let Some(exit) = cannot_run(args, command)
    {
        return Ok(exit);
    }
    let plan = FleetConfig::read(args, run)?;
    let door = sidecar::door(args, &run.service.http, None)?;
    let runtime = crate::runtime()?;
    let exit = runtime.block_on(plan.carry_out(door));
    // What still hangs in a file system or a name server must not keep us here.
    runtime.shutdown_background();
    exit
}

impl FleetConfig<'_> {
    fn read<'a>(args: &'a Args, run: &'a FleetRunArgs) -> Result<FleetConfig<'a>> {
        let name = match (&run.name, &run.lock_name) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid("NAME and --lock-name both name the fleet: give one"));
            }
            (Some(name), None) | (None, Some(name)) => name.clone(),
            (None, None) => {
                return Err(Error::invalid(
                    "a fleet needs a name: type 'tenure fleet run NAME -- CMD {}', or give --lock-name",
                ));
            }
        };
        check_periods(&run.service)?;
        only_in_elections(run)?;
        if run.reread.is_zero() {
            return Err(Error::invalid("--reread must not be zero: give a period like 10s"));
        }
        let choice = ChosenStore::of(args)?;
        check_shared(&choice)?;
        let mut options = run.timing.options();
        options.ttl.get_or_insert(TTL);
        let task = FleetWork::new(&run.work)?;
        // Found before anything is tried.
        run.source.source(&name, &choice.url)?;
        let id = run.timing.node_id.clone().unwrap_or_else(CandidateId::generate);
        Ok(FleetConfig { args, run, name, id, choice, options, task })
    }

    /// Whether a process of its own watches over us.
    fn guarded(&self) -> bool {
        !self.run.work.task.no_guard
    }

    async fn carry_out(self, door: Option<Listener>) -> Result<Exit> {
        // Before anything is started that a signal would leave behind.
        let signals = Signals::catch()?;
        adopt_orphans().map_err(|error| Error::denied(format!("cannot adopt orphans: {error}")))?;
        tokio::spawn(reap_what_is_left()?);
        let store = tenure::open(&self.choice.url).await?;
        let timing = Timing::new(&self.options, &store.limits())?;
        let lines = FleetMessages::new(&self.id);
        let of = (&self.name, &self.id);
        first_line(of, &self.choice, &*store, &timing, door.as_ref()).await;
        self.warn(&lines);
        let commands = matches!(self.task.kind, WorkKind::Command(_));
        let duty = (self.guarded() || commands).then(|| GuardClientConfig {
            store_url: guards_url(&self.choice, &*store),
            fleet: self.name.clone(),
            member: self.id.clone(),
            stop_within: timing.stop_within,
            log: guards_log(self.args),
            guarded: self.guarded(),
        });
        let url = door.as_ref().map(sidecar::url).unwrap_or_default();
        let fleet = Arc::new(self.builder()?.note(&url).launch(store.clone())?);
        lines.started();
        let crew = FleetSupervisor::new(fleet, store, lines, self.task, duty, timing)?;
        crew.beating(self.run.service.heartbeat).answering(door)?.work(signals).await
    }

    fn builder(&self) -> Result<tenure::fleet::Builder> {
        let unguarded = !self.guarded() && matches!(self.task.kind, WorkKind::Command(_));
        let mut builder = Fleet::builder(self.name.as_str())
            .member(self.id.as_str())
            .shards(self.run.source.source(&self.name, &self.choice.url)?)
            .reread(self.run.reread)
            .options(self.options.clone())
            .ends_with_process(!unguarded);
        if let Some(health) = &self.run.service.health {
            let gate = self.run.service.gate();
            let (health, name, id) = (health.clone(), self.name.clone(), self.id.clone());
            builder = builder.health(gate, move || {
                let (health, name, id) = (health.clone(), name.clone(), id.clone());
                async move { health_check::run(&health, &name, &id).await }
            });
        }
        Ok(builder)
    }

    fn warn(&self, lines: &FleetMessages) {
        if self.task.forgets_the_shard() {
            lines.trouble(
                "{} stands nowhere in what is run, so it is the same for every shard: put it where the shard belongs \
                 (a command also finds it in TENURE_SHARD)",
            );
        }
        if let Some(shell) = self.task.shell_with_shard() {
            lines.trouble(&format!(
                "{{}} is inside the code of '{shell} -c', so the name of a shard is run as shell code: write \
                 \"$TENURE_SHARD\" there instead"
            ));
        }
        if let (Some(wanted), Some(most)) = (self.run.work.concurrency, self.task.concurrency)
            && wanted > most
        {
            lines.trouble(&format!(
                "--concurrency {wanted} needs more open files than this process may have (ulimit -n): {most} polls run at \
                 a time"
            ));
        }
        if let WorkKind::Command(command) = &self.task.kind
            && let Some(warning) = command.first().and_then(changes_user)
        {
            lines.trouble(&warning);
        }
        if !self.guarded() && matches!(self.task.kind, WorkKind::Command(_)) {
            lines.trouble(
                "--no-guard: if this process is frozen, its commands run on beside those of other members; if it is \
                 killed, whatever they have started does",
            );
        }
    }
}

/// Reaps what became our child, has ended, and has no owner in this process (see [`tenure::process`]).
fn reap_what_is_left() -> Result<impl Future<Output = ()>> {
    let mut deaths =
        deaths().map_err(|error| Error::denied(format!("cannot watch over children: {error}")))?;
    Ok(async move {
        let clock = Clock::boot();
        let mut before = Vec::new();
        loop {
            if before.is_empty() && deaths.recv().await.is_none() {
                return;
            }
            clock.sleep(SECOND_LOOK).await;
            let mut ended = ended_orphans();
            ended.retain(|pid| {
                let again = before.contains(pid);
                if again {
                    reap(*pid);
                }
                !again
            });
            before = ended;
        }
    })
}

/// Flags that fleet and election share, and that mean nothing here.
fn only_in_elections(run: &FleetRunArgs) -> Result<()> {
    let service = &run.service;
    let refused = |flag: &str, instead: &str| {
        Err(Error::invalid(format!("{flag} belongs to 'tenure run': {instead}")))
    };
    if service.on_lead.is_some() || service.on_lose.is_some() {
        let instead = "in a fleet the command itself begins and ends with each shard";
        return refused("--on-lead or --on-lose", instead);
    }
    if service.no_presence {
        return refused("--no-presence", "a member that nobody sees gets no shards");
    }
    if run.timing.priority != 0 {
        return refused("--priority", "in a fleet everybody has the same share");
    }
    Ok(())
}
