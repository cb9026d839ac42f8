//! `--get URL`: work that polls a URL over HTTP instead of running a command.

use std::time::Duration;

use reqwest::{Client, Url};
use tenure::supervise::SupervisedTerm;
use tenure::{Error, Result};

use crate::output;
use crate::permit::while_valid;
use crate::schedule::RunOutcome;

/// The detail of a poll that was not sent, or that was abandoned while it waited for the response.
const GIVEN_UP: &str = "given up at the deadline of the lease";

/// A URL to poll and its timeout.
#[derive(Clone, Debug)]
pub(crate) struct HttpPoll {
    client: Client,
    url: Url,
    timeout: Duration,
}

impl HttpPoll {
    /// Parses the URL, or says what is wrong with it.
    pub(super) fn read(url: &str) -> Result<Url> {
        let wrong = |reason: &str| {
            let shown = output::printable(&tenure::store::redact_url(url));
            Error::invalid(format!(
                "--get {shown}: {reason}: give a URL like http://127.0.0.1:8080/poll"
            ))
        };
        let parsed = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host().is_none() {
            return Err(wrong("only http and https can be polled"));
        }
        Ok(parsed)
    }

    pub(crate) fn new(url: &str, timeout: Duration) -> Result<HttpPoll> {
        Ok(HttpPoll { client: client(usize::MAX)?, url: HttpPoll::read(url)?, timeout })
    }

    /// The same poll with a new connection for each request.
    pub(crate) fn without_connection_reuse(self) -> Result<HttpPoll> {
        Ok(HttpPoll { client: client(0)?, ..self })
    }

    /// The same poll for another URL, over the same connections.
    pub(crate) fn with_url(&self, url: &str) -> Result<HttpPoll> {
        Ok(HttpPoll { url: HttpPoll::read(url)?, ..self.clone() })
    }

    /// Polls once. A response of 2xx is success; its body is read to the end and discarded.
    ///
    /// The request is handed to its connection only while `term` is valid: the clock is read after every wait for a name
    /// server, a connection or a TLS handshake. The connection's own task then writes it without another wait.
    ///
    /// # Cancellation
    /// Dropping this closes the connection. A request that has been sent may still have its effect.
    pub(crate) async fn poll(&self, term: &impl SupervisedTerm) -> (RunOutcome, Option<String>) {
        let request = self.client.get(self.url.clone()).timeout(self.timeout);
        // The server can refuse a request from an older term.
        let request = request.header("Tenure-Token", term.hold().token.get());
        let mut answer = match while_valid(term, request.send()).await {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => return (RunOutcome::Failed, Some(describe(&error))),
            None => return (RunOutcome::Stopped, Some(GIVEN_UP.to_owned())),
        };
        loop {
            match answer.chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return (RunOutcome::Failed, Some(describe(&error))),
            }
        }
        let status = answer.status();
        let outcome = if status.is_success() { RunOutcome::Ok } else { RunOutcome::Failed };
        (outcome, Some(format!("HTTP {}", status.as_u16())))
    }
}

/// A client that keeps at most `idle` unused connections to each host.
fn client(idle: usize) -> Result<Client> {
    // All HTTP and TLS code here uses one crypto provider; a second call finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
        .pool_max_idle_per_host(idle)
        // Redirects are not followed: the operator did not name their target, which may belong to another party.
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| Error::denied(format!("cannot poll over HTTP: {error}")))
}

/// Describes the error without the URL, which is known and may contain a password.
fn describe(error: &reqwest::Error) -> String {
    let what = match error {
        error if error.is_timeout() => "no answer in time",
        error if error.is_connect() => "cannot connect",
        error if error.is_body() => "the answer broke off",
        _ => "no answer",
    };
    // The innermost cause is the most specific.
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    format!("{what}: {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permit::tests::{LENGTH, TestTerm};
    use std::net::{Ipv4Addr, TcpListener};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener as AsyncListener, TcpStream};

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn get(port: u16) -> HttpPoll {
        HttpPoll::new(&format!("http://127.0.0.1:{port}/"), TIMEOUT).unwrap()
    }

    fn port(listener: &TcpListener) -> u16 {
        listener.local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn a_term_that_is_over_sends_nothing_and_does_not_even_connect() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let term = TestTerm::new();
        term.clock.advance(LENGTH);
        let (outcome, detail) = get(port(&listener)).poll(&term).await;
        assert_eq!((outcome, detail.as_deref()), (RunOutcome::Stopped, Some(GIVEN_UP)));
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "there was a connection");
    }

    /// A server with a full accept queue makes the client wait for its connection. The term ends during that wait, then the
    /// server accepts.
    #[tokio::test]
    async fn a_term_that_ends_while_the_connection_is_made_sends_nothing() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // Linux: a second `listen` changes the length of the queue, which takes one connection more than that.
        rustix::net::listen(&listener, 0).unwrap();
        let (term, get) = (TestTerm::new(), get(port(&listener)));
        let first = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let clock = term.clock.clone();
        // A separate task, so that only the connection wakes the client.
        let server = tokio::spawn(async move {
            // The client is waiting by now: the kernel repeats its SYN after one second.
            tenure::Clock::boot().sleep(Duration::from_millis(300)).await;
            clock.advance(LENGTH);
            listener.set_nonblocking(true).unwrap();
            let listener = AsyncListener::from_std(listener).unwrap();
            let _first = listener.accept().await.unwrap();
            let (mut client, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            client.read_to_end(&mut received).await.unwrap();
            received
        });
        let (outcome, detail) = get.poll(&term).await;
        assert_eq!((outcome, detail.as_deref()), (RunOutcome::Stopped, Some(GIVEN_UP)));
        assert_eq!(String::from_utf8_lossy(&server.await.unwrap()), "", "a request was sent");
        drop(first);
    }
}
