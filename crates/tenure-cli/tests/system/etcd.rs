//! An operator ends a term of etcd by hand, without asking the leader: the leader relies on its lease until its next renewal, or
//! until its deadline if it is cut off. No other candidate may lead before that.

use std::time::Duration;

use libtest_mimic::Trial;

use crate::faults::SOON;
use crate::trial;
use tenure_rig::system::election_trial::{ElectionTrial, NAME};
use tenure_rig::system::time::pause;
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

const CYCLES: usize = 8;
const TTL: Duration = Duration::from_secs(3);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for cut_off in [false, true] {
        let place = if cut_off { StoreKind::EtcdCabled } else { StoreKind::Etcd };
        let mut add = |name: &str, end: fn(&ElectionTrial)| {
            let leader = if cut_off { "of_a_leader_that_is_cut_off" } else { "of_a_leader" };
            let name = format!("by_hand::{name}_{leader}::etcd");
            trials.push(trial(name, place, move || ended_by_hand(place, end, cut_off)));
        };
        add("key_deleted", delete_key);
        add("lease_revoked", revoke_lease);
        add("all_keys_deleted", delete_all);
    }
    trials
}

fn delete_key(stage: &ElectionTrial) {
    stage.place.etcd().etcdctl(&["del", NAME]);
}

fn delete_all(stage: &ElectionTrial) {
    stage.place.etcd().etcdctl(&["del", "", "--from-key"]);
}

fn revoke_lease(stage: &ElectionTrial) {
    let shown = stage.place.etcd().etcdctl(&["get", NAME, "--write-out=json"]);
    let (_, rest) = shown.split_once("\"lease\":").expect("the key is attached to a lease");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let lease: u64 = digits.parse().expect("a number");
    stage.place.etcd().etcdctl(&["lease", "revoke", &format!("{lease:x}")]);
}

fn ended_by_hand(place: StoreKind, end: fn(&ElectionTrial), cut_off: bool) {
    let mut stage = ElectionTrial::new(place, TTL, Mode::Plain);
    for cycle in 0..CYCLES {
        let term = stage.settled();
        // At another moment between two renewals each time.
        pause(Duration::from_millis(170 * u64::try_from(cycle).unwrap_or_default()));
        if cut_off {
            stage.place.cable(term.who).cut();
        }
        end(&stage);
        stage.next_after(term.token, 2 * TTL + place.expiry_delay() + SOON);
        if cut_off {
            stage.place.cable(term.who).mend();
        }
    }
    stage.finish();
}
