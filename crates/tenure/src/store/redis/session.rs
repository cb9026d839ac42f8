//! A logged-in connection for many concurrent calls.
//!
//! A call may be dropped before its answer arrives (the election driver has its own timeout). It stays in flight until the
//! answer arrives, so that a slow server gets at most [`MAX_IN_FLIGHT`] calls on a connection, however often they are repeated.
//! A connection on which a dropped call stays unanswered for longer than a round trip is *suspect*, and a new one is made: a
//! half-open connection costs one timeout, not all of them. The suspect connection is used again if an answer arrives before
//! the new one is ready. A call that was dropped soon after it was sent costs no new connection.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;

use super::connect::Io;
use super::error::CallError;
use super::examine;
use super::keys::KeyPrefix;
use super::server_info::ServerInfo;
use super::settings::RedisSettings;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::store::Grade;
use crate::store::endpoint::Secret;

/// The timeout of an answer. A candidate that renews has its own, shorter timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of unanswered calls on one connection. A call of a thousand renewals takes the server about 7 ms: this
/// many keep it busy for a tenth of a second, which is more than most round trips take.
const MAX_IN_FLIGHT: usize = 16;

/// A logged-in connection.
pub(super) struct Session {
    settings: Arc<RedisSettings>,
    connection: MultiplexedConnection,
    driver: AbortHandle,
    password: Option<Secret>,
    in_flight: Arc<Semaphore>,
    health: Arc<SessionHealth>,
    /// The hashes of the scripts that were sent in full on this connection.
    scripts: Mutex<HashSet<&'static str>>,
    /// By its configuration, the server has every write on disk before it acknowledges it, as far as this user may read that.
    fsyncs_every_write: AtomicBool,
    /// When the server's state was last read.
    examined_at: Mutex<Moment>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({:?}, {:?})", self.settings, self.health)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Without this, the task would wait for answers to calls that have no caller.
        self.driver.abort();
    }
}

