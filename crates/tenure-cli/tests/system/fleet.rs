//! A fleet keeps its promises: every shard has one owner, shares are even, few shards move, and under every fault of members or
//! the store, no two members ever work on one shard at once.

use std::collections::BTreeMap;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::{CandidateId, Moment};

use crate::faults::{LONG, SOON, deadline};
use crate::trial;
use tenure_rig::stderr_faults::Stderr;
use tenure_rig::system::checker::Thaw;
use tenure_rig::system::election_trial::TIMEOUT;
use tenure_rig::system::fault_cycle::AFTER_THAW;
use tenure_rig::system::fleet_trial::{FleetStage, ShardOwner, ShardOwners, of, shares};
use tenure_rig::system::freezer::{Frozen, freeze_between_changes};
use tenure_rig::system::processes::signal;
use tenure_rig::system::time::{now, pause, pause_until};
use tenure_rig::system::trial_store::StoreKind;

pub(crate) const TTL: Duration = Duration::from_secs(2);
/// How often a worker writes when there are few.
const INTERVAL: Duration = Duration::from_millis(4);
/// How much later than its TTL a lease that no process can release may have its next owner's first effect: one second, for
/// starting a process on a busy machine.
pub(crate) const AFTER_TTL: Duration = Duration::from_secs(1);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for place in [StoreKind::File, StoreKind::Redis] {
        let mut add = |name: &str, run: fn(StoreKind)| {
            let name = format!("fleet::{name}::{}", place.name());
            trials.push(trial(name, place, move || run(place)));
        };
        add("five_started_together_have_two_of_ten_each", five_together);
        add("three_have_three_of_nine_each", three_of_nine);
        add("one_that_joins_takes_its_share_and_nothing_else_moves", joining);
        add("the_shards_of_one_killed_are_taken_at_once", killed);
        add("the_shards_of_one_killed_whole_are_taken_when_they_run_out", killed_whole);
        add("the_shards_of_one_that_leaves_are_taken_at_once", leaving);
        add("one_that_is_frozen_stops_in_time_and_comes_back", frozen);
        add("one_that_is_frozen_whole_ends_its_work_as_soon_as_it_is_thawed", frozen_whole);
        add("a_guard_that_is_killed_is_replaced_and_nothing_moves", guard_killed);
        add("drained_members_and_paused_shards_are_left_alone", overridden);
    }
    for (name, run) in [
        ("killed", killed_server as fn(&FleetStage, bool)),
        ("stopped", stopped_server as fn(&FleetStage, bool)),
    ] {
        let name = format!("fleet::redis_{name}_for_a_while_stops_all_work_in_time");
        trials.push(trial(name, StoreKind::Redis, move || outage(run)));
    }
    let name = "control::without_a_guard_the_work_of_one_frozen_is_seen_beside_the_next".to_owned();
    trials.push(trial(name, StoreKind::Redis, unguarded));
    let name = "fleet::redis_flushed_takes_nobody_s_place".to_owned();
    trials.push(trial(name, StoreKind::Redis, flushed));
    trials
}

fn stage(place: StoreKind, ttl: Duration, shards: usize, members: usize) -> FleetStage {
    FleetStage::new(place, ttl, shards, INTERVAL).with(members)
}

/// The terms of `member`.
pub(crate) fn terms_of(owners: &ShardOwners, member: &str) -> ShardOwners {
    let its = of(owners, member).into_iter();
    its.map(|(shard, owner)| (shard.to_owned(), owner.clone())).collect()
}

pub(crate) fn pids(terms: &ShardOwners) -> Vec<u32> {
    terms.values().map(|owner| owner.pid).collect()
}

// ---- shares ----

fn five_together(place: StoreKind) {
    let mut stage = stage(place, TTL, 10, 5);
    let owners = stage.settled(&[2; 5], TIMEOUT);
    let acquired: Vec<usize> = (0..5).map(|who| stage.acquired(who)).collect();
    pause(Duration::from_secs(3));
    assert_eq!(stage.owners(), owners, "nothing moves while nothing changes");
    let after: Vec<usize> = (0..5).map(|who| stage.acquired(who)).collect();
    assert_eq!(after, acquired, "nothing moves while nothing changes");
    stage.finish();
}

