//! The guard of a fleet member: one guard process for all its shards, with one command for each shard that has one.
//!
//! ```text
//! member ──► guard ──► command of shard a, and every process that it starts
//!                 └──► command of shard b, …
//! ```
//!
//! Each command has its own kill schedule and ends independently, as under a guard of its own. They share the guard process: it
//! is the parent of all commands and adopts every orphan. So "no child is left" (ECHILD) does not prove that *one* command is
//! gone. [`attribution`] decides which command a process belongs to, and one walk over all processes serves every command that
//! is ending.
//!
//! **When a command counts as gone.** The command itself has ended, and a walk finds no process that belongs to it and no
//! process without a known owner. That is a proof, although processes are forked and die during a walk: nothing is reaped
//! meanwhile, so at the walk's beginning every process was, or had as its ancestor, a child of the guard that still exists at
//! the walk's end, alive or as a zombie. A process that became a child of the guard during the walk makes the walk void.
//!
//! **Strays.** A process that has left its group and session, cleared its environment, lost its parents and was never observed
//! before may belong to any command. The guard kills it as soon as any command is being killed or has ended, and until it is
//! gone no command counts as gone. That may kill a daemon of another shard, but leaves none beside the shard's next owner.
//!
//! In a member without a guard the same code runs in the member itself.

mod attribution;
mod client;
mod descendants;
mod environment_reader;
mod main_loop;
mod messages;
mod release;
mod start;
mod watchdog;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{CandidateId, Clock, Hold, Moment, Name};

pub use client::{GuardClient, GuardClientConfig, GuardEvent, Reports};
pub use main_loop::run;

use super::command_loop::{MAX_POLL_INTERVAL, MIN_POLL_INTERVAL};
use super::kill_errors::KillErrors;
use super::kill_schedule::{Due, KillSchedule};
use super::process_tree::{MAX_RETRY_INTERVAL, ProcessTree, SparedProcess};
use super::procfs;
use super::protocol::GuardReport;
use super::starter::Starter;

use attribution::Attribution;
use environment_reader::EnvironmentReader;
use messages::GuardMessage;
use release::FreedLeases;
use start::{PendingStart, START_POLL};

/// A lease that the member holds.
struct HeldLease {
    hold: Hold,
    /// `None`: the membership lease.
    shard: Option<String>,
    deadline: Moment,
}

/// The command of a shard, from its first start.
struct GuardedCommand {
    schedule: KillSchedule,
    /// `None` when no process of the command is left.
    running: Option<CommandProcesses>,
    /// It was reported that the lease expires.
    expiry_reported: bool,
}

/// The processes of a command that runs.
struct CommandProcesses {
    tree: ProcessTree,
    /// Whether the command was asked to stop before it ended; `None` while it runs.
    asked_to_stop: Option<bool>,
    /// How many times its group was sent SIGKILL.
    kills: u32,
    /// Keeps other code in this process from reaping the command as an orphan.
    _spared: SparedProcess,
}

/// The member that the commands run for.
struct GuardConfig {
    fleet: Name,
    member: CandidateId,
    stop_within: Duration,
}

/// The state of the guard: every lease that the member holds, and the commands that run under them.
struct GuardState {
    config: GuardConfig,
    live: Option<OwnedFd>,
    clock: Clock,
    holds: BTreeMap<u32, HeldLease>,
    commands: BTreeMap<u32, GuardedCommand>,
    starting: VecDeque<(u32, Vec<OsString>)>,
    /// The command whose start is in progress.
    start: Option<PendingStart>,
    /// `None`: commands are started on this thread.
    starter: Option<Starter>,
    attribution: Attribution,
    environments: EnvironmentReader,
    reports: Vec<(u32, GuardReport)>,
    /// The number of the last deadlines that were received and not yet acknowledged.
    received: Option<u64>,
    failures: KillErrors,
    /// Processes that could not be killed and were not reported yet, each with a command that is not gone because of it.
    refused: Vec<(u32, String)>,
    /// A child has died, or the last walk was inconclusive: another walk is needed.
    walk_needed: bool,
    /// No walk before this moment: walking must not take the time that dying needs.
    next_walk_at: Moment,
    /// The pause before the next walk; it grows while walks have no result.
    pause: Duration,
    /// No command is started any more.
    over: bool,
}

impl GuardState {
    fn new(config: GuardConfig, starter: Option<Starter>) -> GuardState {
        GuardState {
            config,
            live: None,
            clock: Clock::boot(),
            holds: BTreeMap::new(),
            commands: BTreeMap::new(),
            starting: VecDeque::new(),
            start: None,
            starter,
            attribution: Attribution::default(),
            environments: EnvironmentReader::new(procfs::environment),
            reports: Vec::new(),
            received: None,
            failures: KillErrors::default(),
            refused: Vec::new(),
            walk_needed: false,
            next_walk_at: Moment::PAST,
            pause: MIN_POLL_INTERVAL,
            over: false,
        }
    }

