//! Starts commands, one at a time and off the guard's own thread: a start that hangs delays no deadline.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::process::Pid;
use tenure::Moment;

use super::super::kill_schedule::KillSchedule;
use super::super::process_tree::{ProcessTree, SparedProcess};
use super::super::protocol::GuardReport;
use super::super::{prepare, proc_mount, spawn};
use super::{CommandProcesses, GuardConfig, GuardState, GuardedCommand, HeldLease};
use crate::child_env;

/// The time for starting commands in one step. One start takes about a millisecond, and all other work waits meanwhile.
const START_BUDGET: Duration = Duration::from_millis(5);

/// How often the guard checks a start that takes longer.
pub(super) const START_POLL: Duration = Duration::from_millis(10);

/// A command whose start is not complete. It may run already, so its hold is not free.
#[derive(Debug)]
pub(super) struct PendingStart {
    pub(super) id: u32,
    pub(super) schedule: KillSchedule,
    shard: String,
    token: String,
    started: Receiver<io::Result<Pid>>,
}

impl GuardState {
    /// Starts queued commands, for at most [`START_BUDGET`].
    pub(super) fn start_queued(&mut self) {
        let until = self.clock.now() + START_BUDGET;
        // A start that hung before is not waited for again.
        self.complete_start(Duration::ZERO);
        while self.start.is_none()
            && let Some((id, argv)) = self.starting.pop_front()
        {
            if let Err(reason) = self.begin_start(id, &argv) {
                self.reports.push((id, GuardReport::Failed(reason)));
            }
            self.complete_start(until.since(self.clock.now()));
            if self.clock.now() >= until {
                return;
            }
        }
    }

    fn begin_start(&mut self, id: u32, argv: &[OsString]) -> Result<(), String> {
        if self.over {
            return Err("the member is ending".to_owned());
        }
        let Some(HeldLease { hold, shard: Some(shard), deadline }) = self.holds.get(&id) else {
            return Err("no shard is held under this number".to_owned());
        };
        if self.commands.get(&id).is_some_and(|command| command.running.is_some()) {
            return Err("its last command has not ended yet".to_owned());
        }
        if argv.is_empty() {
            return Err("there is no command".to_owned());
        }
        if shard.contains('\0') {
            return Err(
                "the name of the shard has a NUL in it: no environment takes that".to_owned()
            );
        }
        proc_mount::check().map_err(|error| error.to_string())?;
        let mut schedule = KillSchedule::new(*deadline, self.config.stop_within);
        if schedule.due(self.clock.now()).is_some() {
            // The guard or the member did not run for a while.
            return Err("the term is over already".to_owned());
        }
        let GuardConfig { fleet, member, .. } = &self.config;
        let mut prepared = prepare(argv, None, |command| {
            child_env::set_for_shard(command, fleet, member, hold.token, shard);
        });
        let inherited = self.live.as_ref().map(OwnedFd::try_clone).transpose();
        let inherited = inherited.map_err(|error| error.to_string())?;
        let (reply, started) = mpsc::channel();
        let (shard, token) = (shard.clone(), hold.token.to_string());
        let reply = move |result| _ = reply.send(result);
        match &self.starter {
            Some(starter) => starter.start(prepared, inherited, reply),
            None => reply(spawn(&mut prepared, inherited)),
        }
        self.start = Some(PendingStart { id, schedule, shard, token, started });
        Ok(())
    }

    /// Waits at most `at_most` for the start in progress.
    fn complete_start(&mut self, at_most: Duration) {
        let Some(start) = &self.start else { return };
        let started = match start.started.recv_timeout(at_most) {
            Ok(started) => started,
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the thread that starts commands has ended"))
            }
        };
        let Some(PendingStart { id, schedule, shard, token, .. }) = self.start.take() else {
            return;
        };
        match started {
            Ok(main) => {
                let spared = SparedProcess::new(main);
                self.attribution.add(id, main.as_raw_nonzero().get(), &shard, &token);
                let tree = ProcessTree::with_spared_children(main);
                let running =
                    CommandProcesses { tree, asked_to_stop: None, kills: 0, _spared: spared };
                self.commands.insert(
                    id,
                    GuardedCommand { schedule, running: Some(running), expiry_reported: false },
                );
            }
            Err(error) => {
                self.attribution.remove(&BTreeSet::from([id]));
                self.reports.push((id, GuardReport::Failed(error.to_string())));
            }
        }
    }

    /// The start of this hold's command, if it is in progress.
    pub(super) fn start_of(&mut self, id: u32) -> Option<&mut PendingStart> {
        self.start.as_mut().filter(|start| start.id == id)
    }

    /// The command that must be killed before its start is complete.
    pub(super) fn overdue_start(&mut self, now: Moment) -> Option<u32> {
        let start = self.start.as_mut()?;
        start.schedule.due(now)?;
        // Before its start is complete, a command cannot handle SIGTERM.
        start.schedule.kill_now();
        Some(start.id)
    }

    /// Adds the process of a start in progress to the attribution, so that it does not count as a stray.
    pub(super) fn attribute_start(&mut self) {
        let (Some(start), Some(starter)) = (&self.start, &self.starter) else { return };
        for pid in starter.children() {
            if !self.attribution.is_main(pid) {
                self.attribution.add(start.id, pid, &start.shard, &start.token);
            }
        }
    }
}
