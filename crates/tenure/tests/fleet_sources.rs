//! The Redis sources of shards, and sources of the largest size.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt;
use tenure::fleet::source::{self, LastGood, Shards, Source, SourceMessage};
use tenure::fleet::{Shard, fleet_name, overrides};
use tenure::{CandidateId, Clock, Kind, Name};

use tenure_rig::redis_rig::{DURABLE, NOT_DURABLE, Rig, acquire, granted, taken, tests};

fn main() -> ExitCode {
    tenure_rig::redis_rig::main(tests![
        a_set_of_shards_is_read_and_invalid_names_are_counted,
        a_fleet_on_redis_has_default_sets,
        a_set_that_is_replaced_during_a_read_loses_no_shard,
        a_change_is_a_hint_if_the_server_sends_notifications,
        a_server_without_notifications_sends_no_hints_and_a_restarted_server_is_watched_again,
        keys_are_found_by_the_star_of_the_pattern,
        keys_of_tenure_are_no_shards,
        ambiguous_patterns_are_refused,
        another_type_is_corrupt_and_a_missing_server_is_not_empty,
        a_user_with_minimal_permissions_reads_and_pauses,
        commands_that_block_the_server_are_never_used,
        shards_with_unusual_names_have_leases,
        overrides_are_kept_on_redis,
        a_million_shards_in_a_set_in_keys_and_in_a_file,
    ])
}

fn fleet() -> Name {
    fleet_name("poll").unwrap()
}

fn names(shards: &[Shard]) -> Vec<&str> {
    shards.iter().map(Shard::as_str).collect()
}

fn shard(name: &str) -> Shard {
    Shard::new(name).unwrap()
}

async fn add(rig: &Rig, key: &str, members: &[&[u8]]) {
    let mut words = vec![b"SADD".to_vec(), key.as_bytes().to_vec()];
    words.extend(members.iter().map(|member| member.to_vec()));
    rig.run_bytes::<()>(&words).await;
}

async fn a_set_of_shards_is_read_and_invalid_names_are_counted() {
    let rig = Rig::new(NOT_DURABLE);
    let source = source::redis_set(&rig.url(), "my set").unwrap();
    assert_eq!(source.shown(), "the Redis set 'my set'");
    assert_eq!(source.read().await.unwrap(), Shards::default(), "none is no error");
    add(&rig, "my set", &[b"b", b"a c", b"", b"\xff", &[b'x'; 513], "ä\n".as_bytes()]).await;
    let read = source.read().await.unwrap();
    assert_eq!(names(read.shards()), ["a c", "b", "ä\n"]);
    assert_eq!(read.refused().count(), 3);
    let sentences = read.refused().sentences.join("; ");
    assert!(
        sentences.contains("must not be empty") && sentences.contains("not UTF-8: '\\xff'"),
        "{sentences}"
    );
    assert!(read.paused().is_empty());
}

async fn a_fleet_on_redis_has_default_sets() {
    let rig = Rig::new(NOT_DURABLE);
    let source = source::redis(&rig.url(), &fleet()).unwrap();
    rig.run::<()>("SADD poll:shards a b c").await;
    let some = [shard("b"), shard("gone")];
    assert_eq!(source::redis::pause(&rig.url(), &fleet(), &some).await.unwrap(), 2);
    assert_eq!(source::redis::pause(&rig.url(), &fleet(), &some[..1]).await.unwrap(), 0);
    let read = source.read().await.unwrap();
    assert_eq!(
        (names(read.shards()), names(read.paused())),
        (vec!["a", "b", "c"], vec!["b", "gone"])
    );
    assert!(read.is_paused("b") && !read.is_paused("a"));
    assert_eq!(source::redis::unpause(&rig.url(), &fleet(), &some).await.unwrap(), 2);
    assert!(source.read().await.unwrap().paused().is_empty());
    // If the paused shards cannot be read, the read fails: an error resumes no shard.
    rig.run::<()>("SET poll:paused nonsense").await;
    let error = source.read().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("'poll:paused'"), "{error}");
    // Another database is another fleet.
    let elsewhere = source::redis(&format!("{}/3", rig.url()), &fleet()).unwrap();
    assert_eq!(elsewhere.read().await.unwrap(), Shards::default());
}

