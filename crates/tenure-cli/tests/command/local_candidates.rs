//! Candidates in the test's own process, on the directory that the command uses.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure::{Election, Store};
use tokio::runtime::Runtime;

use tenure_rig::command::{CommandResult, Sandbox, eventually};

pub(crate) const NAME: &str = "billing:nightly";

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A directory store, and a runtime for the candidates that use it.
pub(crate) struct Fixture {
    pub(crate) sandbox: Sandbox,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Runtime,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        let sandbox = Sandbox::new();
        let runtime = runtime();
        let url = format!("file:{}", sandbox.path().join("leases").display());
        let store = runtime.block_on(tenure::open(&url)).unwrap();
        Fixture { sandbox, store, runtime }
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.sandbox.path().join("leases")
    }

    /// A candidate that leads without any work, and resigns on request.
    pub(crate) fn candidate(&self, name: &str, id: &str) -> Arc<Election> {
        let builder = Election::builder(name).id(id).ttl(Duration::from_secs(3));
        let election = Arc::new(self.runtime.block_on(builder.start(self.store.clone())).unwrap());
        let leading = election.clone();
        std::thread::spawn(move || {
            runtime().block_on(async {
                while let Some(leadership) = leading.leadership().await {
                    leadership.lost().await;
                }
            });
        });
        election
    }

    /// A candidate, once it leads.
    pub(crate) fn leader(&self, name: &str, id: &str) -> Arc<Election> {
        let election = self.candidate(name, id);
        eventually("it leads", || election.is_leader());
        election
    }

    /// `tenure ARGS` on this directory.
    pub(crate) fn run(&self, args: &[&str]) -> CommandResult {
        let output = self.sandbox.command(args).env("TENURE_LOCK_DIR", self.directory()).output();
        CommandResult::new(output.unwrap())
    }
}
