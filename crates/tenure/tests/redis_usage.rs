//! What operators see in Redis, and what a lease costs there.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt;
use tenure::store::{Change, Grade, Scope};
use tenure::{Checkpoint, Claim, Clock, Hold};

use tenure_rig::redis_rig::{
    DURABLE, NOT_DURABLE, Rig, TTL, acquire, claim, granted, open, release, renew, taken, tests,
};

fn main() -> ExitCode {
    tenure_rig::redis_rig::main(tests![
        the_visible_key_works_like_a_plain_lock,
        a_lease_never_lasts_less_than_its_ttl,
        no_grade_is_better_than_the_server,
        companions_expire_unless_they_hold_a_checkpoint,
        databases_are_separate,
        a_watcher_parses_messages_or_requests_an_observation,
        a_unix_socket_works,
        acquire_and_renew_take_one_call_each,
        a_hundred_thousand_leases,
    ])
}

async fn the_visible_key_works_like_a_plain_lock() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let grant = granted(&*store, &claim("myapp:leader", "web-1")).await;
    assert_eq!(rig.run::<String>("GET myapp:leader").await, "web-1");
    let left = rig.run::<i64>("TTL myapp:leader").await;
    assert!((58..=60).contains(&left), "{left}");
    assert_eq!(rig.run::<Vec<String>>("KEYS myapp:*").await, ["myapp:leader"]);
    // A plain lock excludes Tenure, and Tenure excludes it.
    let plain = "SET myapp:leader cron NX PX 9000";
    assert_eq!(rig.run::<Option<String>>(plain).await, None);
    release(&*store, &grant.hold).await;
    assert_eq!(rig.run::<i64>("EXISTS myapp:leader").await, 0);
    assert_eq!(rig.run::<Option<String>>(plain).await, Some("OK".to_owned()));
    let lease = taken(acquire(&*store, &claim("myapp:leader", "web-1")).await);
    assert_eq!(lease.holder.expect("cron").id, "cron");
    assert!(lease.left > Duration::from_secs(7) && lease.left <= Duration::from_secs(9));
    // For a key without expiry, the waiter waits a day at a time.
    rig.run::<()>("SET myapp:leader cron").await;
    let lease = taken(acquire(&*store, &claim("myapp:leader", "web-1")).await);
    assert_eq!(lease.left, Duration::from_secs(86_400));
}

/// The server counts milliseconds, the holder nanoseconds: rounding must not shorten the holder's time.
async fn a_lease_never_lasts_less_than_its_ttl() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    for round in 0..200 {
        let name = format!("short:{round}");
        let grant = granted(&*store, &claim(&name, "me")).await;
        let granted_at = grant.store_time.expect("Redis has a clock").0;
        let ends = rig.run::<u64>(&format!("PEXPIRETIME {name}")).await * 1_000;
        let whole = u64::try_from(TTL.as_micros()).unwrap();
        assert!(ends >= granted_at + whole, "{} µs short", granted_at + whole - ends);
    }
}

async fn no_grade_is_better_than_the_server() {
    for (arguments, grade) in [(DURABLE, Grade::B), (NOT_DURABLE, Grade::C)] {
        let rig = Rig::new(arguments);
        let store = rig.open().await;
        assert_eq!(store.limits().grade, Grade::C, "the server was not examined yet");
        granted(&*store, &claim("a", "me")).await;
        assert_eq!(store.limits().grade, grade);
        assert_eq!(store.detached().limits().grade, grade, "all handles know what one has found");
    }
}

async fn companions_expire_unless_they_hold_a_checkpoint() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let (hour, day) = (3_600, 86_400);
    let left = async |key: &str| rig.run::<i64>(&format!("TTL {key}")).await;
    // At the earliest a day after the lease expires, and then at the next full hour.
    let about_a_day = |left: i64| {
        assert!((day + 55..=day + hour + 60).contains(&left), "{left}");
    };
    let hold = granted(&*store, &claim("a", "me")).await.hold;
    about_a_day(left("tenure:{a}").await);
    assert_eq!(rig.run::<i64>("EXPIRETIME tenure:{a}").await % hour, 0);
    // A term that lasts into another hour moves the expiry along.
    let for_two_hours = async |hold: &Hold| {
        let ttl = Duration::from_secs(7_200);
        let answers = store.renew(std::slice::from_ref(hold), ttl).await.unwrap();
        assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_held()));
    };
    for_two_hours(&hold).await;
    let later = left("tenure:{a}").await;
    assert!((day + 2 * hour - 5..=day + 3 * hour).contains(&later), "{later}");
    assert!(renew(&*store, &hold).await.unwrap().is_held());
    about_a_day(left("tenure:{a}").await);
    let note = Checkpoint::new("row 1").unwrap();
    assert!(store.save(&hold, 1, &note).await.unwrap().is_held());
    assert_eq!(left("tenure:{a}").await, -1);
    for_two_hours(&hold).await;
    assert_eq!(left("tenure:{a}").await, -1, "also into another hour");
    assert!(renew(&*store, &hold).await.unwrap().is_held());
    release(&*store, &hold).await;
    assert_eq!(left("tenure:{a}").await, -1, "a checkpoint stays");
    let hold = granted(&*store, &claim("b", "me")).await.hold;
    release(&*store, &hold).await;
    about_a_day(left("tenure:{b}").await);
    // Names whose record is gone are skipped.
    rig.run::<()>("DEL tenure:{b}").await;
    assert_eq!(store.observe(&Scope::Prefix(String::new())).await.unwrap().len(), 1);
}

