//! Overrides on the memory and file stores: changes, concurrent changes, records that cannot be read, and the size limit.

use std::sync::Arc;

use tenure_rig::servers::Scratch;

use super::*;
use crate::error::Kind;
use crate::fleet::{fleet_name, node};
use crate::store::memory::MemoryStore;

const WAIT: Duration = Duration::from_secs(20);

fn id(text: &str) -> CandidateId {
    CandidateId::new(text).unwrap()
}

fn shard(text: &str) -> Shard {
    Shard::new(text).unwrap()
}

fn fleet() -> Name {
    fleet_name("poll").unwrap()
}

async fn stores() -> (Vec<Arc<dyn Store>>, Scratch) {
    let scratch = Scratch::new();
    let mut stores: Vec<Arc<dyn Store>> = vec![Arc::new(MemoryStore::new(Clock::boot()))];
    if cfg!(feature = "file") {
        let url = format!("file:{}/leases", scratch.path().display());
        stores.push(crate::store::open(&url).await.unwrap());
    }
    (stores, scratch)
}

/// Writes this record in place of the overrides.
async fn write_record(store: &dyn Store, bytes: &[u8]) {
    let claim = Claim::new(name(&fleet()), id("planter"), Nonce::random(), CHANGE_TTL);
    let grant = store.acquire_one(&claim).await.unwrap().held().unwrap();
    let checkpoint = Checkpoint::new(bytes).unwrap();
    assert!(store.save(&grant.hold, 1, &checkpoint).await.unwrap().is_held());
    store.release_one(grant.hold).await.unwrap();
}

