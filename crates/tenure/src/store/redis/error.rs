//! Maps errors of the server and of the connection to [`Error`]: what the operator can do about one decides its kind.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError};

use super::settings::RedisSettings;
use crate::error::Error;
use crate::store::endpoint::Secret;
use crate::store::tls;

/// Why a call failed, with what a caller must know about the connection.
#[derive(Debug)]
pub(super) struct CallError {
    pub(super) error: Error,
    /// The script is not in the server's cache and must be sent in full.
    pub(super) no_script: bool,
    /// The value of the key has another type.
    pub(super) wrong_type: bool,
    /// The connection must not be used any more.
    pub(super) broken: bool,
}

/// Error codes of a refusal whose cause an operator must remove.
const REFUSALS: &[&str] = &["NOAUTH", "WRONGPASS", "NOPERM", "DENIED", IN_SCRIPT];
/// How some versions report NOPERM for a command inside a script.
const IN_SCRIPT: &str = "The user executing the script can't";
/// Error codes of temporary conditions, and what they mean.
const TEMPORARY_ERRORS: &[(&str, &str)] = &[
    ("LOADING", "it is reading its data from disk"),
    ("BUSY", "a script is running; SCRIPT KILL ends it"),
    ("MISCONF", "it cannot write to its disk"),
    ("OOM", "it is at its memory limit: raise maxmemory, keep the policy noeviction"),
    ("READONLY", "it is a replica: name the primary"),
    ("MASTERDOWN", "it is a replica without a primary"),
    ("NOREPLICAS", "it has fewer replicas than min-replicas-to-write asks for"),
    ("CLUSTERDOWN", "its cluster is down"),
    ("TRYAGAIN", "its cluster is moving keys"),
    ("max number of clients", "raise maxclients"),
];

/// What a server says to a SELECT that can never succeed.
const NO_DATABASE: &[&str] = &["out of range", "SELECT is not allowed", "invalid DB index"];
/// What a server says to an AUTH that can never succeed: its user has no password, or it has no AUTH.
const NO_PASSWORD: &[&str] =
    &["without any password configured", "no password is set", "unknown command"];

impl RedisSettings {
    /// The error for a connection that could not be made.
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

    /// The error for a server that did not answer within `limit` while `what` was done.
    pub(super) fn no_answer(&self, what: &str, limit: Duration) -> Error {
        Error::unavailable(format!(
            "cannot reach {self}: {what} got no answer within {limit:?}. Is Redis running?"
        ))
    }

    /// The error for a command that was not sent because too many others are in flight.
    pub(super) fn overloaded(&self, in_flight: usize) -> CallError {
        let error = Error::unavailable(format!(
            "{self} does not keep up: {in_flight} calls wait for an answer, and this one was not sent"
        ));
        CallError { error, no_script: false, wrong_type: false, broken: false }
    }

    /// The error for a failed TLS handshake, or a TLS failure on an established connection.
    pub(super) fn insecure(&self, error: &io::Error) -> Error {
        self.tls_error(error).unwrap_or_else(|| self.unreachable(error))
    }

    fn tls_error(&self, error: &io::Error) -> Option<Error> {
        let what = tls::explain(error, "use redis://")?;
        Some(Error::denied(format!("will not talk to {self}: {what}")))
    }

    /// The error for a URL with TLS and a server without.
    pub(super) fn speaks_plaintext(&self) -> Error {
        Error::denied(format!(
            "will not talk to {self}: the server does not speak TLS; use redis://, or name its TLS port"
        ))
    }

    /// The error for a URL without TLS and a server with it.
    pub(super) fn speaks_tls(&self) -> Error {
        Error::denied(format!(
            "cannot talk to {self}: the server speaks TLS; use rediss://, or name its plaintext port"
        ))
    }

