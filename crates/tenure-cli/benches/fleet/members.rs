//! The members: `tenure fleet run NAME … --mock --every 1h`.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{Moment, Name};

use tenure_rig::system::election_trial::TIMEOUT;
use tenure_rig::system::time::{now, poll_until};
use tenure_rig::system::trial_directory::{TenureProcess, TrialDirectory};
use tenure_rig::system::trial_store::{StoreKind, TrialStore};

pub(crate) const MEMBERS: usize = 3;

// Fields are dropped in this order.
pub(crate) struct Members {
    running: Vec<TenureProcess>,
    pub(crate) place: TrialStore,
    fleet: Name,
    ttl: Duration,
    list: PathBuf,
    room: TrialDirectory,
}

impl Members {
    pub(crate) fn start(fleet: &Name, ttl: Duration, shards: usize) -> Members {
        let room = TrialDirectory::new();
        let place = TrialStore::open(StoreKind::Redis, room.path(), 0);
        let list = room.path().join("shards");
        let names: Vec<String> = (0..shards).map(|number| format!("tenant-{number}")).collect();
        std::fs::write(&list, names.join("\n")).unwrap();
        let running = Vec::new();
        let mut members = Members { running, place, fleet: fleet.clone(), ttl, list, room };
        members.running = (0..MEMBERS).map(|who| members.begin(who)).collect();
        members
    }

    pub(crate) fn id(who: usize) -> String {
        format!("m{who}")
    }

    fn begin(&self, who: usize) -> TenureProcess {
        let id = Members::id(who);
        let mut command = self.room.command();
        command.args(["--store", &self.place.url(), "--log-level", "warn"]);
        command.args(["fleet", "run", self.fleet.as_str(), "--node-id", &id]);
        command.args(["--lease-duration", &format!("{}ms", self.ttl.as_millis())]);
        command.arg("--shards-file").arg(&self.list).args(["--mock", "--every", "1h"]);
        self.room.start(&id, command, None)
    }

    /// Sends a signal to a member, and returns when it was sent.
    pub(crate) fn signal(&mut self, who: usize, which: Signal) -> Moment {
        let at = now();
        self.running[who].signal(which);
        at
    }

    /// Kills a member and its guard.
    pub(crate) fn kill_tree(&mut self, who: usize) -> Moment {
        self.running[who].kill_tree()
    }

    /// Restarts a member that has ended or is about to end.
    pub(crate) fn restart(&mut self, who: usize) {
        poll_until(TIMEOUT, || self.running[who].ended()).expect("it ends");
        self.running[who] = self.begin(who);
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.room.clear(&mut self.running);
    }
}
