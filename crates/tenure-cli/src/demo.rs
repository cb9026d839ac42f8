//! `tenure demo`: a few processes of ourselves, one leads and counts, and then things happen to it.

mod checker;
mod display;
pub(crate) mod fleet;
mod hints;
mod journal;
pub(crate) mod node;
mod node_http;
mod ports;
mod processes;
mod protocol;
mod report;
mod scenario;
mod summary;
mod temp_dir;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args as ClapArgs, ValueEnum};
use rustix::process::Signal;
use tenure::store::{Scope, Store};
use tenure::{Error, Name, Result};

use crate::args::Args;
use crate::exit::Exit;
use crate::store_url::ChosenStore;
use crate::{doctor, logs, output, shutdown};
use checker::{CheckResult, Faults};
use display::DemoOutput;
use processes::DemoProcesses;
use protocol::Plan;
use scenario::{FaultResult, Scenario, ScenarioStop};
use temp_dir::TempDir;

/// Short, so that nobody waits long for a frozen leader's lease to run out.
const TTL: Duration = Duration::from_secs(2);

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure demo
  tenure demo --nodes 5 --fault kill,kill,freeze
  tenure demo --store redis://127.0.0.1:6379 --json
  tenure demo --fleet                       thirty shards; a member is killed, one joins
  tenure demo --fleet --fault none --keep   to try 'tenure fleet' on, until Ctrl+C

It needs nothing and leaves nothing behind. The processes of an election answer on ports 3000,
3001, 3002 of this machine, or the next free ones: curl localhost:3000/status

Exit codes: 0 all is well, 1 two led, a count was lost or doubled, or nobody came to lead;
of a fleet: a shard was worked on twice at once, or shares did not become even.")]
pub(crate) struct DemoArgs {
    /// How many processes
    #[arg(long, value_name = "N", env = "TENURE_NODES", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=20))]
    nodes: u8,

    /// What happens to the leader, one after the other: SIGKILL, SIGTERM, SIGSTOP for a while [default:
    /// kill,term,freeze]; with --fleet only none
    #[arg(long, env = "TENURE_FAULT", value_delimiter = ',')]
    fault: Option<Vec<Fault>>,

    /// A fleet instead of an election: thirty shards; one member is killed, one joins, one leaves
    #[arg(long, env = "TENURE_FLEET", value_parser = BoolishValueParser::new())]
    fleet: bool,

    /// Keep the demo's directory, and say where it is; with --fleet keep it going until Ctrl+C
    #[arg(long, env = "TENURE_KEEP", value_parser = BoolishValueParser::new())]
    keep: bool,
}

/// What can happen to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    Kill,
    Term,
    Freeze,
    None,
}

/// What happens unless somebody says otherwise.
const FAULTS: [Fault; 3] = [Fault::Kill, Fault::Term, Fault::Freeze];

impl Fault {
    fn as_str(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::Term => "term",
            Fault::Freeze => "freeze",
            Fault::None => "none",
        }
    }

    fn signal(self) -> Signal {
        match self {
            Fault::Kill => Signal::KILL,
            Fault::Freeze => Signal::STOP,
            // `None` is taken out before anything starts.
            Fault::Term | Fault::None => Signal::TERM,
        }
    }

    /// As `kill` takes it.
    fn signal_name(self) -> &'static str {
        match self {
            Fault::Kill => "9",
            Fault::Freeze => "STOP",
            Fault::Term | Fault::None => "TERM",
        }
    }
}

/// Where the demo plays.
struct DemoConfig {
    /// With its password, if it has one: never shown.
    url: String,
    /// Where that came from.
    origin: String,
    store: Arc<dyn Store>,
    name: Name,
    ttl: Duration,
    /// The store was made for this demo and goes with it.
    private: bool,
}

impl DemoConfig {
    async fn of(args: &Args, scratch: &TempDir) -> Result<DemoConfig> {
        let choice = ChosenStore::of(args)?;
        if choice.url.starts_with("memory:") {
            return Err(Error::invalid(
                "'memory:' is seen by one process only, and the demo has several: give another store",
            ));
        }
        let private = choice.from.is_none();
        let (url, origin, name) = if private {
            let url = format!("file:{}", scratch.path().join("store").display());
            (url, "(private to this demo)".to_owned(), "demo".to_owned())
        } else {
            // On a store of somebody's own, a name that nobody has.
            (choice.url.clone(), choice.origin(), format!("demo-{}", temp_dir::random()))
        };
        let store = tenure::open(&url).await?;
        let ttl = TTL.max(store.limits().min_ttl);
        Ok(DemoConfig { url, origin, store, name: Name::new(&name)?, ttl, private })
    }

    /// The orders of the process with this number.
    fn plan(&self, number: usize, port: u16, journal: &Path) -> Plan {
        Plan {
            store: self.url.clone(),
            name: self.name.to_string(),
            id: format!("node-{number}"),
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
            journal: journal.to_owned(),
            port,
        }
    }
}

