//! The command-line options of `tenure fleet run`.

use std::time::Duration;

use clap::Args as ClapArgs;
use tenure::Name;
use tenure::fleet::fleet_name;

use super::source::SourceArgs;
use crate::duration;
use crate::run::{ServiceArgs, TaskArgs, TimingArgs};

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure fleet run poll --shards a,b,c -- ./poll {}        one process for each shard this member has
  tenure fleet run poll --shards-file tenants --every 5s -- ./poll {}
  tenure fleet run poll --get 'http://api/{}' --every 5s   on Redis: the shards in the set poll:shards
  tenure fleet run poll --shards-command 'ls /data' --mock  nothing but the fleet

Start it as often as you like, wherever you like: each takes its share. {} stands for the shard,
also inside an argument or a URL; in the code of a shell (sh -c) write \"$TENURE_SHARD\" instead.
The command gets TENURE_NAME, TENURE_SHARD, TENURE_TOKEN and TENURE_CANDIDATE, and is run without
a shell. One that ends by itself is started again, after 1s at first and 30s at most.

Exit codes: 0 stopped; 122 store unreachable; 123 an operator must act; 125 usage; 126, 127 the command
cannot be run, is not found.")]
// A fleet refuses these election flags and says why, so its help does not list them.
#[command(
    mut_arg("priority", |arg| arg.hide(true)),
    mut_arg("on_lead", |arg| arg.hide(true)),
    mut_arg("on_lose", |arg| arg.hide(true)),
    mut_arg("no_presence", |arg| arg.hide(true))
)]
pub(crate) struct FleetRunArgs {
    /// The fleet
    #[arg(value_parser = fleet)]
    pub(crate) name: Option<Name>,

    /// Another way to give NAME
    #[arg(long, value_name = "NAME", env = "TENURE_LOCK_NAME", value_parser = fleet)]
    pub(crate) lock_name: Option<Name>,

    #[command(flatten, next_help_heading = "Shards")]
    pub(crate) source: SourceArgs,

    /// How often the shards are read anew; some are also watched
    #[arg(long, value_name = "D", env = "TENURE_REREAD", value_parser = duration::parse)]
    #[arg(default_value = "10s")]
    pub(crate) reread: Duration,

    #[command(flatten, next_help_heading = "Work")]
    pub(crate) work: FleetWorkArgs,

    #[command(flatten, next_help_heading = "Timing")]
    pub(crate) timing: TimingArgs,

    #[command(flatten, next_help_heading = "Service")]
    pub(crate) service: ServiceArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct FleetWorkArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,

    /// Run it this often for each shard, spread over the period [default: 5s for --get and --mock]
    #[arg(long, value_name = "D", env = "TENURE_EVERY", value_parser = duration::parse)]
    pub(crate) every: Option<Duration>,

    /// As many runs at a time at most, with --every
    #[arg(long, value_name = "N", env = "TENURE_CONCURRENCY")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) concurrency: Option<u32>,
}

/// Parses the name of a fleet.
pub(crate) fn fleet(text: &str) -> tenure::Result<Name> {
    fleet_name(text)
}
