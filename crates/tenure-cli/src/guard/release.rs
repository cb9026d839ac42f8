//! Giving leases back in place of a leader that cannot.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Scope, Store};
use tenure::{Clock, Error, Hold, Name, Release, Result};
use tokio::task::JoinHandle;

/// One try may take so long.
const TRY: Duration = Duration::from_secs(2);
/// A connection that died while nobody needed it is noticed by the first try.
const TRIES: u32 = 3;

/// The way to the store, opened beforehand: nothing has to be looked up or shaken hands over when it is needed.
pub(crate) struct Releaser {
    url: String,
    opening: Option<JoinHandle<Result<Arc<dyn Store>>>>,
    store: Option<Arc<dyn Store>>,
}

/// What could not be given back, and why.
#[derive(Debug)]
pub(crate) struct NotReleased {
    pub(crate) holds: Vec<Hold>,
    pub(crate) why: Error,
}

impl Releaser {
    /// `name` is looked at once, to be connected.
    pub(crate) fn prepare(url: String, name: Name) -> Releaser {
        let opening = tokio::spawn({
            let url = url.clone();
            async move {
                let store = tenure::open(&url).await?;
                // Connects; what it finds is of no interest.
                let _ = store.observe(&Scope::name(&name)).await;
                Ok(store)
            }
        });
        Releaser { url, opening: Some(opening), store: None }
    }

    /// Gives them back in one go, each under the token of its term: one that is somebody else's by now stays so.
    pub(crate) async fn give(
        &mut self,
        mut holds: Vec<Hold>,
    ) -> std::result::Result<(), NotReleased> {
        let clock = Clock::boot();
        let mut why = Error::unavailable("it was not tried");
        for _ in 0..TRIES {
            let tried = tokio::select! {
                tried = self.attempt(&holds) => tried,
                () = clock.sleep(TRY) => Err(Error::unavailable("the store does not answer")),
            };
            match tried {
                Ok(answers) => {
                    let mut answers = answers.into_iter();
                    holds.retain(|_| match answers.next() {
                        Some(Ok(())) => false,
                        Some(Err(error)) => {
                            why = error;
                            true
                        }
                        None => true,
                    });
                    if holds.is_empty() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    // It may be the connection.
                    self.store = None;
                    why = error;
                }
            }
        }
        Err(NotReleased { holds, why })
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
