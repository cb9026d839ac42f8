//! The command-line options of the HTTP server.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args as ClapArgs;
use tenure::{Error, Result};

use crate::duration;

/// The default host: only this machine can connect.
const LOOPBACK: &str = "127.0.0.1";

/// Of those that run.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct HttpArgs {
    /// Status and control over HTTP [HOST default: 127.0.0.1, or TENURE_HTTP_HOST]
    #[arg(long, value_name = "[HOST:]PORT", env = "TENURE_HTTP")]
    pub(crate) http: Option<Listen>,

    /// Take resign, drain and undrain over HTTP from those who know what stands in this file
    #[arg(long, value_name = "FILE", env = "TENURE_CONTROL_SECRET_FILE")]
    pub(crate) control_secret_file: Option<PathBuf>,

    /// Answer to this Host too where only this machine can connect; may be repeated
    #[arg(long, value_name = "NAME", env = "TENURE_ALLOW_HOST", value_delimiter = ',')]
    #[arg(value_parser = host)]
    pub(crate) allow_host: Vec<String>,
}

/// Of `tenure serve` alone, whose answers others act on.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct AnswerArgs {
    /// The longest for which an answer may be relied on [default: TTL/3]
    #[arg(long, value_name = "D", env = "TENURE_ANSWER_FOR", value_parser = duration::parse)]
    pub(crate) answer_for: Option<Duration>,
}

impl AnswerArgs {
    /// How long an answer may be relied on: `--answer-for`, or a third of the TTL.
    ///
    /// # Errors
    /// Invalid for zero, which would never allow a positive answer, and for more than a TTL, which promises more than is known.
    pub(crate) fn answer_for(&self, ttl: Duration) -> Result<Duration> {
        match self.answer_for {
            None => Ok(ttl / 3),
            Some(time) if time < Duration::from_millis(1) || time > ttl => {
                Err(Error::invalid(format!(
                    "--answer-for must be between 1ms and the TTL of {}: an answer is good for no longer than the lease",
                    duration::shown(ttl)
                )))
            }
            Some(time) => Ok(time),
        }
    }
}

/// An address to listen on: `[HOST:]PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
}

impl Listen {
    /// This port of the default host.
    pub(crate) fn port(port: u16) -> Listen {
        Listen { host: None, port }
    }

    /// The host that was given, or else `default`, or else this machine only.
    pub(crate) fn host<'a>(&'a self, default: Option<&'a str>) -> &'a str {
        let default = default.filter(|host| !host.is_empty());
        let host = self.host.as_deref().or(default).unwrap_or(LOOPBACK);
        without_brackets(host).unwrap_or(host)
    }
}

impl FromStr for Listen {
    type Err = Error;

    fn from_str(text: &str) -> Result<Listen> {
        let invalid = || {
            Error::invalid(format!(
                "'{}' is no place to listen: type PORT or HOST:PORT, as in 3000, 0.0.0.0:3000 or [::1]:3000",
                text.escape_debug()
            ))
        };
        let (host, port) = match text.rsplit_once(':') {
            None => (None, text),
            Some((host, port)) => (Some(without_brackets(host).ok_or_else(invalid)?), port),
        };
        // `parse` would accept a sign.
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        let port = port.parse().map_err(|_| invalid())?;
        Ok(Listen { host: host.map(str::to_owned), port })
    }
}

/// A host without its brackets; `None` for text that cannot be a host.
fn without_brackets(host: &str) -> Option<&str> {
    match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|host| host.contains(':')),
        None => Some(host)
            .filter(|host| !host.is_empty() && !host.contains([':', '/', '@', '[', ']', ' '])),
    }
}

/// Parses a name as it appears in a Host header, without a port.
fn host(text: &str) -> Result<String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if text.is_empty() || !text.chars().all(is_valid) {
        return Err(Error::invalid(format!(
            "'{}' is no host name: type it without a scheme and without a port",
            text.escape_debug()
        )));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_parsed() {
        for (text, host, port) in [
            ("3000", None, 3000),
            ("0", None, 0),
            ("localhost:1", Some("localhost"), 1),
            ("0.0.0.0:3000", Some("0.0.0.0"), 3000),
            ("[::1]:3000", Some("::1"), 3000),
        ] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!((listen.host.as_deref(), listen.port), (host, port), "{text}");
        }
        for wrong in
            ["", ":", ":80", "a:", "a:b", "65536", "+80", "-1", "::1:80", "[a]:80", "a b:80"]
        {
            let error = wrong.parse::<Listen>().unwrap_err().to_string();
            assert!(error.contains("HOST:PORT"), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_default_host_is_loopback() {
        assert_eq!(Listen::port(1).host(None), "127.0.0.1");
        assert_eq!(Listen::port(1).host(Some("")), "127.0.0.1");
        assert_eq!(Listen::port(1).host(Some("0.0.0.0")), "0.0.0.0");
        let typed: Listen = "a:1".parse().unwrap();
        assert_eq!(typed.host(Some("0.0.0.0")), "a");
        assert_eq!(Listen::port(1).host(Some("[::]")), "::");
        assert_eq!(Listen::port(1).host(Some("::1")), "::1");
    }

    #[test]
    fn answers_are_valid_for_a_third_of_the_ttl_by_default() {
        let ttl = Duration::from_secs(3);
        let of = |answer_for| AnswerArgs { answer_for }.answer_for(ttl);
        assert_eq!(of(None).unwrap(), Duration::from_secs(1));
        assert_eq!(of(Some(ttl)).unwrap(), ttl);
        assert!(of(Some(Duration::ZERO)).is_err());
        assert!(of(Some(ttl * 2)).is_err());
    }

    #[test]
    fn host_names_are_checked() {
        assert_eq!(host("build-7.example_1").unwrap(), "build-7.example_1");
        for wrong in ["", "a:80", "http://a", "a b", "*"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_flags_are_spelled_as_in_the_manual() {
        use clap::{Args as _, Command};
        let command = AnswerArgs::augment_args(HttpArgs::augment_args(Command::new("x")));
        command.clone().debug_assert();
        for arg in command.get_arguments() {
            let flag = arg.get_long().unwrap().to_uppercase().replace('-', "_");
            assert_eq!(arg.get_env().unwrap(), format!("TENURE_{flag}").as_str());
        }
        let typed = ["x", "--http", "[::1]:80", "--allow-host", "a,b", "--allow-host", "c"];
        let read = command.get_matches_from(typed);
        let hosts: Vec<&String> = read.get_many("allow_host").unwrap().collect();
        assert_eq!(hosts, ["a", "b", "c"]);
    }
}
