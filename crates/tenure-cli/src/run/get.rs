//! `--get URL`: polling over HTTP, without a command.

use std::time::Duration;

use reqwest::{Client, Url};
use tenure::{Error, Result};

use crate::output;
use crate::schedule::Outcome;

/// What is polled, and how long an answer may take.
#[derive(Clone, Debug)]
pub(crate) struct Get {
    client: Client,
    url: Url,
    timeout: Duration,
}

impl Get {
    /// Reads the URL, or says what is wrong with it.
    pub(super) fn read(url: &str) -> Result<Url> {
        let wrong = |why: &str| {
            let shown = output::printable(&tenure::store::shown(url));
            Error::invalid(format!(
                "--get {shown}: {why}: give a URL like http://127.0.0.1:8080/poll"
            ))
        };
        let parsed = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host().is_none() {
            return Err(wrong("only http and https can be polled"));
        }
        Ok(parsed)
    }

    pub(crate) fn new(url: &str, timeout: Duration) -> Result<Get> {
        let url = Get::read(url)?;
        // One provider for everything here; a second call finds it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
            // Where a redirect leads was not asked for, and may be somebody else's.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| Error::denied(format!("cannot poll over HTTP: {error}")))?;
        Ok(Get { client, url, timeout })
    }

    /// The same for another URL, over the same connections.
    pub(crate) fn at(&self, url: &str) -> Result<Get> {
        Ok(Get { url: Get::read(url)?, ..self.clone() })
    }

    /// Asks once. An answer of 2xx is success; its body is read to the end and thrown away.
    ///
    /// # Cancellation
    /// Dropping this closes the connection; what has been sent may still have its effect.
    pub(crate) async fn poll(&self, token: tenure::Token) -> (Outcome, Option<String>) {
        let asked = self.client.get(self.url.clone()).timeout(self.timeout);
        // Whoever is polled can refuse what comes from an older term.
        let mut answer = match asked.header("Tenure-Token", token.get()).send().await {
            Ok(answer) => answer,
            Err(error) => return (Outcome::Failed, Some(why(&error))),
        };
        loop {
            match answer.chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return (Outcome::Failed, Some(why(&error))),
            }
        }
        let status = answer.status();
        let outcome = if status.is_success() { Outcome::Ok } else { Outcome::Failed };
        (outcome, Some(format!("HTTP {}", status.as_u16())))
    }
}

/// In a few words; the URL is known, and may hold a password.
fn why(error: &reqwest::Error) -> String {
    let what = match error {
        error if error.is_timeout() => "no answer in time",
        error if error.is_connect() => "cannot connect",
        error if error.is_body() => "the answer broke off",
        _ => "no answer",
    };
    // The innermost cause is the one that says something.
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    format!("{what}: {cause}")
}
