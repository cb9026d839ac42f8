//! The places a setting can come from besides the command line, one below the other.

use std::ffi::OsString;

use tenure::{Error, Result};

use super::catalogue::Setting;
use super::env_file::EnvFile;
use super::file::{File, Value};
use super::origin::Origin;

/// One of those places.
pub(crate) enum Level<'a> {
    Variables(&'a dyn Fn(&str) -> Option<OsString>),
    EnvFile(&'a EnvFile),
    File(&'a File),
}

/// A value and where it came from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// One, but for a setting that is a list.
    pub(crate) values: Vec<OsString>,
    pub(crate) origin: Origin,
}

impl Level<'_> {
    /// What this place says about `setting`.
    pub(crate) fn find(&self, setting: &Setting<'_>) -> Result<Option<Given>> {
        let given: Vec<Given> = match self {
            Level::Variables(get) => {
                let variable = |name: String| {
                    Some(Given { values: vec![get(&name)?], origin: Origin::Variable(name) })
                };
                setting.variables().filter_map(variable).collect()
            }
            Level::EnvFile(file) => {
                let variable = |name: String| {
                    let found = file.get(&name)?;
                    let origin = file.origin(&name, found.line);
                    Some(Given { values: vec![found.value.clone().into()], origin })
                };
                setting.variables().filter_map(variable).collect()
            }
            Level::File(_) if !setting.in_file => Vec::new(),
            Level::File(file) => {
                let ours = |key: &str| setting.keys().any(|ours| ours == key);
                let entries = file.entries.iter().filter(|entry| ours(&entry.key));
                let given = entries.map(|entry| {
                    let (path, exposed) = (file.path.clone(), file.exposed);
                    let origin = Origin::File { path, exposed, line: entry.line };
                    let values = values(setting, &entry.value).map_err(|takes| {
                        Error::invalid(format!("{origin}: '{}' {takes}", entry.key))
                    })?;
                    Ok(Given { values, origin })
                });
                given.collect::<Result<_>>()?
            }
        };
        one(given)
    }
}

/// Two names of one setting may both be given, if they agree.
fn one(given: Vec<Given>) -> Result<Option<Given>> {
    let mut given = given.into_iter();
    let Some(first) = given.next() else { return Ok(None) };
    match given.find(|other| other.values != first.values) {
        None => Ok(Some(first)),
        Some(other) => Err(Error::invalid(format!(
            "{} and {} are the same setting and differ: give one",
            first.origin, other.origin
        ))),
    }
}

/// A value of `tenure.toml` as it would be typed, or what the setting takes instead.
fn values(setting: &Setting<'_>, value: &Value) -> Result<Vec<OsString>, String> {
    match (setting.is_switch(), value) {
        (true, Value::Bool(is)) => Ok(vec![is.to_string().into()]),
        (true, _) => Err("takes true or false".to_owned()),
        (false, Value::Many(items)) if setting.is_command() && !items.is_empty() => {
            Ok(items.iter().map(OsString::from).collect())
        }
        (false, _) if setting.is_command() => {
            Err("takes a list of words, as in [\"/opt/backup.sh\", \"--full\"]".to_owned())
        }
        (false, Value::One(text)) => Ok(vec![text.into()]),
        (false, Value::Many(items)) if setting.is_list() => {
            Ok(items.iter().map(OsString::from).collect())
        }
        (false, value) => {
            let is = match value {
                Value::Bool(_) => "boolean",
                Value::Many(_) => "array",
                Value::Other(kind) => kind,
                Value::One(_) => "text",
            };
            let list = if setting.is_list() { ", or several between [ and ]" } else { "" };
            Err(format!("takes text in quotes{list}; this is of the kind '{is}'"))
        }
    }
}
