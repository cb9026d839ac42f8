//! `tenure demo --fleet`: real `tenure fleet run` processes share thirty shards; one is killed, one joins, one leaves.

mod chart;
mod checker;
pub(crate) mod member_process;
mod members;
mod report;
mod scenario;
pub(crate) mod worker;

use std::fs;
use std::path::Path;

use tenure::fleet::Shard;
use tenure::{Error, Result};

use super::scenario::ScenarioStop;
use super::temp_dir::TempDir;
use super::{DemoArgs, DemoConfig, DemoFault};
use crate::args::Args;
use crate::exit::Exit;
use crate::{doctor, logs, shutdown};
use chart::FleetChart;
use checker::{FleetCheckResult, ShardFinding};
use members::{DemoMemberConfig, DemoMembers};
use scenario::{FleetFault, FleetFaultResult, FleetScenario};

const SHARDS: usize = 30;

/// The outcome of a fleet demo.
struct FleetDemoOutcome {
    config: DemoConfig,
    /// The number of members at the start.
    nodes: usize,
    shards: usize,
    event_results: Vec<FleetFaultResult>,
    verdict: FleetCheckResult,
    /// The error that ended the demo early.
    error: Option<String>,
}

impl FleetDemoOutcome {
    /// Each event with its result. Actions of the user are one event, if there were any; the end is not an event.
    fn rows(&self) -> impl Iterator<Item = (&FleetFaultResult, &ShardFinding)> {
        let rows = self.event_results.iter().zip(&self.verdict.findings);
        rows.filter(|(event_result, finding)| match event_result.what {
            FleetFault::ByHand | FleetFault::End => {
                finding.overlaps > 0 || event_result.what == FleetFault::ByHand && finding.moved > 0
            }
            _ => true,
        })
    }

    fn is_success(&self) -> bool {
        self.verdict.overlaps == 0 && self.complaints().is_empty()
    }

    fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> = self.error.iter().map(|it| format!("❌ {it}")).collect();
        for event_result in &self.event_results {
            let event = event_result.what.as_str();
            if let Some(problem) = &event_result.problem {
                complaints.push(format!("❌ {event} {}: {problem}", event_result.member));
            }
        }
        complaints
    }
}

pub(super) fn run(args: &Args, demo: &DemoArgs) -> Result<Exit> {
    let with_faults = match demo.fault.as_deref() {
        None => true,
        Some([DemoFault::None]) => false,
        Some(_) => {
            return Err(Error::invalid(
                "--fault is for the demo of an election: with --fleet one member is killed, one joins and one leaves; \
                 leave it out, or give --fault none to do it all by hand",
            ));
        }
    };
    crate::runtime()?.block_on(async {
        // Catch signals before anything exists that has to be cleaned up.
        let interrupted = shutdown::stop_signal()?;
        let temp_dir = TempDir::new(false)?;
        run_scenario(args, demo, with_faults, &temp_dir, interrupted).await
    })
}

