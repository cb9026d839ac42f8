//! `tenure demo --fleet`: members that are real `tenure fleet run`s share thirty shards; one is killed, one comes, one leaves.

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
use super::{DemoArgs, DemoConfig, Fault};
use crate::args::Args;
use crate::exit::Exit;
use crate::{doctor, logs, shutdown};
use chart::Board;
use checker::{FleetCheckResult, ShardFinding};
use members::{DemoMembers, Orders};
use scenario::{FleetFault, FleetFaultResult, FleetScenario};

const SHARDS: usize = 30;

/// What the demo came to.
struct FleetDemoOutcome {
    setting: DemoConfig,
    /// How many it began with.
    nodes: usize,
    shards: usize,
    scenes: Vec<FleetFaultResult>,
    verdict: FleetCheckResult,
    /// What kept it from its end.
    trouble: Option<String>,
}

impl FleetDemoOutcome {
    /// Each event with what came of it. What people did is one, if they did anything; the end is none.
    fn rows(&self) -> impl Iterator<Item = (&FleetFaultResult, &ShardFinding)> {
        let rows = self.scenes.iter().zip(&self.verdict.findings);
        rows.filter(|(scene, finding)| match scene.what {
            FleetFault::Hand | FleetFault::End => {
                finding.overlaps > 0 || scene.what == FleetFault::Hand && finding.moved > 0
            }
            _ => true,
        })
    }

    fn is_well(&self) -> bool {
        self.verdict.overlaps == 0 && self.complaints().is_empty()
    }

    fn complaints(&self) -> Vec<String> {
        let mut complaints: Vec<String> =
            self.trouble.iter().map(|it| format!("❌ {it}")).collect();
        for scene in &self.scenes {
            let event = scene.what.as_str();
            if let Some(trouble) = &scene.trouble {
                complaints.push(format!("❌ {event} {}: {trouble}", scene.member));
            }
        }
        complaints
    }
}

pub(super) fn run(args: &Args, demo: &DemoArgs) -> Result<Exit> {
    let plays = match demo.fault.as_deref() {
        None => true,
        Some([Fault::None]) => false,
        Some(_) => {
            return Err(Error::invalid(
                "--fault is for the demo of an election: with --fleet one member is killed, one joins and one leaves; \
                 leave it out, or give --fault none to do it all by hand",
            ));
        }
    };
    crate::runtime()?.block_on(async {
        // Before anything exists that would have to be cleaned up.
        let interrupted = shutdown::caught()?;
        let scratch = TempDir::new(false)?;
        stage(args, demo, plays, &scratch, interrupted).await
    })
}

/// Puts the demo on and takes it down again, whatever happens in between.
async fn stage(
    args: &Args,
    demo: &DemoArgs,
    plays: bool,
    scratch: &TempDir,
    interrupted: impl Future<Output = ()>,
) -> Result<Exit> {
    let setting = DemoConfig::of(args, scratch).await?;
    let (nodes, shards) = (usize::from(demo.nodes), shards()?);
    let orders = orders(args, &setting, scratch.path(), &shards)?;
    let (shards_file, journals) = (orders.shards.clone(), orders.journals.clone());
    let of = (setting.store.clone(), setting.name.clone(), setting.ttl);
    let board = Board::new(!args.json && !args.quiet);
    let mut stage = FleetScenario::new(DemoMembers::new(orders)?, board, of, shards, journals);
    // The end that is asked for, once there is nothing left to see.
    let mut kept = false;
    let played = async {
        // A store that is down is better known now than from three processes at once.
        let report = doctor::examine(&*setting.store).await.map_err(ScenarioStop::NoStore)?;
        stage.say(report::opening(&setting, report.grade, nodes, SHARDS))?;
        stage.begin(nodes).await?;
        if plays {
            stage.play().await?;
        }
        if demo.keep || !plays {
            let member = stage.cast.alive().first().map_or("m1", |id| id).to_owned();
            stage.say("")?;
            for line in report::by_hand(&setting, &shards_file, &member) {
                stage.say(line)?;
            }
        }
        if demo.keep {
            stage.say("It goes on until Ctrl+C.")?;
            kept = true;
            stage.keep().await?;
        } else if !plays {
            stage.stay().await?;
        }
        stage.finish().await
    };
    let played = tokio::select! {
        played = played => played,
        () = interrupted => Err(ScenarioStop::Interrupted),
        () = shutdown::nobody_reads() => Err(ScenarioStop::OutputGone),
    };
    let played = match played {
        // That is how it was to end.
        Err(ScenarioStop::Interrupted) if kept => {
            tokio::select! {
                finished = stage.finish() => finished,
                () = interrupted_again() => Err(ScenarioStop::Interrupted),
            }
        }
        played => played,
    };
    let patience = stage.patience;
    stage.board.leave();
    stage.cast.end(patience).await;
    let (played, trouble) = match played {
        Err(ScenarioStop::NoStore(error)) => return Err(error),
        Err(ScenarioStop::Failed(error)) => {
            let trouble = Some(error.to_string());
            (Err(ScenarioStop::Failed(error)), trouble)
        }
        played => (played, None),
    };
    if matches!(played, Ok(()) | Err(ScenarioStop::Failed(_))) {
        stage.cast.rest().iter().try_for_each(|line| stage.board.log(line)).ok();
    }
    let verdict = checker::judge(&stage.journals()?, &stage.scenes);
    let outcome =
        FleetDemoOutcome { setting, nodes, shards: SHARDS, scenes: stage.scenes, verdict, trouble };
    report::close(args, &outcome, &played)?;
    Ok(if outcome.is_well() { Exit::Done } else { Exit::No })
}

/// By somebody who does not want to wait for members that end in good order.
async fn interrupted_again() {
    match shutdown::caught() {
        Ok(again) => again.await,
        Err(_) => std::future::pending().await,
    }
}

fn shards() -> Result<Vec<Shard>> {
    (1..=SHARDS).map(|number| Shard::new(&format!("shard-{number:02}"))).collect()
}

/// Writes down what the members are to find.
fn orders(args: &Args, setting: &DemoConfig, scratch: &Path, shards: &[Shard]) -> Result<Orders> {
    let level = logs::level(args).as_str();
    let flags = ["--log-level", level, "--log-format", args.log_format.as_str()];
    let orders = Orders {
        store: setting.url.clone(),
        fleet: setting.name.to_string(),
        ttl: setting.ttl,
        shards: scratch.join("shards"),
        journals: scratch.join("journals"),
        config: scratch.join("tenure.toml"),
        flags: flags.map(str::to_owned).to_vec(),
    };
    let list: String = shards.iter().map(|shard| format!("{shard}\n")).collect();
    let written = fs::create_dir(&orders.journals)
        .and_then(|()| fs::write(&orders.shards, list))
        .and_then(|()| fs::write(&orders.config, ""));
    written.map_err(|error| {
        Error::denied(format!("cannot write into {}: {error}", scratch.display()))
    })?;
    Ok(orders)
}
