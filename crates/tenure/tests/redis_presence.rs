//! Ephemeral leases in Redis: what ended participants leave behind, and what it costs to observe the live ones.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::time::Duration;

use tenure::store::{Scope, Store};
use tenure::{CandidateId, Checkpoint, Claim, ClaimedWait, Clock, Kind, Name, Nonce};

use tenure_rig::redis_rig::{NOT_DURABLE, Rig, TTL, claim, granted, release, renew, tests};

const DEAD_NAMES: usize = 100_000;
const HOUR: i64 = 3_600;

fn main() -> ExitCode {
    tenure_rig::redis_rig::main(tests![
        dead_names_do_not_make_observe_more_expensive,
        dead_names_do_not_make_a_list_of_all_names_more_expensive,
        forgotten_names_leave_the_index,
        records_of_participants_expire_within_hours,
        sets_of_another_type_are_reported_and_never_block_a_claim,
    ])
}

/// The claim of a candidate of `job` on its own presence.
fn presence(job: &str, id: &str, ttl: Duration) -> Claim {
    let id = CandidateId::new(id).unwrap();
    let name = Name::new(job).unwrap().node(&id);
    Claim::new(name, id, Nonce::random(), ttl).with_wait(ClaimedWait::Never)
}

/// How many commands the server has executed, including those in scripts, and the microseconds of all scripts.
async fn executed(rig: &Rig) -> (u64, u64) {
    let info = rig.run::<String>("INFO commandstats").await;
    let field = |line: &str, name: &str| {
        let value = line.split([':', ',']).find_map(|field| field.strip_prefix(name));
        value.unwrap().parse::<u64>().unwrap()
    };
    let lines = info.lines().filter(|line| line.starts_with("cmdstat_"));
    let scripts = lines.clone().filter(|line| line.starts_with("cmdstat_eval"));
    let calls = lines.map(|line| field(line, "calls=")).sum();
    (calls, scripts.map(|line| field(line, "usec=")).sum())
}

async fn observe(store: &dyn Store, prefix: &str) -> Vec<String> {
    let found = store.observe(&Scope::Prefix(prefix.to_owned())).await.unwrap();
    found.into_iter().map(|lease| lease.unwrap().name.to_string()).collect()
}

/// The cost of one observe of `prefix`, which must find `expected` leases.
async fn observe_cost(rig: &Rig, store: &dyn Store, prefix: &str, expected: usize) -> (u64, u64) {
    let before = executed(rig).await;
    assert_eq!(observe(store, prefix).await.len(), expected);
    let after = executed(rig).await;
    (after.0 - before.0, after.1 - before.1)
}

/// The cost of one observe of the presences of `job`, of which there are three.
async fn presence_cost(rig: &Rig, store: &dyn Store) -> (u64, u64) {
    observe_cost(rig, store, "tenure:node:job:", 3).await
}

/// Adds names without a record to the index.
async fn add_dead_names(rig: &Rig, prefix: &str) {
    let script = "for i = 1, ARGV[2] do redis.call('ZADD', 'tenure:index', 0, ARGV[1] .. i) end";
    let words = ["EVAL", script, "0", prefix, &DEAD_NAMES.to_string()];
    rig.run_bytes::<()>(&words.map(|word| word.as_bytes().to_vec())).await;
}

/// B3. The test counts commands, because time depends on the other load of the machine.
async fn dead_names_do_not_make_observe_more_expensive() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    for id in ["a", "b", "c"] {
        granted(&*store, &presence("job", id, TTL)).await;
    }
    presence_cost(&rig, &*store).await;
    let without = presence_cost(&rig, &*store).await;
    let ttl = Duration::from_millis(100);
    let dead: Vec<Claim> =
        (0..DEAD_NAMES).map(|i| presence("job", &format!("dead-{i}"), ttl)).collect();
    for answer in store.acquire(&dead).await.unwrap() {
        assert!(answer.unwrap().is_held());
    }
    Clock::boot().sleep(ttl * 2).await;
    let expired = presence_cost(&rig, &*store).await;
    // As an earlier version would have left them.
    add_dead_names(&rig, "tenure:node:job:x").await;
    let listed = presence_cost(&rig, &*store).await;
    println!("(commands, usec): without {without:?}, expired {expired:?}, in the index {listed:?}");
    assert!(expired.0 <= 2 * without.0 && listed.0 <= 2 * without.0, "commands");
    // Claims remove ended presences, a hundred at a time.
    let left = rig.run::<usize>("ZCARD tenure:presence").await;
    granted(&*store, &presence("job", "d", TTL)).await;
    assert!(rig.run::<usize>("ZCARD tenure:presence").await + 99 <= left.max(103));
}

