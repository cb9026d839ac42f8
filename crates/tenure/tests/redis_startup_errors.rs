//! A store URL that does not fit its server: the first answer is a permanent error with the reason, so `start` fails instead of
//! waiting for ever.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::time::Duration;

use tenure::{Clock, Election, Error, Kind};

use tenure_rig::redis_rig::certificates::Authority;
use tenure_rig::redis_rig::tls_server::Secure;
use tenure_rig::redis_rig::{NOT_DURABLE, Rig, acquire, claim, granted, open, pause, tests};
use tenure_rig::servers::Scratch;

/// The limit for an error that the first connection attempt must find. The attempt itself may take five seconds.
const AT_ONCE: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    tenure_rig::redis_rig::main(tests![
        a_database_that_does_not_exist_is_denied,
        a_password_for_a_server_without_one_is_denied,
        tls_to_a_plaintext_port_is_denied,
        plaintext_to_a_tls_port_is_denied,
        a_silent_server_is_unavailable,
        a_running_leader_retries_after_a_refused_log_in,
    ])
}

/// The error with which an election on this URL fails to start.
async fn start_error(url: &str) -> Error {
    let clock = Clock::boot();
    let before = clock.now();
    let starting = Election::builder("job").start(open(url).await);
    let started = tokio::time::timeout(AT_ONCE, starting).await;
    let error = started.unwrap_or_else(|_| panic!("{url}: start waits")).map(drop).unwrap_err();
    assert!(clock.now().since(before) < AT_ONCE, "{url}: {error}");
    error
}

/// Asserts that an election on this URL fails to start with an error that an operator must act on.
async fn assert_denied(url: &str, says: &[&str]) {
    let error = start_error(url).await;
    assert_eq!(error.kind(), Kind::Denied, "{url}: {error}");
    for words in says {
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
    let error = acquire(&*open(url).await, &claim("job", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{url}: {error}");
}

async fn a_database_that_does_not_exist_is_denied() {
    let rig = Rig::new(&["--databases", "4"]);
    let url = |database: &str| format!("{}/{database}", rig.url());
    assert_denied(&url("99"), &["database 99", "DB index is out of range", "/99"]).await;
    assert_denied(&url("4"), &["database 4"]).await;
    granted(&*open(&url("3")).await, &claim("job", "me")).await;
}

async fn a_password_for_a_server_without_one_is_denied() {
    let rig = Rig::new(NOT_DURABLE);
    let url = format!("redis://:geheim@127.0.0.1:{}", rig.port);
    assert_denied(&url, &["without any password configured", "remove the password"]).await;
    assert!(!start_error(&url).await.to_string().contains("geheim"));
    // Named in full, the default user accepts any password while it has none.
    let url = format!("redis://default:geheim@127.0.0.1:{}", rig.port);
    granted(&*open(&url).await, &claim("job", "me")).await;
}

async fn tls_to_a_plaintext_port_is_denied() {
    for (arguments, login) in [
        (NOT_DURABLE, ""),
        (&["--requirepass", "pw"][..], ":pw@"),
        (&["--protected-mode", "no"], ""),
    ] {
        let rig = Rig::with(arguments, login);
        let scratch = Scratch::new();
        let ca = Authority::new(scratch.path(), "ca").ca;
        let url = format!("rediss://{login}localhost:{}?ca={ca}", rig.port);
        assert_denied(&url, &["the server does not speak TLS; use redis://"]).await;
    }
}

async fn plaintext_to_a_tls_port_is_denied() {
    let scratch = Scratch::new();
    let authority = Authority::new(scratch.path(), "ca");
    let files = authority.sign(scratch.path(), "server", &["localhost"], false);
    for clients in ["no", "yes"] {
        let server = Secure::new(&authority, &files, clients);
        let url = format!("redis://127.0.0.1:{}", server.port);
        assert_denied(&url, &["the server speaks TLS; use rediss://"]).await;
        assert_eq!(server.rig.run::<i64>("DBSIZE").await, 0);
    }
}

/// A server that accepts connections and says nothing, or closes them, may be starting: that is not permanent.
async fn a_silent_server_is_unavailable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let closing = tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    for url in [format!("redis://127.0.0.1:{port}"), format!("rediss://localhost:{port}")] {
        let error = acquire(&*open(&url).await, &claim("job", "me")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{url}: {error}");
    }
    closing.abort();
}

/// B13: only start-up fails. A leader that is refused later stops its work, and leads again once it is accepted.
async fn a_running_leader_retries_after_a_refused_log_in() {
    let admin = ["--user", "admin", "on", ">admin", "~*", "&*", "+@all"];
    let rig = Rig::with(&admin, "admin:admin@");
    rig.run::<()>("CONFIG SET requirepass right").await;
    let url = format!("redis://:right@127.0.0.1:{}?startup_wait=0s", rig.port);
    let election =
        Election::builder("job").ttl(Duration::from_secs(1)).start(open(&url).await).await.unwrap();
    let leadership = election.leadership().await.unwrap();
    // The next log-in is answered with the error that start-up does not forgive.
    rig.run::<()>("ACL SETUSER default nopass").await;
    rig.run::<i64>("CLIENT KILL TYPE normal SKIPME yes").await;
    leadership.lost().await;
    drop(leadership);
    pause(Duration::from_millis(300)).await;
    rig.run::<()>("ACL SETUSER default resetpass >right").await;
    let again = tokio::time::timeout(Duration::from_secs(20), election.leadership()).await;
    assert!(again.unwrap().unwrap().is_valid());
    election.stop().await;
}
