//! `tenure fleet who`.

use clap::Args as ClapArgs;
use tenure::{Error, Name, Result};

use super::options::fleet;
use crate::args::Args;
use crate::exit::Exit;

#[derive(Debug, ClapArgs)]
pub(crate) struct WhoArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    name: Name,
}

pub(crate) fn run(_: &Args, args: &WhoArgs) -> Result<Exit> {
    Err(Error::invalid(format!("'{}': not there yet", args.name)))
}
