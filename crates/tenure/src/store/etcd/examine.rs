//! The inspection of a cluster for `tenure doctor`: version, members and leader, alarms, permissions, and the watch.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::client::{EtcdCallError, EtcdClient};
use super::message::{
    DeleteRequest, Header, Int, LeaseGrantRequest, LeaseRequest, LeaseResponse, PutRequest,
    RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use super::watch;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::Nonce;
use crate::store::{Change, Check, Grade, Report, Scope, Verdict};

/// The first versions in which a leader that was replaced expires no leases any more.
const FIXED: [(u64, u64, u64); 2] = [(3, 4, 31), (3, 5, 13)];

/// How long the watch may take to begin.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Serialize)]
struct Nothing {}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StatusResponse {
    header: Header,
    version: String,
    leader: Int,
    errors: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MemberListResponse {
    members: Vec<ClusterMember>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClusterMember {
    name: String,
    #[serde(rename = "ID")]
    id: Int,
}

pub(super) async fn examine(client: &EtcdClient, clock: &Clock) -> Result<Report> {
    // The first call connects and logs in.
    let probe = RangeRequest::key(&format!("{}tenure:probe", client.settings.prefix)).keys_only();
    let _: RangeResponse = client.call("kv/range", &probe).await?;
    let sent = clock.now();
    let _: RangeResponse = client.call("kv/range", &probe).await?;
    let round_trip = clock.now().since(sent);
    let status: StatusResponse = client.call("maintenance/status", &Nothing {}).await?;
    let mut checks = vec![version(&status), members(client, &status).await, alarms(&status)];
    checks.push(permissions(client).await);
    checks.push(watching(client, clock).await);
    checks.push(login(client));
    let grade = if is_fixed(&status.version) { Grade::A } else { Grade::C };
    client.settings.grade_a.store(grade == Grade::A, Ordering::Relaxed);
    Ok(Report { what: format!("etcd {}", status.version), grade, round_trip, checks })
}

/// The numbers of a version such as `3.5.16`.
fn parsed(version: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

fn is_fixed(version: &str) -> bool {
    let Some(version) = parsed(version) else { return false };
    version >= FIXED[1] || ((3, 4, 0)..(3, 5, 0)).contains(&version) && version >= FIXED[0]
}

fn version(status: &StatusResponse) -> Check {
    let version = &status.version;
    match is_fixed(version) {
        true => Check { what: "version", verdict: Verdict::Good, found: version.clone() },
        false => Check {
            what: "version",
            verdict: Verdict::Weak,
            found: format!(
                "{version}: a leader that was replaced may still expire leases (etcd issue 15247), so a lease can end before its \
                 time. Upgrade to 3.4.31, 3.5.13 or later"
            ),
        },
    }
}

async fn members(client: &EtcdClient, status: &StatusResponse) -> Check {
    let what = "members";
    let listed: Result<MemberListResponse, EtcdCallError> =
        client.call("cluster/member/list", &Nothing {}).await;
    let list = match listed {
        Ok(list) => list.members,
        Err(error) => {
            let found = format!("cannot be listed: {}", Error::from(error));
            return Check { what, verdict: Verdict::Weak, found };
        }
    };
    let leader = list.iter().find(|member| member.id == status.leader);
    let (count, leader) = (list.len(), leader.map_or("none", |leader| leader.name.as_str()));
    let advice = match count {
        1 => ". One member: if it is lost, no candidate leads until it is back",
        2 => ". Two members tolerate no failure: run three",
        _ => "",
    };
    let verdict = if count < 3 { Verdict::Weak } else { Verdict::Good };
    Check { what, verdict, found: format!("{count}, the leader is {leader}{advice}") }
}

fn alarms(status: &StatusResponse) -> Check {
    let what = "alarms";
    match status.errors.is_empty() {
        true => Check { what, verdict: Verdict::Good, found: "none".to_owned() },
        false => Check {
            what,
            verdict: Verdict::Bad,
            found: format!("{}: etcdctl alarm list", status.errors.join(", ")),
        },
    }
}

/// Tries every request that Tenure needs, on a key of its own.
async fn permissions(client: &EtcdClient) -> Check {
    let what = "permissions";
    match try_everything(client).await {
        Ok(()) => {
            let found = "lease grant, keepalive, revoke; read, write and delete keys".to_owned();
            Check { what, verdict: Verdict::Good, found }
        }
        Err(error) => Check { what, verdict: Verdict::Bad, found: error.to_string() },
    }
}

async fn try_everything(client: &EtcdClient) -> Result<()> {
    let key = format!("{}tenure:probe:{}#tenure", client.settings.prefix, Nonce::random());
    let lease: LeaseResponse =
        client.call("lease/grant", &LeaseGrantRequest { ttl: Int(10) }).await?;
    let put = PutRequest {
        key: key.as_str().into(),
        value: "probe".into(),
        lease: Some(lease.id),
        ignore_value: false,
        ignore_lease: false,
    };
    let delete = DeleteRequest { key: key.as_str().into() };
    let written: Result<TxnResponse, EtcdCallError> = client
        .call("kv/txn", &TxnRequest { success: vec![RequestOp::Put(put)], ..TxnRequest::default() })
        .await;
    let read: Result<RangeResponse, EtcdCallError> =
        client.call("kv/range", &RangeRequest::key(&key)).await;
    let deleted: Result<TxnResponse, EtcdCallError> = client
        .call(
            "kv/txn",
            &TxnRequest { success: vec![RequestOp::Delete(delete)], ..TxnRequest::default() },
        )
        .await;
    let kept: Result<serde::de::IgnoredAny, EtcdCallError> =
        client.call("lease/keepalive", &LeaseRequest { id: lease.id }).await;
    // Also after an error: it removes the key.
    let revoked: Result<serde::de::IgnoredAny, EtcdCallError> =
        client.call("lease/revoke", &LeaseRequest { id: lease.id }).await;
    written?;
    read?;
    deleted?;
    kept?;
    revoked?;
    Ok(())
}

async fn watching(client: &EtcdClient, clock: &Clock) -> Check {
    let what = "watch";
    let settings = std::sync::Arc::clone(&client.settings);
    let mut changes =
        watch::watch(settings, clock.clone(), Scope::Prefix("tenure:probe".to_owned()));
    let first = tokio::select! {
        first = changes.next() => first,
        () = clock.sleep(WATCH_TIMEOUT) => None,
    };
    match first {
        Some(Change::Look) => Check { what, verdict: Verdict::Good, found: "works".to_owned() },
        _ => Check {
            what,
            verdict: Verdict::Bad,
            found: "etcd does not accept a watch: check that no proxy buffers its answers"
                .to_owned(),
        },
    }
}

fn login(client: &EtcdClient) -> Check {
    let settings = &client.settings;
    let transport = if settings.target.tls.is_some() { "TLS" } else { "plaintext" };
    let user = settings.user.as_deref().map_or("no user".to_owned(), |user| format!("user {user}"));
    let verdict = if settings.target.tls.is_some() { Verdict::Good } else { Verdict::Weak };
    Check { what: "login", verdict, found: format!("{user}, {transport}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_the_fix_are_named() {
        for (version, fixed) in [
            ("3.4.23", false),
            ("3.4.31", true),
            ("3.5.1", false),
            ("3.5.12", false),
            ("3.5.16", true),
            ("3.6.0", true),
            ("3.5.13-rc.1", true),
            ("", false),
        ] {
            assert_eq!(is_fixed(version), fixed, "{version}");
        }
    }
}
