//! Other clients change the keys of leases.

use std::time::Duration;

use tenure::store::{Revoke, Scope, StoreExt as _};
use tenure::{Ended, Kind};

use tenure_rig::redis_rig::{DURABLE, Rig, TTL, acquire, claim, granted, release, renew, taken};

pub(crate) async fn flushed_scripts_are_sent_again() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.run::<()>("SCRIPT FLUSH").await;
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    rig.run::<()>("SCRIPT FLUSH").await;
    let many: Vec<_> = (0..5_000).map(|i| claim(&format!("n{i}"), "me")).collect();
    let answers = store.acquire(&many).await.unwrap();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_held()));
}

pub(crate) async fn flushed_leases_are_lost_and_start_again() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.run::<()>("FLUSHALL").await;
    let lease = taken(renew(&*store, &grant.hold).await);
    assert_eq!((lease.holder, lease.token), (None, None));
    assert_eq!(rig.run::<i64>("DBSIZE").await, 0, "a renewal makes nothing");
    let next = granted(&*store, &claim("a", "other")).await;
    assert!(next.hold.token > grant.hold.token, "the clock is a floor under the tokens");
    assert_eq!(next.lineage.before, Ended::Nothing);
    assert_ne!(next.lineage.origin, grant.lineage.origin);
}

/// The companion states how long the holder may still assume that it leads.
pub(crate) async fn after_a_deleted_key_the_next_holder_waits_for_its_time() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let first = granted(&*store, &claim("a", "me")).await;
    assert_eq!(first.wait, None);
    rig.run::<()>("DEL a").await;
    let observed = store.observe_one(&first.hold.name).await.unwrap().expect("it was used");
    assert_eq!((observed.holder, observed.lineage.unwrap().before), (None, Ended::Nothing));
    assert_eq!(taken(renew(&*store, &first.hold).await).holder, None);
    assert_eq!(rig.run::<i64>("EXISTS a").await, 0, "a renewal does not bring it back");

    let assert_waits = |grant: &tenure::Grant| {
        let wait = grant.wait.expect("the holder waits");
        assert_eq!(wait.reason, tenure::WaitReason::Deleted);
        assert!(wait.left > TTL - Duration::from_secs(5) && wait.left <= TTL, "{wait:?}");
        assert_eq!(grant.lineage.before, Ended::Nothing);
    };
    let newcomer = claim("a", "newcomer");
    let second = granted(&*store, &newcomer).await;
    assert_waits(&second);
    assert!(second.hold.token > first.hold.token);
    assert_eq!(second.lineage.origin, second.hold.token);
    // Also when the reply was lost, and for a candidate that comes after a holder that did not wait until the end.
    assert_waits(&granted(&*store, &newcomer).await);
    release(&*store, &second.hold).await;
    let third = granted(&*store, &claim("a", "third")).await;
    let wait = third.wait.expect("the holder waits");
    assert!(wait.left > TTL - Duration::from_secs(5), "{wait:?}");
    assert_eq!(third.lineage.before, Ended::Released(second.hold.token));
}

pub(crate) async fn a_key_whose_expiry_was_changed_is_a_foreign_holder() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    for (number, command) in
        ["PEXPIRE KEY 5000", "PEXPIRE KEY 500000", "PERSIST KEY", "SETEX KEY 7 me", "SET KEY me"]
            .iter()
            .enumerate()
    {
        let claim = claim(&format!("k{number}"), "me");
        let grant = granted(&*store, &claim).await;
        rig.run::<redis::Value>(&command.replace("KEY", &format!("k{number}"))).await;
        for lease in
            [taken(renew(&*store, &grant.hold).await), taken(acquire(&*store, &claim).await)]
        {
            let holder = lease.holder.expect("a stranger");
            assert_eq!((holder.id.as_str(), holder.nonce), ("me", None), "{command}");
            assert!(!lease.left.is_zero(), "{command}");
        }
        release(&*store, &grant.hold).await;
        assert_eq!(rig.run::<i64>(&format!("EXISTS k{number}")).await, 1, "{command}");
    }
}

pub(crate) async fn a_key_of_another_type_is_corrupt() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    rig.run::<()>("DEL a").await;
    rig.run::<()>("RPUSH a 1 2").await;
    assert_eq!(renew(&*store, &grant.hold).await.unwrap_err().kind(), Kind::Corrupt);
    let error = acquire(&*store, &claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("'tenure:{a}'"), "{error}");
    assert_eq!(rig.run::<String>("TYPE a").await, "list");
}

pub(crate) async fn huge_and_unreadable_values_are_foreign_holders() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    for value in [vec![b'x'; 10 << 20], b"\xff\xfe\x00\n".to_vec(), Vec::new()] {
        let set =
            [b"SET".to_vec(), b"big".to_vec(), value.clone(), b"PX".to_vec(), b"9000".to_vec()];
        rig.run_bytes::<()>(&set).await;
        let lease = taken(acquire(&*store, &claim("big", "me")).await);
        let id = lease.holder.expect("a stranger").id;
        assert!(id.chars().count() <= 256, "{} characters", id.len());
        assert_eq!(id.is_empty(), value.is_empty());
        let error = store.revoke(&lease.name, Revoke::Now).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
    }
    assert_eq!(rig.run::<i64>("EXISTS big").await, 1);
}

