//! Shared fixture of the Redis tests: a private server with an administrator's connection, and trials that are shown as ignored
//! if there is no server (and fail if `TENURE_REQUIRE_STORES` requires it).

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue};
use rustix::process::{Signal, kill_process_group};
use tenure::store::{Store, StoreExt as _};
use tenure::{Answer, CandidateId, Claim, Clock, Grant, Hold, Lease, Name, Nonce};

use self::server_clock::ServerClock;
use crate::servers::{self, Scratch, Server, free_port};

pub mod certificates;
pub mod delay_line;
pub mod server_clock;
pub mod tls_server;

pub const KIND: &str = "redis-7";
pub const TTL: Duration = Duration::from_secs(60);

pub use crate::servers::Test;
pub use crate::tests;

pub fn main(tests: &[Test]) -> ExitCode {
    main_with(tests, None, Duration::from_secs(120) + Duration::from_secs(10) * turns())
}

/// Trials that take up to `limit` each. `lacks` is what they need besides the server and this machine does not have.
pub fn main_with(tests: &[Test], lacks: Option<&str>, limit: Duration) -> ExitCode {
    let server = servers::find(KIND, "redis-server");
    let hint = match server {
        Some(_) => lacks.map(str::to_owned),
        None => Some(servers::install_hint(KIND)),
    };
    servers::run_tests(KIND, hint, tests, limit)
}

/// How often a reproduction of a defect is repeated: `TENURE_TURNS=50`.
pub fn turns() -> u32 {
    let turns = std::env::var("TENURE_TURNS").ok().and_then(|turns| turns.parse().ok());
    turns.unwrap_or(2)
}

/// A private server.
pub struct Rig {
    pub server: Server,
    pub port: u16,
    login: String,
}

/// Every write is on disk before it is acknowledged.
pub const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];
pub const NOT_DURABLE: &[&str] = &["--appendonly", "no"];

impl Rig {
    pub fn new(arguments: &[&str]) -> Self {
        Self::with(arguments, "")
    }

    /// `login` is how the administrator logs in: `:PASSWORD@`.
    pub fn with(arguments: &[&str], login: &str) -> Self {
        let program = servers::find(KIND, "redis-server").expect("it was there a moment ago");
        Self::start(program, Vec::new(), arguments, login)
    }

    /// A server whose wall clock is `clock`, which has to outlive it.
    pub fn with_clock(arguments: &[&str], clock: &ServerClock) -> Self {
        let program = servers::find(KIND, "redis-server").expect("it was there a moment ago");
        let mut first = Vec::from(clock.environment());
        first.push(program.display().to_string());
        Self::start("/usr/bin/env".into(), first, arguments, "")
    }

    fn start(program: PathBuf, mut all: Vec<String>, arguments: &[&str], login: &str) -> Self {
        let port = free_port();
        let text = port.to_string();
        let usual = ["--port", &text, "--bind", "127.0.0.1", "--save", "", "--dir", "."];
        all.extend(usual.iter().chain(arguments).map(|&argument| argument.to_owned()));
        let ready = async || answers(login, port).await;
        let server = wait_for(Server::start(Scratch::in_memory(), program, all, ready));
        Rig { server: server.expect("a server"), port, login: login.to_owned() }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub async fn open(&self) -> Arc<dyn Store> {
        open(&self.url()).await
    }

    pub async fn admin(&self) -> MultiplexedConnection {
        admin(&self.login, self.port).await.expect("the server is there")
    }

    /// Runs an administrator's command, given as words.
    pub async fn run<T: FromRedisValue>(&self, words: &str) -> T {
        let words: Vec<Vec<u8>> = words.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        self.run_bytes(&words).await
    }

    pub async fn run_bytes<T: FromRedisValue>(&self, words: &[Vec<u8>]) -> T {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut self.admin().await).await.expect("an administrator's command")
    }

    pub fn kill(&self) {
        if let Some(pid) = self.server.pid() {
            kill_process_group(pid, Signal::KILL).expect("it runs");
        }
        wait_for(self.server.stop()).expect("it is dead");
    }

    pub fn start_again(&self) {
        let (login, port) = (self.login.clone(), self.port);
        let again = wait_for(self.server.start_again(async || answers(&login, port).await));
        again.expect("it starts as it did before");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process_group(self.server.pid().expect("it runs"), signal).expect("it runs");
    }
}

/// The compiler cannot prove that probes are `Send` futures, so they stay on this thread.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

async fn answers(login: &str, port: u16) -> bool {
    let Ok(mut admin) = admin(login, port).await else { return false };
    redis::cmd("PING").query_async::<()>(&mut admin).await.is_ok()
}

async fn admin(login: &str, port: u16) -> redis::RedisResult<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://{login}127.0.0.1:{port}"))?;
    // Against hanging; the default timeouts are too short for a busy machine.
    let limit = Some(Duration::from_secs(20));
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
    client.get_multiplexed_async_connection_with_config(&config).await
}

pub async fn open(url: &str) -> Arc<dyn Store> {
    tenure::open(url).await.expect("the URL is right")
}

pub async fn pause(time: Duration) {
    Clock::boot().sleep(time).await;
}

pub fn claim(name: &str, id: &str) -> Claim {
    let (name, id) = (Name::new(name).expect("a name"), CandidateId::new(id).expect("an id"));
    Claim::new(name, id, Nonce::random(), TTL)
}

pub async fn acquire(store: &dyn Store, claim: &Claim) -> tenure::Result<Answer<Grant>> {
    store.acquire_one(claim).await
}

pub async fn renew(store: &dyn Store, hold: &Hold) -> tenure::Result<Answer> {
    store.renew_one(hold, TTL).await
}

pub async fn granted(store: &dyn Store, claim: &Claim) -> Grant {
    let answer = acquire(store, claim).await.expect("an answer");
    answer.held().expect("it is free")
}

pub async fn release(store: &dyn Store, hold: &Hold) {
    let answers = store.release(&[hold.clone().into()]).await.expect("an answer");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// The lease of a `Taken` answer.
pub fn taken<T: std::fmt::Debug>(answer: tenure::Result<Answer<T>>) -> Lease {
    match answer {
        Ok(Answer::Taken(lease)) => *lease,
        other => panic!("expected Taken, got {other:?}"),
    }
}
