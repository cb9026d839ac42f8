//! `tenure demo`: several processes of this program elect a leader, which counts; then faults happen to the leader.

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
use tenure::store::{Store, StoreExt as _};
use tenure::{Error, Name, Result};

use crate::args::Args;
use crate::exit::Exit;
use crate::store_url::ChosenStore;
use crate::{doctor, logs, output, shutdown};
use checker::{CheckResult, Violations};
use display::DemoOutput;
use processes::DemoProcesses;
use protocol::NodeConfig;
use scenario::{FaultResult, Scenario, ScenarioStop};
use temp_dir::TempDir;

/// Short, so that a frozen leader's lease expires soon.
const DEMO_TTL: Duration = Duration::from_secs(2);

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
    fault: Option<Vec<DemoFault>>,

    /// A fleet instead of an election: thirty shards; one member is killed, one joins, one leaves
    #[arg(long, env = "TENURE_FLEET", value_parser = BoolishValueParser::new())]
    fleet: bool,

    /// Keep the demo's directory, and say where it is; with --fleet keep it going until Ctrl+C
    #[arg(long, env = "TENURE_KEEP", value_parser = BoolishValueParser::new())]
    keep: bool,
}

/// What can happen to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoFault {
    Kill,
    Term,
    Freeze,
    None,
}

/// The default faults.
const DEFAULT_FAULTS: [DemoFault; 3] = [DemoFault::Kill, DemoFault::Term, DemoFault::Freeze];

impl DemoFault {
    fn as_str(self) -> &'static str {
        match self {
            DemoFault::Kill => "kill",
            DemoFault::Term => "term",
            DemoFault::Freeze => "freeze",
            DemoFault::None => "none",
        }
    }

    fn signal(self) -> Signal {
        match self {
            DemoFault::Kill => Signal::KILL,
            DemoFault::Freeze => Signal::STOP,
            // `None` is removed before anything starts.
            DemoFault::Term | DemoFault::None => Signal::TERM,
        }
    }

    /// The signal as an argument of kill(1).
    fn signal_name(self) -> &'static str {
        match self {
            DemoFault::Kill => "9",
            DemoFault::Freeze => "STOP",
            DemoFault::Term | DemoFault::None => "TERM",
        }
    }
}

/// The store and the lease of a demo.
struct DemoConfig {
    /// The store's URL, with its password if it has one: never shown.
    url: String,
    /// Where the URL came from.
    origin: String,
    store: Arc<dyn Store>,
    name: Name,
    ttl: Duration,
    /// The store was created for this demo and is removed with it.
    private: bool,
}

impl DemoConfig {
    async fn of(args: &Args, temp_dir: &TempDir) -> Result<DemoConfig> {
        let choice = ChosenStore::of(args)?;
        choice.refuse_private("and the demo has several")?;
        let private = choice.from.is_none();
        let (url, origin, name) = if private {
            let url = tenure::store::file_url(&temp_dir.path().join("store"))?;
            (url, "(private to this demo)".to_owned(), "demo".to_owned())
        } else {
            // On a user's store, use a name that is not in use.
            (choice.url.clone(), choice.origin(), format!("demo-{}", temp_dir::random_suffix()))
        };
        let store = tenure::open(&url).await?;
        let ttl = DEMO_TTL.max(store.limits().min_ttl);
        Ok(DemoConfig { url, origin, store, name: Name::new(&name)?, ttl, private })
    }

    /// The config of the process with this number.
    fn node_config(&self, number: usize, port: u16, journal: &Path) -> NodeConfig {
        NodeConfig {
            store: self.url.clone(),
            name: self.name.to_string(),
            id: format!("node-{number}"),
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
            journal: journal.to_owned(),
            port,
        }
    }
}

/// The outcome of a demo.
struct DemoOutcome {
    config: DemoConfig,
    /// The id and the HTTP port of each process.
    nodes: Vec<(String, Option<u16>)>,
    fault_results: Vec<(FaultResult, Violations)>,
    verdict: CheckResult,
    /// The error that ended the demo early.
    error: Option<String>,
}

impl DemoOutcome {
    fn is_success(&self) -> bool {
        let recovered = |fault_result: &FaultResult| {
            fault_result.gap.is_some() && fault_result.problem.is_none()
        };
        self.verdict.total().none()
            && self.error.is_none()
            && self.fault_results.iter().all(|(fault_result, _)| recovered(fault_result))
    }
}

