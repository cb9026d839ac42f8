//! `redis://` and `rediss://`: leases in one Redis or Valkey server (6.2 or later).
//!
//! # How the contract maps onto Redis
//! - A lease is a key that any Redis client can read, `NAME`: a string with the holder's id, which expires with the lease. The
//!   rest is in the hash `tenure:{NAME}`, its companion: token, nonce, TTL, checkpoint, and `until`, the server's time at which
//!   the script made `NAME` expire. `NAME` is a lease of Tenure only if its value is the companion's candidate and it expires
//!   at `until`. Any other `NAME` is another program's lock (a plain `SET NAME id NX PX ttl`, even with a candidate's id):
//!   claims wait until it is free.
//! - Every operation is one script, so it is atomic, and one round trip for up to a thousand names. The server's clock judges
//!   expiry and mints tokens.
//! - `tenure:index` is a sorted set of all names, through which a prefix is observed. It serves observation only. Acquire adds
//!   a name to it; renewals add missing names again (of a hundred or more at once, one in 17 is checked, and all are added if
//!   one was missing); and observe removes names whose record is gone. So the first list of all names after many records
//!   expired reads each of those names once more.
//! - Ephemeral leases (presence, membership, requests: `leads_from` is `never`) are in the sorted set `tenure:presence`
//!   instead, ordered by the time at which their terms end. Observing a prefix reads only those that are live. Acquire removes
//!   up to a hundred that have ended; release removes its own. Ephemeral leases that an earlier build left in the index are not
//!   read; a list that covers them removes thirty.
//! - Acquire and release publish on `tenure:wake:NAME`. Nothing is published when a lease expires.
//! - A companion expires a day after the last term of its lease was to end, at the next full hour, unless it holds a
//!   checkpoint. That of an ephemeral lease expires after an hour, with or without one. So a renewal seldom has to change this
//!   expiry.
//! - A renewal and a release read only the fields of the companion that they compare, and the rest only to explain a refusal.
//!
//! # What Redis can lose, and the start-up wait
//! The companion states when its visible key was to expire. If the visible key is gone before that time, it was deleted or
//! evicted: the lease is granted with a new origin, and its holder does not lead until the recorded time has passed.
//!
//! A server that restarted or was promoted may have lost a lease that is still in use. The script that grants asks the server
//! for its state and decides how long the holder waits before it leads:
//! - A *durable* server grants at once a name that has no record, or whose last term was released. A server is durable if it is
//!   a primary that was never promoted in this run, writes its append-only file with `appendfsync always` and
//!   `no-appendfsync-on-rewrite no`, has not just switched it on, and if neither this run nor the one before was observed
//!   without these settings. If the last term was *not* released, the holder waits until the server is as old as that term's
//!   TTL: that term's holder may have renewed while durability was off.
//! - On any other server the holder waits until the server is as old as the claimer's TTL, counted from its start or, for a
//!   promoted replica, from the first grant after its promotion.
//!
//! The end of a wait is stored in the companion (`leads_from`) and survives release and re-grant. `tenure:server` stores what
//! was observed of the server: `run` (its run id), `replid` (its replication id: a different one means a promotion), `since`,
//! `durable` (in every observation of this run) and `follows_durable` (the run before was). `FLUSHALL` on a server that has
//! been up for longer is noticed by waiters that observed a holder, but not by new candidates.
//!
//! A replica is refused at log-in, by every grant and by every renewal, even if it accepts writes.
//!
//! # URL
//! `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, `rediss://` the same over TLS, `redis://[USER[:PASSWORD]@][/DB]?socket=PATH`.
//! Options: `password_file=PATH`, `ca=FILE`, `cert=FILE` with `key=FILE` (all read again for every connection), `socket=PATH`,
//! `startup_wait=12s` (`0s`: none; `quarantine` is its earlier name), `key_prefix=app:`. No option weakens TLS, and `rediss://`
//! never falls back to plaintext. `rediss://` needs the feature `tls`.
//!
//! [`RedisStore::builder`] takes the same URL, and what an application already has instead of a part of it: its client
//! (then the URL is `redis://`), its TLS configuration, a provider of credentials.
//!
//! A URL that does not fit its server is Denied, so that an election does not start instead of waiting for ever: a database that
//! the server does not have, a password for a user without one, `rediss://` to a server without TLS, `redis://` to one with TLS.
//!
//! # Key prefix
//! With the prefix `app:` every key and every channel begins with `app:`. The lease `job` is the key `app:job`, its companion
//! `app:tenure:{app:job}`, its channel `app:tenure:wake:app:job`, and the sets are `app:tenure:index` and so on. The key of a
//! lease has at most 320 bytes. Stores with different prefixes have different leases. If one prefix begins with another one
//! (none begins every prefix), a name in one store can be the key of a name in the other: then the two exclude each other.
//!
//! # Permissions
//! For leases under `myapp:`; the whole conformance suite runs with these permissions:
//! ```text
//! ACL SETUSER tenure on >PASSWORD resetkeys ~myapp:* ~tenure:* resetchannels &tenure:wake:* -@all
//!   +ping +select +evalsha +eval +time +info +config|get +object|encoding +exists
//!   +getrange +set +del +pexpireat +pexpiretime +pttl +persist +hstrlen +hmget +hset
//!   +zadd +zrem +zrangebylex +zrangebyscore +publish +subscribe +psubscribe +unsubscribe +punsubscribe
//! ```
//! Without `+info` neither a restart nor a replica is detected; without `+config|get` no server counts as durable. Before 7.0
//! omit `+pexpiretime`, and write `+config` and `+object` for the two with a bar. For a database other than 0 the channels are
//! `&tenure:wake@N:*`. With the key prefix `app:` the keys and channels are `~app:*` and `&app:*`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

