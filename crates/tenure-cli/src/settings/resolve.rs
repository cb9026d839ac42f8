//! Resolves the settings: the command line wins, then the layers below it in their order.
//!
//! The values found are put on the command line as if they had been typed, which is then parsed again: so clap's value parsers
//! stay the only ones.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::builder::{BoolishValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use tenure::{Error, Result};

use super::layer::{GivenValue, Layer};
use super::origin::Origin;
use super::registry::{ChosenCommand, Setting, exclude_each_other};
use crate::output;

/// The origin of each setting, by clap's id.
pub(crate) type Origins = BTreeMap<String, Origin>;

/// What the layers add to the typed arguments.
pub(crate) struct Resolved {
    pub(crate) origins: Origins,
    /// The flags, as they would be typed.
    pub(crate) flags: Vec<OsString>,
    /// The command, as it would be typed after `--`.
    pub(crate) command: Vec<OsString>,
}

/// Searches the layers, the highest first, for the settings that were not typed. `reader` is the command line that decides
/// whether a value is valid.
pub(crate) fn resolve(
    chosen: &ChosenCommand<'_>,
    reader: &Command,
    layers: &[Layer<'_>],
) -> Result<Resolved> {
    let settings = chosen.settings();
    let mut resolved = Resolved { origins: typed(chosen), flags: Vec::new(), command: Vec::new() };
    for layer in layers {
        let mut found = Origins::new();
        for setting in &settings {
            let above = |id: &String| id == setting.id || exclude_each_other(id, setting.id);
            if resolved.origins.keys().any(above) {
                continue;
            }
            if let Some(given) = layer.find(setting)? {
                match setting.is_command() {
                    true => resolved.command.clone_from(&given.values),
                    false => resolved.flags.extend(flags(chosen, reader, setting, &given)?),
                }
                found.insert(setting.id.to_owned(), given.origin);
            }
        }
        resolved.origins.append(&mut found);
    }
    Ok(resolved)
}

/// The arguments on the command line, also those that are not flags: they too hide what they exclude.
fn typed(chosen: &ChosenCommand<'_>) -> Origins {
    let is_typed = |id: &str| chosen.matches.value_source(id) == Some(ValueSource::CommandLine);
    let typed = chosen.command.get_arguments().filter(|arg| is_typed(arg.get_id().as_str()));
    let origin = |arg: &clap::Arg| match arg.get_long() {
        Some(long) => format!("--{long}"),
        None => arg.get_id().as_str().to_uppercase(),
    };
    typed.map(|arg| (arg.get_id().to_string(), Origin::Typed(origin(arg)))).collect()
}

/// `given` as it would be typed, if its value is valid.
fn flags(
    chosen: &ChosenCommand<'_>,
    reader: &Command,
    setting: &Setting<'_>,
    given: &GivenValue,
) -> Result<Vec<OsString>> {
    let key = setting.key;
    let wrong = |reason: &str| match &given.origin {
        // The name of a variable says which setting it is.
        Origin::Variable(_) | Origin::EnvFile { .. } => {
            Error::invalid(format!("{}: {reason}", given.origin))
        }
        Origin::File { .. } | Origin::Typed(_) => {
            Error::invalid(format!("{}: '{key}': {reason}", given.origin))
        }
    };
    if setting.is_switch() {
        let is = given.values.iter().any(|value| is_true(value) == Some(true));
        return match given.values.iter().all(|value| is_true(value).is_some()) {
            true => Ok(is.then(|| format!("--{key}").into()).into_iter().collect()),
            false => Err(wrong("takes true or false (also 1 or 0, yes or no, on or off)")),
        };
    }
    let flag = |value: &OsString| {
        let mut flag = OsString::from(format!("--{key}="));
        flag.push(value);
        flag
    };
    let flags: Vec<OsString> = given.values.iter().map(flag).collect();
    let only_this_setting =
        std::iter::once("tenure").chain(chosen.path.iter().copied()).map(OsString::from);
    match reader.clone().try_get_matches_from(only_this_setting.chain(flags.clone())) {
        Err(error) if is_about_a_value(error.kind()) => {
            Err(wrong(&sentence(&error, given.values.iter().map(OsString::as_os_str))))
        }
        // Other errors, such as a missing argument, do not concern this setting.
        _ => Ok(flags),
    }
}

fn is_about_a_value(kind: ErrorKind) -> bool {
    use ErrorKind::{InvalidUtf8, InvalidValue, ValueValidation};
    matches!(kind, InvalidValue | ValueValidation | InvalidUtf8)
}

/// The value of a variable for a switch; `None` if it is neither true nor false.
pub(crate) fn is_true(value: &OsStr) -> Option<bool> {
    BoolishValueParser::new().parse_ref(&Command::new("tenure"), None, value).ok()
}

/// Clap's error about `values`, on one line and without their passwords.
fn sentence<'a>(error: &clap::Error, values: impl Iterator<Item = &'a OsStr>) -> String {
    let values: Vec<String> = values.map(|value| value.to_string_lossy().into_owned()).collect();
    let text = output::without_passwords(error.to_string(), &values);
    output::printable(&first_line(&text))
}

