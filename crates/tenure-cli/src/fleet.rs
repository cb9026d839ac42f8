//! `tenure fleet …`: many leases (shards), distributed across the running members. One file for each subcommand.

mod client;
mod drain;
mod messages;
mod options;
mod plan;
mod redis_sets;
mod run;
mod run_queue;
mod shell_code;
mod source;
mod status;
mod supervisor;
mod table;
mod who;
mod work;

use clap::{Args as ClapArgs, Subcommand};
use tenure::Result;

use crate::args::Args;
use crate::exit::Exit;

pub(crate) use options::FleetRunArgs;
pub(crate) use status::FleetJson;

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure fleet run poll --shards a,b,c -- ./poll {}    takes its share, one process for each shard
  tenure fleet status poll                             who is there, and who has what
  tenure fleet who poll tenant-7                       who has this one
  tenure fleet drain poll web-1                        web-1 gives everything away
  tenure fleet pause poll tenant-7                     nobody works on it, until it is resumed
  tenure fleet plan poll --members a,b --shards 1,2,3 --join c    what would move

Exit codes: 0 done; 1 the answer is no; 122 store unreachable; 123 an operator must act; 125 usage.
Each subcommand has more to say: 'tenure fleet status --help'.")]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Takes its share of the shards, and runs a command for each
    Run(Box<FleetRunArgs>),
    /// Who is there, and who has what
    Status(status::FleetStatusArgs),
    /// Who has this shard
    Who(who::WhoArgs),
    /// Has a member give everything away, and take nothing
    Drain(drain::FleetDrainArgs),
    /// Has a member take its share again
    Undrain(drain::UndrainArgs),
    /// Has shards left alone by everybody, until they are resumed
    Pause(drain::PauseArgs),
    /// Has paused shards worked on again
    Resume(drain::ResumeArgs),
    /// Who would have what, and what would move: asks no store
    Plan(plan::PlanArgs),
}

impl FleetArgs {
    /// Whether this process starts commands, whose output shares its stdout and stderr.
    pub(crate) fn runs_a_command(&self) -> bool {
        matches!(&self.command, FleetCommand::Run(run) if !run.work.task.command.is_empty())
    }
}

pub(crate) fn run(args: &Args, fleet: &FleetArgs) -> Result<Exit> {
    match &fleet.command {
        FleetCommand::Run(run) => run::run(args, run),
        FleetCommand::Status(status) => status::run(args, status),
        FleetCommand::Who(who) => who::run(args, who),
        FleetCommand::Drain(drain) => drain::drain(args, drain),
        FleetCommand::Undrain(undrain) => drain::undrain(args, undrain),
        FleetCommand::Pause(pause) => drain::pause(args, pause),
        FleetCommand::Resume(resume) => drain::resume(args, resume),
        FleetCommand::Plan(plan) => plan::run(args, plan),
    }
}
