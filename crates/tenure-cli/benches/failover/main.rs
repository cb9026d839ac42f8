//! The failover time after a fault of the leader, measured from outside with the real command:
//! `cargo bench -p tenure-cli --bench failover [-- --repeats 50 --fault kill,freeze --store file|redis|etcd]`.
//!
//! Measures from the fault to the first effect of the next term, by the timestamps of the workers. Exits with 1 if two workers
//! ever worked at once, or if the fenced register accepted a stale write.

#![allow(clippy::unwrap_used)] // A bench fails like a test.

mod footprint;
mod options;
mod rows;

use std::process::ExitCode;

use options::Options;
use tenure_rig::system::fault::Fault;
use tenure_rig::system::trial_store::StoreKind;

fn main() -> ExitCode {
    let options = match tenure_rig::system::parse_arguments(Options::read) {
        Ok(options) => options,
        Err(code) => return code,
    };
    let mut clean = true;
    for &place in &options.places {
        if let Some(why) = place.missing() {
            println!("{}: {why}", place.name());
            continue;
        }
        println!("{}", rows::heading(place));
        for &fault in &options.faults {
            if fault == Fault::Cut && place == StoreKind::File {
                continue;
            }
            let row = rows::measure(place, fault, options.repeats);
            clean &= row.is_clean();
            println!("{row}");
        }
        println!("{}", footprint::measure(place, options.repeats.min(20)));
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