fn three_of_nine(place: StoreKind) {
    let mut stage = stage(place, TTL, 9, 3);
    stage.settled(&[3; 3], TIMEOUT);
    stage.finish();
}

fn joining(place: StoreKind) {
    let mut stage = stage(place, TTL, 10, 2);
    let before = stage.settled(&[5, 5], TIMEOUT);
    let acquired = [0, 1].map(|who| stage.acquired(who));
    let third = stage.join();
    let after = stage.settled(&[3, 3, 4], TIMEOUT);
    let share = of(&after, "m2").len();
    assert!((3..=4).contains(&share), "{after:?}");
    for (shard, owner) in &after {
        if owner.member != "m2" {
            assert_eq!(before.get(shard), Some(owner), "{shard} has moved, or begun anew");
        }
    }
    assert_eq!([0, 1].map(|who| stage.acquired(who)), acquired, "the others took nothing");
    assert_eq!(stage.acquired(third), share, "and this one nothing but its share");
    stage.finish();
}

// ---- faults ----

/// Three members with three shards each; `m1` is the member that a fault hits.
pub(crate) fn three_with(place: StoreKind, ttl: Duration, stderr: Option<Stderr>) -> FleetStage {
    FleetStage::new(place, ttl, 9, INTERVAL).with_stderr(stderr).with(3)
}

fn three(place: StoreKind, ttl: Duration) -> (FleetStage, ShardOwners, ShardOwners) {
    let mut stage = stage(place, ttl, 9, 3);
    let owners = stage.settled(&[3; 3], TIMEOUT);
    let terms = terms_of(&owners, "m1");
    (stage, owners, terms)
}

/// Checks the time from the fault to the first effect of the next owner, for the shard that waited longest.
pub(crate) fn taken_within(
    stage: &mut FleetStage,
    terms: &ShardOwners,
    at: Moment,
    limit: Duration,
) {
    let next = stage.taken_over(terms, stage.ttl + TIMEOUT);
    let gap = next.values().map(|line| line.at.since(at)).max().unwrap_or_default();
    if gap > limit {
        stage.fail(&format!("a shard had no owner for {gap:?}"));
    }
}

/// Checks that the shards of the other members have not moved.
pub(crate) fn unmoved(stage: &FleetStage, before: &ShardOwners, after: &ShardOwners, struck: &str) {
    for (shard, owner) in before.iter().filter(|(_, owner)| owner.member != struck) {
        if after.get(shard) != Some(owner) {
            stage.fail(&format!("{shard} has moved from {owner:?} to {:?}", after.get(shard)));
        }
    }
}

/// Checks that the other two members own all shards, and that none of theirs has moved.
pub(crate) fn two_go_on(stage: &mut FleetStage, before: &ShardOwners) {
    let after = stage.settled(&[4, 5], TIMEOUT);
    unmoved(stage, before, &after, "m1");
}

fn three_again(mut stage: FleetStage) {
    stage.settled(&[3; 3], TIMEOUT);
    stage.finish();
}

/// The guard ends the commands and releases the shards: no member waits for a lease to expire.
fn killed(place: StoreKind) {
    let (mut stage, owners, terms) = three(place, LONG);
    let at = now();
    stage.members[1].signal(Signal::KILL);
    taken_within(&mut stage, &terms, at, SOON);
    stage.gone(&pids(&terms));
    two_go_on(&mut stage, &owners);
    stage.ended(1);
    stage.restart(1);
    three_again(stage);
}

fn killed_whole(place: StoreKind) {
    let (mut stage, owners, terms) = three(place, TTL);
    let at = stage.members[1].kill_tree();
    taken_within(&mut stage, &terms, at, TTL + AFTER_TTL);
    two_go_on(&mut stage, &owners);
    stage.ended(1);
    stage.restart(1);
    three_again(stage);
}

