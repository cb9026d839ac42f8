//! Reads the subset of YAML that our compose.yaml uses: maps by indentation, one-line items, one anchor and its merge.
//!
//! If a real parser is installed, a trial compares the two results.

use std::collections::BTreeMap;

use crate::text;

/// Every value, by the keys that lead to it.
pub(crate) struct Compose(Vec<(Vec<String>, String)>);

impl Compose {
    pub(crate) fn read() -> Compose {
        let mut entries = Vec::new();
        let mut above: Vec<(usize, String)> = Vec::new();
        for line in text("compose.yaml").lines() {
            let bare = line.trim_start();
            if bare.is_empty() || bare.starts_with('#') {
                continue;
            }
            let indent = line.len() - bare.len();
            assert!(!line.contains('\t'), "a tab: {line}");
            above.retain(|(of, _)| *of < indent);
            let mut path: Vec<String> = above.iter().map(|(_, key)| key.clone()).collect();
            let value = match bare.strip_prefix("- ") {
                Some(item) => item,
                None => {
                    let (key, value) = bare.split_once(':').unwrap();
                    above.push((indent, key.to_owned()));
                    path.push(key.to_owned());
                    value
                }
            };
            entries.push((path, value.trim().trim_matches('"').to_owned()));
        }
        Compose(entries)
    }

    /// Everything below this path by its keys, with merged keys.
    fn below(&self, path: &[&str]) -> Vec<(Vec<String>, String)> {
        let of = |top: &[String]| -> Vec<(Vec<String>, String)> {
            let inside = self.0.iter().filter(|(path, _)| path.starts_with(top));
            inside.map(|(path, value)| (path[top.len()..].to_vec(), value.clone())).collect()
        };
        let path: Vec<String> = path.iter().map(|&key| key.to_owned()).collect();
        let mut found = of(&path);
        let merged = found.iter().find(|(path, _)| path.len() == 1 && path[0] == "<<");
        if let Some(anchor) = merged.and_then(|(_, value)| value.strip_prefix('*')) {
            let anchor = format!("&{anchor}");
            let (top, _) = self.0.iter().find(|(_, value)| *value == anchor).unwrap();
            found.extend(of(top));
        }
        found
    }

    pub(crate) fn services(&self) -> Vec<String> {
        let two = |path: &&Vec<String>| path.len() == 2 && path[0] == "services";
        self.0.iter().map(|(path, _)| path).filter(two).map(|path| path[1].clone()).collect()
    }

    /// The values of a key of a service; several if they are a list.
    pub(crate) fn values(&self, service: &str, key: &str) -> Vec<String> {
        let key: Vec<&str> = key.split('.').collect();
        let here = self.below(&["services", service]).into_iter().filter(|(path, _)| *path == key);
        here.map(|(_, value)| value).filter(|value| !value.is_empty()).collect()
    }

    /// The environment of a service, as written in this file.
    pub(crate) fn environment(&self, service: &str) -> BTreeMap<String, String> {
        let all = self.below(&["services", service]).into_iter();
        let one = |(path, value): (Vec<String>, String)| match &path[..] {
            [of, name] if of == "environment" => Some((name.clone(), value)),
            _ => None,
        };
        all.filter_map(one).collect()
    }

    /// The whole environment of a process of the service: of the image, the env file and the service; later ones win.
    pub(crate) fn whole_environment(&self, service: &str) -> BTreeMap<String, String> {
        let mut all = image_environment();
        for file in self.values(service, "env_file") {
            all.extend(variables(&text(&file)));
        }
        all.extend(self.environment(service));
        all
    }
}

/// `NAME=VALUE` lines, without comments.
pub(crate) fn variables(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| line.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned()));
    lines.filter_map(pair).collect()
}

/// The variables that ENV in the Dockerfile sets.
fn image_environment() -> BTreeMap<String, String> {
    let dockerfile = text("Dockerfile");
    let lines = dockerfile.lines().filter_map(|line| line.strip_prefix("ENV "));
    lines.flat_map(variables).collect()
}
