//! A candidate that goes on while the test does.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::support::{World, eventually, signal};

/// One process of ours. What it says is in a file, so that nobody has to read along; it is killed with this value.
pub(crate) struct Node {
    child: Child,
    log: PathBuf,
}

impl Node {
    /// Starts it; `id` names its log in `directory`.
    pub(crate) fn start(command: &mut Command, directory: &Path, id: &str) -> Node {
        let log = directory.join(format!("{id}.log"));
        let stderr = File::create(&log).unwrap();
        let child = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        Node { child, log }
    }

    /// Starts [`World::candidate`].
    #[allow(dead_code, reason = "only some of the tests that share this use it")]
    pub(crate) fn candidate(world: &World, name: &str, id: &str, args: &[&str]) -> Node {
        Node::start(&mut world.candidate(name, id, args), world.path(), id)
    }

    #[allow(dead_code, reason = "of those who share this, one has to know")]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has said so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has said this.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) {
        eventually(&format!("it says {text:?}"), || self.said().contains(text));
    }

    /// Where it answers, as its first line tells.
    #[track_caller]
    pub(crate) fn port(&self) -> u16 {
        let port = || {
            let said = self.said();
            let behind = said.lines().next()?.rsplit_once(", http ")?.1;
            behind.trim().rsplit_once(':')?.1.parse().ok()
        };
        eventually("it tells its port", || port().is_some());
        port().unwrap()
    }

    pub(crate) fn signal(&self, sent: Signal) {
        signal(&self.child, sent);
    }

    /// Returns its exit code when it has ended by itself.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Asks it to end; its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.code()
    }

    /// Kill -9, of this process alone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