pub(crate) async fn a_broken_index_blocks_no_claim_or_renewal() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    let all = Scope::Prefix(String::new());
    rig.run::<()>("SET tenure:index nonsense").await;
    assert_eq!(store.observe(&all).await.unwrap_err().kind(), Kind::Corrupt);
    granted(&*store, &claim("b", "me")).await;
    rig.run::<()>("DEL tenure:index").await;
    assert!(store.observe(&all).await.unwrap().is_empty());
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    assert_eq!(store.observe(&all).await.unwrap().len(), 1, "a renewal puts it back");
}

/// A renewal checks only a few of many names in the index, so this must be enough to find out.
pub(crate) async fn a_lost_index_is_complete_after_one_round_of_renewals() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let hold_all = async |kind: &str| {
        let claims: Vec<_> = (0..2_500).map(|i| claim(&format!("{kind}:{i}"), "me")).collect();
        let grants = store.acquire(&claims).await.unwrap().into_iter();
        grants.map(|grant| grant.unwrap().held().unwrap().hold).collect::<Vec<_>>()
    };
    let renew_all = async |holds: &[tenure::Hold]| {
        let answers = store.renew(holds, TTL).await.unwrap();
        assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_held()));
    };
    let indexed =
        async |kind: &str| store.observe(&Scope::Prefix(format!("{kind}:"))).await.unwrap().len();
    let old = hold_all("old").await;
    rig.run::<()>("DEL tenure:index").await;
    renew_all(&old).await;
    assert_eq!(indexed("old").await, 2_500);
    // Other names have been written to the index since.
    rig.run::<()>("DEL tenure:index").await;
    let new = hold_all("new").await;
    assert_eq!((indexed("old").await, indexed("new").await), (0, 2_500));
    renew_all(&old).await;
    assert_eq!(indexed("old").await, 2_500);
    // Half of the index is missing, and the names are distributed over the calls in a new way.
    rig.run::<()>("DEL tenure:index").await;
    renew_all(&new).await;
    let mixed: Vec<_> = old.iter().zip(&new).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    renew_all(&mixed).await;
    assert_eq!(indexed("old").await, 2_500);
    // A single name is checked in its turn.
    rig.run::<i64>("ZREM tenure:index old:1234").await;
    let mut rounds = 0;
    while indexed("old").await < 2_500 {
        renew_all(&old).await;
        rounds += 1;
        assert!(rounds < 500, "one in 17 is looked for each time");
    }
}

/// A renewal and a release read only the fields they compare, and this must not change the answer.
pub(crate) async fn a_hold_is_compared_in_every_field() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("a", "me")).await;
    let stolen = |change: fn(&mut tenure::Hold)| {
        let mut hold = grant.hold.clone();
        change(&mut hold);
        hold
    };
    for hold in [
        stolen(|hold| hold.candidate = tenure::CandidateId::new("you").unwrap()),
        stolen(|hold| hold.nonce = tenure::Nonce::random()),
        stolen(|hold| hold.token = tenure::Token::new(7).unwrap()),
    ] {
        let lease = taken(renew(&*store, &hold).await);
        assert_eq!(lease.holder.unwrap().nonce, Some(grant.hold.nonce));
        release(&*store, &hold).await;
        assert_eq!(rig.run::<i64>("EXISTS a").await, 1);
    }
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    // The same if the companion is too large for its compact encoding, so that every field is measured.
    let long = "x".repeat(400);
    rig.run::<i64>(&format!("HSET tenure:{{a}} note {long}")).await;
    assert_eq!(rig.run::<String>("OBJECT ENCODING tenure:{a}").await, "hashtable");
    assert!(renew(&*store, &grant.hold).await.unwrap().is_held());
    for (number, command) in [
        "HSET KEY v 1",
        "HSET KEY until 0x10",
        "HSET KEY token 01",
        "HDEL KEY until",
        "HDEL KEY nonce",
        "HSET KEY nonce HUGE",
        "HSET KEY until HUGE",
        "RENAME other KEY",
    ]
    .iter()
    .enumerate()
    {
        let hold = granted(&*store, &claim(&format!("k{number}"), "me")).await.hold;
        rig.run::<i64>("RPUSH other 1").await;
        let key = format!("tenure:{{k{number}}}");
        let command = command.replace("KEY", &key).replace("HUGE", &"9".repeat(1 << 20));
        rig.run::<redis::Value>(&command).await;
        let error = renew(&*store, &hold).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{}", &command[..20]);
        let answer = store.release_one(&hold).await;
        assert_eq!(answer.unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(rig.run::<i64>(&format!("EXISTS k{number}")).await, 1);
    }
}
