//! `tenure fleet run`: reads the config of a fleet member, joins the fleet and runs the supervisor.
//!
//! The member takes its share of the shards, and runs a command, an HTTP poll or a mock for each.

use std::sync::Arc;
use std::time::Duration;

use tenure::timing::{Timing, TimingOptions};
use tenure::{CandidateId, Clock, Error, Fleet, Name, Result, supervise};

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
    check_periods, check_store_is_shared, guard_log, log_first_line, report_unrunnable, sidecar,
};
use crate::signals::Signals;
use crate::store_url::ChosenStore;

const DEFAULT_TTL: Duration = Duration::from_secs(30);
const ORPHAN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The validated settings of one `tenure fleet run`.
struct FleetConfig<'a> {
    args: &'a Args,
    run: &'a FleetRunArgs,
    name: Name,
    id: CandidateId,
    choice: ChosenStore,
    options: TimingOptions,
    task: FleetWork,
}

pub(crate) fn run(args: &Args, run: &FleetRunArgs) -> Result<Exit> {
    if let [command, ..] = &run.work.task.command[..]
        && let Some(exit) = report_unrunnable(args, command)
    {
        return Ok(exit);
    }
    let config = FleetConfig::read(args, run)?;
    let listener = sidecar::open_listener(args, &run.service.http, None)?;
    let runtime = crate::runtime()?;
    let exit = runtime.block_on(config.execute(listener));
    // A thread that is still blocked in a file system or name server call must not delay the exit.
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
        refuse_election_flags(run)?;
        if run.reread.is_zero() {
            return Err(Error::invalid("--reread must not be zero: give a period like 10s"));
        }
        let choice = ChosenStore::of(args)?;
        check_store_is_shared(&choice)?;
        let mut options = run.timing.options();
        options.ttl.get_or_insert(DEFAULT_TTL);
        let task = FleetWork::new(&run.work)?;
        // Report an invalid source before anything is started.
        run.source.source(&name, &choice.url)?;
        let id = run.timing.node_id.clone().unwrap_or_else(CandidateId::generate);
        Ok(FleetConfig { args, run, name, id, choice, options, task })
    }

    /// Whether a guard process watches this process.
    fn guarded(&self) -> bool {
        !self.run.work.task.no_guard
    }

    async fn execute(self, listener: Option<Listener>) -> Result<Exit> {
        // Catch signals before starting anything that a fatal signal would leave behind.
        let signals = Signals::catch()?;
        adopt_orphans().map_err(|error| Error::denied(format!("cannot adopt orphans: {error}")))?;
        tokio::spawn(reap_orphans()?);
        let store = tenure::open(&self.choice.url).await?;
        let timing = Timing::new(&self.options, &store.limits())?;
        let messages = FleetMessages::new(&self.id);
        let of = (&self.name, &self.id);
        log_first_line(of, &self.choice, &*store, &timing, listener.as_ref()).await;
        self.warn(&messages);
        let commands = matches!(self.task.kind, WorkKind::Command(_));
        let guard_config = (self.guarded() || commands).then(|| GuardClientConfig {
            store_url: supervise::store_url(&self.choice.url, &*store),
            fleet: self.name.clone(),
            member: self.id.clone(),
            stop_within: timing.stop_within,
            log: guard_log(self.args),
            guarded: self.guarded(),
        });
        let url = listener.as_ref().map(sidecar::url).unwrap_or_default();
        let fleet = Arc::new(self.builder()?.note(&url).launch(store.clone())?);
        messages.started();
        let supervisor =
            FleetSupervisor::new(fleet, store, messages, self.task, guard_config, timing)?;
        supervisor
            .with_heartbeat(self.run.service.heartbeat)
            .with_http(listener)?
            .work(signals)
            .await
    }

    fn builder(&self) -> Result<tenure::fleet::FleetBuilder> {
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

    fn warn(&self, messages: &FleetMessages) {
        if self.task.ignores_the_shard() {
            messages.warning(
                "{} stands nowhere in what is run, so it is the same for every shard: put it where the shard belongs \
                 (a command also finds it in TENURE_SHARD)",
            );
        }
        if let Some(shell) = self.task.shell_with_shard() {
            messages.warning(&format!(
                "{{}} is inside the code of '{shell} -c', so the name of a shard is run as shell code: write \
                 \"$TENURE_SHARD\" there instead"
            ));
        }
        if let (Some(wanted), Some(most)) = (self.run.work.concurrency, self.task.concurrency)
            && wanted > most
        {
            messages.warning(&format!(
                "--concurrency {wanted} needs more open files than this process may have (ulimit -n): {most} polls run at \
                 a time"
            ));
        }
        if let WorkKind::Command(command) = &self.task.kind
            && let Some(warning) = command.first().and_then(changes_user)
        {
            messages.warning(&warning);
        }
        if !self.guarded() && matches!(self.task.kind, WorkKind::Command(_)) {
            messages.warning(
                "--no-guard: if this process is frozen, its commands run on beside those of other members; if it is \
                 killed, whatever they have started does",
            );
        }
    }
}

/// Reaps orphans: processes that became children of this process, have ended, and have no owner in it (see
/// [`crate::process`]). An orphan is reaped when two checks in a row find it.
fn reap_orphans() -> Result<impl Future<Output = ()>> {
    let mut deaths =
        deaths().map_err(|error| Error::denied(format!("cannot watch over children: {error}")))?;
    Ok(async move {
        let clock = Clock::boot();
        let mut before = Vec::new();
        loop {
            if before.is_empty() && deaths.recv().await.is_none() {
                return;
            }
            clock.sleep(ORPHAN_CHECK_INTERVAL).await;
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

/// Refuses flags that `run` and `fleet run` share but that have no meaning in a fleet.
fn refuse_election_flags(run: &FleetRunArgs) -> Result<()> {
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
