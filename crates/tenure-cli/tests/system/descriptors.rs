//! A guard, or a machine, without free file descriptors: processes outside the command's group are killed all the same.

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::faults::TTL;
use crate::trial;
use tenure_rig::descriptors::Descriptors;
use tenure_rig::stderr_faults::turns;
use tenure_rig::system::election_trial::{ElectionTrial, TIMEOUT};
use tenure_rig::system::processes::signal;
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (left, name) in
        [(Descriptors::Spare, "only_the_spare_ones"), (Descriptors::One, "only_one")]
    {
        for (which, fault) in [(Signal::KILL, "kill"), (Signal::STOP, "freeze")] {
            let name = format!("descriptors::{name}::{fault}::file");
            trials.push(trial(name, StoreKind::File, move || exhausted(left, which)));
        }
    }
    trials
}

fn exhausted(left: Descriptors, which: Signal) {
    // Some processes of a frozen leader's command would end at SIGTERM: these do not.
    let mode = if which == Signal::STOP { Mode::Forks } else { Mode::Daemon };
    let mut stage = ElectionTrial::new(StoreKind::File, TTL, mode);
    for _ in 0..turns(2) {
        let term = stage.settled();
        left.limit(term.guard);
        signal(term.leader, which);
        stage.next_after(term.token, TTL + TIMEOUT);
        stage.gone(&term.work);
        // The guard may be about to release the lease, which needs descriptors.
        Descriptors::All.limit(term.guard);
        if which == Signal::KILL {
            stage.ended(term.who);
            stage.restart(term.who);
        } else {
            signal(term.leader, Signal::CONT);
            stage.waits(term.who);
        }
    }
    stage.finish();
}