/// What the demo came to.
struct DemoOutcome {
    setting: DemoConfig,
    /// Who took part, and on which port it answers.
    nodes: Vec<(String, Option<u16>)>,
    scenes: Vec<(FaultResult, Faults)>,
    verdict: CheckResult,
    /// What kept it from its end.
    trouble: Option<String>,
}

impl DemoOutcome {
    fn is_well(&self) -> bool {
        let scene = |scene: &FaultResult| scene.gap.is_some() && scene.trouble.is_none();
        self.verdict.total().none()
            && self.trouble.is_none()
            && self.scenes.iter().all(|(it, _)| scene(it))
    }
}

pub(crate) fn run(args: &Args, demo: &DemoArgs) -> Result<Exit> {
    if demo.fleet {
        return fleet::run(args, demo);
    }
    let mut faults = demo.fault.clone().unwrap_or_else(|| FAULTS.to_vec());
    if faults.len() > 1 && faults.contains(&Fault::None) {
        return Err(Error::invalid("--fault none goes with no other fault"));
    }
    faults.retain(|fault| *fault != Fault::None);
    crate::runtime()?.block_on(async {
        // Before anything exists that would have to be cleaned up.
        let interrupted = shutdown::caught()?;
        let scratch = TempDir::new(demo.keep)?;
        let exit = stage(args, demo, &faults, &scratch, interrupted).await;
        if let Some(path) = scratch.kept().filter(|_| !args.json) {
            output::line(format!("Kept: {}", path.display()))?;
        }
        exit
    })
}

/// Puts the demo on and takes it down again, whatever happens in between.
async fn stage(
    args: &Args,
    demo: &DemoArgs,
    faults: &[Fault],
    scratch: &TempDir,
    interrupted: impl Future<Output = ()>,
) -> Result<Exit> {
    let setting = DemoConfig::of(args, scratch).await?;
    let show = DemoOutput { tells: !args.json && !args.quiet };
    let level = logs::level(args).as_str();
    let flags = ["--log-level", level, "--log-format", args.log_format.as_str()];
    let cast = DemoProcesses::new(flags.map(str::to_owned).to_vec());
    let mut stage = Scenario::new(cast, show, setting.ttl);
    let journal = scratch.path().join("journal");
    let played = async {
        // A store that is down is better known now than from three processes at once.
        let report = doctor::examine(&*setting.store).await.map_err(ScenarioStop::NoStore)?;
        let ports = ports::allot(usize::from(demo.nodes));
        show.say(report::opening(&setting, report.grade, &ports))?;
        for (number, port) in (1..).zip(ports) {
            stage.cast.start(setting.plan(number, port, &journal)).await?;
        }
        stage.play(faults).await
    };
    let played = tokio::select! {
        played = played => played,
        () = interrupted => Err(ScenarioStop::Interrupted),
    };
    stage.cast.end().await;
    let (trouble, kept) = match &played {
        Ok(()) => (None, Some(checkpoint(&setting).await?)),
        Err(ScenarioStop::NoStore(error)) => return Err(error.clone()),
        Err(ScenarioStop::Failed(error)) => (Some(format!("❌ {error}")), None),
        Err(ScenarioStop::Interrupted | ScenarioStop::OutputGone) => (None, None),
    };
    let verdict = checker::judge(&journal::read(&journal)?, kept);
    let node = |which| (stage.cast.id(which).to_owned(), stage.cast.port(which));
    let nodes = (0..stage.cast.len()).map(node).collect();
    let scenes = answered_for(stage.scenes, &verdict);
    let outcome = DemoOutcome { setting, nodes, scenes, verdict, trouble };
    report::close(args, &outcome, &played, scratch.kept())?;
    Ok(if outcome.is_well() { Exit::Done } else { Exit::No })
}

/// What the last leader left; nothing, or nonsense, where a count should be is a count of nothing.
async fn checkpoint(setting: &DemoConfig) -> Result<u64> {
    let lease = setting.store.observe(&Scope::name(&setting.name)).await?.pop().transpose()?;
    let checkpoint = lease.and_then(|lease| lease.checkpoint);
    Ok(checkpoint.as_ref().and_then(node_http::count).unwrap_or(0))
}

/// A fault answers for all terms from the one it ended to the one the next fault ends.
fn answered_for(scenes: Vec<FaultResult>, verdict: &CheckResult) -> Vec<(FaultResult, Faults)> {
    let mut ends: Vec<u64> = scenes.iter().skip(1).map(|scene| scene.token).collect();
    ends.push(u64::MAX);
    let answer = |(scene, until): (FaultResult, u64)| {
        let faults = verdict.between(scene.token, until);
        (scene, faults)
    };
    scenes.into_iter().zip(ends).map(answer).collect()
}
