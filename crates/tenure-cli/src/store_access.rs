//! Opens and reads the store with timeouts, for interactive commands that a user waits for.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Scope, Store, StoreExt as _};
use tenure::{Clock, Error, Lease, Name, Result};

use crate::args::Args;
use crate::store_url::ChosenStore;

/// The timeout of a store call. A user is waiting; a store that does not answer within this time counts as down.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the chosen store, if other processes can share it.
pub(crate) async fn open(args: &Args) -> Result<Arc<dyn Store>> {
    Ok(open_chosen(args).await?.1)
}

/// Like [`open`], and also returns the given URL, for callers that read other data beside the leases.
pub(crate) async fn open_chosen(args: &Args) -> Result<(ChosenStore, Arc<dyn Store>)> {
    let choice = ChosenStore::of(args)?;
    choice.refuse_private("so there is nothing to see here")?;
    choice.hint_other_store(args);
    let url = tenure::store::redact_url(&choice.url);
    let store =
        with_timeout(&url, STORE_TIMEOUT, tenure::store::open_existing(&choice.url)).await?;
    Ok((choice, store))
}

/// Observes leases, with a timeout.
pub(crate) async fn observe(store: &dyn Store, scope: &Scope) -> Result<Vec<Result<Lease>>> {
    with_timeout(&store.url(), STORE_TIMEOUT, store.observe(scope)).await
}

/// Observes one lease, with a timeout.
pub(crate) async fn observe_one(store: &dyn Store, name: &Name) -> Result<Option<Lease>> {
    with_timeout(&store.url(), STORE_TIMEOUT, store.observe_one(name)).await
}

/// Awaits `request` for at most `timeout`; after that, returns the error that the store at `url` has not answered.
pub(crate) async fn with_timeout<T>(
    url: &str,
    timeout: Duration,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    let clock = Clock::boot();
    tokio::select! {
        answer = request => answer,
        () = clock.sleep(timeout) => Err(Error::unavailable(format!(
            "{url} has not answered for {} s: is it running, and is the way to it open?",
            timeout.as_secs()
        ))),
    }
}