impl Session {
    /// Takes over a stream on which the log-in was answered after `round_trip`.
    pub(super) async fn new(
        settings: Arc<RedisSettings>,
        stream: Box<dyn Io>,
        password: Option<Secret>,
        round_trip: Duration,
    ) -> Result<Session> {
        let bare = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_TIMEOUT));
        let made = MultiplexedConnection::new_with_config(&bare, stream, config).await;
        let (connection, driver) = made.map_err(|error| settings.call_error(&error, None).error)?;
        Ok(Session {
            settings,
            connection,
            driver: tokio::spawn(driver).abort_handle(),
            password,
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            health: Arc::new(SessionHealth::new(round_trip)),
            scripts: Mutex::default(),
            fsyncs_every_write: AtomicBool::new(false),
            examined_at: Mutex::default(),
        })
    }

    /// What every key begins with.
    pub(super) fn keys(&self) -> &KeyPrefix {
        &self.settings.keys
    }

    pub(super) fn state(&self) -> LinkState {
        if self.driver.is_finished() { LinkState::Broken } else { self.health.state() }
    }

    /// Waits until a suspect connection has answered.
    pub(super) async fn recovered(&self) {
        loop {
            let answered = self.health.answers.notified();
            if self.state() == LinkState::Good {
                return;
            }
            answered.await;
        }
    }

    /// Sends one command and waits for its answer.
    ///
    /// # Errors
    /// Also if too many calls are in flight for too long; then the command was not sent.
    pub(super) async fn send(&self, command: Cmd) -> Result<Value, CallError> {
        let permit = Arc::clone(&self.in_flight).acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(ANSWER_TIMEOUT, permit).await else {
            return Err(self.settings.overloaded(MAX_IN_FLIGHT));
        };
        let sent = Clock::boot().now();
        let (settings, password) = (Arc::clone(&self.settings), self.password.clone());
        let (mut connection, health) = (self.connection.clone(), Arc::clone(&self.health));
        let answer = async move {
            let _permit = permit;
            let answer = connection.send_packed_command(&command).await;
            let answer = answer.and_then(Value::extract_error);
            let answer = answer.map_err(|error| settings.call_error(&error, password.as_ref()));
            match &answer {
                Err(call_error) if call_error.broken => {
                    health.broken.store(true, Ordering::Relaxed)
                }
                _ => health.answered(sent),
            }
            answer
        };
        PendingCall { sent, answer: Some(Box::pin(answer)), health: Arc::clone(&self.health) }.await
    }

    /// Whether a script was sent in full on this connection. If not, it counts as sent from now on.
    pub(super) fn knows_script(&self, hash: &'static str) -> bool {
        !locked(&self.scripts).insert(hash)
    }

    /// The server has lost its scripts.
    pub(super) fn forget_scripts(&self) {
        locked(&self.scripts).clear();
    }

    /// Records the server's state.
    ///
    /// # Errors
    /// The server is a replica. Denied if no primary was ever found there; Unavailable if this may be a failover.
    pub(super) fn record_state(&self, info: &ServerInfo) -> Result<()> {
        let settings = &self.settings;
        if let Some(primary) = info.primary() {
            let message = format!(
                "{settings} is a replica of {primary}, and leases written to a replica are lost: \
                 name its primary instead"
            );
            return Err(match settings.found_primary.load(Ordering::Relaxed) {
                true => Error::unavailable(message),
                false => Error::denied(message),
            });
        }
        settings.found_primary.store(true, Ordering::Relaxed);
        self.fsyncs_every_write.store(info.fsyncs_every_write(), Ordering::Relaxed);
        let is_b = examine::grade(info) == Grade::B;
        settings.grade_b.store(is_b, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the server's state was last read `age` ago, or earlier. If so, it counts as read now.
    pub(super) fn is_due_for_examination(&self, now: Moment, age: Duration) -> bool {
        let mut examined_at = locked(&self.examined_at);
        let is_due = now.since(*examined_at) >= age;
        if is_due {
            *examined_at = now;
        }
        is_due
    }

    /// Reads the server's state again: an operator can switch durability off, or make the server a replica, at run time.
    pub(super) async fn refresh_state(&self) {
        if let Err(error) = self.record_state(&ServerInfo::read(self).await) {
            tracing::debug!(%error, "the connection is given up");
            self.health.broken.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn fsyncs_every_write(&self) -> bool {
        self.fsyncs_every_write.load(Ordering::Relaxed)
    }
}

/// Whether a connection can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Good,
    /// A dropped call is unanswered for longer than a round trip takes.
    Suspect,
    Broken,
}

/// What the calls on a connection have shown about it.
#[derive(Debug)]
struct SessionHealth {
    /// Notified of every answer.
    answers: Notify,
    broken: AtomicBool,
    /// The shortest time that an answer took.
    round_trip_nanos: AtomicU64,
    /// When the earliest call was sent that was dropped since the last answer.
    dropped: Mutex<Option<Moment>>,
}

impl SessionHealth {
    fn new(round_trip: Duration) -> Self {
        let round_trip_nanos = AtomicU64::new(nanos(round_trip));
        let (answers, broken) = (Notify::new(), AtomicBool::new(false));
        SessionHealth { answers, broken, round_trip_nanos, dropped: Mutex::default() }
    }

    fn state(&self) -> LinkState {
        if self.broken.load(Ordering::Relaxed) {
            return LinkState::Broken;
        }
        let round_trip = Duration::from_nanos(self.round_trip_nanos.load(Ordering::Relaxed));
        let dropped = *locked(&self.dropped);
        match dropped {
            // Half a round trip more is allowed, because round trips vary.
            Some(sent) if Clock::boot().now().since(sent) > round_trip * 3 / 2 => {
                LinkState::Suspect
            }
            _ => LinkState::Good,
        }
    }

    /// A call that was sent at `sent` has been answered.
    fn answered(&self, sent: Moment) {
        let took = nanos(Clock::boot().now().since(sent));
        self.round_trip_nanos.fetch_min(took, Ordering::Relaxed);
        *locked(&self.dropped) = None;
        self.answers.notify_waiters();
    }

    fn dropped(&self, sent: Moment) {
        let mut dropped = locked(&self.dropped);
        *dropped = Some(dropped.map_or(sent, |earlier| earlier.min(sent)));
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call that was sent. If its caller drops it, the answer is still awaited.
struct PendingCall {
    sent: Moment,
    answer: Option<BoxFuture<'static, Result<Value, CallError>>>,
    health: Arc<SessionHealth>,
}

impl Future for PendingCall {
    type Output = Result<Value, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = &mut self.answer else { return Poll::Pending };
        let answer = std::task::ready!(answer.as_mut().poll(context));
        self.answer = None;
        Poll::Ready(answer)
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        self.health.dropped(self.sent);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(answer);
        }
    }
}