    fn handle(&mut self, message: GuardMessage) {
        match message {
            GuardMessage::Hold { id, hold, shard, deadline } => match Hold::try_from(&hold) {
                Ok(mut hold) => {
                    // Thousands of holds share one candidate: they share its allocation too.
                    if hold.candidate == self.config.member {
                        hold.candidate = self.config.member.clone();
                    }
                    let deadline = Moment::from_nanos(deadline);
                    self.holds.insert(id, HeldLease { hold, shard, deadline });
                }
                Err(error) => self.reports.push((id, GuardReport::Failed(error.to_string()))),
            },
            GuardMessage::Run { id, argv } => {
                self.starting.push_back((id, argv.into_iter().map(OsString::from).collect()));
            }
            GuardMessage::Deadlines(deadlines) => {
                for (id, deadline) in deadlines {
                    self.extend(id, Moment::from_nanos(deadline));
                }
            }
            GuardMessage::Stop { id, kill_at } => self.stop(id, Moment::from_nanos(kill_at)),
            GuardMessage::Signal(number) => {
                let Some(signal) = Signal::from_named_raw(number) else { return };
                let running = self
                    .commands
                    .iter()
                    .filter_map(|(id, command)| Some((id, command.running.as_ref()?)));
                for (id, running) in running {
                    running.tree.signal(signal, &mut self.failures);
                    let refused = self.failures.take().into_iter();
                    self.refused.extend(refused.map(|failure| (*id, failure)));
                }
            }
            GuardMessage::Forget { id } => {
                self.holds.remove(&id);
                self.stop(id, Moment::PAST);
                if self.commands.get(&id).is_some_and(|command| command.running.is_none()) {
                    self.commands.remove(&id);
                }
            }
            GuardMessage::Acknowledge(number) => self.received = Some(number),
            GuardMessage::Live => {}
            GuardMessage::Dismissed => self.end_all(),
        }
    }

    /// Every command started from now on inherits this file.
    fn live(&mut self, file: OwnedFd) {
        self.live = Some(file);
    }

    fn extend(&mut self, id: u32, deadline: Moment) {
        if let Some(held) = self.holds.get_mut(&id) {
            held.deadline = deadline;
        }
        if let Some(command) = self.commands.get_mut(&id) {
            command.schedule.extend(deadline);
            command.expiry_reported = false;
        }
        if let Some(start) = self.start_of(id) {
            start.schedule.extend(deadline);
        }
    }

    fn stop(&mut self, id: u32, kill_at: Moment) {
        let waiting = self.starting.len();
        self.starting.retain(|(waiting, _)| *waiting != id);
        if self.starting.len() < waiting {
            let reason = "it was stopped before it began".to_owned();
            self.reports.push((id, GuardReport::Failed(reason)));
        }
        if let Some(command) = self.commands.get_mut(&id) {
            command.schedule.stop(kill_at);
        }
        if let Some(start) = self.start_of(id) {
            start.schedule.stop(kill_at);
        }
    }

    /// Ends every command now, and starts no other.
    fn end_all(&mut self) {
        self.over = true;
        self.commands.values_mut().for_each(|command| command.schedule.kill_now());
        self.start.iter_mut().for_each(|start| start.schedule.kill_now());
    }

    /// Notes that a child has died.
    fn child_died(&mut self) {
        self.walk_needed = true;
    }

    /// Takes the reports for the member.
    fn reports(&mut self) -> Vec<(u32, GuardReport)> {
        std::mem::take(&mut self.reports)
    }

    /// Takes the processes that could not be killed; each is returned once.
    fn take_failures(&mut self) -> BTreeSet<String> {
        let refused = std::mem::take(&mut self.refused);
        let failures = refused.iter().map(|(_, failure)| failure.clone()).collect();
        let reports =
            refused.into_iter().map(|(id, failure)| (id, GuardReport::CannotKill(failure)));
        self.reports.extend(reports);
        failures
    }

    /// Takes the number to acknowledge, if there is one.
    fn take_received(&mut self) -> Option<u64> {
        self.received.take()
    }

    fn is_idle(&self) -> bool {
        let none_runs = self.commands.values().all(|command| command.running.is_none());
        self.starting.is_empty() && self.start.is_none() && none_runs
    }

    /// The member is dead: takes the leases under which no command runs any more.
    fn take_freed(&mut self) -> FreedLeases {
        let mut freed = FreedLeases::default();
        let runs = |id: &u32| self.runs(*id);
        let ids: Vec<u32> = self.holds.keys().copied().filter(|id| !runs(id)).collect();
        for id in ids {
            self.commands.remove(&id);
            match self.holds.remove(&id) {
                Some(HeldLease { hold, shard: None, .. }) => freed.membership.push(hold),
                Some(HeldLease { hold, shard: Some(_), .. }) => freed.shards.push(hold),
                None => {}
            }
        }
        freed
    }

