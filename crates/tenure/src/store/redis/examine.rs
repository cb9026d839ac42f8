//! Examines the server for `tenure doctor`: what it is and what it promises.

use std::time::Duration;

use super::server_info::ServerInfo;
use super::session::Session;
use crate::clock::Clock;
use crate::error::Result;
use crate::store::{Check, Grade, Report, Verdict};

const PINGS: usize = 10;

/// Advice for a user that lacks the permission to read the server's state.
const ALLOW_INFO: &str = "we may not ask: allow it with ACL SETUSER NAME +info";
const ALLOW_CONFIG: &str = "we may not ask: allow it with ACL SETUSER NAME +config|get";

/// What protects leases on a server that is not durable.
const START_UP_WAIT: &str =
    "After a restart candidates hold leases for up to one TTL before they lead";

pub(super) async fn examine(link: &Session, clock: &Clock) -> Result<Report> {
    let round_trip = round_trip(link, clock).await?;
    let drift = drift(link, clock).await?;
    let info = ServerInfo::read(link).await;
    let mut checks = vec![version(&info)];
    checks.extend(promises(&info));
    checks.extend([uptime(&info), drift]);
    Ok(Report { what: what(&info), grade: grade(&info), round_trip, checks })
}

/// The grade of the server with its current configuration.
pub(super) fn grade(info: &ServerInfo) -> Grade {
    let kept = promises(info).iter().all(|check| check.verdict == Verdict::Good);
    if kept { Grade::B } else { Grade::C }
}

/// The checks that decide the grade.
fn promises(info: &ServerInfo) -> [Check; 3] {
    [role(info), durability(info), eviction(info)]
}

fn what(info: &ServerInfo) -> String {
    match (info.fact("valkey_version"), info.fact("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "Redis".to_owned(),
    }
}

fn check(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check { what, verdict, found: found.into() }
}

fn version(info: &ServerInfo) -> Check {
    let Some(version) = info.fact("redis_version") else {
        return check("version", Verdict::Weak, ALLOW_INFO);
    };
    let major = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    let is = what(info);
    match (major, info.fact("redis_mode")) {
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

fn role(info: &ServerInfo) -> Check {
    let replicas = info.fact("connected_slaves").unwrap_or("0");
    match info.fact("role") {
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

fn durability(info: &ServerInfo) -> Check {
    let weak = |found: String| check("durability", Verdict::Weak, found);
    let Some(enabled) = info.fact("aof_enabled") else {
        return weak(ALLOW_INFO.to_owned());
    };
    let settings = (info.setting("appendfsync"), info.setting("no-appendfsync-on-rewrite"));
    let (Some(fsync), Some(no_fsync_on_rewrite)) = settings else {
        return weak(format!("appendfsync: {ALLOW_CONFIG}"));
    };
    match (enabled, fsync) {
        ("1", "always") if no_fsync_on_rewrite != "no" => weak(format!(
            "no-appendfsync-on-rewrite {no_fsync_on_rewrite}: writes are not fsynced while the \
             append-only file is rewritten, so a crash of the machine loses them. {START_UP_WAIT}; \
             'no-appendfsync-on-rewrite no' removes that"
        )),
        ("1", "always") if info.awaits_first_rewrite() => weak(
            "appendonly was switched on a moment ago: nothing is on disk before its first rewrite is done".to_owned(),
        ),
        ("1", "always") if info.fact("aof_last_bgrewrite_status") != Some("ok") => weak(
            "the last rewrite of the append-only file failed: see the server's log".to_owned(),
        ),
        ("1", "always") => {
            check("durability", Verdict::Good, "every write is on disk before it is acknowledged")
        }
        ("1", other) => weak(format!(
            "appendonly with appendfsync {other}: a crash of the machine loses the last writes. \
             {START_UP_WAIT}; 'appendfsync always' removes that"
        )),
        _ => weak(format!(
            "no append-only file: a restart loses leases. {START_UP_WAIT}; 'appendonly yes' with \
             'appendfsync always' removes that"
        )),
    }
}

fn eviction(info: &ServerInfo) -> Check {
    match (info.fact("maxmemory_policy"), info.fact("maxmemory")) {
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

fn uptime(info: &ServerInfo) -> Check {
    match info.fact("uptime_in_seconds") {
        Some(seconds) => check("uptime", Verdict::Good, format!("{seconds} s")),
        None => check(
            "uptime",
            Verdict::Weak,
            format!("a restart that lost leases goes unnoticed: {ALLOW_INFO}"),
        ),
    }
}

/// For information only: no rule depends on the two clocks agreeing.
async fn drift(link: &Session, clock: &Clock) -> Result<Check> {
    let value = link.send(redis::cmd("TIME")).await.map_err(|call_error| call_error.error)?;
    let local_micros = clock.minting_micros();
    let parts: Vec<u64> = redis::from_redis_value(value).unwrap_or_default();
    let server_micros = match parts[..] {
        [seconds, micros] => seconds.saturating_mul(1_000_000).saturating_add(micros),
        _ => 0,
    };
    let difference = Duration::from_micros(local_micros.abs_diff(server_micros));
    let found = format!("{difference:?} from this machine's; leases do not depend on it");
    Ok(check("clock", Verdict::Good, found))
}

async fn round_trip(link: &Session, clock: &Clock) -> Result<Duration> {
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent = clock.now();
        link.send(redis::cmd("PING")).await.map_err(|call_error| call_error.error)?;
        times.push(clock.now().since(sent));
    }
    times.sort_unstable();
    Ok(times[PINGS / 2])
}
