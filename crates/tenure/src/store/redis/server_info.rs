//! The server's state: its role, how it persists what it acknowledged, and what it evicts.
//!
//! Read at log-in, and again while leases are claimed and renewed: an operator can change each of these at run time.

use std::collections::HashMap;

use redis::{Cmd, Value};

use super::session::Session;

type InfoFields = HashMap<String, String>;

/// INFO, and the part of the configuration that INFO does not show.
#[derive(Debug, Default)]
pub(super) struct ServerInfo {
    info: InfoFields,
    config: InfoFields,
}

impl ServerInfo {
    /// Parses the answers to [`commands`]. What this user may not read is missing.
    pub(super) fn new(answers: impl IntoIterator<Item = Value>) -> ServerInfo {
        let mut answers = answers.into_iter().map(|answer| answer.extract_error().ok());
        let mut answer = || answers.next().flatten();
        let (info, config) = (answer(), answer());
        let pairs = config.and_then(|value| redis::from_redis_value(value).ok());
        ServerInfo {
            info: info.map(parse_info).unwrap_or_default(),
            config: pairs.unwrap_or_default(),
        }
    }

    /// Reads the state from the server.
    pub(super) async fn read(link: &Session) -> ServerInfo {
        let [info, config] = commands();
        let (info, config) = tokio::join!(link.send(info), link.send(config));
        ServerInfo::new([info, config].map(|answer| answer.unwrap_or(Value::Nil)))
    }

    /// A field of INFO.
    pub(super) fn fact(&self, key: &str) -> Option<&str> {
        self.info.get(key).map(String::as_str)
    }

    /// A setting that concerns the append-only file.
    pub(super) fn setting(&self, key: &str) -> Option<&str> {
        self.config.get(key).map(String::as_str)
    }

    /// The address of the primary, if this server is a replica.
    pub(super) fn primary(&self) -> Option<String> {
        let role = self.fact("role").filter(|role| *role != "master")?;
        match (self.fact("master_host"), self.fact("master_port")) {
            (Some(host), Some(port)) => Some(format!("{host}:{port}")),
            _ => Some(format!("another server (its role is {role})")),
        }
    }

    /// Whether, by its configuration, every write is on disk before it is acknowledged. Whether the append-only file is being
    /// written at this moment is checked by the script that grants.
    pub(super) fn fsyncs_every_write(&self) -> bool {
        self.setting("appendonly") == Some("yes")
            && self.setting("appendfsync") == Some("always")
            && self.setting("no-appendfsync-on-rewrite") == Some("no")
    }

    /// Whether the append-only file was just switched on: it contains nothing before its first rewrite is done.
    pub(super) fn awaits_first_rewrite(&self) -> bool {
        let is = |key, value| self.fact(key) == Some(value);
        let rewrites = is("aof_rewrite_in_progress", "1") || is("aof_rewrite_scheduled", "1");
        rewrites && is("aof_last_rewrite_time_sec", "-1")
    }
}

/// The commands that read the server's state.
pub(super) fn commands() -> [Cmd; 2] {
    let mut config = redis::cmd("CONFIG");
    config.arg("GET").arg("*append*");
    [redis::cmd("INFO"), config]
}

fn parse_info(info: Value) -> InfoFields {
    let text = match info {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Value::VerbatimString { text, .. } => text,
        _ => String::new(),
    };
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
}
