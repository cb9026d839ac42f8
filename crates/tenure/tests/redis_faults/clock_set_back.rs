//! A server whose clock was an hour ahead and was corrected, and recorded times that no clock explains (B11, B12).
//!
//! The tests write the times that such a server leaves behind: an hour ahead of its clock.

use std::time::Duration;

use tenure::store::{Revoke, Store, StoreExt as _};
use tenure::{Answer, Claim, Clock, Grant, Kind, Lease};

use tenure_rig::redis_rig::{DURABLE, Rig, acquire, claim, granted, pause, taken};

const TTL: Duration = Duration::from_secs(3);
const HOUR_MILLIS: i64 = 3_600_000;

fn short_claim(id: &str) -> Claim {
    claim("job", id).with_ttl(TTL)
}

async fn observed(store: &dyn Store) -> Lease {
    let name = claim("job", "any").name;
    store.observe_one(&name).await.unwrap().expect("it was used")
}

async fn server_millis(rig: &Rig) -> i64 {
    let (seconds, micros) = rig.run::<(i64, i64)>("TIME").await;
    seconds * 1_000 + micros / 1_000
}

/// Simulates setting the clock back by an hour: the recorded times are an hour further ahead of it.
async fn set_back(rig: &Rig) {
    let until = rig.run::<i64>("HGET tenure:{job} until").await + HOUR_MILLIS;
    rig.run::<i64>(&format!("HSET tenure:{{job}} until {until}")).await;
    rig.run::<i64>(&format!("PEXPIREAT job {until}")).await;
}

/// The holder is dead: the next one leads one TTL after the first candidate has read the record, and not earlier.
pub(crate) async fn a_clock_set_back_delays_the_next_holder_by_one_ttl() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let first = granted(&*store, &short_claim("dead")).await;
    set_back(&rig).await;
    assert!(rig.run::<i64>("PTTL job").await > HOUR_MILLIS - 100_000);
    let clock = Clock::boot();
    let start = clock.now();
    let lease = taken(acquire(&*store, &short_claim("next")).await);
    assert!(lease.left > TTL / 2 && lease.left <= TTL, "{lease:?}");
    assert!(rig.run::<i64>("PTTL job").await <= 3_001, "the key expires when the lease does");
    let next: Grant = loop {
        assert!(clock.now().since(start) < 20 * TTL, "the next candidate waits for the old clock");
        match acquire(&*store, &short_claim("next")).await.unwrap() {
            Answer::Held(grant) => break grant,
            Answer::Taken(lease) => pause(lease.left.max(Duration::from_millis(1))).await,
        }
    };
    assert!(clock.now().since(start) >= TTL, "the holder may have renewed a moment before");
    assert!(next.hold.token > first.hold.token);
    assert_eq!(next.wait, None, "its time has run out");
}

/// The holder is alive: it keeps its lease, even after another candidate has read the record.
pub(crate) async fn a_clock_set_back_takes_no_lease_from_its_holder() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let first = granted(&*store, &short_claim("holder")).await;
    for _ in 0..3 {
        set_back(&rig).await;
        let lease = observed(&*store).await;
        assert_eq!(lease.leader(), Some("holder"));
        assert!(lease.left <= TTL, "{lease:?}");
        taken(acquire(&*store, &short_claim("next")).await);
        let renewed = store.renew_one(&first.hold, TTL).await;
        assert!(renewed.unwrap().is_held());
        assert!(rig.run::<i64>("PTTL job").await <= 3_001);
    }
}

/// A start-up wait whose end is an hour ahead is over after its length, for every reader.
pub(crate) async fn a_clock_set_back_does_not_lengthen_a_wait() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let long = claim("job", "holder");
    let first = granted(&*store, &long).await;
    let at = server_millis(&rig).await + HOUR_MILLIS;
    let set = ["HSET", "tenure:{job}", "leads_from", &format!("{at} 2000 restarted")];
    rig.run_bytes::<i64>(&set.map(|word| word.as_bytes().to_vec())).await;
    let wait = observed(&*store).await.wait.expect("it waits");
    assert!(wait.left <= Duration::from_millis(2_001), "{wait:?}");
    pause(Duration::from_millis(2_100)).await;
    assert_eq!(observed(&*store).await.leader(), Some("holder"), "the wait is over");
    drop(first);
}