pub use self::builder::RedisStoreBuilder;
pub(crate) use self::commands::RedisServer;
use self::connection::Connector;
use self::reply::ScriptReply;
use self::script::{Call, INDEX_KEY, MAX_BATCH, PRESENCE_KEY, SERVER_KEY, call_in_batches, millis};
use self::session::Session;
use self::settings::RedisSettings;
use super::{Change, Grade, Limits, Report, Revoke, Scope, Store};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::{
    Answer, Checkpoint, Claim, ClaimedWait, Grant, Hold, Lease, Name, Release, StartupWait,
};
use crate::store::ephemeral::is_ephemeral;
/// The crate `redis`, in the version whose `Client` the [builder](RedisStoreBuilder) accepts.
#[doc(no_inline)]
pub use ::redis as client;

mod builder;
mod commands;
mod connect;
mod connection;
mod error;
mod examine;
mod index;
mod keys;
mod login;
mod protocol_probe;
mod pubsub;
mod reply;
mod script;
mod server_info;
mod session;
mod settings;
mod target;
mod watch;

/// How often the server's state is read while leases are claimed and renewed: once per TTL, within these bounds.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);
const MAX_REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// Leases in a Redis server.
///
/// The store connects when it is first used, and the next call replaces a broken connection.
#[derive(Debug)]
pub struct RedisStore {
    connector: Connector,
    clock: Clock,
    /// What the scripts put before the key of a lease to get its channel.
    prefix: String,
}

