//! The five environment variables of a whole instance: REDIS_URL, PORT, REDIS_LOCK_KEY, REDIS_LOCK_TTL, POLL_INTERVAL.
//!
//! They are read only if `tenure run` gets neither a name nor a command, from the environment and from a `.env` in the
//! working directory. In every other case they belong to the wrapped program.

use std::path::Path;
use std::time::Duration;

use tenure::{Error, Name, Result};

use crate::args::Args;
use crate::settings::{EnvFile, Origin};
use crate::store_url::ChosenStore;

const DOT_ENV: &str = ".env";
const DEFAULT_NAME: &str = "leader-election-demo";

/// The store that a whole instance would use here, and its origin, if no other setting names a store. A file that cannot be
/// read names none.
pub(crate) fn instance_store(args: &Args) -> Option<(String, Origin)> {
    let instance_env = InstanceEnv::read(args).ok()?;
    instance_env.get("REDIS_URL").map(|(url, origin)| (url.to_owned(), origin.clone()))
}

/// The values found, each with its variable and its origin.
#[derive(Default)]
pub(super) struct InstanceEnv(Vec<(&'static str, String, Origin)>);

impl InstanceEnv {
    /// Reads the environment first, then `--env-file`, then `.env`.
    pub(super) fn read(args: &Args) -> Result<InstanceEnv> {
        let named = &args.settings.env_file;
        let dot_env = match named.is_at(Path::new(DOT_ENV)) {
            // The operator named this file explicitly, so the checks for a file that was only found do not apply.
            true => EnvFile::default(),
            false => EnvFile::find(Path::new(DOT_ENV))?.unwrap_or_default(),
        };
        let mut found = Vec::new();
        for name in ["REDIS_URL", "PORT", "REDIS_LOCK_KEY", "REDIS_LOCK_TTL", "POLL_INTERVAL"] {
            let own =
                std::env::var(name).ok().map(|value| (value, Origin::Variable(name.to_owned())));
            let in_files = [named, &dot_env].into_iter().find_map(|file| {
                let variable = file.get(name)?;
                Some((variable.value.clone(), file.origin(name, variable.line)))
            });
            // An empty value means that the variable is unset.
            if let Some((value, origin)) = own.or(in_files).filter(|(value, _)| !value.is_empty()) {
                found.push((name, value, origin));
            }
        }
        Ok(InstanceEnv(found))
    }

    fn get(&self, name: &str) -> Option<(&str, &Origin)> {
        let found = self.0.iter().find(|(known, ..)| *known == name);
        found.map(|(_, value, origin)| (value.as_str(), origin))
    }

    pub(super) fn name(&self) -> Result<Name> {
        match self.get("REDIS_LOCK_KEY") {
            Some((key, origin)) => {
                Name::new(key).map_err(|error| Error::invalid(format!("{origin}: {error}")))
            }
            None => Name::new(DEFAULT_NAME),
        }
    }

    /// The store: `REDIS_URL` only if no setting of Tenure names one.
    pub(super) fn chosen_store(&self, args: &Args) -> Result<ChosenStore> {
        match (ChosenStore::of(args)?, self.get("REDIS_URL")) {
            (ChosenStore { from: None, .. }, Some((url, origin))) => {
                Ok(ChosenStore::from_origin(url, origin.clone()))
            }
            (chosen_store, _) => Ok(chosen_store),
        }
    }

    pub(super) fn ttl(&self) -> Result<Option<Duration>> {
        self.millis("REDIS_LOCK_TTL")
    }

    pub(super) fn every(&self) -> Result<Option<Duration>> {
        self.millis("POLL_INTERVAL")
    }

    pub(super) fn port(&self) -> Result<Option<u16>> {
        self.number("PORT", "a port, like 3000")
    }

    /// The value of a variable whose plain number means milliseconds.
    fn millis(&self, name: &str) -> Result<Option<Duration>> {
        let what = "a number of milliseconds, like 4000";
        match self.number::<u64>(name, what)? {
            Some(0) => Err(Error::invalid(format!("{name} must not be zero: give {what}"))),
            ms => Ok(ms.map(Duration::from_millis)),
        }
    }

    fn number<N: std::str::FromStr>(&self, name: &str, what: &str) -> Result<Option<N>> {
        let Some((value, origin)) = self.get(name) else { return Ok(None) };
        value.trim().parse().map(Some).map_err(|_| {
            let value = value.escape_debug();
            Error::invalid(format!("{origin}: '{value}' is not {what}"))
        })
    }
}
