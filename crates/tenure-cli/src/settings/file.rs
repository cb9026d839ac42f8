//! `tenure.toml`: its locations and its entries.

use std::path::{Path, PathBuf};

use tenure::store::redact_url;
use tenure::{Error, Result};
use toml::de::{DeTable, DeValue};

use super::suggestion::nearest;
use super::trusted_file::TrustedFile;
use crate::output;

const NAME: &str = "tenure.toml";

/// A `tenure.toml` that was read, with its entries in the order of the file.
#[derive(Debug)]
pub(crate) struct SettingsFile {
    pub(crate) path: PathBuf,
    /// Whether users other than its owner can read it.
    pub(crate) exposed: bool,
    pub(crate) entries: Vec<SettingsEntry>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SettingsEntry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) value: SettingValue,
}

/// A value in the file; clap decides whether it is valid for its setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingValue {
    Bool(bool),
    /// Text, or an integer as text.
    One(String),
    Many(Vec<String>),
    /// A type that no setting has; TOML's name of the type.
    Other(&'static str),
}

impl SettingsFile {
    /// Reads the file at `path`. The operator named it, so it must exist.
    pub(crate) fn read(path: &Path) -> Result<SettingsFile> {
        SettingsFile::parse(path, super::read_named(path)?)
    }

    /// Reads the first file that exists in the usual locations.
    pub(crate) fn find(home: Option<&Path>) -> Result<Option<SettingsFile>> {
        let home = home.map(|home| home.join(".config/tenure").join(NAME));
        let system_wide = Path::new("/etc/tenure").join(NAME);
        for path in [Some(PathBuf::from(NAME)), home, Some(system_wide)].into_iter().flatten() {
            if let Some(file) = super::find(&path, "--config")? {
                return SettingsFile::parse(&path, file).map(Some);
            }
        }
        Ok(None)
    }

    fn parse(path: &Path, file: TrustedFile) -> Result<SettingsFile> {
        let text = super::text(path, file.bytes)?;
        let entries = entries(&text).map_err(|(line, reason)| {
            let reason = output::printable(&reason);
            Error::invalid(format!("{} line {line}: this is no TOML: {reason}", path.display()))
        })?;
        Ok(SettingsFile { path: path.to_owned(), exposed: file.exposed, entries })
    }

    /// Refuses the first key that is not in `known`.
    pub(crate) fn check(&self, known: &[String]) -> Result<()> {
        let Some(entry) = self.entries.iter().find(|entry| !known.contains(&entry.key)) else {
            return Ok(());
        };
        let SettingsEntry { key, line, .. } = entry;
        let suggestion = nearest(key, known.iter().map(String::as_str));
        let hint = suggestion.map_or_else(
            || "; 'tenure run --print-config' lists those there are".to_owned(),
            |suggestion| format!("; did you mean '{suggestion}'?"),
        );
        // An operator may have written a URL in the place of a key.
        let key = output::printable(&redact_url(key));
        Err(Error::invalid(format!(
            "{} line {line}: '{key}' is no setting{hint}",
            self.path.display()
        )))
    }
}

fn entries(text: &str) -> Result<Vec<SettingsEntry>, (usize, String)> {
    let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        (line(at), error.message().to_owned())
    })?;
    let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| SettingsEntry {
        key: AsRef::<str>::as_ref(key.get_ref()).to_owned(),
        line: line(key.span().start),
        value: SettingValue::of(value.get_ref()),
    };
    let mut entries: Vec<SettingsEntry> = table.get_ref().iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

impl SettingValue {
    fn of(value: &DeValue<'_>) -> SettingValue {
        match value {
            DeValue::Boolean(is) => SettingValue::Bool(*is),
            DeValue::Array(items) => {
                let items: Option<Vec<String>> =
                    items.iter().map(|item| plain(item.get_ref())).collect();
                items.map_or(SettingValue::Other("array of something else"), SettingValue::Many)
            }
            value => plain(value).map_or(SettingValue::Other(value.type_str()), SettingValue::One),
        }
    }
}

fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_know_their_line_and_come_in_order() {
        let text = "# ours\nstore = 'memory:'\n\njson = true\na = 7\nb = ['x', 1]\nc = 1.5\n[d]\n";
        let read: Vec<_> = entries(text).unwrap().into_iter().collect();
        let pinned = [
            ("store", 2, SettingValue::One("memory:".to_owned())),
            ("json", 4, SettingValue::Bool(true)),
            ("a", 5, SettingValue::One("7".to_owned())),
            ("b", 6, SettingValue::Many(vec!["x".to_owned(), "1".to_owned()])),
            ("c", 7, SettingValue::Other("float")),
            ("d", 8, SettingValue::Other("table")),
        ];
        let pinned =
            pinned.map(|(key, line, value)| SettingsEntry { key: key.to_owned(), line, value });
        assert_eq!(read, pinned);
    }

    #[test]
    fn invalid_toml_is_reported_with_its_line() {
        for (text, at) in [("a = 1\nb = \n", 2), ("a = 1\na = 2", 2), ("\n\nstore", 3)] {
            let (line, reason) = entries(text).unwrap_err();
            assert_eq!(line, at, "{text}: {reason}");
        }
    }
}
