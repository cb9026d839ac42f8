//! A guard that is frozen (SIGSTOP) while its leader works: the leader detects it and replaces the guard. If the leader dies
//! first, the guard resumes and does its work. TENURE_TURNS is the number of turns.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::faults::{LONG, SOON, TTL};
use crate::fleet::{pids, taken_within, terms_of, three_with, two_go_on, unmoved};
use crate::trial;
use tenure_rig::stderr_faults::turns;
use tenure_rig::system::election_trial::{ElectionTrial, TIMEOUT};
use tenure_rig::system::processes::{is_stopped, is_there, signal};
use tenure_rig::system::time::{now, poll_until};
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for place in [StoreKind::File, StoreKind::Redis] {
        let mut add = |name: &str, run: fn(StoreKind)| {
            let name = format!("frozen_guard::{name}::{}", place.name());
            trials.push(trial(name, place, move || run(place)));
        };
        add("is_replaced", replaced);
        add("goes_on_when_the_leader_dies", leader_dies);
        add("of_a_member_is_replaced", replaced_in_fleet);
        add("of_a_member_goes_on_when_that_dies", member_dies);
    }
    trials
}

/// Long enough that on a busy machine neither a lease is lost nor a guard that was just started counts as frozen.
const MEMBER_TTL: Duration = Duration::from_secs(4);

fn freeze(guard: u32) {
    signal(guard, Signal::STOP);
    poll_until(TIMEOUT, || is_stopped(guard).then_some(())).expect("it stops");
}

fn replaced(place: StoreKind) {
    for _ in 0..turns(2) {
        // A new stage each time: a guard that dies repeatedly is restarted with a growing delay.
        let mut stage = ElectionTrial::new(place, TTL, Mode::Daemon);
        let term = stage.settled();
        freeze(term.guard);
        let frozen = now();
        stage.gone(&term.work);
        // The longest possible time: the lease was renewed just before, and the renewal acknowledged.
        let took = now().since(frozen);
        if took > 2 * TTL + SOON {
            stage.fail(&format!("noticed only after {took:?}"));
        }
        stage.next_since(now());
        assert!(is_there(term.leader), "the leader lives on");
        assert!(!is_there(term.guard), "the guard was killed");
        assert_ne!(stage.steady().guard, term.guard);
        let log = stage.log_of(term.who);
        assert!(log.contains("the guard does not answer: killed it"), "{log}");
        stage.finish();
    }
}

fn leader_dies(place: StoreKind) {
    let mut stage = ElectionTrial::new(place, LONG, Mode::Daemon);
    for _ in 0..turns(2) {
        let term = stage.settled();
        freeze(term.guard);
        let struck = now();
        signal(term.leader, Signal::KILL);
        let gap = stage.next_after(term.token, LONG + TIMEOUT).at.since(struck);
        if gap > SOON {
            stage.fail(&format!("nobody led for {gap:?}"));
        }
        stage.gone(&term.work);
        stage.ended(term.who);
        stage.restart(term.who);
    }
    stage.finish();
}

fn replaced_in_fleet(place: StoreKind) {
    for _ in 0..turns(1) {
        let mut stage = three_with(place, MEMBER_TTL, None);
        let owners = stage.settled(&[3; 3], TIMEOUT);
        let terms = terms_of(&owners, "m1");
        let guard = stage.members[1].guard().expect("it has a guard");
        freeze(guard);
        stage.gone(&pids(&terms));
        let after = stage.settled_as(TIMEOUT, "begun again", |after| {
            let begun = terms.iter().all(|(shard, before)| {
                after.get(shard).is_some_and(|after| {
                    (&after.member, after.token) == (&before.member, before.token)
                        && after.pid != before.pid
                })
            });
            begun.then_some(())
        });
        unmoved(&stage, &owners, &after, "m1");
        assert!(!is_there(guard), "the guard was killed");
        assert_eq!(stage.lines_with(1, &["the guard does not answer: killed it"]), 1);
        stage.finish();
    }
}

fn member_dies(place: StoreKind) {
    for _ in 0..turns(1) {
        let mut stage = three_with(place, LONG, None);
        let owners = stage.settled(&[3; 3], TIMEOUT);
        let terms = terms_of(&owners, "m1");
        freeze(stage.members[1].guard().expect("it has a guard"));
        let at = now();
        stage.members[1].signal(Signal::KILL);
        taken_within(&mut stage, &terms, at, SOON);
        stage.gone(&pids(&terms));
        two_go_on(&mut stage, &owners);
        stage.finish();
    }
}
