//! `tenure fleet plan`.

use clap::Args as ClapArgs;
use tenure::{Error, Name, Result};

use super::options::fleet;
use crate::args::Args;
use crate::exit::Exit;

#[derive(Debug, ClapArgs)]
pub(crate) struct PlanArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,
}

pub(crate) fn run(_: &Args, args: &PlanArgs) -> Result<Exit> {
    Err(Error::invalid(format!("'{}': not there yet", args.name)))
}
