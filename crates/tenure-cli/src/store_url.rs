//! Which store: the one that the settings name, or the default directory.

use std::fmt;
use std::path::Path;

use tenure::store::shown;
use tenure::{Error, Result};

use crate::args::Args;
use crate::run::instance_store;
use crate::settings::Origin;

/// A store's URL and where it came from.
#[derive(Clone)]
pub(crate) struct ChosenStore {
    /// With its password, if it has one: never shown.
    pub(crate) url: String,
    /// Who gave it; `None` for the default.
    pub(crate) from: Option<Origin>,
}

impl ChosenStore {
    /// Chooses, and warns of a password that others on this machine can read.
    pub(crate) fn of(args: &Args) -> Result<ChosenStore> {
        let from = |id| args.settings.origin(id).cloned();
        let choice = match (&args.store, &args.lock_dir) {
            // Of two levels the higher has won already, so these stand on the same one.
            (Some(_), Some(_)) => return Err(both(from("store"), from("lock_dir"))),
            (Some(url), None) => ChosenStore { url: url.clone(), from: from("store") },
            (None, Some(directory)) => in_directory(directory, from("lock_dir"))?,
            // What stands for nothing after the colon is for the library to say.
            (None, None) => ChosenStore { url: "file:".to_owned(), from: None },
        };
        if shown(&choice.url) != choice.url {
            choice.warn();
        }
        Ok(choice)
    }

    /// One that was found under a name which is not ours.
    pub(crate) fn from_origin(url: &str, from: Origin) -> ChosenStore {
        let choice = ChosenStore { url: url.to_owned(), from: Some(from) };
        if shown(&choice.url) != choice.url {
            choice.warn();
        }
        choice
    }

    /// Of a password where others can read it.
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

    /// For commands that ask the default store: says that an instance which was started here would use another one.
    pub(crate) fn hint_other_store(&self, args: &Args) {
        if self.from.is_some() {
            return;
        }
        let Some((url, from)) = instance_store(args) else { return };
        let visible = shown(&url);
        let password = if visible == url { "" } else { ", with its password," };
        tracing::warn!(
            "this asks the default store; {from} names {visible}, which 'tenure run' without a name uses: give \
             --store {visible}{password} to ask that one"
        );
    }

    /// `(from TENURE_STORE)`: what people look for when the wrong store is used.
    pub(crate) fn origin(&self) -> String {
        let from = |from: &Origin| format!("(from {from})");
        self.from.as_ref().map_or_else(|| "(the default)".to_owned(), from)
    }
}

fn both(store: Option<Origin>, lock_dir: Option<Origin>) -> Error {
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
    // A URL is text, and in it a question mark begins the options.
    match directory.to_str() {
        Some("") => Err(Error::invalid(format!("{origin} is empty: give a directory"))),
        Some(path) if !path.contains('?') => Ok(ChosenStore { url: format!("file:{path}"), from }),
        _ => Err(Error::invalid(format!(
            "{origin}: a directory with '?' or bytes that are not UTF-8 in its name cannot be used: {}",
            directory.display()
        ))),
    }
}

impl fmt::Debug for ChosenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", shown(&self.url), self.origin())
    }
}