pub(crate) fn run(args: &Args, demo: &DemoArgs) -> Result<Exit> {
    if demo.fleet {
        return fleet::run(args, demo);
    }
    let mut faults = demo.fault.clone().unwrap_or_else(|| DEFAULT_FAULTS.to_vec());
    if faults.len() > 1 && faults.contains(&DemoFault::None) {
        return Err(Error::invalid("--fault none goes with no other fault"));
    }
    faults.retain(|fault| *fault != DemoFault::None);
    crate::runtime()?.block_on(async {
        // Catch signals before anything exists that has to be cleaned up.
        let interrupted = shutdown::stop_signal()?;
        let temp_dir = TempDir::new(demo.keep)?;
        let exit = run_scenario(args, demo, &faults, &temp_dir, interrupted).await;
        if let Some(path) = temp_dir.kept().filter(|_| !args.json) {
            output::line(format!("Kept: {}", path.display()))?;
        }
        exit
    })
}

/// Runs the demo and cleans up after it, also after an error or an interrupt.
async fn run_scenario(
    args: &Args,
    demo: &DemoArgs,
    faults: &[DemoFault],
    temp_dir: &TempDir,
    interrupted: impl Future<Output = ()>,
) -> Result<Exit> {
    let config = DemoConfig::of(args, temp_dir).await?;
    let output = DemoOutput { enabled: !args.json && !args.quiet };
    let level = logs::level(args).as_str();
    let flags = ["--log-level", level, "--log-format", args.log_format.as_str()];
    let processes = DemoProcesses::new(flags.map(str::to_owned).to_vec());
    let mut scenario = Scenario::new(processes, output, config.ttl);
    let journal = temp_dir.path().join("journal");
    let run_result = async {
        // Report a store that is down here, once, and not from three processes.
        let report = doctor::examine(&*config.store).await.map_err(ScenarioStop::NoStore)?;
        let ports = ports::choose(usize::from(demo.nodes));
        output.say(report::opening(&config, report.grade, &ports))?;
        for (number, port) in (1..).zip(ports) {
            scenario.processes.start(config.node_config(number, port, &journal)).await?;
        }
        scenario.play(faults).await
    };
    let run_result = tokio::select! {
        run_result = run_result => run_result,
        () = interrupted => Err(ScenarioStop::Interrupted),
    };
    scenario.processes.kill_all().await;
    let (error, saved_count) = match &run_result {
        Ok(()) => (None, Some(checkpoint(&config).await?)),
        Err(ScenarioStop::NoStore(error)) => return Err(error.clone()),
        Err(ScenarioStop::Failed(error)) => (Some(format!("❌ {error}")), None),
        Err(ScenarioStop::Interrupted | ScenarioStop::OutputGone) => (None, None),
    };
    let verdict = checker::check(&journal::read(&journal)?, saved_count);
    let node = |which| (scenario.processes.id(which).to_owned(), scenario.processes.port(which));
    let nodes = (0..scenario.processes.len()).map(node).collect();
    let fault_results = attribute_violations(scenario.fault_results, &verdict);
    let outcome = DemoOutcome { config, nodes, fault_results, verdict, error };
    report::close(args, &outcome, &run_result, temp_dir.kept())?;
    Ok(if outcome.is_success() { Exit::Done } else { Exit::No })
}

/// The count in the last leader's checkpoint; 0 if there is no checkpoint or it is not a count.
async fn checkpoint(config: &DemoConfig) -> Result<u64> {
    let lease = config.store.observe_one(&config.name).await?;
    let checkpoint = lease.and_then(|lease| lease.checkpoint);
    Ok(checkpoint.as_ref().and_then(node_http::count).unwrap_or(0))
}

/// Attributes violations to faults: a fault accounts for all terms after the term that it ended, up to the term that the
/// next fault ends.
fn attribute_violations(
    fault_results: Vec<FaultResult>,
    verdict: &CheckResult,
) -> Vec<(FaultResult, Violations)> {
    let mut ends: Vec<u64> =
        fault_results.iter().skip(1).map(|fault_result| fault_result.token).collect();
    ends.push(u64::MAX);
    let attribute = |(fault_result, until): (FaultResult, u64)| {
        let faults = verdict.between(fault_result.token, until);
        (fault_result, faults)
    };
    fault_results.into_iter().zip(ends).map(attribute).collect()
}
