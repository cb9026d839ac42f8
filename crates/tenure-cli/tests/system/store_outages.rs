//! The store fails for all candidates at once: killed, paused, full, read-only, moved away. The leader stops in time, or keeps
//! leading where the store allows it; when the store is back a candidate leads again, and no process had to be restarted.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::faults::{SOON, TTL, deadline};
use crate::trial;
use tenure_rig::system::election_trial::ElectionTrial;
use tenure_rig::system::time::{now, pause_until};
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

const CYCLES: usize = 5;
/// Longer than any lease that was granted before, on a directory.
const LASTING: Duration = TTL.saturating_mul(2);
/// Too short for a lease to expire.
const BRIEF: Duration = Duration::from_millis(100);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: &str, place: StoreKind, run: fn(&ElectionTrial, bool), brief: bool| {
        let name = format!("outage::{name}::{}", place.name());
        let lasting = if brief { BRIEF } else { 2 * place.short_ttl() };
        trials.push(trial(name, place, move || outage(place, run, lasting)));
    };
    for place in [StoreKind::Redis, StoreKind::Etcd] {
        add("killed_and_restarted_at_once", place, kill_server, true);
        add("killed_and_restarted_later", place, kill_server, false);
        add("paused", place, pause_server, false);
    }
    add("moved_away_briefly", StoreKind::File, move_directory, true);
    add("moved_away", StoreKind::File, move_directory, false);
    trials.push(trial("outage::full::file".to_owned(), StoreKind::Disk, full));
    trials.push(trial("outage::read_only::file".to_owned(), StoreKind::Image, read_only));
    trials
}

fn kill_server(stage: &ElectionTrial, begins: bool) {
    if begins {
        stage.place.kill_server();
    } else {
        stage.place.start_server_again();
    }
}

fn pause_server(stage: &ElectionTrial, begins: bool) {
    stage.place.signal_server(if begins { Signal::STOP } else { Signal::CONT });
}

fn move_directory(stage: &ElectionTrial, begins: bool) {
    stage.place.move_directory(begins);
}

fn outage(place: StoreKind, run: fn(&ElectionTrial, bool), lasting: Duration) {
    let ttl = place.short_ttl();
    let mut stage = ElectionTrial::new(place, ttl, Mode::Plain);
    // etcd extends all leases when it starts.
    let limit = 2 * ttl + place.expiry_delay() + SOON;
    for _ in 0..CYCLES {
        let term = stage.settled();
        let begun = now();
        run(&stage, true);
        // Starting the outage may take a moment in which renewals still succeed.
        let begins = now();
        pause_until(begun + lasting);
        if lasting > ttl {
            stage.gone(&term.work);
            let late = stage.last_of(term.token).at.since(deadline(begins, ttl));
            if late > Duration::ZERO {
                stage.fail(&format!("it worked {late:?} past its deadline"));
            }
        }
        run(&stage, false);
        let back = now();
        let next = match lasting > ttl {
            true => stage.next_after(term.token, limit),
            false => stage.next_since(back),
        };
        let gap = next.at.since(back);
        if gap > limit {
            stage.fail(&format!("nobody worked for {gap:?} after the store was back"));
        }
    }
    stage.finish();
}

/// Renewals need no disk space. A leader that dies is replaced only when there is space again: no lease is freed by accident,
/// and none is granted without a record.
fn full() {
    let mut stage = ElectionTrial::new(StoreKind::Disk, TTL, Mode::Plain);
    for _ in 0..CYCLES {
        let term = stage.settled();
        stage.place.disk().fill();
        pause_until(now() + LASTING);
        let term = match stage.steady() {
            on if on.token == term.token => on,
            other => stage.fail(&format!("{term:?} gave way to {other:?} on a full disk")),
        };
        stage.contenders[term.who].signal(Signal::KILL);
        stage.gone(&term.work);
        stage.ended(term.who);
        pause_until(now() + TTL);
        let last = stage.last_of(term.token).at;
        stage.place.disk().make_room();
        stage.next_after(term.token, TTL + SOON);
        assert!(last < now());
        stage.restart(term.who);
    }
    stage.finish();
}

/// A failing disk becomes read-only and stays so: the leader stops in time, and no candidate leads until it is repaired.
fn read_only() {
    for _ in 0..CYCLES {
        let mut stage = ElectionTrial::new(StoreKind::Image, TTL, Mode::Plain);
        let term = stage.settled();
        stage.place.disk().fail();
        let failed = now();
        pause_until(failed + LASTING);
        stage.gone(&term.work);
        let late = stage.last_of(term.token).at.since(deadline(failed, TTL));
        if late > Duration::ZERO {
            stage.fail(&format!("it worked {late:?} past its deadline"));
        }
        for who in 0..stage.contenders.len() {
            stage.waits(who);
        }
        stage.stop();
        stage.place.disk().repair();
        let (verdict, _) = stage.finish();
        assert_eq!(verdict.terms, 1, "nothing was granted without a record");
    }
}