/// Runs the demo and cleans up after it, also after an error or an interrupt.
async fn run_scenario(
    args: &Args,
    demo: &DemoArgs,
    with_faults: bool,
    temp_dir: &TempDir,
    interrupted: impl Future<Output = ()>,
) -> Result<Exit> {
    let config = DemoConfig::of(args, temp_dir).await?;
    let (nodes, shards) = (usize::from(demo.nodes), shards()?);
    let member_config = write_member_files(args, &config, temp_dir.path(), &shards)?;
    let (shards_file, journals) = (member_config.shards.clone(), member_config.journals.clone());
    let of = (config.store.clone(), config.name.clone(), config.ttl);
    let chart = FleetChart::new(!args.json && !args.quiet);
    let mut scenario =
        FleetScenario::new(DemoMembers::new(member_config)?, chart, of, shards, journals);
    // Whether the demo now runs until the user interrupts it.
    let mut runs_until_interrupt = false;
    let run_result = async {
        // Report a store that is down here, once, and not from three processes.
        let report = doctor::examine(&*config.store).await.map_err(ScenarioStop::NoStore)?;
        scenario.say(report::opening(&config, report.grade, nodes, SHARDS))?;
        scenario.start_all(nodes).await?;
        if with_faults {
            scenario.play().await?;
        }
        if demo.keep || !with_faults {
            let member = scenario.members.alive().first().map_or("m1", |id| id).to_owned();
            scenario.say("")?;
            for line in report::by_hand(&config, &shards_file, &member) {
                scenario.say(line)?;
            }
        }
        if demo.keep {
            scenario.say("It goes on until Ctrl+C.")?;
            runs_until_interrupt = true;
            scenario.keep().await?;
        } else if !with_faults {
            scenario.stay().await?;
        }
        scenario.finish().await
    };
    let run_result = tokio::select! {
        run_result = run_result => run_result,
        () = interrupted => Err(ScenarioStop::Interrupted),
        () = shutdown::stdout_closed() => Err(ScenarioStop::OutputGone),
    };
    let run_result = match run_result {
        // With --keep an interrupt is the normal end.
        Err(ScenarioStop::Interrupted) if runs_until_interrupt => {
            tokio::select! {
                finished = scenario.finish() => finished,
                () = interrupted_again() => Err(ScenarioStop::Interrupted),
            }
        }
        run_result => run_result,
    };
    let timeout = scenario.timeout;
    scenario.chart.finish();
    scenario.members.kill_all(timeout).await;
    let (run_result, error) = match run_result {
        Err(ScenarioStop::NoStore(error)) => return Err(error),
        Err(ScenarioStop::Failed(error)) => {
            let message = Some(error.to_string());
            (Err(ScenarioStop::Failed(error)), message)
        }
        run_result => (run_result, None),
    };
    if matches!(run_result, Ok(()) | Err(ScenarioStop::Failed(_))) {
        scenario
            .members
            .remaining_lines()
            .iter()
            .try_for_each(|line| scenario.chart.log(line))
            .ok();
    }
    let verdict = checker::check(&scenario.journals()?, &scenario.event_results);
    let outcome = FleetDemoOutcome {
        config,
        nodes,
        shards: SHARDS,
        event_results: scenario.event_results,
        verdict,
        error,
    };
    report::close(args, &outcome, &run_result)?;
    Ok(if outcome.is_success() { Exit::Done } else { Exit::No })
}

/// A second interrupt: the user does not want to wait until the members have stopped cleanly.
async fn interrupted_again() {
    match shutdown::stop_signal() {
        Ok(again) => again.await,
        Err(_) => std::future::pending().await,
    }
}

fn shards() -> Result<Vec<Shard>> {
    (1..=SHARDS).map(|number| Shard::new(&format!("shard-{number:02}"))).collect()
}

/// Writes the files that the members read, and returns the members' config.
fn write_member_files(
    args: &Args,
    config: &DemoConfig,
    temp_dir: &Path,
    shards: &[Shard],
) -> Result<DemoMemberConfig> {
    let level = logs::level(args).as_str();
    let flags = ["--log-level", level, "--log-format", args.log_format.as_str()];
    let member_config = DemoMemberConfig {
        store: config.url.clone(),
        fleet: config.name.to_string(),
        ttl: config.ttl,
        shards: temp_dir.join("shards"),
        journals: temp_dir.join("journals"),
        config: temp_dir.join("tenure.toml"),
        flags: flags.map(str::to_owned).to_vec(),
    };
    let list: String = shards.iter().map(|shard| format!("{shard}\n")).collect();
    let written = fs::create_dir(&member_config.journals)
        .and_then(|()| fs::write(&member_config.shards, list))
        .and_then(|()| fs::write(&member_config.config, ""));
    written.map_err(|error| {
        Error::denied(format!("cannot write into {}: {error}", temp_dir.display()))
    })?;
    Ok(member_config)
}