impl RedisStore {
    /// Builds a store from a URL, and from what an application already has: its client, its TLS configuration, its
    /// credentials. With a client the URL is `redis://`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// use tenure::store::redis::RedisStore;
    ///
    /// let store = RedisStore::builder("redis://127.0.0.1:6379/0").build()?;
    /// let same = tenure::open("redis://127.0.0.1:6379/0").await?;
    /// assert_eq!(store.url(), same.url());
    /// # Ok(()) }
    /// ```
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
    }

    fn with_settings(settings: Arc<RedisSettings>) -> Self {
        RedisStore {
            prefix: settings.keys.wake(settings.database),
            connector: Connector::new(settings),
            clock: Clock::boot(),
        }
    }

    fn settings(&self) -> &Arc<RedisSettings> {
        &self.connector.settings
    }

    fn claim_call(&self, link: &Session, claims: &[Claim]) -> Call {
        let mut call = Call::new(&script::ACQUIRE);
        let startup_wait = self.settings().startup_wait.map(|wait| millis(wait).to_string());
        call.key(INDEX_KEY).key(SERVER_KEY).key(PRESENCE_KEY).argument(&self.prefix);
        call.argument(startup_wait.unwrap_or_default());
        call.argument(if link.fsyncs_every_write() { "1" } else { "0" });
        for claim in claims {
            call.lease(&claim.name)
                .argument(claim.candidate.as_str())
                .shown(claim.nonce)
                .shown(millis(claim.ttl))
                .argument(claim.note.as_str());
            let history = if claim.keeps_history { "history " } else { "" };
            match claim.wait {
                ClaimedWait::AsRequired => call.argument(history),
                ClaimedWait::Never if is_ephemeral(claim) => {
                    call.shown(format_args!("{history}ephemeral"))
                }
                ClaimedWait::Never => call.shown(format_args!("{history}never")),
                ClaimedWait::AtLeast(StartupWait { left, reason }) => {
                    call.shown(format_args!("{history}{} {}", millis(left), reason.as_str()))
                }
            };
        }
        call
    }
}

fn hold_arguments(call: &mut Call, hold: &Hold) {
    call.lease(&hold.name).argument(hold.candidate.as_str()).shown(hold.nonce).shown(hold.token);
}

fn renew_call(holds: &[Hold], ttl: Duration) -> Call {
    let mut call = Call::new(&script::RENEW);
    call.key(INDEX_KEY).key(PRESENCE_KEY).shown(millis(ttl));
    for hold in holds {
        hold_arguments(&mut call, hold);
    }
    call
}

fn release_call(prefix: &str, releases: &[Release]) -> Call {
    let mut call = Call::new(&script::RELEASE);
    call.key(PRESENCE_KEY).argument(prefix);
    for release in releases {
        hold_arguments(&mut call, &release.hold);
        call.argument(release.next.as_ref().map(|next| next.as_str()).unwrap_or_default());
    }
    call
}

fn observe_call(names: &[Name]) -> Call {
    let mut call = Call::new(&script::OBSERVE);
    call.key(INDEX_KEY).key(PRESENCE_KEY);
    for name in names {
        call.lease(name);
    }
    call
}

#[async_trait]
impl Store for RedisStore {
    fn limits(&self) -> Limits {
        // A server that was not examined yet gets the lower grade.
        let is_b = self.settings().grade_b.load(Ordering::Relaxed);
        let grade = if is_b { Grade::B } else { Grade::C };
        Limits { max_batch: MAX_BATCH, ..Limits::new(grade) }
    }

    fn url(&self) -> String {
        self.settings().url.clone()
    }

    fn detached(&self) -> Arc<dyn Store> {
        Arc::new(Self::with_settings(Arc::clone(self.settings())))
    }

