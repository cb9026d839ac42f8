//! What the server or the way to it says, as one of our errors: what to do about it decides the
//! kind.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError};
use tokio_rustls::rustls;

use super::settings::RedisSettings;
use crate::error::Error;

/// Why a call came to nothing, seen by whoever wants to know whether the connection is still good.
#[derive(Debug)]
pub(super) struct CallError {
    pub(super) error: Error,
    /// The script is not in the server's cache: send it whole.
    pub(super) no_script: bool,
    /// What lies under the key is of another type.
    pub(super) wrong_type: bool,
    /// The connection is of no more use.
    pub(super) broken: bool,
}

/// What a server says when it refuses for a reason an operator must remove.
const REFUSALS: &[&str] = &["NOAUTH", "WRONGPASS", "NOPERM", "DENIED", IN_SCRIPT];
/// How some versions say NOPERM of a command in a script.
const IN_SCRIPT: &str = "The user executing the script can't";
/// What it says when it may say something else in a moment, and what that means.
const MOMENTS: &[(&str, &str)] = &[
    ("LOADING", "it is reading its data from disk"),
    ("BUSY", "a script of somebody's is running; SCRIPT KILL ends it"),
    ("MISCONF", "it cannot write to its disk"),
    ("OOM", "it is at its memory limit: raise maxmemory, keep the policy noeviction"),
    ("READONLY", "it is a replica: name the primary"),
    ("MASTERDOWN", "it is a replica without a primary"),
    ("NOREPLICAS", "it has fewer replicas than min-replicas-to-write asks for"),
    ("CLUSTERDOWN", "its cluster is down"),
    ("TRYAGAIN", "its cluster is moving keys"),
    ("max number of clients", "raise maxclients"),
];

impl RedisSettings {
    /// A connection could not be made.
    pub(super) fn unreachable(&self, error: &io::Error) -> Error {
        let cause = match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::NotFound => "there is no such socket".to_owned(),
            io::ErrorKind::PermissionDenied => {
                return Error::denied(format!(
                    "cannot reach {self}: {error}. Check who may open it"
                ));
            }
            _ => error.to_string(),
        };
        Error::unavailable(format!(
            "cannot reach {self}: {cause}. Is Redis running? Try 'docker compose up -d redis' or \
             'redis-server', or give --store."
        ))
    }

    /// Nothing came within `limit` while `what` was done.
    pub(super) fn silent(&self, what: &str, limit: Duration) -> Error {
        Error::unavailable(format!(
            "cannot reach {self}: {what} got no answer within {limit:?}. Is Redis running?"
        ))
    }

    /// A command was not sent because so many others are in flight.
    pub(super) fn overloaded(&self, in_flight: usize) -> CallError {
        let error = Error::unavailable(format!(
            "{self} does not keep up: {in_flight} calls wait for an answer, and this one was not sent"
        ));
        CallError { error, no_script: false, wrong_type: false, broken: false }
    }

    /// A TLS handshake failed, or the TLS under a connection.
    pub(super) fn insecure(&self, error: &io::Error) -> Error {
        let what = match tls_error(error) {
            Some(rustls::Error::InvalidCertificate(reason)) => format!(
                "its certificate is not accepted ({reason}). Check its name and dates, and the \
                 option ca=FILE"
            ),
            Some(rustls::Error::AlertReceived(alert)) => format!(
                "it refuses our side of TLS ({alert:?}). Check the options cert=FILE and key=FILE"
            ),
            Some(rustls::Error::InvalidMessage(_)) => {
                "what it says is not TLS. If it has none, write redis://".to_owned()
            }
            Some(other) => format!("TLS failed ({other})"),
            None => return self.unreachable(error),
        };
        Error::denied(format!("will not talk to {self}: {what}"))
    }

    /// The server, or the connection to it, answered a command with an error.
    pub(super) fn trouble(&self, error: &RedisError, password: Option<&str>) -> CallError {
        let code = error.code().unwrap_or_default();
        let said = said(error, password);
        let (error, broken) = match error.kind() {
            ErrorKind::Io => (self.lost(error), true),
            // An answer that was cut off is a lost connection like any other.
            ErrorKind::Parse if said.contains("end of input") => {
                let message = format!("the connection to {self} was lost within an answer");
                (Error::unavailable(message), true)
            }
            ErrorKind::Parse => {
                let what = "is not the Redis protocol. If it wants TLS, write rediss://";
                (Error::denied(format!("what {self} says {what}")), true)
            }
            _ => self.refusal(code, &said),
        };
        let (no_script, wrong_type) = (code == "NOSCRIPT", code == "WRONGTYPE");
        CallError { error, no_script, wrong_type, broken }
    }

    fn lost(&self, error: &RedisError) -> Error {
        if error.is_timeout() {
            return Error::unavailable(format!("{self} did not answer in time"));
        }
        match io_error(error) {
            Some(io) if tls_error(io).is_some() => self.insecure(io),
            _ => Error::unavailable(format!("the connection to {self} was lost: {error}")),
        }
    }

    fn refusal(&self, code: &str, said: &str) -> (Error, bool) {
        // A script passes on what a command in it said, in some versions behind a code of its own.
        let has = |word: &str| code == word || said.contains(word);
        if REFUSALS.iter().any(|word| has(word)) {
            let do_this = if has("NOPERM") || has(IN_SCRIPT) {
                "allow the commands, keys and channels that docs/STORES.md lists for Redis"
            } else {
                "check user and password (or password_file)"
            };
            return (Error::denied(format!("{self} refuses us: {said}: {do_this}")), false);
        }
        if has("MOVED") || has("CROSSSLOT") {
            let message =
                format!("{self} is a node of a Redis Cluster ({said}): name a single server");
            return (Error::invalid(message), false);
        }
        let meaning = MOMENTS.iter().find(|(word, _)| has(word)).map(|(_, meaning)| *meaning);
        let message = match meaning {
            Some(meaning) => format!("{self} refuses for now: {said}: {meaning}"),
            None => format!("{self} refuses: {said}"),
        };
        // After a failover the name may lead to another server.
        (Error::unavailable(message), has("READONLY") || has("MASTERDOWN"))
    }
}

/// The server's words, short, printable, and without the password a server may quote to us
/// ("unknown command 'AUTH', with args beginning with ...").
fn said(error: &RedisError, password: Option<&str>) -> String {
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    };
    let words = match password {
        Some(password) if !password.is_empty() => words.replace(password, "***"),
        _ => words,
    };
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = words.chars().take(200).map(printable).collect();
    // Where in the script it happened says nothing to anybody.
    if let Some(at) = short.find(" script: ") {
        short.truncate(at);
    }
    short.trim_end_matches('.').to_owned()
}

/// The driver shares its causes, so what lies under an error is an `Arc` of it.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    let shared = error.source()?.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    shared.downcast_ref()
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