/// Revoking at once frees the name in every state, and the next holder leads at once.
pub(crate) async fn a_revocation_at_once_works_after_a_clock_was_set_back() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let name = claim("job", "any").name;
    for state in ["held", "deleted", "waiting", "revoked in time"] {
        granted(&*store, &short_claim("dead")).await;
        set_back(&rig).await;
        match state {
            "deleted" => drop(rig.run::<i64>("DEL job").await),
            "waiting" => {
                let at = server_millis(&rig).await + HOUR_MILLIS;
                let set = ["HSET", "tenure:{job}", "leads_from", &format!("{at} 60000 restarted")];
                rig.run_bytes::<i64>(&set.map(|word| word.as_bytes().to_vec())).await;
            }
            "revoked in time" => {
                let lease = store.revoke(&name, Revoke::InTime).await.unwrap();
                assert!(lease.left <= TTL, "{lease:?}");
                assert!(rig.run::<i64>("PTTL job").await <= 3_001, "{state}");
            }
            _ => {}
        }
        let lease = store.revoke(&name, Revoke::Now).await.unwrap();
        assert_eq!(lease.holder, None, "{state}");
        let next = granted(&*store, &short_claim("next")).await;
        assert_eq!(next.wait, None, "{state}");
        store.revoke(&name, Revoke::Now).await.unwrap();
    }
}

/// After the visible key was deleted, the next holder waits for one TTL and not for the hour.
pub(crate) async fn a_deleted_key_after_a_clock_was_set_back_delays_by_one_ttl() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    granted(&*store, &short_claim("dead")).await;
    set_back(&rig).await;
    rig.run::<i64>("DEL job").await;
    let wait = granted(&*store, &short_claim("next")).await.wait.expect("it waits");
    assert!(wait.left <= TTL + Duration::from_millis(1), "{wait:?}");
}

/// B12: a time that no clock explains is garbage, not a reason to wait for it.
pub(crate) async fn times_out_of_range_are_corrupt() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let garbage = [
        ("until", "9007199254740991"),
        ("until", "18446741302000"),
        ("ttl", "86400001"),
        ("leads_from", "9007199254740991 1000 restarted"),
        ("leads_from", "1000 9007199254740991 restarted"),
    ];
    for (number, (field, value)) in garbage.into_iter().enumerate() {
        let ours = claim(&format!("k{number}"), "me");
        let hold = granted(&*store, &ours).await.hold;
        let key = format!("tenure:{{k{number}}}");
        let set = ["HSET", &key, field, value].map(|word| word.as_bytes().to_vec());
        for visible in [true, false] {
            rig.run_bytes::<i64>(&set).await;
            if !visible {
                rig.run::<i64>(&format!("DEL k{number}")).await;
            }
            let claimed = acquire(&*store, &claim(&format!("k{number}"), "other")).await;
            let observed_lease = store.observe_one(&ours.name).await;
            let revoked = store.revoke(&ours.name, Revoke::InTime).await;
            for (operation, error) in [
                ("acquire", claimed.map(drop).unwrap_err()),
                ("observe", observed_lease.map(drop).unwrap_err()),
                ("revoke", revoked.map(drop).unwrap_err()),
            ] {
                assert_eq!(error.kind(), Kind::Corrupt, "{operation}: {field} {value}: {error}");
            }
            let kept = rig.run::<String>(&format!("HGET {key} {field}")).await;
            assert_eq!(kept, value, "it was left as it is");
        }
        if field == "until" {
            let renewed = store.renew_one(&hold, ours.ttl).await;
            assert_eq!(renewed.unwrap_err().kind(), Kind::Corrupt);
        }
    }
}