/// The first sentence of a clap error on one line, without the usage and the hints.
pub(crate) fn first_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let first = text.split("\n\n").next().unwrap_or(text);
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Args;
    use crate::settings::env_file::EnvFile;
    use crate::settings::file::{SettingValue, SettingsEntry, SettingsFile};

    fn file(entries: &[(&str, SettingValue)]) -> SettingsFile {
        let entry = |(line, (key, value)): (usize, &(&str, SettingValue))| SettingsEntry {
            key: (*key).to_owned(),
            line,
            value: value.clone(),
        };
        let entries = (1..).zip(entries).map(entry).collect();
        SettingsFile { path: "f".into(), exposed: false, entries }
    }

    /// The flags that are added to the command line, and their origins.
    fn resolved(
        typed: &[&str],
        variables: &[(&str, &str)],
        env_file: &str,
        entries: &[(&str, SettingValue)],
    ) -> Result<(Vec<String>, Origins)> {
        let mut full = Args::command();
        full.build();
        let mut reader = crate::settings::without_variables(Args::command());
        reader.build();
        let matches = reader.clone().try_get_matches_from(typed).unwrap();
        let chosen = ChosenCommand::new(&full, &matches);
        let get = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        let env_file = EnvFile::parse(Path::new("e"), env_file)?;
        let file = file(entries);
        let layers = [Layer::Variables(&get), Layer::EnvFile(&env_file), Layer::File(&file)];
        let resolved = resolve(&chosen, &reader, &layers)?;
        let flags = resolved.flags.iter().map(|flag| flag.to_string_lossy().into_owned());
        Ok((flags.collect(), resolved.origins))
    }

    fn text(text: &str) -> SettingValue {
        SettingValue::One(text.to_owned())
    }

    #[test]
    fn each_layer_wins_over_those_below_it() {
        let variables = [("TENURE_MARGIN", "2s")];
        let env_file = "TENURE_MARGIN=3s\nTENURE_DRIFT=3";
        let entries = [("margin", text("4s")), ("drift", text("4")), ("wait", text("4s"))];
        let (flags, origins) =
            resolved(&["tenure", "run"], &variables, env_file, &entries).unwrap();
        assert_eq!(flags, ["--margin=2s", "--drift=3", "--wait=4s"]);
        assert_eq!(origins["margin"].to_string(), "TENURE_MARGIN");
        assert_eq!(origins["drift"].to_string(), "e line 2 (TENURE_DRIFT)");
        assert_eq!(origins["wait"].to_string(), "f line 3");
        let typed = ["tenure", "run", "--margin", "1s"];
        let (flags, origins) = resolved(&typed, &variables, env_file, &entries).unwrap();
        assert_eq!(flags, ["--drift=3", "--wait=4s"]);
        assert_eq!(origins["margin"].to_string(), "--margin");
    }

    #[test]
    fn a_switch_that_is_off_hides_one_below_that_is_on() {
        let (flags, origins) = resolved(
            &["tenure", "run"],
            &[("TENURE_ONCE", "no")],
            "TENURE_MOCK=1",
            &[("once", SettingValue::Bool(true)), ("mock", SettingValue::Bool(false))],
        )
        .unwrap();
        assert_eq!(flags, ["--mock"]);
        assert_eq!(origins["once"].to_string(), "TENURE_ONCE");
    }

    #[test]
    fn exclusive_settings_come_from_the_highest_layer_that_gives_one() {
        let entries = [
            ("store", text("memory:")),
            ("lock-name", text("n")),
            ("mock", SettingValue::Bool(true)),
        ];
        let variables = [("TENURE_LOCK_DIR", "/x")];
        let (flags, _) =
            resolved(&["tenure", "run", "m", "--", "c"], &variables, "", &entries).unwrap();
        assert_eq!(flags, ["--lock-dir=/x"]);
    }

    #[test]
    fn the_file_applies_to_running_commands_and_to_shared_settings() {
        let entries = [("wait", text("4s")), ("store", text("memory:"))];
        let (flags, _) = resolved(&["tenure", "resign", "a"], &[], "", &entries).unwrap();
        assert_eq!(flags, ["--store=memory:"]);
        let (flags, _) = resolved(&["tenure", "demo"], &[], "TENURE_NODES=4", &entries).unwrap();
        assert_eq!(flags, ["--nodes=4", "--store=memory:"]);
    }

    #[test]
    fn two_names_of_one_setting_must_agree() {
        let same = [("TENURE_NODE_ID", "a"), ("TENURE_INSTANCE_ID", "a")];
        assert_eq!(resolved(&["tenure", "run"], &same, "", &[]).unwrap().0, ["--node-id=a"]);
        let differ = [("TENURE_NODE_ID", "a"), ("TENURE_INSTANCE_ID", "b")];
        let error = resolved(&["tenure", "run"], &differ, "", &[]).unwrap_err().to_string();
        assert!(error.contains("TENURE_NODE_ID and TENURE_INSTANCE_ID"), "{error}");
    }

    #[test]
    fn clap_checks_values_and_the_layer_checks_kinds() {
        let refused = |key: &str, value| {
            resolved(&["tenure", "run"], &[], "", &[(key, value)]).unwrap_err().to_string()
        };
        for (key, value, says) in [
            (
                "margin",
                text("4"),
                "f line 1: 'margin': invalid value '4' for '--margin <D>': '4' has",
            ),
            ("margin", SettingValue::Bool(true), "f line 1: 'margin' takes text in quotes"),
            ("mock", text("true"), "f line 1: 'mock' takes true or false"),
            ("node-id", SettingValue::Many(vec!["a".to_owned()]), "of the kind 'array'"),
            ("drift", SettingValue::Other("float"), "of the kind 'float'"),
            ("log-level", text("loud"), "[possible values: error,"),
        ] {
            let error = refused(key, value);
            assert!(error.contains(says), "{error}");
        }
        let error = resolved(&["tenure", "run"], &[("TENURE_MOCK", "perhaps")], "", &[]);
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("TENURE_MOCK: takes true or false"), "{error}");
    }
}
