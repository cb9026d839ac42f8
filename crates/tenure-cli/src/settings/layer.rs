//! The layers below the command line that can give a setting: variables, the env file, `tenure.toml`.

use std::ffi::OsString;

use tenure::{Error, Result};

use super::env_file::EnvFile;
use super::file::{SettingValue, SettingsFile};
use super::origin::Origin;
use super::registry::Setting;

/// One layer.
pub(crate) enum Layer<'a> {
    Variables(&'a dyn Fn(&str) -> Option<OsString>),
    EnvFile(&'a EnvFile),
    File(&'a SettingsFile),
}

/// A value and its origin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GivenValue {
    /// One value, or several for a list.
    pub(crate) values: Vec<OsString>,
    pub(crate) origin: Origin,
}

impl Layer<'_> {
    /// The value that this layer gives `setting`.
    pub(crate) fn find(&self, setting: &Setting<'_>) -> Result<Option<GivenValue>> {
        let given: Vec<GivenValue> = match self {
            Layer::Variables(get) => {
                let variable = |name: String| {
                    Some(GivenValue { values: vec![get(&name)?], origin: Origin::Variable(name) })
                };
                setting.variables().filter_map(variable).collect()
            }
            Layer::EnvFile(file) => {
                let variable = |name: String| {
                    let found = file.get(&name)?;
                    let origin = file.origin(&name, found.line);
                    Some(GivenValue { values: vec![found.value.clone().into()], origin })
                };
                setting.variables().filter_map(variable).collect()
            }
            Layer::File(_) if !setting.in_file => Vec::new(),
            Layer::File(file) => {
                let is_key = |key: &str| setting.keys().any(|own| own == key);
                let entries = file.entries.iter().filter(|entry| is_key(&entry.key));
                let given = entries.map(|entry| {
                    let (path, exposed) = (file.path.clone(), file.exposed);
                    let origin = Origin::File { path, exposed, line: entry.line };
                    let values = values(setting, &entry.value).map_err(|takes| {
                        Error::invalid(format!("{origin}: '{}' {takes}", entry.key))
                    })?;
                    Ok(GivenValue { values, origin })
                });
                given.collect::<Result<_>>()?
            }
        };
        agreed_value(given)
    }
}

/// Two names of one setting may both be given if their values agree.
fn agreed_value(given: Vec<GivenValue>) -> Result<Option<GivenValue>> {
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

/// A value of `tenure.toml` as it would be typed, or what the setting accepts instead.
fn values(setting: &Setting<'_>, value: &SettingValue) -> Result<Vec<OsString>, String> {
    match (setting.is_switch(), value) {
        (true, SettingValue::Bool(is)) => Ok(vec![is.to_string().into()]),
        (true, _) => Err("takes true or false".to_owned()),
        (false, SettingValue::Many(items)) if setting.is_command() && !items.is_empty() => {
            Ok(items.iter().map(OsString::from).collect())
        }
        (false, _) if setting.is_command() => {
            Err("takes a list of words, as in [\"/opt/backup.sh\", \"--full\"]".to_owned())
        }
        (false, SettingValue::One(text)) => Ok(vec![text.into()]),
        (false, SettingValue::Many(items)) if setting.is_list() => {
            Ok(items.iter().map(OsString::from).collect())
        }
        (false, value) => {
            let is = match value {
                SettingValue::Bool(_) => "boolean",
                SettingValue::Many(_) => "array",
                SettingValue::Other(kind) => kind,
                SettingValue::One(_) => "text",
            };
            let list = if setting.is_list() { ", or several between [ and ]" } else { "" };
            Err(format!("takes text in quotes{list}; this is of the kind '{is}'"))
        }
    }
}