fn leaving(place: StoreKind) {
    let (mut stage, owners, terms) = three(place, LONG);
    let at = now();
    stage.members[1].signal(Signal::TERM);
    taken_within(&mut stage, &terms, at, SOON);
    assert_eq!(stage.ended(1).code(), Some(0));
    let released = ["Lease released: instance=m1 endpoint=", "reason=shutdown"];
    assert_eq!(stage.lines_with(1, &released), 3, "{}", stage.log_of(1));
    two_go_on(&mut stage, &owners);
    stage.finish();
}

/// Only the member is frozen: its guard ends the commands before their deadlines, and the shards are free no later than that.
fn frozen(place: StoreKind) {
    let (mut stage, owners, terms) = three(place, TTL);
    // A member that is frozen in the middle of a change is killed by its guard and does not come back.
    let at = freeze_between_changes(stage.members[1].pid());
    taken_within(&mut stage, &terms, at, TTL + AFTER_TTL);
    stopped_in_time(&mut stage, &terms, at);
    stage.gone(&pids(&terms));
    two_go_on(&mut stage, &owners);
    stage.members[1].signal(Signal::CONT);
    three_again(stage);
}

/// Member, guard and commands are frozen: no process could stop them, so other members own their shards when they resume, and
/// the fence has to refuse what they do before they are killed.
fn frozen_whole(place: StoreKind) {
    let (mut stage, owners, terms) = three(place, TTL);
    let (frozen, at) = Frozen::new(stage.members[1].pid(), stage.mark());
    taken_within(&mut stage, &terms, at, TTL + AFTER_TTL);
    two_go_on(&mut stage, &owners);
    let from = frozen.thaw();
    for (shard, owner) in &terms {
        let thaw = Thaw { token: owner.token, from, within: AFTER_THAW };
        stage.thaws.push((shard.clone(), thaw));
    }
    stage.gone(&pids(&terms));
    three_again(stage);
}

/// The commands end with the guard and are started again in the same terms, and no other member notices.
fn guard_killed(place: StoreKind) {
    let (mut stage, owners, terms) = three(place, LONG);
    let guard = stage.members[1].guard().expect("it has a guard");
    signal(guard, Signal::KILL);
    stage.gone(&pids(&terms));
    let same = |owner: &ShardOwner| (owner.member.clone(), owner.token);
    let after = stage.settled_as(TIMEOUT, "begun again", |after| {
        let begun = terms.iter().all(|(shard, before)| {
            after
                .get(shard)
                .is_some_and(|after| same(after) == same(before) && after.pid != before.pid)
        });
        begun.then_some(())
    });
    unmoved(&stage, &owners, &after, "m1");
    assert_ne!(stage.members[1].guard(), Some(guard));
    stage.finish();
}

/// Checks that the last effects came before the deadlines, if the leases were last renewed just before `at`.
pub(crate) fn stopped_in_time(stage: &mut FleetStage, terms: &ShardOwners, at: Moment) {
    let deadline = deadline(at, stage.ttl);
    for (shard, owner) in terms {
        let late = stage.last_of(shard, owner.token).at.since(deadline);
        if late > Duration::ZERO {
            stage.fail(&format!("{shard} was worked on {late:?} past its deadline"));
        }
    }
}

/// Proves that the judge detects violations in a fleet: without a guard the commands of a frozen member keep working.
fn unguarded() {
    let mut stage =
        FleetStage::new(StoreKind::Redis, TTL, 4, INTERVAL).with_flags(&["--no-guard"]).with(2);
    let owners = stage.settled(&[2, 2], TIMEOUT);
    let terms = terms_of(&owners, "m1");
    stage.members[1].signal(Signal::STOP);
    stage.taken_over(&terms, TTL + TIMEOUT);
    pause(Duration::from_millis(100));
    stage.members[1].signal(Signal::CONT);
    let verdicts = stage.close();
    for (shard, verdict) in &verdicts {
        let beside = !verdict.overlaps.is_empty();
        assert_eq!(beside, terms.contains_key(shard), "{shard}: {verdict}");
    }
}