async fn a_set_that_is_replaced_during_a_read_loses_no_shard() {
    let rig = Rig::new(NOT_DURABLE);
    // Sometimes much larger than the set before, so that its hash table has another size.
    let fill = |key: &str, round: u32| {
        let mut words = vec![b"SADD".to_vec(), key.as_bytes().to_vec()];
        words.extend((0..30_000).map(|number| format!("shard-{number}").into_bytes()));
        words
            .extend((0..round % 3 * 20_000).map(|number| format!("{round}-{number}").into_bytes()));
        words
    };
    rig.run_bytes::<()>(&fill("shards", 0)).await;
    let mut admin = rig.admin().await;
    let (done, mut readings) = tokio::sync::watch::channel(0_u32);
    let replacing = tokio::spawn(async move {
        let clock = Clock::boot();
        for round in 0..30 {
            let mut command = redis::Cmd::new();
            for word in fill("new", round) {
                command.arg(word);
            }
            command.query_async::<()>(&mut admin).await.unwrap();
            // At a random moment of a read, and never twice in the same read.
            readings.changed().await.unwrap();
            clock.sleep(Duration::from_millis(fastrand::u64(0..80))).await;
            readings.borrow_and_update();
            let rename = redis::cmd("RENAME").arg("new").arg("shards").to_owned();
            rename.query_async::<()>(&mut admin).await.unwrap();
        }
    });
    let source = source::redis_set(&rig.url(), "shards").unwrap();
    let mut short = 0;
    while !replacing.is_finished() {
        let read = source.read().await.unwrap();
        short += usize::from((0..30_000).any(|number| !read.contains(&format!("shard-{number}"))));
        done.send_modify(|count| *count += 1);
    }
    replacing.await.unwrap();
    println!("{} readings of a set that was replaced 30 times, {short} short", *done.borrow());
    assert_eq!(short, 0);
}

async fn hinted(
    hints: &mut futures_util::stream::BoxStream<'static, ()>,
    within: Duration,
) -> bool {
    tokio::time::timeout(within, hints.next()).await.is_ok()
}

const HINT_TIMEOUT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_millis(300);

async fn a_change_is_a_hint_if_the_server_sends_notifications() {
    let rig = Rig::new(&["--notify-keyspace-events", "Ksg"]);
    for (url, database) in [(rig.url(), 0), (format!("{}/2", rig.url()), 2)] {
        let source = source::redis(&url, &fleet()).unwrap();
        let mut hints = source.hints();
        assert!(hinted(&mut hints, HINT_TIMEOUT).await, "the watch has started");
        assert!(!hinted(&mut hints, SILENCE).await);
        for command in
            ["SADD poll:shards a b", "SREM poll:shards a", "SADD poll:paused b", "DEL poll:shards"]
        {
            let words = format!(
                "EVAL redis.call('select',{database});return(redis.call(unpack(ARGV))) 0 {command}"
            );
            rig.run::<redis::Value>(&words).await;
            assert!(hinted(&mut hints, HINT_TIMEOUT).await, "{command}");
        }
        // Many changes cause few hints.
        for number in 0..200 {
            let words = format!(
                "EVAL redis.call('select',{database});return(redis.call(unpack(ARGV))) 0 SADD poll:shards s{number}"
            );
            rig.run::<redis::Value>(&words).await;
        }
        let mut count = 0;
        while hinted(&mut hints, Duration::from_millis(1_500)).await {
            count += 1;
        }
        assert!((1..=5).contains(&count), "{count}");
        assert_eq!(source.read().await.unwrap().shards().len(), 200);
        rig.run::<redis::Value>(
            "EVAL redis.call('select',1);return(redis.call('sadd','poll:shards','x')) 0",
        )
        .await;
        assert!(!hinted(&mut hints, SILENCE).await, "another database");
    }
}

