//! A private server on which histories run, with a clock that they move.

use std::sync::Arc;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tenure::Store;
use tenure_rig::redis_rig::server_clock::ServerClock;
use tenure_rig::redis_rig::{Rig, open};
use tokio::runtime::Runtime;

use super::model::DAY;
use super::server_model::ServerModel;

/// The clock of every server begins here: 2026-01-01, in milliseconds.
const EPOCH: u64 = 20_454 * DAY;

/// A kind of server, and how the store is opened.
pub(crate) struct Setup {
    pub(crate) arguments: &'static [&'static str],
    pub(crate) options: &'static str,
    pub(crate) durable: bool,
    /// Its data survives a restart.
    pub(crate) keeps_data: bool,
}

/// A private server with a clock that the histories move. Many histories run on it one after the other, each with its own
/// names and later than the one before.
pub(crate) struct TestServer {
    pub(crate) setup: Setup,
    // Before the clock: fields are dropped in this order, and the server reads the clock until it has ended.
    rig: Rig,
    clock: ServerClock,
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    admin: MultiplexedConnection,
    pub(crate) startup: ServerModel,
    pub(crate) now: u64,
    pub(crate) histories: u64,
    pub(crate) counts: Counts,
}

/// What the histories came across, so that a run shows that it was not idle.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Steps whose answers were compared.
    pub(crate) steps: u64,
    pub(crate) grants: u64,
    /// Grants whose holder does not lead yet.
    pub(crate) waits: u64,
    /// Grants of a lease whose visible key was deleted.
    pub(crate) deletions: u64,
    pub(crate) renewals: u64,
    pub(crate) saves: u64,
    pub(crate) releases: u64,
    pub(crate) releases_while_starting: u64,
    /// Claims that another program's key has refused.
    pub(crate) foreign: u64,
    pub(crate) revocations: u64,
    /// Answers that are errors.
    pub(crate) errors: u64,
}

impl Counts {
    /// The smallest of those that every kind of server reaches.
    pub(crate) fn rarest(&self) -> u64 {
        let Counts { grants, waits, deletions, renewals, saves, releases, .. } = *self;
        let Counts { releases_while_starting, foreign, revocations, errors, .. } = *self;
        let first = [grants, waits, deletions, renewals, saves, releases];
        let second = [releases_while_starting, foreign, revocations, errors];
        first.into_iter().chain(second).min().unwrap_or(0)
    }
}

impl TestServer {
    pub(crate) fn new(setup: Setup) -> Self {
        let clock = ServerClock::new(EPOCH * 1_000);
        let rig = Rig::with_clock(setup.arguments, &clock);
        // One thread does it all: the connection's task runs while the history waits for an answer.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (store, admin) = runtime.block_on(connect(&rig, setup.options));
        let startup = ServerModel::new(setup.options.contains("=0s"), setup.durable, EPOCH);
        let (now, histories, counts) = (EPOCH, 0, Counts::default());
        TestServer { setup, rig, clock, runtime, store, admin, startup, now, histories, counts }
    }

    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = now;
        self.clock.set(now * 1_000);
    }

    pub(crate) fn restart(&mut self) {
        self.rig.kill();
        self.rig.start_again();
        self.startup.restarted(self.now);
        (self.store, self.admin) = self.runtime.block_on(connect(&self.rig, self.setup.options));
    }

    /// An administrator's command.
    pub(crate) fn run(&mut self, words: &[&[u8]]) -> Value {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        self.runtime
            .block_on(command.query_async(&mut self.admin))
            .expect("an administrator's command")
    }
}

async fn connect(rig: &Rig, options: &str) -> (Arc<dyn Store>, MultiplexedConnection) {
    (open(&format!("{}{options}", rig.url())).await, rig.admin().await)
}
