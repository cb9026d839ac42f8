//! `tenure fleet …`: many leases, dealt out over however many members are running. One file for each subcommand.

mod agenda;
mod crew;
mod lines;
mod options;
mod plan;
mod run;
mod source;
mod status;
mod steer;
mod task;
mod who;

use clap::{Args as ClapArgs, Subcommand};
use tenure::Result;

use crate::args::Args;
use crate::exit::Exit;

pub(crate) use options::FleetRunArgs;

#[derive(Debug, ClapArgs)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Takes its share of the shards, and runs a command for each
    Run(Box<FleetRunArgs>),
    /// Who is there, and who has what
    Status(status::StatusArgs),
    /// Who has this shard
    Who(who::WhoArgs),
    /// Has a member give everything away, and take nothing
    Drain(steer::DrainArgs),
    /// Has a member take its share again
    Undrain(steer::DrainArgs),
    /// Has shards left alone by everybody, until they are resumed
    Pause(steer::PauseArgs),
    /// Has paused shards worked on again
    Resume(steer::PauseArgs),
    /// Who would have what, and what would move: asks no store
    Plan(plan::PlanArgs),
}

pub(crate) fn run(args: &Args, fleet: &FleetArgs) -> Result<Exit> {
    match &fleet.command {
        Command::Run(run) => run::run(args, run),
        Command::Status(status) => status::run(args, status),
        Command::Who(who) => who::run(args, who),
        Command::Drain(drain) => steer::drain(args, drain),
        Command::Undrain(drain) => steer::undrain(args, drain),
        Command::Pause(pause) => steer::pause(args, pause),
        Command::Resume(pause) => steer::resume(args, pause),
        Command::Plan(plan) => plan::run(args, plan),
    }
}