async fn a_server_without_notifications_sends_no_hints_and_a_restarted_server_is_watched_again() {
    let rig = Rig::new(DURABLE);
    let source = source::redis_set(&rig.url(), "shards").unwrap();
    let mut hints = source.hints();
    assert!(hinted(&mut hints, HINT_TIMEOUT).await);
    rig.run::<()>("SADD shards a").await;
    assert!(!hinted(&mut hints, SILENCE).await);
    let mut last_good = LastGood::default();
    assert!(last_good.take(source.read().await).changed);
    rig.kill();
    let change = last_good.take(source.read().await);
    assert!(
        matches!(&change.messages[..], [SourceMessage::Fails { kept: Some(1), .. }]),
        "{change:?}"
    );
    assert_eq!(names(last_good.shards().unwrap().shards()), ["a"]);
    rig.start_again();
    assert!(hinted(&mut hints, HINT_TIMEOUT).await, "changes may have been missed");
    let change = last_good.take(source.read().await);
    assert!(!change.changed && change.messages == [SourceMessage::Back], "{change:?}");
}

async fn keys_are_found_by_the_star_of_the_pattern() {
    let rig = Rig::new(NOT_DURABLE);
    for command in [
        "SET session:a:open 1",
        "SADD session:b:open 1",
        "HSET session::open f 1",
        "SET session:x:y:open 1",
        "SET session:a:closed 1",
        "SET session:open 1",
        "SET other:a:open 1",
    ] {
        rig.run::<()>(command).await;
    }
    rig.run_bytes::<()>(&[b"SET".to_vec(), b"session:\xff\xfe:open".to_vec(), b"1".to_vec()]).await;
    let source = source::redis_keys(&rig.url(), "session:*:open", &fleet()).unwrap();
    assert_eq!(source.shown(), "the Redis keys 'session:*:open'");
    let read = source.read().await.unwrap();
    assert_eq!(names(read.shards()), ["a", "b", "x:y"]);
    let sentences = &read.refused().sentences;
    assert_eq!(sentences.len(), 2, "{sentences:?}");
    assert!(sentences.iter().any(|it| {
        it.contains("in the key 'session::open': the name of a shard must not be empty")
    }));
    assert!(sentences.iter().any(|it| it.contains("is not UTF-8")));
    let all = source::redis_keys(&rig.url(), "*", &fleet()).unwrap();
    assert_eq!(all.read().await.unwrap().shards().len(), 7);
    let none = source::redis_keys(&rig.url(), "nothing:*", &fleet()).unwrap();
    assert_eq!(none.read().await.unwrap(), Shards::default());
}

/// A lease that is taken for a shard would get a lease, which would be taken for a shard, and so on.
async fn keys_of_tenure_are_no_shards() {
    let rig = Rig::new(NOT_DURABLE);
    let store = rig.open().await;
    rig.run::<()>("SET poll:tenant-1 x").await;
    let own_names = [
        shard("tenant-1").lease(&fleet()),
        tenure::fleet::node(&fleet(), &CandidateId::new("web-1").unwrap()),
        overrides::name(&fleet()),
    ];
    for name in own_names {
        let mut claim = tenure_rig::redis_rig::claim("x", "web-1");
        claim.name = name;
        granted(&*store, &claim).await;
    }
    for pattern in ["poll:*", "*"] {
        let source = source::redis_keys(&rig.url(), pattern, &fleet()).unwrap();
        let read = source.read().await.unwrap();
        assert_eq!(
            names(read.shards()),
            [pattern.replace("poll:*", "tenant-1").replace('*', "poll:tenant-1")]
        );
    }
}