    /// Whether a command runs under this hold, or is being started.
    fn runs(&self, id: u32) -> bool {
        let starts = self.start.as_ref().is_some_and(|start| start.id == id);
        starts || self.commands.get(&id).is_some_and(|command| command.running.is_some())
    }

    /// The leases whose deadline has passed at `received_all_at`, when every message of the member had been received, and whose
    /// commands are gone. Each is returned once.
    fn take_expired(&mut self, received_all_at: Moment) -> Vec<Hold> {
        let mut out = Vec::new();
        let starts = self.start.as_ref().map(|start| start.id);
        for (id, command) in self.commands.iter_mut().filter(|(id, _)| Some(**id) != starts) {
            let held = self.holds.get(id).filter(|held| command.will_expire(held));
            if let Some(held) = held.filter(|held| received_all_at >= held.deadline) {
                command.expiry_reported = true;
                out.push(held.hold.clone());
            }
        }
        out
    }

    /// The deadlines of the leases whose commands are gone.
    fn expiry_times(&self) -> impl Iterator<Item = Moment> {
        let held = self.commands.iter().filter(|(id, _)| !self.runs(**id));
        let held = held.filter_map(|(id, command)| Some((self.holds.get(id)?, command)));
        held.filter(|(held, command)| command.will_expire(held)).map(|(held, _)| held.deadline)
    }

    /// Does everything that is due. Returns when something is due again.
    fn step(&mut self) -> Option<Moment> {
        self.start_queued();
        let now = self.clock.now();
        let (mut to_terminate, mut to_kill) = (BTreeSet::new(), BTreeSet::new());
        for (id, command) in &mut self.commands {
            if command.running.is_some() && command.schedule.next_due_at() <= now {
                // A command that has ended by itself is recorded before it is signalled: it was not asked to stop.
                command.has_ended();
            }
            let Some(running) = &mut command.running else { continue };
            match command.schedule.due(now) {
                Some(Due::Terminate) => _ = to_terminate.insert(*id),
                Some(Due::Kill) => {
                    to_kill.insert(*id);
                    if running.kills == 0 {
                        running.kills = 1;
                        // The group first, in one call: no fork escapes it, and often no other process exists. A walk takes
                        // longer the more processes are dying, and leases may be waiting to be released meanwhile.
                        running.tree.signal(Signal::KILL, &mut self.failures);
                        for failure in self.failures.take() {
                            self.refused.push((*id, failure));
                        }
                        self.pause = MIN_POLL_INTERVAL;
                        self.next_walk_at = now + MIN_POLL_INTERVAL;
                    }
                }
                None => {}
            }
        }
        to_kill.extend(self.overdue_start(now));
        let walk_due = self.walk_needed || !to_kill.is_empty();
        if !to_terminate.is_empty() || (walk_due && now >= self.next_walk_at) {
            let any_gone = self.check_processes(to_terminate, to_kill);
            let then = self.clock.now();
            let took = then.since(now).min(MAX_POLL_INTERVAL);
            let most =
                if self.failures.take_recent() { MAX_RETRY_INTERVAL } else { MAX_POLL_INTERVAL };
            self.pause = if any_gone { MIN_POLL_INTERVAL } else { (self.pause * 2).min(most) };
            self.next_walk_at = then + took.max(self.pause);
        }
        self.wakes_at()
    }

    fn wakes_at(&self) -> Option<Moment> {
        let running =
            self.commands.values().filter_map(|command| Some((command, command.running.as_ref()?)));
        let schedules = running.map(|(command, running)| match running.kills {
            0 => command.schedule.next_due_at(),
            // Checked repeatedly until it is gone.
            _ => self.next_walk_at,
        });
        let walks = self.walk_needed.then_some(self.next_walk_at);
        let starts = match &self.start {
            Some(_) => Some(self.clock.now() + START_POLL),
            None => (!self.starting.is_empty()).then_some(Moment::PAST),
        };
        schedules.chain(walks).chain(starts).min()
    }
}

impl GuardedCommand {
    /// Whether the command itself has ended; descendants may be left.
    fn has_ended(&mut self) -> bool {
        let Some(running) = &mut self.running else { return false };
        let ended = running.tree.ended().is_some();
        if ended {
            running.asked_to_stop.get_or_insert(self.schedule.is_stopping());
        }
        ended
    }

    /// Whether the lease will expire with no command running under it.
    fn will_expire(&self, held: &HeldLease) -> bool {
        !self.expiry_reported && self.running.is_none() && held.deadline != Moment::PAST
    }
}

async fn until(clock: &Clock, moment: Option<Moment>) {
    match moment {
        Some(moment) => clock.sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
