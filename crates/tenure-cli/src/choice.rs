//! Which store: by flag, by variable, or the default directory.

use std::fmt;
use std::path::Path;

use tenure::store::shown;
use tenure::{Error, Result};

use crate::args::Args;

/// A store's URL and where it came from.
#[derive(Clone)]
pub(crate) struct Choice {
    /// With its password, if it has one: never shown.
    pub(crate) url: String,
    /// The flag or variable that gave it; `None` for the default.
    pub(crate) from: Option<&'static str>,
}

impl Choice {
    /// Chooses, and warns of a password that everybody on this machine can read.
    pub(crate) fn of(args: &Args) -> Result<Choice> {
        let typed = args.typed;
        if typed.store && typed.lock_dir {
            return Err(Error::invalid("--store and --lock-dir both name a store: give one"));
        }
        let choice = match (&args.store, &args.lock_dir) {
            (Some(url), _) if typed.store => Choice::new(url, "--store"),
            (_, Some(directory)) if typed.lock_dir => in_directory(directory, "--lock-dir")?,
            (Some(_), Some(_)) => {
                return Err(Error::invalid(
                    "TENURE_STORE and TENURE_LOCK_DIR both name a store: unset one",
                ));
            }
            (Some(url), None) => Choice::new(url, "TENURE_STORE"),
            (None, Some(directory)) => in_directory(directory, "TENURE_LOCK_DIR")?,
            // What stands for nothing after the colon is for the library to say.
            (None, None) => Choice { url: "file:".to_owned(), from: None },
        };
        if typed.store && shown(&choice.url) != choice.url {
            tracing::warn!(
                "a password on the command line can be read by every user of this machine (ps): \
                 give the URL in TENURE_STORE, or the password in a file"
            );
        }
        Ok(choice)
    }

    fn new(url: &str, from: &'static str) -> Choice {
        Choice { url: url.to_owned(), from: Some(from) }
    }

    /// `(from TENURE_STORE)`: what people look for when the wrong store is used.
    pub(crate) fn origin(&self) -> String {
        self.from.map_or_else(|| "(the default)".to_owned(), |from| format!("(from {from})"))
    }
}

fn in_directory(directory: &Path, from: &'static str) -> Result<Choice> {
    // A URL is text, and in it a question mark begins the options.
    match directory.to_str() {
        Some("") => Err(Error::invalid(format!("{from} is empty: give a directory"))),
        Some(path) if !path.contains('?') => Ok(Choice::new(&format!("file:{path}"), from)),
        _ => Err(Error::invalid(format!(
            "{from}: a directory with '?' or bytes that are not UTF-8 in its name cannot be used: {}",
            directory.display()
        ))),
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", shown(&self.url), self.origin())
    }
}