async fn ambiguous_patterns_are_refused() {
    let url = "redis://127.0.0.1:1";
    for (pattern, says) in [
        ("session", "has no '*'"),
        ("", "has no '*'"),
        ("a*b*", "more than one '*'"),
        ("**", "more than one '*'"),
        ("a?*", "holds '?'"),
        ("[ab]*", "holds '['"),
        ("a\\*", "holds '\\'"),
    ] {
        let error = source::redis_keys(url, pattern, &fleet()).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains(says), "{pattern}: {error}");
    }
    for url in ["file:/tmp", "memory:", "nonsense", "redis://h?nonsense=1"] {
        assert_eq!(source::redis_set(url, "a").unwrap_err().kind(), Kind::Invalid, "{url}");
        assert_eq!(source::redis(url, &fleet()).unwrap_err().kind(), Kind::Invalid, "{url}");
    }
    let error = source::redis_set("http://:geheim@h", "a").unwrap_err();
    assert!(!error.to_string().contains("geheim"), "{error}");
    assert_eq!(source::redis_set(url, "").unwrap_err().kind(), Kind::Invalid);
}

async fn another_type_is_corrupt_and_a_missing_server_is_not_empty() {
    let rig = Rig::new(NOT_DURABLE);
    for command in ["SET shards a", "RPUSH shards a", "HSET shards a 1", "ZADD shards 1 a"] {
        rig.run::<()>("DEL shards").await;
        rig.run::<()>(command).await;
        let error = source::redis_set(&rig.url(), "shards").unwrap().read().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(
            error.to_string().contains("cannot read the Redis set 'shards': 'shards' at"),
            "{error}"
        );
    }
    let set = source::redis(&rig.url(), &fleet()).unwrap();
    let keys = source::redis_keys(&rig.url(), "a*", &fleet()).unwrap();
    rig.kill();
    for source in [set, keys] {
        let error = source.read().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("connection refused"), "{error}");
    }
}

async fn a_user_with_minimal_permissions_reads_and_pauses() {
    let rig = Rig::new(&["--notify-keyspace-events", "Ksg"]);
    rig.run::<()>("SADD poll:shards a b").await;
    let rights = "ACL SETUSER few on >pw resetkeys ~poll:shards ~poll:paused resetchannels -@all +ping +select +sscan +sadd +srem +subscribe";
    rig.run::<()>(rights).await;
    let url = format!("redis://few:pw@127.0.0.1:{}", rig.port);
    let source = source::redis(&url, &fleet()).unwrap();
    assert_eq!(source.read().await.unwrap().shards().len(), 2);
    assert_eq!(source::redis::pause(&url, &fleet(), &[shard("a")]).await.unwrap(), 1);
    assert_eq!(names(source.read().await.unwrap().paused()), ["a"]);
    assert!(!hinted(&mut source.hints(), SILENCE).await, "it may not subscribe");
    let channels = "ACL SETUSER few &__keyspace@0__:poll:shards &__keyspace@0__:poll:paused";
    rig.run::<()>(channels).await;
    let mut hints = source.hints();
    assert!(hinted(&mut hints, HINT_TIMEOUT).await);
    rig.run::<()>("SADD poll:shards c").await;
    assert!(hinted(&mut hints, HINT_TIMEOUT).await);
    let error = source::redis_set(&url, "others").unwrap().read().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(!error.to_string().contains("pw"), "{error}");
}

async fn commands_that_block_the_server_are_never_used() {
    let rig = Rig::new(NOT_DURABLE);
    rig.run::<()>("SADD poll:shards a").await;
    source::redis(&rig.url(), &fleet()).unwrap().read().await.unwrap();
    source::redis_keys(&rig.url(), "p*", &fleet()).unwrap().read().await.unwrap();
    let stats = rig.run::<String>("INFO commandstats").await;
    for command in ["cmdstat_sscan:", "cmdstat_scan:"] {
        assert!(stats.contains(command), "{stats}");
    }
    for command in ["cmdstat_smembers:", "cmdstat_keys:", "cmdstat_sort:"] {
        assert!(!stats.contains(command), "{stats}");
    }
}

