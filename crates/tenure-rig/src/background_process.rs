//! A process of the command that runs in the background of a test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::command::{Sandbox, eventually, signal};

/// A running process. Its log goes to a file, so that no thread has to read a pipe; dropping the value kills the process.
pub struct BackgroundProcess {
    child: Child,
    log: PathBuf,
}

impl BackgroundProcess {
    /// Starts the command; `id` names its log file in `directory`.
    pub fn start(command: &mut Command, directory: &Path, id: &str) -> BackgroundProcess {
        let log = directory.join(format!("{id}.log"));
        let stderr = File::create(&log).unwrap();
        let child = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        BackgroundProcess { child, log }
    }

    /// Starts [`Sandbox::candidate`].
    pub fn candidate(sandbox: &Sandbox, name: &str, id: &str, args: &[&str]) -> BackgroundProcess {
        BackgroundProcess::start(&mut sandbox.candidate(name, id, args), sandbox.path(), id)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything the process has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log contains `text`.
    #[track_caller]
    pub fn says(&self, text: &str) {
        eventually(&format!("it says {text:?}"), || self.log().contains(text));
    }

    /// The HTTP port, from the first line of the log.
    #[track_caller]
    pub fn port(&self) -> u16 {
        let port = || {
            let log = self.log();
            let after = log.lines().next()?.rsplit_once(", http ")?.1;
            after.trim().rsplit_once(':')?.1.parse().ok()
        };
        eventually("it tells its port", || port().is_some());
        port().unwrap()
    }

    pub fn signal(&self, sent: Signal) {
        signal(&self.child, sent);
    }

    /// Waits until the process has ended, and returns its exit code.
    pub fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Sends SIGTERM, and returns the exit code.
    pub fn end(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.code()
    }

    /// Sends SIGKILL to this process only, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
