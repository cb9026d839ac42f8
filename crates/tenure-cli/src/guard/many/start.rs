//! Starts commands, one at a time and off the guard's own thread: a start that hangs holds up no deadline.

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
use super::{GuardConfig, GuardState, GuardedCommand, HeldLease, Running};
use crate::child_env;

/// Starting takes a millisecond each; nothing else may wait for more of it in one go.
const STARTING: Duration = Duration::from_millis(5);

/// How often a start that takes longer is looked at.
pub(super) const START_POLL: Duration = Duration::from_millis(10);

/// A command whose start is not complete. From here on it may run, so its hold is not free.
#[derive(Debug)]
pub(super) struct CommandStarts {
    pub(super) id: u32,
    pub(super) fuse: KillSchedule,
    shard: String,
    token: String,
    started: Receiver<io::Result<Pid>>,
}

impl GuardState {
    /// Starts what is to be started, for a short time.
    pub(super) fn begin_some(&mut self) {
        let until = self.clock.now() + STARTING;
        // One that hung before is not waited for again.
        self.complete_start(Duration::ZERO);
        while self.start.is_none()
            && let Some((id, argv)) = self.starting.pop_front()
        {
            if let Err(why) = self.begin(id, &argv) {
                self.reports.push((id, GuardReport::Failed(why)));
            }
            self.complete_start(until.since(self.clock.now()));
            if self.clock.now() >= until {
                return;
            }
        }
    }

    fn begin(&mut self, id: u32, argv: &[OsString]) -> Result<(), String> {
        if self.over {
            return Err("the member is ending".to_owned());
        }
        let Some(HeldLease { hold, shard: Some(shard), deadline }) = self.holds.get(&id) else {
            return Err("no shard is held under this number".to_owned());
        };
        if self.wards.get(&id).is_some_and(|ward| ward.running.is_some()) {
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
        let mut fuse = KillSchedule::new(*deadline, self.post.stop_within);
        if fuse.due(self.clock.now()).is_some() {
            // We or the member did not run for a while.
            return Err("the term is over already".to_owned());
        }
        let GuardConfig { fleet, member, .. } = &self.post;
        let mut prepared = prepare(argv, None, |command| {
            child_env::of_shard(command, fleet, member, hold.token, shard);
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
        self.start = Some(CommandStarts { id, fuse, shard, token, started });
        Ok(())
    }

    /// Waits that long at most for the start that is under way.
    fn complete_start(&mut self, at_most: Duration) {
        let Some(start) = &self.start else { return };
        let started = match start.started.recv_timeout(at_most) {
            Ok(started) => started,
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the thread that starts commands has ended"))
            }
        };
        let Some(CommandStarts { id, fuse, shard, token, .. }) = self.start.take() else { return };
        match started {
            Ok(main) => {
                let spared = SparedProcess::new(main);
                self.kin.add(id, main.as_raw_nonzero().get(), &shard, &token);
                let tree = ProcessTree::among_others(main);
                let running = Running { tree, told: None, kills: 0, _spared: spared };
                self.wards.insert(
                    id,
                    GuardedCommand { fuse, running: Some(running), has_run_out: false },
                );
            }
            Err(error) => {
                self.kin.remove(&BTreeSet::from([id]));
                self.reports.push((id, GuardReport::Failed(error.to_string())));
            }
        }
    }

    /// The start of this hold's command, if it is under way.
    pub(super) fn start_of(&mut self, id: u32) -> Option<&mut CommandStarts> {
        self.start.as_mut().filter(|start| start.id == id)
    }

    /// The command that is to be ended before its start is complete.
    pub(super) fn overdue_start(&mut self, now: Moment) -> Option<u32> {
        let start = self.start.as_mut()?;
        start.fuse.due(now)?;
        // Before its start is complete it cannot be asked.
        start.fuse.cut();
        Some(start.id)
    }

    /// Makes the process of a start that is under way known, so that it is not taken for a stray.
    pub(super) fn find_start(&mut self) {
        let (Some(start), Some(starter)) = (&self.start, &self.starter) else { return };
        for pid in starter.children() {
            if !self.kin.is_main(pid) {
                self.kin.add(start.id, pid, &start.shard, &start.token);
            }
        }
    }
}
