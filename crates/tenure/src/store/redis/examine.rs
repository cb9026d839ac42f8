//! What kind of Redis this is and what it promises: for `tenure doctor`.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;

use super::connection::Link;
use crate::clock::Clock;
use crate::error::Result;
use crate::store::{Check, Grade, Report, Verdict};

const PINGS: usize = 10;

/// How to let us read what we would like to judge.
const ALLOW_INFO: &str = "we may not ask: allow it with ACL SETUSER NAME +info";
const ALLOW_CONFIG: &str = "we may not ask: allow it with ACL SETUSER NAME +config|get";

type Facts = HashMap<String, String>;

pub(super) async fn examine(link: &Link, clock: &Clock) -> Result<Report> {
    let round_trip = round_trip(link, clock).await?;
    let drift = drift(link, clock).await?;
    let info = info(link).await;
    let promises = promises(link, &info).await;
    let grade = grade_of(&promises);
    let mut checks = vec![version(&info)];
    checks.extend(promises);
    checks.extend([youth(&info), drift]);
    Ok(Report { what: what(&info), grade, round_trip, checks })
}

/// What the server promises as it is set up now.
pub(super) async fn grade(link: &Link) -> Grade {
    let info = info(link).await;
    grade_of(&promises(link, &info).await)
}

/// All sections; the servers differ in which they give when several are named.
async fn info(link: &Link) -> Facts {
    link.send(&redis::cmd("INFO")).await.ok().map(facts).unwrap_or_default()
}

/// What the grade rests on.
async fn promises(link: &Link, info: &Facts) -> [Check; 3] {
    let mut ask = redis::cmd("CONFIG");
    let config = link.send(ask.arg("GET").arg("appendfsync")).await.ok();
    let fsync = config.and_then(|value| redis::from_redis_value::<Vec<String>>(value).ok());
    let fsync = fsync.and_then(|pair| pair.get(1).cloned());
    [role(info), durability(info, fsync.as_deref()), eviction(info)]
}

fn grade_of(promises: &[Check]) -> Grade {
    let kept = promises.iter().all(|check| check.verdict == Verdict::Good);
    if kept { Grade::B } else { Grade::C }
}

fn facts(info: Value) -> Facts {
    let text = match info {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::VerbatimString { text, .. } => text,
        _ => String::new(),
    };
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
}

fn fact<'a>(info: &'a Facts, key: &str) -> Option<&'a str> {
    info.get(key).map(String::as_str)
}

fn what(info: &Facts) -> String {
    match (fact(info, "valkey_version"), fact(info, "redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "Redis".to_owned(),
    }
}

fn check(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check { what, verdict, found: found.into() }
}

fn version(info: &Facts) -> Check {
    let Some(version) = fact(info, "redis_version") else {
        return check("version", Verdict::Weak, ALLOW_INFO);
    };
    let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    let is = what(info);
    match (major, fact(info, "redis_mode")) {
        (_, Some("cluster")) => check(
            "version",
            Verdict::Bad,
            format!("{is} as a node of a cluster: redis:// wants a single server"),
        ),
        (_, Some("sentinel")) => check(
            "version",
            Verdict::Bad,
            format!("{is}: a sentinel keeps no keys; name the server"),
        ),
        (0..=5, _) => check("version", Verdict::Bad, format!("{is}: 6.2 or later is needed")),
        _ => check("version", Verdict::Good, is),
    }
}

fn role(info: &Facts) -> Check {
    let replicas = fact(info, "connected_slaves").unwrap_or("0");
    match fact(info, "role") {
        None => check("role", Verdict::Weak, ALLOW_INFO),
        Some("master") if replicas == "0" => {
            check("role", Verdict::Good, "a primary without replicas")
        }
        Some("master") => check(
            "role",
            Verdict::Weak,
            format!(
                "a primary with {replicas} replica(s), which follow it asynchronously: a failover \
                 may lose a lease that was granted, so two may lead for up to a TTL. Fence what \
                 must not happen twice"
            ),
        ),
        Some(_) => {
            check("role", Verdict::Bad, "a replica, which takes no writes: name the primary")
        }
    }
}

fn durability(info: &Facts, fsync: Option<&str>) -> Check {
    let weak = |found: String| check("durability", Verdict::Weak, found);
    match (fact(info, "aof_enabled"), fsync) {
        (Some("1"), Some("always")) => {
            check("durability", Verdict::Good, "every write is on disk before it is acknowledged")
        }
        (Some("1"), Some(other)) => weak(format!(
            "appendonly with appendfsync {other}: a crash of the machine forgets the last writes. \
             Waiters and the quarantine make up for it; 'appendfsync always' removes it"
        )),
        (Some(_), Some(_)) => weak(
            "no appendonly file: a restart forgets leases. Waiters and the quarantine make up for \
             it; 'appendonly yes' with 'appendfsync always' removes it"
                .to_owned(),
        ),
        (None, _) => weak(ALLOW_INFO.to_owned()),
        (_, None) => weak(format!("appendfsync: {ALLOW_CONFIG}")),
    }
}

fn eviction(info: &Facts) -> Check {
    match (fact(info, "maxmemory_policy"), fact(info, "maxmemory")) {
        (Some("noeviction"), _) => check("eviction", Verdict::Good, "noeviction"),
        (Some(policy), Some("0")) => {
            check("eviction", Verdict::Good, format!("{policy}, but there is no memory limit"))
        }
        (Some(policy), _) => check(
            "eviction",
            Verdict::Weak,
            format!("maxmemory-policy {policy} may throw away a lease: set it to noeviction"),
        ),
        (None, _) => check("eviction", Verdict::Weak, ALLOW_INFO),
    }
}

fn youth(info: &Facts) -> Check {
    match fact(info, "uptime_in_seconds") {
        Some(seconds) => check("uptime", Verdict::Good, format!("{seconds} s")),
        None => check(
            "uptime",
            Verdict::Weak,
            format!("a restart that lost leases goes unnoticed: {ALLOW_INFO}"),
        ),
    }
}

/// For people: nothing depends on the two clocks agreeing.
async fn drift(link: &Link, clock: &Clock) -> Result<Check> {
    let value = link.send(&redis::cmd("TIME")).await.map_err(|trouble| trouble.error)?;
    let ours = clock.minting_micros();
    let parts: Vec<u64> = redis::from_redis_value(value).unwrap_or_default();
    let theirs = match parts[..] {
        [seconds, micros] => seconds.saturating_mul(1_000_000).saturating_add(micros),
        _ => 0,
    };
    let apart = Duration::from_micros(ours.abs_diff(theirs));
    let found = format!("{apart:?} from this machine's; leases do not depend on it");
    Ok(check("clock", Verdict::Good, found))
}

async fn round_trip(link: &Link, clock: &Clock) -> Result<Duration> {
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent = clock.now();
        link.send(&redis::cmd("PING")).await.map_err(|trouble| trouble.error)?;
        times.push(clock.now().since(sent));
    }
    times.sort_unstable();
    Ok(times[PINGS / 2])
}