#[tokio::test]
async fn overrides_are_read_back_and_removed() {
    let (stores, _scratch) = stores().await;
    for store in stores {
        assert_eq!(read(&*store, &fleet()).await.unwrap(), Overrides::default());
        let odd = [shard("a b"), shard("\n\0"), shard("ä\""), shard(&"x".repeat(512))];
        let insert = |overrides: &mut Overrides| {
            overrides.paused.extend(odd.clone());
            overrides.drained.insert(id("web-1"));
        };
        let changed = change(&*store, &fleet(), &id("me"), WAIT, insert).await.unwrap();
        assert_eq!(changed.paused.len(), 4);
        assert_eq!(read(&*store, &fleet()).await.unwrap(), changed);
        let remove = |overrides: &mut Overrides| {
            assert!(overrides.paused.remove("a b"));
            overrides.drained.clear();
        };
        let changed = change(&*store, &fleet(), &id("you"), WAIT, remove).await.unwrap();
        assert!(changed.paused.len() == 3 && changed.drained.is_empty());
        assert_eq!(read(&*store, &fleet()).await.unwrap(), changed);
        let other = fleet_name("poll2").unwrap();
        assert_eq!(read(&*store, &other).await.unwrap(), Overrides::default());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_are_all_kept() {
    let (stores, _scratch) = stores().await;
    for store in stores {
        let requesters = (0..12).map(|requester| {
            let store = store.detached();
            tokio::spawn(async move {
                for round in 0..3 {
                    let shard = shard(&format!("{requester}-{round}"));
                    let insert = |overrides: &mut Overrides| {
                        overrides.paused.insert(shard);
                    };
                    let requester = id(&format!("asker-{requester}"));
                    change(&*store, &fleet(), &requester, WAIT, insert).await.unwrap();
                }
            })
        });
        for requester in requesters.collect::<Vec<_>>() {
            requester.await.unwrap();
        }
        assert_eq!(read(&*store, &fleet()).await.unwrap().paused.len(), 36);
    }
}

#[tokio::test]
async fn an_unchanged_record_is_not_written_and_a_change_notifies_watchers() {
    let (stores, _scratch) = stores().await;
    for store in stores {
        let pause = |overrides: &mut Overrides| {
            overrides.paused.insert(shard("a"));
        };
        let mut changes = store.watch(&Scope::name(&name(&fleet())));
        assert!(changes.next().await.is_some());
        change(&*store, &fleet(), &id("me"), WAIT, pause).await.unwrap();
        assert!(changes.next().await.is_some());
        write_record(&*store, br#" { "v": 1, "paused": ["a"], "drained": [] } "#).await;
        change(&*store, &fleet(), &id("me"), WAIT, pause).await.unwrap();
        let lease = store.observe_one(&name(&fleet())).await.unwrap().unwrap();
        assert!(lease.holder.is_none(), "the lease was released");
        assert!(lease.checkpoint.unwrap().as_bytes().starts_with(b" {"), "nothing was written");
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_an_error_and_is_kept() {
    let (stores, _scratch) = stores().await;
    for store in stores {
        for (text, says) in [
            (&b""[..], "not JSON"),
            (b"\xff\xfe", "not JSON"),
            (br#"{"v":1,"paused":["a"]"#, "not JSON"),
            (b"[]", "no version"),
            (b"{}", "no version"),
            (br#"{"v":"1","paused":[],"drained":[]}"#, "no version"),
            (br#"{"v":2,"paused":[],"moved":{}}"#, "of version 2"),
            (br#"{"v":1}"#, "missing field"),
            (br#"{"v":1,"paused":[],"drained":[],"also":1}"#, "unknown field"),
            (br#"{"v":1,"paused":[""],"drained":[]}"#, "must not be empty"),
            (br#"{"v":1,"paused":[],"drained":["a b"]}"#, "' '"),
            (br#"{"v":1,"paused":[7],"drained":[]}"#, "invalid type"),
        ] {
            write_record(&*store, text).await;
            let error = read(&*store, &fleet()).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{error}");
            assert!(error.to_string().contains(says), "{error}");
            let clear = |overrides: &mut Overrides| *overrides = Overrides::default();
            let error = change(&*store, &fleet(), &id("me"), WAIT, clear).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{error}");
            let lease = store.observe_one(&name(&fleet())).await.unwrap().unwrap();
            assert_eq!(lease.checkpoint.unwrap().as_bytes(), text);
            assert!(lease.holder.is_none());
        }
    }
}

#[tokio::test]
async fn a_record_that_is_too_large_is_refused_and_changes_nothing() {
    let (stores, _scratch) = stores().await;
    for store in stores {
        let few = |overrides: &mut Overrides| {
            overrides.paused.insert(shard("a"));
        };
        let before = change(&*store, &fleet(), &id("me"), WAIT, few).await.unwrap();
        let many = |overrides: &mut Overrides| {
            overrides.paused.extend((0..1_000).map(|n| shard(&format!("shard-{n}"))));
        };
        let error = change(&*store, &fleet(), &id("me"), WAIT, many).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("the set FLEET:paused"), "{error}");
        assert_eq!(read(&*store, &fleet()).await.unwrap(), before);
    }
}

#[tokio::test]
async fn a_waiting_change_succeeds_when_the_lease_is_free_or_times_out() {
    let (stores, _scratch) = stores().await;
    for store in stores {
        let claim = Claim::new(name(&fleet()), id("slow"), Nonce::random(), WAIT);
        let slow = store.acquire_one(&claim).await.unwrap().held().unwrap();
        let pause = |overrides: &mut Overrides| {
            overrides.paused.insert(shard("a"));
        };
        let short = Duration::from_millis(50);
        let error = change(&*store, &fleet(), &id("me"), short, pause).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("nothing was changed"), "{error}");
        let (me, fleet) = (id("me"), fleet());
        let (changed, ()) = tokio::join!(change(&*store, &fleet, &me, WAIT, pause), async {
            Clock::boot().sleep(short).await;
            store.release_one(slow.hold).await.unwrap();
        });
        assert!(changed.unwrap().paused.contains("a"));
    }
}

/// Fills the record with drains: `count` one-time ids, drained one after the other.
async fn drain_one_time_ids(store: &dyn Store, count: usize) {
    for number in 0..count {
        let one_time = id(&format!("web-7f9c6d5b48-{number:05}"));
        let drain = |overrides: &mut Overrides| {
            overrides.drained.insert(one_time.clone());
        };
        let after = change(store, &fleet(), &id("operator"), WAIT, drain).await;
        let after = after.unwrap_or_else(|error| panic!("drain {number}: {error}"));
        assert!(after.drained.contains(&one_time), "drain {number} counts");
    }
}

#[tokio::test]
async fn a_thousand_drains_of_ids_that_never_return_are_all_accepted() {
    let store = MemoryStore::new(Clock::boot());
    // A running member, drained before all others: its drain is the oldest, and stays.
    let member = Claim::new(node(&fleet(), &id("living")), id("living"), Nonce::random(), WAIT);
    assert!(store.acquire_one(&member).await.unwrap().is_held());
    let drain = |overrides: &mut Overrides| {
        overrides.drained.insert(id("living"));
        overrides.paused.insert(shard("a"));
    };
    change(&store, &fleet(), &id("operator"), WAIT, drain).await.unwrap();
    drain_one_time_ids(&store, 1_000).await;
    let overrides = read(&store, &fleet()).await.unwrap();
    assert!(overrides.drained.contains(&id("living")), "a running member stays drained");
    assert!(overrides.paused.contains("a"), "a pause stays");
    assert!(overrides.drained.contains(&id("web-7f9c6d5b48-00999")));
    assert!(!overrides.drained.contains(&id("web-7f9c6d5b48-00000")), "the oldest was dropped");
}

#[tokio::test]
async fn pauses_replace_old_drains() {
    let store = MemoryStore::new(Clock::boot());
    drain_one_time_ids(&store, 300).await;
    let shards: Vec<Shard> = (0..200).map(|number| shard(&format!("tenant-{number}"))).collect();
    let pause = |overrides: &mut Overrides| overrides.paused.extend(shards.clone());
    let overrides = change(&store, &fleet(), &id("operator"), WAIT, pause).await.unwrap();
    assert_eq!(overrides.paused.len(), 200);
    assert_eq!(read(&store, &fleet()).await.unwrap(), overrides);
}

#[tokio::test]
async fn a_drain_that_does_not_fit_is_refused_and_not_dropped_silently() {
    let store = MemoryStore::new(Clock::boot());
    let shards: Vec<Shard> = (0..400).map(|number| shard(&format!("s{number:06}"))).collect();
    let pause = |overrides: &mut Overrides| overrides.paused.extend(shards.clone());
    change(&store, &fleet(), &id("operator"), WAIT, pause).await.unwrap();
    let long = id(&"x".repeat(100));
    let drain = |overrides: &mut Overrides| {
        overrides.drained.insert(long.clone());
    };
    let error = change(&store, &fleet(), &id("operator"), WAIT, drain).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(!read(&store, &fleet()).await.unwrap().drained.contains(&long));
}
