//! What ended participants leave in the directory, and which directories a store accepts.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use tenure::store::{Change, Scope, StoreExt as _, open_existing};
use tenure::{CandidateId, Checkpoint, Claim, ClaimedWait, Clock, Kind, Name, Store};

use crate::child::{ChildProcess, command};
use crate::fixture::{
    LONG, Scratch, acquire, assert_fails, chmod, claim, claim_ending_with_process, hold, name,
    open, wait,
};
use crate::{Check, Needs, check};

pub(crate) const CHECKS: &[(&str, Needs, Check)] = &[
    check!(released_participants_leave_no_files, Nothing),
    check!(killed_participants_are_removed_at_the_next_opening, Nothing),
    check!(user_lease_named_like_a_member_keeps_its_record, Nothing),
    check!(existing_store_is_opened_when_it_is_made, Nothing),
    check!(directory_with_other_files_is_refused, Nothing),
];

fn files(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for part in ["leases", "locks", "live", "tmp"] {
        let entries = std::fs::read_dir(path.join(part)).expect("a part of the store");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        found.extend(names.map(|name| format!("{part}/{}", name.to_string_lossy())));
    }
    found.sort();
    found
}

/// The claim of a participant on itself, as presence, membership and requests make it.
fn participant(name: &str, id: &str, ttl: Duration) -> Claim {
    let name = Name::stored(name).expect("a name");
    claim_ending_with_process(id, ttl).with_name(name).with_wait(ClaimedWait::Never)
}

/// B3: earlier, every participant left a record and a lock.
fn released_participants_leave_no_files() {
    let scratch = Scratch::new();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let mut last = None;
        for n in 0..20 {
            for name in ["tenure:node:job:", "tenure:ask:job", "fleet:node:"] {
                let claim = participant(&format!("{name}{n}"), "me", LONG);
                let hold = hold(&store, &claim).await;
                let note = Checkpoint::new("list").expect("short");
                assert!(store.save(&hold, 1, &note).await.expect("it works").is_held());
                store.release_one(&hold).await.expect("released");
                assert!(store.observe(&Scope::name(&hold.name)).await.expect("seen").is_empty());
                assert!(last.replace(hold.token) < Some(hold.token), "tokens grow");
            }
        }
        let live = store.liveness().is_some();
        assert!(live, "made for the first term that ends with its process");
    });
    let left = files(&scratch.store());
    let locks = ["locks/fleet:node:.lock", "locks/tenure:ask:.lock", "locks/tenure:node:.lock"];
    assert_eq!(
        left.iter().filter(|file| !file.starts_with("live/")).collect::<Vec<_>>(),
        locks.iter().collect::<Vec<_>>()
    );
}

fn killed_participants_are_removed_at_the_next_opening() {
    let scratch = Scratch::new();
    // A holder whose record stays, so that its challenger learns of its death.
    let mut holder = ChildProcess::start(&mut command("mortal", &scratch.store()));
    holder.next_line().expect("it holds");
    let mut other = ChildProcess::start(&mut command("participants", &scratch.store()));
    other.next_line().expect("it holds");
    wait(async {
        drop(open(&scratch.store()).await.expect("opened"));
        let alive = files(&scratch.store());
        assert!(alive.contains(&"leases/fleet:node:a.lease".to_owned()), "{alive:?}");
        other.kill();
        holder.kill();
        let store = open(&scratch.store()).await.expect("opened");
        let left = files(&scratch.store());
        let records: Vec<_> = left.iter().filter(|file| file.starts_with("leases/")).collect();
        assert_eq!(records, ["leases/job.lease"]);
        assert_eq!(left.iter().filter(|file| file.starts_with("live/")).count(), 1, "{left:?}");
        let grant = acquire(&store, &claim("b", LONG)).await.expect("it works").held();
        assert!(grant.is_some(), "the death of the holder is still seen");
    });
}

fn user_lease_named_like_a_member_keeps_its_record() {
    let scratch = Scratch::new();
    wait(async {
        let store = open(&scratch.store()).await.expect("opened");
        let user = participant("a:node:b", "me", LONG).with_wait(ClaimedWait::AsRequired);
        let first = hold(&store, &user).await;
        store.release_one(&first).await.expect("released");
        let store = open(&scratch.store()).await.expect("opened");
        let lease = store.observe_one(&user.name).await.expect("readable");
        assert_eq!(lease.expect("seen").token, Some(first.token));
    });
}

/// UX 11: a command that only reads creates nothing, and observes what other processes create later.
fn existing_store_is_opened_when_it_is_made() {
    let scratch = Scratch::new();
    let url = format!("file:{}", scratch.store().display());
    wait(async {
        let reader = open_existing(&url).await.expect("nothing is wrong with it");
        let all = Scope::Prefix(String::new());
        assert!(reader.observe(&all).await.expect("it works").is_empty());
        assert_eq!(reader.url(), url);
        reader.examine().await.expect("it works");
        assert_fails(reader.acquire(&[claim("a", LONG)]).await, Kind::Invalid, "No leases yet in ");
        assert!(!scratch.store().exists());
        // An empty directory stays empty.
        std::fs::create_dir(scratch.store()).expect("made");
        chmod(&scratch.store(), 0o700);
        assert!(reader.observe(&all).await.expect("it works").is_empty());
        assert_eq!(std::fs::read_dir(scratch.store()).expect("listed").count(), 0);
        let mut changes = reader.watch(&all);
        assert_eq!(changes.next().await, Some(Change::Look));
        let store = open(&scratch.store()).await.expect("opened");
        hold(&store, &claim("a", LONG)).await;
        let change = tokio::time::timeout(LONG, changes.next()).await.expect("it is found");
        assert_eq!(change, Some(Change::Look));
        assert_eq!(reader.observe(&all).await.expect("it works").len(), 1);
    });
}

fn directory_with_other_files_is_refused() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.store()).expect("made");
    chmod(&scratch.store(), 0o700);
    for file in ["zebra", "passwd"] {
        std::fs::write(scratch.store().join(file), "").expect("written");
    }
    let url = format!("file:{}", scratch.store().display());
    wait(async {
        assert_fails(open(&scratch.store()).await, Kind::Denied, "('passwd')");
        assert_fails(open_existing(&url).await, Kind::Denied, "store/tenure");
        assert_eq!(std::fs::read_dir(scratch.store()).expect("listed").count(), 2);
        // A store with additional files stays valid.
        open(&scratch.store().join("tenure")).await.expect("opened");
        std::fs::write(scratch.store().join("tenure/README"), "").expect("written");
        let store = open(&scratch.store().join("tenure")).await.expect("opened");
        assert!(store.observe(&Scope::name(&name())).await.expect("it works").is_empty());
    });
}

/// Runs inside the child process: holds one lease of each kind.
pub(crate) async fn hold_participant_leases(store: &tenure::store::file::FileStore) {
    for name in ["tenure:node:job:a", "tenure:ask:job", "fleet:node:a"] {
        hold(store, &participant(name, "child", LONG)).await;
    }
    println!("held by {}", CandidateId::generate());
    Clock::boot().sleep(LONG).await;
}
