//! How long a shard has no owner when a member leaves or dies, measured from outside with the real command:
//! `cargo bench -p tenure-cli --bench fleet [-- --repeats 5 --shards 3000 --fault leave,kill,kill-tree]`.
//!
//! Three members without any work, and an observer that watches the store and records each change with a timestamp. Exits with
//! 1 if a shard was ever granted while it had an owner, or if a target is missed.

#![allow(clippy::unwrap_used)] // A bench fails like a test.

mod members;
mod observer;
mod options;
mod rows;

use std::process::ExitCode;

use options::Options;
use tenure_rig::system::trial_store::StoreKind;

fn main() -> ExitCode {
    let options = match tenure_rig::system::parse_arguments(Options::read) {
        Ok(options) => options,
        Err(code) => return code,
    };
    if let Some(why) = StoreKind::Redis.missing() {
        println!("Redis: {why}");
        return ExitCode::SUCCESS;
    }
    println!("{}", rows::heading(options.shards));
    let mut good = true;
    for &fault in &options.faults {
        let row = rows::measure(fault, options.shards, options.repeats);
        good &= row.is_good();
        println!("{row}");
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
