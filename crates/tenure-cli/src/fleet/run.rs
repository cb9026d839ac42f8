//! `tenure fleet run`.

use tenure::{Error, Result};

use super::options::FleetRunArgs;
use crate::args::Args;
use crate::exit::Exit;

pub(crate) fn run(_: &Args, run: &FleetRunArgs) -> Result<Exit> {
    Err(Error::invalid(format!("{run:?}: not there yet")))
}