    async fn acquire(&self, claims: &[Claim]) -> Result<Vec<Result<Answer<Grant>>>> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        for claim in claims {
            self.check_ttl(claim.ttl)?;
        }
        if let Some(answers) = self.acquire_short_names(claims).await? {
            return Ok(answers);
        }
        let link = self.connector.link().await?;
        self.refresh(&link, claims[0].ttl);
        call_in_batches(
            &link,
            claims,
            |claims| self.claim_call(&link, claims),
            ScriptReply::claimed,
        )
        .await
    }

    async fn renew(&self, holds: &[Hold], ttl: Duration) -> Result<Vec<Result<Answer>>> {
        if holds.is_empty() {
            return Ok(Vec::new());
        }
        self.check_ttl(ttl)?;
        let link = self.connector.link().await?;
        let read = |reply: &mut ScriptReply, hold: &Hold| reply.kept(&hold.name);
        self.refresh(&link, ttl);
        call_in_batches(&link, holds, |holds| renew_call(holds, ttl), read).await
    }

    async fn release(&self, releases: &[Release]) -> Result<Vec<Result<()>>> {
        if releases.is_empty() {
            return Ok(Vec::new());
        }
        let link = self.connector.link().await?;
        let read = |reply: &mut ScriptReply, release: &Release| reply.done(&release.hold.name);
        call_in_batches(&link, releases, |releases| release_call(&self.prefix, releases), read)
            .await
    }

    async fn save(&self, hold: &Hold, number: u64, checkpoint: &Checkpoint) -> Result<Answer> {
        let mut call = Call::new(&script::SAVE);
        hold_arguments(&mut call, hold);
        call.shown(number).argument(checkpoint.as_bytes());
        let link = self.connector.link().await?;
        call.send(&link).await?.saved(&hold.name, number)
    }

    async fn revoke(&self, name: &Name, when: Revoke) -> Result<Lease> {
        let mut call = Call::new(&script::REVOKE);
        call.lease(name).argument(&self.prefix).argument(match when {
            Revoke::InTime => "in time",
            Revoke::Now => "now",
        });
        let link = self.connector.link().await?;
        call.send(&link).await?.revoked(name)
    }

    async fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        let link = self.connector.link().await?;
        let names = match scope {
            Scope::Names(names) => {
                let mut names = names.clone();
                names.sort_unstable();
                names.dedup();
                names
            }
            Scope::Prefix(prefix) => index::names_below(&link, prefix).await?,
        };
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let found = call_in_batches(&link, &names, observe_call, ScriptReply::observed).await?;
        Ok(found.into_iter().filter_map(Result::transpose).collect())
    }

    fn watch(&self, scope: &Scope) -> BoxStream<'static, Change> {
        watch::watch(Arc::clone(self.settings()), self.clock.clone(), scope.clone())
    }

    async fn examine(&self) -> Result<Report> {
        let link = self.connector.link().await?;
        examine::examine(&link, &self.clock).await
    }
}

impl RedisStore {
    /// Reads the server's state if the last time was a TTL ago, so after a few renewals. This runs in its own task: no claim or
    /// renewal waits for the answer.
    fn refresh(&self, link: &Arc<Session>, ttl: Duration) {
        if link.is_due_for_examination(
            self.clock.now(),
            ttl.clamp(MIN_REFRESH_INTERVAL, MAX_REFRESH_INTERVAL),
        ) {
            let link = Arc::clone(link);
            tokio::spawn(async move { link.refresh_state().await });
        }
    }

    /// The answers if a name is too long for the key prefix: that claim is refused, and the others are sent. `None` if all names
    /// are short enough.
    async fn acquire_short_names(
        &self,
        claims: &[Claim],
    ) -> Result<Option<Vec<Result<Answer<Grant>>>>> {
        let keys = &self.settings().keys;
        let check = |claim: &Claim| keys.check_length(&claim.name);
        if claims.iter().all(|claim| check(claim).is_ok()) {
            return Ok(None);
        }
        let checked: Vec<Result<()>> = claims.iter().map(check).collect();
        let fits = claims.iter().zip(&checked).filter(|(_, checked)| checked.is_ok());
        let fits: Vec<Claim> = fits.map(|(claim, _)| claim.clone()).collect();
        let answers = self.acquire(&fits).await?;
        if answers.len() != fits.len() {
            return Err(super::wrong_count(fits.len(), answers.len()));
        }
        let mut answers = answers.into_iter();
        let answer = |checked: Result<()>| match checked {
            Ok(()) => answers.next(),
            Err(error) => Some(Err(error)),
        };
        Ok(Some(checked.into_iter().filter_map(answer).collect()))
    }

    /// Refuses a TTL that the store cannot keep before anything is written. The election has already checked it against
    /// [`Limits`].
    fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let longest = self.limits().max_ttl;
        if ttl.is_zero() || ttl > longest {
            return Err(Error::invalid(format!(
                "a lease in Redis lasts up to {longest:?} and more than nothing, not {ttl:?}"
            )));
        }
        Ok(())
    }
}
