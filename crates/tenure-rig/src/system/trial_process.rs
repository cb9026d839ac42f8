//! A trial with one process of the command.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::Signal;

use super::election_trial::TIMEOUT;
use super::time::poll_until;
use super::trial_directory::{TenureProcess, TrialDirectory};

/// The process; it is killed with all its descendants however the trial ends.
pub struct TrialProcess<'a> {
    room: &'a TrialDirectory,
    actor: [TenureProcess; 1],
}

impl<'a> TrialProcess<'a> {
    pub fn start(room: &'a TrialDirectory, command: Command) -> Self {
        TrialProcess { room, actor: [room.start("a", command, None)] }
    }

    /// `tenure run job` with `options`, and a command that runs for as long as this candidate leads. It may not lead yet.
    pub fn start_candidate(room: &'a TrialDirectory, store: &str, options: &[&str]) -> Self {
        let work = format!("echo lead >> {}; exec sleep 600", room.path().join("terms").display());
        let mut command = room.command();
        command.args(["--store", store, "run", "job", "--node-id", "a"]).args(options);
        command.args(["--", "sh", "-c", &work]);
        Self::start(room, command)
    }

    pub fn pid(&self) -> u32 {
        self.actor[0].pid()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.room.log_of(&self.actor[0].id)).unwrap()
    }

    /// Waits briefly for the process to end, and returns its exit status.
    pub fn exit(&mut self) -> ExitStatus {
        let ended = || self.actor[0].ended();
        poll_until(TIMEOUT, ended).unwrap_or_else(|| self.room.fail("it does not end"))
    }

    /// How many times the candidate's command was started.
    fn terms(&self) -> usize {
        std::fs::read_to_string(self.room.path().join("terms")).unwrap_or_default().lines().count()
    }

    /// Waits until the candidate's command runs.
    pub fn wait_until_leading(&self, limit: Duration) {
        let leads = poll_until(limit, || (self.terms() > 0).then_some(()));
        leads.unwrap_or_else(|| self.room.fail(&format!("no candidate leads: {}", self.log())));
    }

    /// Checks that the candidate led in one term until now, and ends when asked to.
    pub fn assert_led_throughout(mut self) {
        let (ended, log) = (self.actor[0].ended(), self.log());
        let lost = log.contains("panicked") || log.contains("Lost leadership");
        if ended.is_some() || lost || self.terms() != 1 {
            self.room.fail(&format!("{} terms, ended with {ended:?}: {log}", self.terms()));
        }
        self.actor[0].signal(Signal::TERM);
        let exit = self.exit();
        assert_eq!(exit.code(), Some(143), "the command died of the signal: {}", self.log());
    }
}

impl Drop for TrialProcess<'_> {
    fn drop(&mut self) {
        self.room.clear(&mut self.actor);
    }
}
