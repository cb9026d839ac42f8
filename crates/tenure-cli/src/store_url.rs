//! The choice of the store: the URL in the settings, or the default directory.

use std::fmt;
use std::path::Path;

use tenure::store::{self, Visibility, redact_url};
use tenure::{Error, Result};

use crate::args::Args;
use crate::run::instance_store;
use crate::settings::Origin;

/// A store's URL and where it came from.
#[derive(Clone)]
pub(crate) struct ChosenStore {
    /// The URL with its password, if it has one: never shown.
    pub(crate) url: String,
    /// The setting it came from; `None` for the default.
    pub(crate) from: Option<Origin>,
}

impl ChosenStore {
    /// Chooses the store, and warns about a password that other users of this machine can read.
    pub(crate) fn of(args: &Args) -> Result<ChosenStore> {
        let from = |id| args.settings.origin(id).cloned();
        let choice = match (&args.store, &args.lock_dir) {
            // Between two layers the higher one has won already, so both settings are in the same layer.
            (Some(_), Some(_)) => return Err(two_stores_error(from("store"), from("lock_dir"))),
            (Some(url), None) => ChosenStore { url: url.clone(), from: from("store") },
            (None, Some(directory)) => in_directory(directory, from("lock_dir"))?,
            // The library defines the default directory.
            (None, None) => ChosenStore { url: store::DEFAULT_URL.to_owned(), from: None },
        };
        if redact_url(&choice.url) != choice.url {
            choice.warn();
        }
        Ok(choice)
    }

    /// A store whose URL came from a setting with a foreign name, such as `REDIS_URL`.
    pub(crate) fn from_origin(url: &str, from: Origin) -> ChosenStore {
        let choice = ChosenStore { url: url.to_owned(), from: Some(from) };
        if redact_url(&choice.url) != choice.url {
            choice.warn();
        }
        choice
    }

    /// Warns about a password that other users of this machine can read.
    fn warn(&self) {
        let Some(from) = &self.from else { return };
        if from.is_typed() {
            tracing::warn!(
                "a password on the command line can be read by every user of this machine (ps): \
                 give the URL in TENURE_STORE, or the password in a file"
            );
        }
        if let Some(file) = from.exposed_file() {
            let file = file.display();
            tracing::warn!(
                "the password in {file} can be read by other users of this machine: run \
                 'chmod 600 {file}'"
            );
        }
    }

    /// Refuses a store that only one process sees. `consequence` completes the sentence: what that means for the command. A URL
    /// that names no known store is refused when it is opened.
    pub(crate) fn refuse_private(&self, consequence: &str) -> Result<()> {
        if store::visibility_of(&self.url) != Some(Visibility::Process) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "'memory:' is seen by one process only, {consequence}: give another store"
        )))
    }

    /// For commands that use the default store: warns if an instance started here would use another store.
    pub(crate) fn hint_other_store(&self, args: &Args) {
        if self.from.is_some() {
            return;
        }
        let Some((url, from)) = instance_store(args) else { return };
        let visible = redact_url(&url);
        let password = if visible == url { "" } else { ", with its password," };
        tracing::warn!(
            "this asks the default store; {from} names {visible}, which 'tenure run' without a name uses: give \
             --store {visible}{password} to ask that one"
        );
    }

    /// Where the URL came from, for example `(from TENURE_STORE)`: helps users who reach the wrong store.
    pub(crate) fn origin(&self) -> String {
        let from = |from: &Origin| format!("(from {from})");
        self.from.as_ref().map_or_else(|| "(the default)".to_owned(), from)
    }
}

fn two_stores_error(store: Option<Origin>, lock_dir: Option<Origin>) -> Error {
    match (store, lock_dir) {
        (Some(Origin::Variable(store)), Some(Origin::Variable(lock_dir))) => {
            Error::invalid(format!("{store} and {lock_dir} both name a store: unset one"))
        }
        (Some(store), Some(lock_dir)) => {
            Error::invalid(format!("{store} and {lock_dir} both name a store: give one"))
        }
        _ => Error::invalid("--store and --lock-dir both name a store: give one"),
    }
}

fn in_directory(directory: &Path, from: Option<Origin>) -> Result<ChosenStore> {
    let origin = from.as_ref().map_or_else(|| "--lock-dir".to_owned(), Origin::to_string);
    if directory.as_os_str().is_empty() {
        return Err(Error::invalid(format!("{origin} is empty: give a directory")));
    }
    let url = store::file_url(directory)
        .map_err(|error| Error::new(error.kind(), format!("{origin}: {error}")))?;
    Ok(ChosenStore { url, from })
}

impl fmt::Debug for ChosenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", redact_url(&self.url), self.origin())
    }
}
