//! Giving the lease back in place of a leader that cannot.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Scope, Store};
use tenure::{Clock, Error, Hold, Release, Result};
use tokio::task::JoinHandle;

/// One try may take so long.
const TRY: Duration = Duration::from_secs(2);
/// A connection that died while nobody needed it is noticed by the first try.
const TRIES: u32 = 3;

/// The way to the store, opened when the term began: nothing has to be looked up or shaken hands over when it is needed.
pub(crate) struct GivingBack {
    url: String,
    hold: Hold,
    opening: Option<JoinHandle<Result<Arc<dyn Store>>>>,
}

impl GivingBack {
    pub(crate) fn prepare(url: String, hold: Hold) -> GivingBack {
        let opening = tokio::spawn({
            let (url, name) = (url.clone(), hold.name.clone());
            async move {
                let store = tenure::open(&url).await?;
                // Connects; what it finds is of no interest.
                let _ = store.observe(&Scope::name(&name)).await;
                Ok(store)
            }
        });
        GivingBack { url, hold, opening: Some(opening) }
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Gives it back, under the token of the term: if it is somebody else's by now, nothing happens.
    pub(crate) async fn give(&mut self) -> Result<()> {
        let clock = Clock::boot();
        let mut last = Error::unavailable("it was not tried");
        for _ in 0..TRIES {
            let tried = tokio::select! {
                tried = self.attempt() => tried,
                () = clock.sleep(TRY) => Err(Error::unavailable("the store does not answer")),
            };
            match tried {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn attempt(&mut self) -> Result<()> {
        let store = match self.opening.take() {
            Some(opening) => match opening.await {
                Ok(Ok(store)) => store,
                _ => tenure::open(&self.url).await?,
            },
            None => tenure::open(&self.url).await?,
        };
        let answers = store.release(&[Release::from(self.hold.clone())]).await?;
        answers.into_iter().collect()
    }
}