async fn shards_with_unusual_names_have_leases() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let odd = [
        shard("a b"),
        shard("%"),
        shard("ä\0\n"),
        shard("*"),
        shard("{x}"),
        shard(&"x".repeat(512)),
        shard(&"ü".repeat(256)),
        shard("a%20b"),
    ];
    for shard in &odd {
        let mut claim = tenure_rig::redis_rig::claim("x", "web-1");
        claim.name = shard.lease(&fleet());
        claim.note = shard.note(&fleet());
        granted(&*store, &claim).await;
        claim.nonce = tenure::Nonce::random();
        taken(acquire(&*store, &claim).await);
    }
    let scope = tenure::store::Scope::Prefix(tenure::fleet::leases_prefix(&fleet()));
    let leases = store.observe(&scope).await.unwrap();
    let back: BTreeSet<Shard> =
        leases.into_iter().filter_map(|lease| Shard::of(&fleet(), &lease.unwrap())).collect();
    assert_eq!(back, odd.into_iter().collect());
    assert_eq!(rig.run::<String>("GET poll:lease:a%20b").await, "web-1");
}

async fn overrides_are_kept_on_redis() {
    let rig = Rig::new(DURABLE);
    let wait = Duration::from_secs(20);
    let requesters = (0..8).map(|requester| {
        let url = rig.url();
        tokio::spawn(async move {
            let store = tenure_rig::redis_rig::open(&url).await;
            let me = CandidateId::new(&format!("asker-{requester}")).unwrap();
            for round in 0..4 {
                let shard = shard(&format!("{requester} {round}"));
                let pause = |overrides: &mut overrides::Overrides| {
                    overrides.paused.insert(shard);
                };
                overrides::change(&*store, &fleet(), &me, wait, pause).await.unwrap();
            }
        })
    });
    for requester in requesters.collect::<Vec<_>>() {
        requester.await.unwrap();
    }
    rig.kill();
    let store = rig.open().await;
    assert_eq!(overrides::read(&*store, &fleet()).await.unwrap_err().kind(), Kind::Unavailable);
    rig.start_again();
    assert_eq!(overrides::read(&*store, &fleet()).await.unwrap().paused.len(), 32);
}

async fn a_million_shards_in_a_set_in_keys_and_in_a_file() {
    const MILLION: usize = 1_000_000;
    let clock = Clock::boot();
    let timed = async |what: &str, source: &dyn Source| {
        let start = clock.now();
        let read = source.read().await.unwrap();
        println!("1,000,000 shards from {what}: {:?}", clock.now().since(start));
        assert_eq!(read.shards().len(), MILLION);
        let (mut last_good, start) = (LastGood::default(), clock.now());
        let _ = last_good.take(Ok(read.clone()));
        let change = last_good.take(Ok(read));
        assert!(!change.changed);
        println!("  found to be the same: {:?}", clock.now().since(start));
    };
    let rig = Rig::new(NOT_DURABLE);
    let mut admin = rig.admin().await;
    let numbers: Vec<usize> = (0..MILLION).collect();
    for chunk in numbers.chunks(50_000) {
        let (mut set, mut keys) = (redis::cmd("SADD"), redis::cmd("MSET"));
        set.arg("poll:shards");
        for number in chunk {
            set.arg(format!("tenant-{number}"));
            keys.arg(format!("session:{number}")).arg("1");
        }
        set.query_async::<()>(&mut admin).await.unwrap();
        keys.query_async::<()>(&mut admin).await.unwrap();
    }
    timed("a Redis set", &*source::redis(&rig.url(), &fleet()).unwrap()).await;
    timed("Redis keys", &*source::redis_keys(&rig.url(), "session:*", &fleet()).unwrap()).await;
    let mut text = String::new();
    for number in numbers {
        let _ = writeln!(text, "tenant-{number}");
    }
    let scratch = tenure_rig::servers::Scratch::new();
    let path = scratch.path().join("shards");
    std::fs::write(&path, text).unwrap();
    timed("a file", &*source::file(&path)).await;
}
