//! F44: the guard's stderr is full or closed while it has to kill and to release. TENURE_TURNS is the number of turns.
//!
//! The fleet whose deadlines are 0.8 s apart, so that the guard logs before it has killed everything, is in `tests/keeper`.

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::faults::{LONG, SOON, suffer};
use crate::fleet::{
    AFTER_TTL, TTL, pids, stopped_in_time, taken_within, terms_of, three_with, two_go_on,
};
use crate::trial;
use tenure_rig::stderr_faults::{Stderr, turns};
use tenure_rig::system::election_trial::TIMEOUT;
use tenure_rig::system::fault::Fault;
use tenure_rig::system::time::now;
use tenure_rig::system::trial_store::StoreKind;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for place in [StoreKind::File, StoreKind::Redis] {
        for stderr in Stderr::BOTH {
            for fault in [Fault::Kill, Fault::Freeze] {
                let name = |what: &str| {
                    let (stderr, fault) = (stderr.name(), fault.name());
                    format!("stderr_{stderr}::{what}::{fault}::{}", place.name())
                };
                let run = move || suffer(place, fault, Some(stderr));
                trials.push(trial(name("run"), place, run));
                let run = move || fleet(place, fault, stderr);
                trials.push(trial(name("fleet"), place, run));
            }
        }
    }
    trials
}

fn fleet(place: StoreKind, fault: Fault, stderr: Stderr) {
    for _ in 0..turns(1) {
        let ttl = if fault == Fault::Kill { LONG } else { TTL };
        let mut stage = three_with(place, ttl, Some(stderr));
        let owners = stage.settled(&[3; 3], TIMEOUT);
        let terms = terms_of(&owners, "m1");
        let at = now();
        if fault == Fault::Kill {
            stage.members[1].signal(Signal::KILL);
            taken_within(&mut stage, &terms, at, SOON);
        } else {
            stage.members[1].signal(Signal::STOP);
            let hit = now();
            taken_within(&mut stage, &terms, at, TTL + AFTER_TTL);
            stopped_in_time(&mut stage, &terms, hit);
        }
        stage.gone(&pids(&terms));
        two_go_on(&mut stage, &owners);
        if fault == Fault::Kill {
            stage.ended(1);
            stage.restart(1);
        } else {
            stage.members[1].signal(Signal::CONT);
        }
        stage.settled(&[3; 3], TIMEOUT);
        stage.finish();
    }
}