// ---- overrides ----

fn overridden(place: StoreKind) {
    let mut stage = stage(place, TTL, 9, 3);
    let owners = stage.settled(&[3; 3], TIMEOUT);
    let drained = CandidateId::new("m2").unwrap();
    stage.change_overrides(|control| _ = control.drained.insert(drained.clone()));
    let after = stage.settled(&[4, 5], TIMEOUT);
    unmoved(&stage, &owners, &after, "m2");
    assert_eq!(stage.lines_with(2, &["Lease released: ", "reason=drain"]), 3);

    let (paused, others) = (stage.shard("s4"), stage.shard("s7"));
    stage.change_overrides(|control| control.paused.extend([paused.clone(), others.clone()]));
    let unowned = |owners: &ShardOwners| {
        (owners.len() == 7 && !owners.contains_key("s4") && !owners.contains_key("s7"))
            .then_some(())
    };
    stage.settled_as(TIMEOUT, "two are paused", unowned);
    let last = ["s4", "s7"].map(|shard| stage.last(shard));
    // A member that dies meanwhile leaves them paused.
    stage.members[0].signal(Signal::KILL);
    stage.ended(0);
    stage.settled_as(TIMEOUT, "one has them all", |owners| {
        (shares(owners) == BTreeMap::from([("m1".to_owned(), 7)])).then_some(())
    });
    assert_eq!(["s4", "s7"].map(|shard| stage.last(shard)), last, "nobody works on a paused shard");
    let released = (0..2).map(|who| stage.lines_with(who, &["Lease released: ", "reason=paused"]));
    assert_eq!(released.sum::<usize>(), 2);

    stage.change_overrides(|control| {
        control.paused.clear();
        control.drained.clear();
    });
    stage.restart(0);
    stage.settled(&[3; 3], TIMEOUT);
    stage.finish();
}

// ---- the store ----

fn killed_server(stage: &FleetStage, begins: bool) {
    if begins {
        stage.place.kill_server();
    } else {
        stage.place.start_server_again();
    }
}

fn stopped_server(stage: &FleetStage, begins: bool) {
    stage.place.signal_server(if begins { Signal::STOP } else { Signal::CONT });
}

/// The length of an outage: a minute with TENURE_LONG.
fn lasting() -> Duration {
    Duration::from_secs(if is_long() { 60 } else { 15 })
}

pub(crate) fn is_long() -> bool {
    std::env::var_os("TENURE_LONG").is_some()
}

fn outage(run: fn(&FleetStage, bool)) {
    let mut stage = stage(StoreKind::Redis, TTL, 9, 3);
    let owners = stage.settled(&[3; 3], TIMEOUT);
    let begun = now();
    run(&stage, true);
    // Starting the outage may take a moment in which renewals still succeed.
    let begins = now();
    pause_until(begun + lasting());
    stage.gone(&pids(&owners));
    stopped_in_time(&mut stage, &owners, begins);
    assert_eq!(stage.owners(), ShardOwners::new(), "nobody works without a store");
    run(&stage, false);
    let back = now();
    taken_within(&mut stage, &owners, back, TTL + SOON);
    stage.settled(&[3; 3], TIMEOUT);
    for who in 0..3 {
        assert!(stage.lines_with(who, &["The store answers again"]) > 0, "{}", stage.log_of(who));
        // D5: the lease that expired in the outage was its own.
        assert_eq!(stage.lines_with(who, &["same id"]), 0, "{}", stage.log_of(who));
    }
    stage.finish();
}

/// All data is deleted while all members work: the owners stop, and no other member starts before they have.
fn flushed() {
    let mut stage = stage(StoreKind::Redis, TTL, 9, 3);
    for _ in 0..3 {
        let owners = stage.settled(&[3; 3], TIMEOUT);
        let at = now();
        stage.place.flush();
        taken_within(&mut stage, &owners, at, 2 * TTL + SOON);
    }
    stage.settled(&[3; 3], TIMEOUT);
    stage.finish();
}