    /// The error for a command of the log-in that the server refused. What no retry can change is Denied, so that an election
    /// does not wait for it at start-up.
    pub(super) fn login_error(
        &self,
        command: &str,
        error: &RedisError,
        password: Option<&Secret>,
    ) -> Error {
        let server_text = server_text(error, password);
        let has = |words: &[&str]| words.iter().any(|word| server_text.contains(word));
        match command {
            "SELECT" if has(NO_DATABASE) => Error::denied(format!(
                "{self} has no database {0} ({server_text}): write another number than /{0} behind the host, or raise \
                 'databases' in the server's configuration",
                self.database
            )),
            "AUTH" if has(NO_PASSWORD) => Error::denied(format!(
                "{self} takes no password ({server_text}): remove the password, or set one for this user on the server"
            )),
            _ => self.call_error(error, password).error,
        }
    }

    /// The error for a command that the server, or the connection to it, answered with an error.
    pub(super) fn call_error(&self, error: &RedisError, password: Option<&Secret>) -> CallError {
        let code = error.code().unwrap_or_default();
        let server_text = server_text(error, password);
        let (error, broken) = match error.kind() {
            ErrorKind::Io => (self.lost(error), true),
            // A truncated answer means a lost connection.
            ErrorKind::Parse if server_text.contains("end of input") => {
                let message = format!("the connection to {self} was lost within an answer");
                (Error::unavailable(message), true)
            }
            ErrorKind::Parse => {
                let what = "is not the Redis protocol. If it speaks TLS, use rediss://";
                (Error::denied(format!("what {self} says {what}")), true)
            }
            _ => self.refusal(code, &server_text),
        };
        let (no_script, wrong_type) = (code == "NOSCRIPT", code == "WRONGTYPE");
        CallError { error, no_script, wrong_type, broken }
    }

    fn lost(&self, error: &RedisError) -> Error {
        if error.is_timeout() {
            return Error::unavailable(format!("{self} did not answer in time"));
        }
        let lost = || Error::unavailable(format!("the connection to {self} was lost: {error}"));
        io_error(error).and_then(|error| self.tls_error(error)).unwrap_or_else(lost)
    }

    fn refusal(&self, code: &str, server_text: &str) -> (Error, bool) {
        // A script passes on the error of a command in it, in some versions behind a code of its own.
        let has = |word: &str| code == word || server_text.contains(word);
        if REFUSALS.iter().any(|word| has(word)) {
            let do_this = if has("NOPERM") || has(IN_SCRIPT) {
                "allow the commands, keys and channels that docs/STORES.md lists for Redis"
            } else {
                "check user and password (or password_file)"
            };
            return (Error::denied(format!("{self} refuses us: {server_text}: {do_this}")), false);
        }
        if has("MOVED") || has("CROSSSLOT") {
            let message = format!(
                "{self} is a node of a Redis Cluster ({server_text}): name a single server"
            );
            return (Error::invalid(message), false);
        }
        let meaning =
            TEMPORARY_ERRORS.iter().find(|(word, _)| has(word)).map(|(_, meaning)| *meaning);
        let message = match meaning {
            Some(meaning) => format!("{self} refuses for now: {server_text}: {meaning}"),
            None => format!("{self} refuses: {server_text}"),
        };
        // After a failover the host name may resolve to another server, so the connection counts as broken.
        (Error::unavailable(message), has("READONLY") || has("MASTERDOWN"))
    }
}

/// The server's error text: shortened, printable, and without the password, which a server may quote ("unknown command 'AUTH',
/// with args beginning with ...").
fn server_text(error: &RedisError, password: Option<&Secret>) -> String {
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    };
    let words = match password {
        Some(password) => password.hide_in(&words),
        None => words,
    };
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = words.chars().take(200).map(printable).collect();
    // The position in the script does not help the reader.
    if let Some(at) = short.find(" script: ") {
        short.truncate(at);
    }
    short.trim_end_matches('.').to_owned()
}

/// The `redis` crate shares error sources, so the source of an error is an `Arc`.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    let shared = error.source()?.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    shared.downcast_ref()
}