/// B3. The list of all names includes presences; those that an earlier build left in the index are never read.
async fn dead_names_do_not_make_a_list_of_all_names_more_expensive() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    granted(&*store, &claim("job", "me")).await;
    granted(&*store, &claim("zoo", "me")).await;
    for id in ["a", "b", "c"] {
        granted(&*store, &presence("job", id, TTL)).await;
    }
    let list_cost = async || observe_cost(&rig, &*store, "", 5).await;
    list_cost().await;
    let without = list_cost().await;
    for prefix in ["tenure:node:job:x", "tenure:ask:x"] {
        add_dead_names(&rig, prefix).await;
        let with = list_cost().await;
        println!("(commands, usec): without {without:?}, with {prefix}* {with:?}");
        assert!(with.0 <= 2 * without.0, "commands: {} and {}", without.0, with.0);
    }
    // Each list removes thirty of each kind.
    assert_eq!(rig.run::<usize>("ZCARD tenure:index").await, 2 * DEAD_NAMES + 2 - 90);
    // Leases are read once more before they leave the index.
    add_dead_names(&rig, "dead:").await;
    let (first, second) = (list_cost().await, list_cost().await);
    println!("(commands, usec): dead leases {first:?}, and again {second:?}");
    assert!(second.0 <= 2 * without.0, "commands: {} and {}", without.0, second.0);
}

async fn forgotten_names_leave_the_index() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    for i in 0..10 {
        let hold = granted(&*store, &claim(&format!("old:{i}"), "me")).await.hold;
        release(&*store, &hold).await;
        if i < 9 {
            rig.run::<()>(&format!("DEL tenure:{{old:{i}}}")).await;
        }
    }
    assert_eq!(observe(&*store, "").await, ["old:9"], "a free lease that is known is shown");
    assert_eq!(rig.run::<Vec<String>>("ZRANGE tenure:index 0 -1").await, ["old:9"]);
}

async fn records_of_participants_expire_within_hours() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    let left = async |name: &Name| rig.run::<i64>(&format!("TTL tenure:{{{name}}}")).await;
    let within_hours = |left: i64| assert!((HOUR..=2 * HOUR + 60).contains(&left), "{left}");
    // A membership has a checkpoint, and expires all the same.
    let member = presence("fleet", "m", TTL).with_name(Name::new("fleet:node:m").unwrap());
    for claim in [presence("job", "a", TTL), member] {
        let hold = granted(&*store, &claim).await.hold;
        within_hours(left(&hold.name).await);
        let note = Checkpoint::new("list").unwrap();
        assert!(store.save(&hold, 1, &note).await.unwrap().is_held());
        assert!(renew(&*store, &hold).await.unwrap().is_held());
        within_hours(left(&hold.name).await);
        assert_eq!(observe(&*store, hold.name.as_str()).await, [hold.name.as_str()]);
        release(&*store, &hold).await;
        within_hours(left(&hold.name).await);
        assert_eq!(rig.run::<usize>("ZCARD tenure:presence").await, 0);
        assert_eq!(rig.run::<usize>("ZCARD tenure:index").await, 0);
    }
    // A user's lease may have a name like a member's.
    let user = granted(&*store, &claim("fleet:node:user", "me")).await.hold;
    assert!(left(&user.name).await > 24 * HOUR);
    release(&*store, &user).await;
    assert_eq!(observe(&*store, "fleet:").await, ["fleet:node:user"]);
}

async fn sets_of_another_type_are_reported_and_never_block_a_claim() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    for key in ["tenure:presence", "tenure:index"] {
        rig.run::<()>(&format!("SET {key} x")).await;
        let hold = granted(&*store, &presence("job", "a", TTL)).await.hold;
        assert!(renew(&*store, &hold).await.unwrap().is_held());
        let error = store.observe(&Scope::Prefix(String::new())).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains(key), "{error}");
        release(&*store, &hold).await;
        rig.run::<()>(&format!("DEL {key}")).await;
    }
}
