//! `tenure fleet drain`, `undrain`, `pause`, `resume`.

use clap::Args as ClapArgs;
use tenure::{CandidateId, Error, Name, Result};

use super::options::fleet;
use crate::args::Args;
use crate::exit::Exit;
use crate::target;

#[derive(Debug, ClapArgs)]
pub(crate) struct DrainArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,

    /// The member
    #[arg(value_parser = target::id)]
    member: CandidateId,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PauseArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,

    /// The shards
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<String>,
}

pub(crate) fn drain(_: &Args, drain: &DrainArgs) -> Result<Exit> {
    Err(Error::invalid(format!("'{}' {}: not there yet", drain.name, drain.member)))
}

pub(crate) fn undrain(args: &Args, undrain: &DrainArgs) -> Result<Exit> {
    drain(args, undrain)
}

pub(crate) fn pause(_: &Args, pause: &PauseArgs) -> Result<Exit> {
    Err(Error::invalid(format!("'{}' {:?}: not there yet", pause.name, pause.shards)))
}

pub(crate) fn resume(args: &Args, resume: &PauseArgs) -> Result<Exit> {
    pause(args, resume)
}
