//! `tenure run`: a command that runs only where this candidate leads.

mod options;

pub(crate) use options::RunArgs;

use tenure::{Error, Result};

use crate::args::Args;
use crate::exit::Exit;

pub(crate) fn run(_args: &Args, _run: &RunArgs) -> Result<Exit> {
    Err(Error::invalid("not built yet"))
}