async fn databases_are_separate() {
    let rig = Rig::new(DURABLE);
    let (zero, one) = (rig.open().await, open(&format!("{}/1", rig.url())).await);
    let name = claim("a", "me").name;
    let (mut in_zero, mut in_one) =
        (zero.watch(&Scope::name(&name)), one.watch(&Scope::Prefix("a".to_owned())));
    assert_eq!(in_zero.next().await, Some(Change::Look));
    assert_eq!(in_one.next().await, Some(Change::Look));
    let first = granted(&*zero, &claim("a", "me")).await.hold;
    let second = granted(&*one, &claim("a", "you")).await.hold;
    let granted = |hold: &Hold| {
        let Hold { name, candidate, token, .. } = hold.clone();
        Change::Granted { name, token, holder: Some(candidate) }
    };
    assert_eq!(in_zero.next().await, Some(granted(&first)));
    assert_eq!(in_one.next().await, Some(granted(&second)));
    assert_eq!(rig.run::<String>("GET a").await, "me");
}

/// Candidates of another version send less, or more; other programs send anything.
async fn a_watcher_parses_messages_or_requests_an_observation() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let (name, me) = (claim("a", "me").name, claim("a", "me").candidate);
    let granted = |token, holder| Change::Granted {
        name: name.clone(),
        token: tenure::Token::new(token).unwrap(),
        holder,
    };
    let mut changes = store.watch(&Scope::name(&name));
    assert_eq!(changes.next().await, Some(Change::Look));
    for (message, change) in [
        ("granted 7 me", granted(7, Some(me.clone()))),
        ("granted 7", granted(7, None)),
        ("granted 7 ", Change::Look),
        ("granted 7 me and more", Change::Look),
        ("granted 0 me", Change::Look),
        ("granted me", Change::Look),
        ("granted", Change::Look),
        ("freed ", Change::Freed { name: name.clone(), next: None }),
        ("freed me", Change::Freed { name: name.clone(), next: Some(me.clone()) }),
        ("freed m!", Change::Look),
    ] {
        let words = ["PUBLISH", "tenure:wake:a", message].map(|word| word.as_bytes().to_vec());
        rig.run_bytes::<()>(&words).await;
        assert_eq!(changes.next().await, Some(change), "{message:?}");
    }
}

async fn a_unix_socket_works() {
    let rig = Rig::new(&["--unixsocket", "redis.sock"]);
    let path = rig.server.directory().join("redis.sock");
    let url = format!("redis:///2?socket={}", path.display());
    let store = open(&url).await;
    assert_eq!(store.url(), url);
    granted(&*store, &claim("a", "me")).await;
    let store = open("redis://?socket=/no/such/socket").await;
    let error = acquire(&*store, &claim("a", "me")).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/socket: there is no such socket"), "{error}");
}

/// How often scripts were called.
async fn calls(rig: &Rig) -> u64 {
    let info = rig.run::<String>("INFO commandstats").await;
    let count = |command: &str| {
        let line =
            info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    count("evalsha") + count("eval")
}

async fn acquire_and_renew_take_one_call_each() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    granted(&*store, &claim("warm", "me")).await;
    let before = calls(&rig).await;
    let hold = granted(&*store, &claim("a", "me")).await.hold;
    assert_eq!(calls(&rig).await, before + 1);
    assert!(renew(&*store, &hold).await.unwrap().is_held());
    // The first call on a connection sends the script in full, so the server need not know it.
    assert_eq!(calls(&rig).await, before + 2);
    assert!(renew(&*store, &hold).await.unwrap().is_held());
    assert_eq!(calls(&rig).await, before + 3);
}

async fn a_hundred_thousand_leases() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    let clock = Clock::boot();
    let claims: Vec<Claim> = (0..100_000).map(|i| claim(&format!("fleet:{i}"), "me")).collect();
    let timed = async |what: &str,
                       calls_before: u64,
                       work: &mut (dyn Future<Output = ()> + Unpin + Send)| {
        let start = clock.now();
        work.await;
        let took = clock.now().since(start);
        let calls = calls(&rig).await - calls_before;
        println!("100,000 leases {what}: {took:?}, {calls} calls");
        calls
    };
    granted(&*store, &claim("warm", "me")).await;
    let mut holds: Vec<Hold> = Vec::new();
    let mut work = Box::pin(async {
        for answer in store.acquire(&claims).await.unwrap() {
            holds.push(answer.unwrap().held().expect("they are free").hold);
        }
    });
    timed("acquired", calls(&rig).await, &mut work).await;
    drop(work);
    let again = claim("warm-2", "me");
    renew(&*store, &granted(&*store, &again).await.hold).await.unwrap();
    for round in ["renewed", "renewed again"] {
        let mut work = Box::pin(async {
            let answers = store.renew(&holds, TTL).await.unwrap();
            assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_held()));
        });
        assert!(timed(round, calls(&rig).await, &mut work).await <= 100);
    }
    let mut work = Box::pin(async {
        let observed = store.observe(&Scope::Prefix("fleet:".to_owned())).await.unwrap();
        assert_eq!(observed.len(), 100_000);
    });
    timed("observed", calls(&rig).await, &mut work).await;
    drop(work);
    let mut work = Box::pin(async {
        let releases: Vec<_> = holds.iter().cloned().map(Into::into).collect();
        assert!(store.release(&releases).await.unwrap().iter().all(Result::is_ok));
    });
    timed("released", calls(&rig).await, &mut work).await;
}
