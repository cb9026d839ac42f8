//! `--print-config`: every setting of a command, its value, and where that came from.

use clap::builder::StyledStr;
use clap::parser::ValueSource;
use serde::Serialize;
use serde_json::Value as Json;
use tenure::Result;
use tenure::store::redact_url;

use super::registry::{ChosenCommand, Setting};
use super::resolve::Origins;
use crate::output;

/// One setting in the JSON output.
#[derive(Debug, Serialize)]
struct SettingLine {
    key: String,
    /// Null if it is not set.
    value: Json,
    /// `default` also if it is not set.
    origin: String,
    /// The default of a setting that is not set, as the help describes it.
    #[serde(skip)]
    instead: Option<String>,
}

#[derive(Serialize)]
struct SettingsJson {
    settings: Vec<SettingLine>,
}

pub(crate) fn print(chosen: &ChosenCommand<'_>, origins: &Origins, json: bool) -> Result<()> {
    let lines = chosen.settings().iter().map(|setting| line(chosen, setting, origins)).collect();
    if json {
        return output::json(&SettingsJson { settings: lines });
    }
    let text: Vec<String> = lines.iter().map(SettingLine::toml).collect();
    output::line(text.join("\n"))
}

fn line(chosen: &ChosenCommand<'_>, setting: &Setting<'_>, origins: &Origins) -> SettingLine {
    let mut id = setting.id;
    // NAME is another way to give it, and the output has only this key.
    if id == "lock_name" && origins.contains_key("name") {
        id = "name";
    }
    let raw = chosen.matches.get_raw(id).into_iter().flatten();
    let texts: Vec<String> = raw.map(|value| redact_url(&value.to_string_lossy())).collect();
    let is_default = chosen.matches.value_source(id) == Some(ValueSource::DefaultValue);
    let origin = origins.get(id);
    let value = match &texts[..] {
        [] => Json::Null,
        [text] if setting.is_switch() => Json::Bool(text == "true"),
        texts if setting.is_list() => texts.into(),
        [text, ..] => text.as_str().into(),
    };
    SettingLine {
        key: setting.key.to_owned(),
        value,
        origin: origin.map_or_else(|| "default".to_owned(), ToString::to_string),
        instead: setting.arg.get_help().filter(|_| !is_default).and_then(default_in),
    }
}

/// The default in a help text: `TTL/3` of one that ends in `[default: TTL/3]`.
fn default_in(help: &StyledStr) -> Option<String> {
    let help = help.to_string();
    let (_, default) = help.rsplit_once("[default: ")?;
    Some(default.trim_end_matches(']').to_owned())
}

impl SettingLine {
    /// The line of a `tenure.toml` that would set the same.
    fn toml(&self) -> String {
        let SettingLine { key, value, origin, instead } = self;
        let origin = output::printable(origin);
        match (value, instead) {
            (Json::Null, None) => format!("# {key}: not set"),
            (Json::Null, Some(default)) => format!("# {key}: not set (default: {default})"),
            (value, _) if origin == "default" => format!("{key} = {}  # default", toml(value)),
            (value, _) => format!("{key} = {}  # from {origin}", toml(value)),
        }
    }
}

/// JSON text is also valid TOML, except for one character that TOML requires to be escaped.
fn toml(value: &Json) -> String {
    match value {
        Json::String(text) if is_number(text) => text.clone(),
        Json::Array(items) => {
            format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", "))
        }
        value => value.to_string().replace('\u{7f}', "\\u007f"),
    }
}

/// Whether TOML would return the same text for a number.
fn is_number(text: &str) -> bool {
    text.parse::<i64>().is_ok_and(|number| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_output_is_toml() {
        for value in [
            json!("a \"b\" \\ \n \u{7f} \u{1b} ö"),
            json!("12"),
            json!("012"),
            json!(true),
            json!(["a", "b"]),
        ] {
            let text = format!("a = {}", toml(&value));
            assert!(toml::de::DeTable::parse(&text).is_ok(), "{text}");
        }
        assert_eq!(toml(&json!("12")), "12");
        assert_eq!(toml(&json!("012")), "\"012\"");
    }
}
