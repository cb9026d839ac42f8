//! `tenure fleet status`.

use clap::Args as ClapArgs;
use tenure::{Error, Name, Result};

use super::options::fleet;
use crate::args::Args;
use crate::exit::Exit;

#[derive(Debug, ClapArgs)]
pub(crate) struct StatusArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,
}

pub(crate) fn run(_: &Args, args: &StatusArgs) -> Result<Exit> {
    Err(Error::invalid(format!("'{}': not there yet", args.name)))
}
