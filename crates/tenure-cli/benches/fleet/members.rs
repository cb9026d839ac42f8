//! The members: `tenure fleet run NAME … --mock --every 1h`.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tenure::{Moment, Name};

use crate::rig::place::{Kind, Place};
use crate::rig::processes::{self, MARK, below, children, is_stopped, signal};
use crate::rig::servers::Scratch;
use crate::rig::time::{look, now};

pub(crate) const MEMBERS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(15);

// Fields are dropped in this order.
pub(crate) struct Members {
    running: Vec<Child>,
    pub(crate) place: Place,
    fleet: Name,
    ttl: Duration,
    list: PathBuf,
    mark: String,
    scratch: Scratch,
}

impl Members {
    pub(crate) fn start(fleet: &Name, ttl: Duration, shards: usize) -> Members {
        let scratch = Scratch::in_memory();
        let place = Place::open(Kind::Redis, scratch.path(), 0);
        let list = scratch.path().join("shards");
        let names: Vec<String> = (0..shards).map(|number| format!("tenant-{number}")).collect();
        std::fs::write(&list, names.join("\n")).unwrap();
        let mark = scratch.path().display().to_string();
        let running = Vec::new();
        let mut members =
            Members { running, place, fleet: fleet.clone(), ttl, list, mark, scratch };
        members.running = (0..MEMBERS).map(|who| members.spawn(who)).collect();
        members
    }

    pub(crate) fn id(who: usize) -> String {
        format!("m{who}")
    }

    fn spawn(&self, who: usize) -> Child {
        let log = self.scratch.path().join(format!("{}.log", Members::id(who)));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TENURE_") {
                command.env_remove(name);
            }
        }
        command.env(MARK, &self.mark).stdin(Stdio::null());
        command.args(["--store", &self.place.url(), "--log-level", "warn"]);
        command.args(["fleet", "run", self.fleet.as_str(), "--node-id", &Members::id(who)]);
        command.args(["--lease-duration", &format!("{}ms", self.ttl.as_millis())]);
        command.arg("--shards-file").arg(&self.list).args(["--mock", "--every", "1h"]);
        command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    /// Sends a signal to one, and says when that was.
    pub(crate) fn signal(&self, who: usize, which: Signal) -> Moment {
        let at = now();
        signal(self.running[who].id(), which);
        at
    }

    /// Kills one and its guard.
    pub(crate) fn kill_tree(&self, who: usize) -> Moment {
        let member = self.running[who].id();
        // Stopped first, so that the guard does not see the other die.
        let guards = children(member);
        guards.iter().for_each(|guard| signal(*guard, Signal::STOP));
        look(PATIENCE, || guards.iter().all(|guard| is_stopped(*guard)).then_some(())).unwrap();
        let (at, all) = (now(), below(member));
        signal(member, Signal::KILL);
        all.into_iter().for_each(|pid| signal(pid, Signal::KILL));
        at
    }

    /// Starts one anew that has ended, or is about to.
    pub(crate) fn restart(&mut self, who: usize) {
        look(PATIENCE, || self.running[who].try_wait().unwrap()).expect("it ends");
        self.running[who] = self.spawn(who);
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        processes::exterminate(&self.mark);
        self.running.iter_mut().for_each(|child| _ = child.wait());
    }
}
