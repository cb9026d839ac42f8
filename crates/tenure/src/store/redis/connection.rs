//! One connection for all callers, made when it is needed and replaced when it is no longer trusted.
//!
//! Connecting takes up to three round trips (TCP, TLS, log-in), which may be more time than a caller has. So an attempt runs in
//! its own task: callers join the attempt in flight, and a caller that is dropped does not end it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::RedisConnectionInfo;
use redis::aio::PubSub;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::connect::{Dialer, Io, run_blocking};
use super::login::{LoginError, log_in};
use super::server_info::ServerInfo;
use super::session::{LinkState, Session};
use super::settings::RedisSettings;
use crate::clock::Clock;
use crate::error::{Error, Kind, Result};
use crate::store::endpoint::Secret;

/// Makes connections. Each store handle has one connector, and so one connection.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) settings: Arc<RedisSettings>,
    dialer: Dialer,
    slot: Arc<Mutex<ConnectionSlot>>,
}

/// The connection, or the attempt to make one.
#[derive(Debug, Default)]
struct ConnectionSlot {
    link: Option<Arc<Session>>,
    attempt: Option<Attempt>,
    /// The error of the last attempt, if no caller waited for it and an operator must act.
    unreported: Option<Error>,
}

#[derive(Debug)]
struct Attempt {
    outcome: watch::Receiver<Option<Result<Arc<Session>>>>,
    task: AbortHandle,
}

impl Connector {
    pub(super) fn new(settings: Arc<RedisSettings>) -> Self {
        let dialer = Dialer::new(Arc::clone(&settings));
        Connector { settings, dialer, slot: Arc::default() }
    }

    /// The connection; a new one if there is none that can be trusted.
    pub(super) async fn link(&self) -> Result<Arc<Session>> {
        let (suspect, mut outcome) = {
            let mut slot = locked(&self.slot);
            let suspect = match slot.link.as_ref().map(|link| (link, link.state())) {
                Some((link, LinkState::Good)) => return Ok(Arc::clone(link)),
                Some((link, LinkState::Suspect)) => Some(Arc::clone(link)),
                Some((_, LinkState::Broken)) | None => None,
            };
            if suspect.is_none() {
                slot.link = None;
            }
            if let Some(error) = slot.unreported.take() {
                return Err(error);
            }
            let outcome = match &slot.attempt {
                // The channel of an attempt whose runtime has ended is closed.
                Some(attempt) if attempt.outcome.has_changed().is_ok() => attempt.outcome.clone(),
                _ => self.start(&mut slot),
            };
            (suspect, outcome)
        };
        let connected = async {
            match outcome.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(result)) => result.clone(),
                _ => Err(Error::unavailable(format!(
                    "cannot reach {}: the connection attempt ended early",
                    self.settings
                ))),
            }
        };
        match suspect {
            None => connected.await,
            Some(link) => tokio::select! {
                result = connected => result,
                () = link.recovered() => Ok(link),
            },
        }
    }

    fn start(&self, slot: &mut ConnectionSlot) -> watch::Receiver<Option<Result<Arc<Session>>>> {
        let (sender, outcome) = watch::channel(None);
        let (dialer, shared) = (self.dialer.clone(), Arc::clone(&self.slot));
        let attempt = async move {
            let result = dialer.link().await.map(Arc::new);
            let mut slot = locked(&shared);
            slot.attempt = None;
            match &result {
                Ok(link) => slot.link = Some(Arc::clone(link)),
                Err(error) if sender.receiver_count() == 0 && error.kind() != Kind::Unavailable => {
                    slot.unreported = Some(error.clone());
                }
                Err(_) => {}
            }
            drop(slot);
            sender.send_replace(Some(result));
        };
        let task = tokio::spawn(attempt).abort_handle();
        slot.attempt = Some(Attempt { outcome: outcome.clone(), task });
        outcome
    }

    /// A separate connection for subscriptions.
    pub(super) async fn pubsub(&self) -> Result<PubSub> {
        let connecting = async {
            let LoggedIn { stream, .. } = self.dialer.logged_in(false).await?;
            let bare = RedisConnectionInfo::default().set_skip_set_lib_name();
            let pubsub = PubSub::new(&bare, stream).await;
            pubsub.map_err(|error| self.settings.call_error(&error, None).error)
        };
        self.dialer.with_timeout(Box::pin(connecting)).await
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        if let Some(attempt) = &locked(&self.slot).attempt {
            attempt.task.abort();
        }
    }
}

/// A stream on which the server has accepted the log-in.
struct LoggedIn {
    stream: Box<dyn Io>,
    password: Option<Secret>,
    info: ServerInfo,
    /// The duration of the log-in, which is one round trip.
    round_trip: Duration,
}

impl Dialer {
    /// Files are read again for every connection, so that a file that was replaced on disk takes effect.
    async fn logged_in(&self, examine: bool) -> Result<LoggedIn> {
        let settings = Arc::clone(&self.settings);
        let stored = run_blocking(move || settings.stored_credentials()).await?;
        let mut stream = self.stream().await?;
        let (clock, settings) = (Clock::boot(), &self.settings);
        // Asked only when the server is there: a provider may be a service of its own.
        let credentials = settings.provided_credentials().await?.or(stored);
        let sent = clock.now();
        let info = match log_in(&mut *stream, settings, credentials.as_ref(), examine).await {
            Ok(info) => info,
            Err(LoginError::Answered(error)) => return Err(error),
            Err(LoginError::Unanswered(error)) => {
                return Err(if self.speaks_tls().await { settings.speaks_tls() } else { error });
            }
        };
        let password = credentials.map(|credentials| credentials.password().clone());
        Ok(LoggedIn { stream, password, info, round_trip: clock.now().since(sent) })
    }

    async fn link(&self) -> Result<Session> {
        let connecting = async {
            let LoggedIn { stream, password, info, round_trip } = self.logged_in(true).await?;
            let settings = Arc::clone(&self.settings);
            let link = Session::new(settings, stream, password, round_trip).await?;
            link.record_state(&info)?;
            Ok(link)
        };
        self.with_timeout(Box::pin(connecting)).await
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
