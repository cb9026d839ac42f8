//! The inspection of a cluster for `tenure doctor`: version, servers and leader, permissions, the lock-delay, and the watch.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::StatusCode;
use serde::Deserialize;

use super::client::ConsulClient;
use super::message::KvOperation;
use super::sessions::{self, SessionKey};
use super::{MIN_TTL, watch};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{CandidateId, Nonce};
use crate::store::{Change, Check, Grade, Report, Scope, Verdict};

/// How long the watch may take to begin.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3);

/// The name of the keys that the inspection writes.
const PROBE: &str = "tenure:probe";

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct AgentSelf {
    config: AgentConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct AgentConfig {
    version: String,
}

pub(super) async fn examine(client: &ConsulClient, clock: &Clock) -> Result<Report> {
    let probe = [format!("{}{PROBE}", client.settings.prefix)];
    // The first call connects.
    client.read_keys(&probe).await?;
    let sent = clock.now();
    client.read_keys(&probe).await?;
    let round_trip = clock.now().since(sent);
    let version = version(client).await;
    let what = match &version {
        Some(version) => format!("Consul {version}"),
        None => "Consul".to_owned(),
    };
    let checks = vec![
        version_check(version),
        servers(client).await,
        permissions(client).await,
        lock_delay(client),
        watching(client, clock).await,
        login(client),
    ];
    let covers = client.settings.covered_ttl() >= MIN_TTL;
    let grade = if covers { Grade::A } else { Grade::C };
    Ok(Report { what, grade, round_trip, checks })
}

/// The version of the agent; `None` if the token must not read it.
async fn version(client: &ConsulClient) -> Option<String> {
    let answer = client.get("/v1/agent/self").await.ok()?;
    let agent: AgentSelf = client.parsed(&answer).ok()?;
    Some(agent.config.version).filter(|version| !version.is_empty())
}

fn version_check(version: Option<String>) -> Check {
    let (verdict, what) = (Verdict::Good, "version");
    let hidden = || r#"not visible to this token: agent_prefix "" { policy = "read" }"#.to_owned();
    Check { what, verdict, found: version.unwrap_or_else(hidden) }
}

async fn servers(client: &ConsulClient) -> Check {
    let what = "servers";
    let (leader, peers) = match leader_and_peers(client).await {
        Ok(found) => found,
        Err(error) => {
            let found = format!("cannot be listed: {error}");
            return Check { what, verdict: Verdict::Weak, found };
        }
    };
    if leader.is_empty() {
        let found = format!("{}, without a leader: no lease can be granted", peers.len());
        return Check { what, verdict: Verdict::Bad, found };
    }
    let advice = match peers.len() {
        1 => ". One server: if it is lost, no candidate leads until it is back",
        2 => ". Two servers tolerate no failure: run three",
        _ => "",
    };
    let verdict = if peers.len() < 3 { Verdict::Weak } else { Verdict::Good };
    Check { what, verdict, found: format!("{}, the leader is {leader}{advice}", peers.len()) }
}

async fn leader_and_peers(client: &ConsulClient) -> Result<(String, Vec<String>)> {
    let leader = client.parsed(&client.get("/v1/status/leader").await?)?;
    let peers = client.parsed(&client.get("/v1/status/peers").await?)?;
    Ok((leader, peers))
}

/// Tries every request that Tenure needs, on a key of its own.
async fn permissions(client: &ConsulClient) -> Check {
    let what = "permissions";
    match try_everything(client).await {
        Ok(()) => {
            let found =
                "create, renew and destroy sessions; lock, read, list and delete keys".to_owned();
            Check { what, verdict: Verdict::Good, found }
        }
        Err(error) => Check { what, verdict: Verdict::Bad, found: error.to_string() },
    }
}

async fn try_everything(client: &ConsulClient) -> Result<()> {
    let candidate = CandidateId::new(PROBE)?;
    // Consul deletes the key with its session.
    let session = SessionKey { candidate, ttl: MIN_TTL, ephemeral: true };
    let session = sessions::create(client, &session).await?;
    let key = format!("{}{PROBE}:{}", client.settings.prefix, Nonce::random());
    let tried = async {
        let renewed = client.put(&format!("/v1/session/renew/{session}"), Vec::new()).await?;
        if renewed.status != StatusCode::OK {
            return Err(client.unexpected(&renewed));
        }
        let lock = KvOperation::lock(&key, &session, b"probe".to_vec());
        client.txn([KvOperation::check(&key, 0), lock], false).await?;
        let found = client.read_keys(std::slice::from_ref(&key)).await?.pop().flatten();
        let Some(found) = found else {
            // Consul hides what the token must not read.
            return Err(Error::denied(format!(
                "a key that was just written is not visible: add to the token's policy: key_prefix \"{}\" {{ policy = \
                 \"write\" }}",
                client.settings.prefix
            )));
        };
        client.txn([KvOperation::delete(&key, found.modify_index)], false).await?;
        Ok(())
    }
    .await;
    let destroyed = sessions::destroy(client, &session).await;
    tried.and(destroyed)
}

fn lock_delay(client: &ConsulClient) -> Check {
    let (what, covered) = ("lock-delay", client.settings.covered_ttl());
    match covered >= MIN_TTL {
        true => Check {
            what,
            verdict: Verdict::Good,
            found: format!("covers TTLs up to {} s", covered.as_secs()),
        },
        false => Check {
            what,
            verdict: Verdict::Weak,
            found: format!(
                "{} s: if a session ends early (destroyed by hand, its node deregistered), two candidates can lead. Remove the \
                 option lock_delay",
                covered.as_secs()
            ),
        },
    }
}

async fn watching(client: &ConsulClient, clock: &Clock) -> Check {
    let what = "watch";
    let settings = std::sync::Arc::clone(&client.settings);
    let mut changes = watch::watch(settings, clock.clone(), &Scope::Prefix(PROBE.to_owned()));
    let first = tokio::select! {
        first = changes.next() => first,
        () = clock.sleep(WATCH_TIMEOUT) => None,
    };
    match first {
        Some(Change::Look) => Check { what, verdict: Verdict::Good, found: "works".to_owned() },
        _ => Check {
            what,
            verdict: Verdict::Bad,
            found: "Consul does not answer a blocking query: check that no proxy ends or caches it"
                .to_owned(),
        },
    }
}

fn login(client: &ConsulClient) -> Check {
    let settings = &client.settings;
    let transport = if settings.target.tls.is_some() { "TLS" } else { "plaintext" };
    let token = if settings.token.is_some() { "a token" } else { "no token" };
    let verdict = if settings.target.tls.is_some() { Verdict::Good } else { Verdict::Weak };
    Check { what: "login", verdict, found: format!("{token}, {transport}") }
}
