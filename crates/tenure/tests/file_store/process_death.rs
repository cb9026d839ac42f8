//! A dying process frees at once the leases that end with it; what only resembles death proves nothing.

use std::time::Duration;

use futures_util::StreamExt;
use rustix::process::{Pid, Signal, kill_process};
use tenure::store::{Change, Scope, Store};
use tenure::{Clock, Ended, Token};

use crate::child::{ChildProcess, command};
use crate::fixture::{LONG, Scratch, acquire, claim, name, open, wait};
use crate::{Check, Needs, check};

pub(crate) const CHECKS: &[(&str, Needs, Check)] = &[
    check!(killed_holder_is_replaced_at_once_and_watchers_are_woken, Nothing),
    check!(stopped_holder_is_not_dead, Nothing),
    check!(killed_holder_whose_term_outlives_it_keeps_the_lease, Nothing),
    check!(a_child_that_inherited_the_lock_keeps_the_lease, Nothing),
    check!(missing_or_replaced_liveness_file_proves_nothing, Nothing),
    check!(killed_contenders_never_overlap, Nothing),
    check!(contenders_whose_lock_is_removed_never_overlap, Nothing),
];

fn killed_holder_is_replaced_at_once_and_watchers_are_woken() {
    let scratch = Scratch::new();
    let mut other = ChildProcess::start(&mut command("mortal", &scratch.store()));
    let token: u64 = other.next_line().expect("it holds").parse().expect("a token");
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let clock = Clock::boot();
        assert!(!acquire(&store, &claim("b", LONG)).await.expect("it works").is_held());
        let mut watch = store.watch(&Scope::name(&name()));
        assert_eq!(watch.next().await, Some(Change::Look));
        let killed = clock.now();
        kill_process(other.pid(), Signal::KILL).expect("killed");
        let woken = tokio::time::timeout(Duration::from_secs(5), watch.next()).await;
        assert_eq!(woken.expect("woken in time"), Some(Change::Look));
        let grant = acquire(&store, &claim("b", LONG)).await.expect("it works").held();
        let took = clock.now().since(killed);
        let grant = grant.expect("the first try after the wake-up is granted");
        assert_eq!(grant.lineage.before, Ended::Died(Token::new(token).expect("a token")));
        assert!(took < Duration::from_secs(1), "{took:?}");
        eprintln!("killed to granted: {took:?}");
    });
}

fn stopped_holder_is_not_dead() {
    let scratch = Scratch::new();
    let mut other = ChildProcess::start(&mut command("mortal", &scratch.store()));
    other.next_line().expect("it holds");
    kill_process(other.pid(), Signal::STOP).expect("stopped");
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        assert!(!acquire(&store, &claim("b", LONG)).await.expect("it works").is_held());
    });
}

fn killed_holder_whose_term_outlives_it_keeps_the_lease() {
    let scratch = Scratch::new();
    let mut other = ChildProcess::start(&mut command("immortal", &scratch.store()));
    other.next_line().expect("it holds");
    other.kill();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        assert!(!acquire(&store, &claim("b", LONG)).await.expect("it works").is_held());
    });
}

fn a_child_that_inherited_the_lock_keeps_the_lease() {
    let scratch = Scratch::new();
    let mut other = ChildProcess::start(&mut command("parent", &scratch.store()));
    let child: i32 = other.next_line().expect("it holds").parse().expect("a pid");
    other.kill();
    let child = Pid::from_raw(child).expect("a pid");
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let taken = acquire(&store, &claim("b", LONG)).await.expect("it works");
        kill_process(child, Signal::KILL).expect("it lives");
        assert!(!taken.is_held(), "granted while the work went on");
        // This process does not reap it, so wait for the lock itself.
        let clock = Clock::boot();
        let end = clock.now() + Duration::from_secs(5);
        while !acquire(&store, &claim("b", LONG)).await.expect("it works").is_held() {
            assert!(clock.now() < end, "not granted after all processes ended");
            clock.sleep(Duration::from_millis(2)).await;
        }
    });
}

fn missing_or_replaced_liveness_file_proves_nothing() {
    for exchange in [false, true] {
        let scratch = Scratch::new();
        let mut other = ChildProcess::start(&mut command("mortal", &scratch.store()));
        other.next_line().expect("it holds");
        let mut live = std::fs::read_dir(scratch.store().join("live")).expect("listed");
        let path = live.next().expect("one").expect("an entry").path();
        // Kept, so that its inode number is not reused.
        std::fs::rename(&path, scratch.path().join("kept")).expect("moved");
        if exchange {
            std::fs::write(&path, "").expect("another");
        }
        wait(async {
            let store = open(&scratch.store()).await.expect("opened");
            assert!(!acquire(&store, &claim("b", LONG)).await.expect("it works").is_held());
            other.kill();
            assert!(!acquire(&store, &claim("b", LONG)).await.expect("it works").is_held());
        });
    }
}

/// Four processes contend, and one after the other is killed: no two lead at the same time, and no token is used again.
fn killed_contenders_never_overlap() {
    contend(|scratch, contenders, round| {
        wait(Clock::boot().sleep(Duration::from_millis(50)));
        contenders[round % 4] = ChildProcess::start(&mut command("contend", &scratch.store()));
        round < 60
    });
}

/// F32: the lock file is removed repeatedly. Nothing is granted under a lock whose file is gone.
fn contenders_whose_lock_is_removed_never_overlap() {
    contend(|scratch, _, round| {
        wait(Clock::boot().sleep(Duration::from_millis(2)));
        // Sometimes the file does not exist.
        let _ = std::fs::remove_file(scratch.lock());
        round < 1500
    });
}

/// Four processes contend while `disturb` is called repeatedly until it returns false.
fn contend(disturb: impl Fn(&Scratch, &mut Vec<ChildProcess>, usize) -> bool) {
    let scratch = Scratch::new();
    let log = scratch.path().join("log");
    std::fs::write(&log, "").expect("written");
    let start = |_| ChildProcess::start(&mut command("contend", &scratch.store()));
    let mut contenders: Vec<ChildProcess> = (0..4).map(start).collect();
    let mut round = 0;
    while disturb(&scratch, &mut contenders, round) {
        round += 1;
    }
    drop(contenders);
    let log = std::fs::read_to_string(log).expect("readable");
    let (mut last, mut ended) = (0, 0);
    for line in log.lines() {
        let (what, token) = line.trim_end().split_once(' ').expect("two words");
        let token: u64 = token.parse().expect("a token");
        if what == "begin" {
            assert!(token > last, "{token} begins after {last}");
            last = token;
        } else {
            assert_eq!(token, last, "{token} was still there when {last} began");
            ended += 1;
        }
    }
    assert!(ended > 50, "only {ended} terms");
    eprintln!("{ended} terms");
}
