//! The guard's [`Releaser`]: releases leases in place of a leader that is dead.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Scope, Store};
use tenure::{Clock, Error, Hold, Name, Release, Result};
use tokio::task::JoinHandle;

/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// The first attempt may only find out that an idle connection is dead.
const MAX_ATTEMPTS: u32 = 3;

/// A connection to the store, opened in advance: no name resolution or handshake is left for the moment of the release.
pub(crate) struct Releaser {
    url: String,
    opening: Option<JoinHandle<Result<Arc<dyn Store>>>>,
    store: Option<Arc<dyn Store>>,
}

/// The leases that could not be released, and the error.
#[derive(Debug)]
pub(crate) struct NotReleased {
    pub(crate) holds: Vec<Hold>,
    pub(crate) error: Error,
}

impl Releaser {
    /// Starts to connect in the background, by observing `name` once.
    pub(crate) fn prepare(url: String, name: Name) -> Releaser {
        let opening = tokio::spawn({
            let url = url.clone();
            async move {
                let store = tenure::open(&url).await?;
                // Connects; the result is not needed.
                let _ = store.observe(&Scope::name(&name)).await;
                Ok(store)
            }
        });
        Releaser { url, opening: Some(opening), store: None }
    }

    /// Releases all leases in one batch, each under the token of its term: a lease that another candidate holds by now is not
    /// changed.
    pub(crate) async fn release(
        &mut self,
        mut holds: Vec<Hold>,
    ) -> std::result::Result<(), NotReleased> {
        let clock = Clock::boot();
        let mut last_error = Error::unavailable("it was not tried");
        for _ in 0..MAX_ATTEMPTS {
            let tried = tokio::select! {
                tried = self.attempt(&holds) => tried,
                () = clock.sleep(ATTEMPT_TIMEOUT) => Err(Error::unavailable("the store does not answer")),
            };
            match tried {
                Ok(answers) => {
                    let mut answers = answers.into_iter();
                    holds.retain(|_| match answers.next() {
                        Some(Ok(())) => false,
                        Some(Err(error)) => {
                            last_error = error;
                            true
                        }
                        None => true,
                    });
                    if holds.is_empty() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    // The connection may be broken: the next attempt opens another.
                    self.store = None;
                    last_error = error;
                }
            }
        }
        Err(NotReleased { holds, error: last_error })
    }

    async fn attempt(&mut self, holds: &[Hold]) -> Result<Vec<Result<()>>> {
        let store = match (self.store.take(), self.opening.take()) {
            (Some(store), _) => store,
            (None, Some(opening)) => match opening.await {
                Ok(Ok(store)) => store,
                _ => tenure::open(&self.url).await?,
            },
            (None, None) => tenure::open(&self.url).await?,
        };
        let releases: Vec<Release> = holds.iter().cloned().map(Release::from).collect();
        let answers = store.release(&releases).await?;
        self.store = Some(store);
        Ok(answers)
    }
}
