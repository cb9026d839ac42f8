//! The way to the store, for commands that look or ask and are waited for.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Scope, Store};
use tenure::{Clock, Error, Lease, Result};

use crate::args::Args;
use crate::store_url::ChosenStore;

/// Whoever asks is waiting; a store that says nothing for so long is down.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The chosen store, if what others do can be seen in it.
pub(crate) async fn open(args: &Args) -> Result<Arc<dyn Store>> {
    Ok(open_chosen(args).await?.1)
}

/// The same, with its URL as it was given: for what else lies beside the leases.
pub(crate) async fn open_chosen(args: &Args) -> Result<(ChosenStore, Arc<dyn Store>)> {
    let choice = ChosenStore::of(args)?;
    if choice.url.starts_with("memory:") {
        return Err(Error::invalid(
            "'memory:' is seen by one process only, so there is nothing to see here: give another store",
        ));
    }
    choice.hint_other_store(args);
    let url = tenure::store::shown(&choice.url);
    let store = patiently(&url, PATIENCE, tenure::store::open_existing(&choice.url)).await?;
    Ok((choice, store))
}

/// Reads now, but does not wait for ever.
pub(crate) async fn observe(store: &dyn Store, scope: &Scope) -> Result<Vec<Result<Lease>>> {
    patiently(&store.url(), PATIENCE, store.observe(scope)).await
}

/// What `asked` comes to, or that the store at `url` has not answered.
pub(crate) async fn patiently<T>(
    url: &str,
    patience: Duration,
    asked: impl Future<Output = Result<T>>,
) -> Result<T> {
    let clock = Clock::boot();
    tokio::select! {
        answer = asked => answer,
        () = clock.sleep(patience) => Err(Error::unavailable(format!(
            "{url} has not answered for {} s: is it running, and is the way to it open?",
            patience.as_secs()
        ))),
    }
}
