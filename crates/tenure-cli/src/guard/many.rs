//! The guard of a fleet member: one process for all its shards, and one command for each that has one.
//!
//! ```text
//! member ──► guard ──► command of shard a, and whatever that starts
//!                 └──► command of shard b, …
//! ```
//!
//! Each command has its own fuse and ends for itself, as under a guard of its own. What they share is the guard: it is the
//! parent of all and adopts every orphan, so the kernel's word that no child is left does not say of *one* command that it
//! is gone. [`kin`] tells whose a process is, and one walk over all of them serves every command that is ending.
//!
//! **When a command counts as gone.** It has ended itself, and a walk finds nothing of it and nothing of which nobody
//! knows whose it is. That is a proof, although processes are born and die during a walk: nothing is reaped meanwhile, so
//! every process had at its beginning an ancestor, or was one, that is our child and still there at its end, alive or not.
//! And what became our child during the walk makes it void.
//!
//! **Strays.** Who has left its group and session, cleaned its environment and lost its parents, and was never seen before,
//! may belong to any command. It is killed as soon as any command is being killed or has ended, and until then no command
//! is gone: that may end a daemon of another shard, but leaves none beside the next owner.
//!
//! In a member without a guard the same runs in the member itself.

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

pub(crate) use client::{GuardClient, GuardClientConfig, GuardEvent, Reports};
pub(crate) use main_loop::run;

use super::command_loop::{AGAIN, AT_LAST};
use super::kill_errors::KillErrors;
use super::kill_schedule::{Due, KillSchedule};
use super::process_tree::{ProcessTree, RETRY_AT_MOST, SparedProcess};
use super::procfs;
use super::protocol::GuardReport;
use super::starter::Starter;

use attribution::Attribution;
use environment_reader::EnvironmentReader;
use messages::GuardMessage;
use release::Free;
use start::{CommandStarts, START_POLL};

/// A lease of the member.
struct HeldLease {
    hold: Hold,
    /// None: the membership.
    shard: Option<String>,
    deadline: Moment,
}

/// The command of a shard, from the first time it is started.
struct GuardedCommand {
    fuse: KillSchedule,
    /// `None` when nothing of it is left.
    running: Option<Running>,
    /// It was said that its lease runs out.
    has_run_out: bool,
}

struct Running {
    tree: ProcessTree,
    /// Whether it was told to stop before it ended, once it has ended.
    told: Option<bool>,
    /// How often its group was killed.
    kills: u32,
    /// From whoever reaps orphans beside us.
    _spared: SparedProcess,
}

/// For whom the commands run.
struct GuardConfig {
    fleet: Name,
    member: CandidateId,
    stop_within: Duration,
}

/// Everything the member holds, and the commands that run for it.
struct GuardState {
    post: GuardConfig,
    live: Option<OwnedFd>,
    clock: Clock,
    holds: BTreeMap<u32, HeldLease>,
    wards: BTreeMap<u32, GuardedCommand>,
    starting: VecDeque<(u32, Vec<OsString>)>,
    /// The command whose start is under way.
    start: Option<CommandStarts>,
    /// None: commands are started on this thread.
    starter: Option<Starter>,
    kin: Attribution,
    environments: EnvironmentReader,
    reports: Vec<(u32, GuardReport)>,
    /// The number of the last deadlines that were received and are not acknowledged yet.
    received: Option<u64>,
    failures: KillErrors,
    /// Processes that could not be killed and were not reported yet, each with the commands that are not gone beside it.
    refused: Vec<(u32, String)>,
    /// Something has died, or was not clear at the last look.
    stirred: bool,
    /// Not before: looking for what is left must not take the time that dying needs.
    look_at: Moment,
    /// How long until the next look; longer, the longer nothing comes of it.
    pause: Duration,
    /// Nothing is started any more.
    over: bool,
}

impl GuardState {
    fn new(post: GuardConfig, starter: Option<Starter>) -> GuardState {
        GuardState {
            post,
            live: None,
            clock: Clock::boot(),
            holds: BTreeMap::new(),
            wards: BTreeMap::new(),
            starting: VecDeque::new(),
            start: None,
            starter,
            kin: Attribution::default(),
            environments: EnvironmentReader::new(procfs::environment),
            reports: Vec::new(),
            received: None,
            failures: KillErrors::default(),
            refused: Vec::new(),
            stirred: false,
            look_at: Moment::NEVER,
            pause: AGAIN,
            over: false,
        }
    }

    fn heed(&mut self, word: GuardMessage) {
        match word {
            GuardMessage::Hold { id, hold, shard, deadline } => match Hold::try_from(&hold) {
                Ok(mut hold) => {
                    // Thousands have the same one.
                    if hold.candidate == self.post.member {
                        hold.candidate = self.post.member.clone();
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
                let running =
                    self.wards.iter().filter_map(|(id, ward)| Some((id, ward.running.as_ref()?)));
                for (id, running) in running {
                    running.tree.signal(signal, &mut self.failures);
                    let refused = self.failures.take().into_iter();
                    self.refused.extend(refused.map(|failure| (*id, failure)));
                }
            }
            GuardMessage::Forget { id } => {
                self.holds.remove(&id);
                self.stop(id, Moment::NEVER);
                if self.wards.get(&id).is_some_and(|ward| ward.running.is_none()) {
                    self.wards.remove(&id);
                }
            }
            GuardMessage::Acknowledge(number) => self.received = Some(number),
            GuardMessage::Live => {}
            GuardMessage::Dismissed => self.cut(),
        }
    }

    /// What is started from now on inherits it.
    fn live(&mut self, file: OwnedFd) {
        self.live = Some(file);
    }

    fn extend(&mut self, id: u32, deadline: Moment) {
        if let Some(held) = self.holds.get_mut(&id) {
            held.deadline = deadline;
        }
        if let Some(ward) = self.wards.get_mut(&id) {
            ward.fuse.extend(deadline);
            ward.has_run_out = false;
        }
        if let Some(start) = self.start_of(id) {
            start.fuse.extend(deadline);
        }
    }

    fn stop(&mut self, id: u32, kill_at: Moment) {
        let waiting = self.starting.len();
        self.starting.retain(|(waiting, _)| *waiting != id);
        if self.starting.len() < waiting {
            let why = "it was stopped before it began".to_owned();
            self.reports.push((id, GuardReport::Failed(why)));
        }
        if let Some(ward) = self.wards.get_mut(&id) {
            ward.fuse.stop(kill_at);
        }
        if let Some(start) = self.start_of(id) {
            start.fuse.stop(kill_at);
        }
    }

    /// Everything is to end now, and nothing begins any more.
    fn cut(&mut self) {
        self.over = true;
        self.wards.values_mut().for_each(|ward| ward.fuse.cut());
        self.start.iter_mut().for_each(|start| start.fuse.cut());
    }

    /// A child has died.
    fn stir(&mut self) {
        self.stirred = true;
    }

    /// What there is to tell the member.
    fn reports(&mut self) -> Vec<(u32, GuardReport)> {
        std::mem::take(&mut self.reports)
    }

    /// Processes that could not be killed, each said once.
    fn take_failures(&mut self) -> BTreeSet<String> {
        let refused = std::mem::take(&mut self.refused);
        let failures = refused.iter().map(|(_, failure)| failure.clone()).collect();
        let reports =
            refused.into_iter().map(|(id, failure)| (id, GuardReport::CannotKill(failure)));
        self.reports.extend(reports);
        failures
    }

    /// The number to acknowledge, if there is one.
    fn take_received(&mut self) -> Option<u64> {
        self.received.take()
    }

    fn is_idle(&self) -> bool {
        let none_runs = self.wards.values().all(|ward| ward.running.is_none());
        self.starting.is_empty() && self.start.is_none() && none_runs
    }

    /// The member is dead: what nothing runs for any more.
    fn take_free(&mut self) -> Free {
        let mut free = Free::default();
        let runs = |id: &u32| self.runs(*id);
        let ids: Vec<u32> = self.holds.keys().copied().filter(|id| !runs(id)).collect();
        for id in ids {
            self.wards.remove(&id);
            match self.holds.remove(&id) {
                Some(HeldLease { hold, shard: None, .. }) => free.membership.push(hold),
                Some(HeldLease { hold, shard: Some(_), .. }) => free.shards.push(hold),
                None => {}
            }
        }
        free
    }

    /// Whether a command of this hold runs, or is being started.
    fn runs(&self, id: u32) -> bool {
        let starts = self.start.as_ref().is_some_and(|start| start.id == id);
        starts || self.wards.get(&id).is_some_and(|ward| ward.running.is_some())
    }

    /// What the member should not believe in any more at `heard_at`, when all it had said was heard, and whose commands are
    /// gone: each is said once.
    fn run_out(&mut self, heard_at: Moment) -> Vec<Hold> {
        let mut out = Vec::new();
        let starts = self.start.as_ref().map(|start| start.id);
        for (id, ward) in self.wards.iter_mut().filter(|(id, _)| Some(**id) != starts) {
            let held = self.holds.get(id).filter(|held| ward.runs_out(held));
            if let Some(held) = held.filter(|held| heard_at >= held.deadline) {
                ward.has_run_out = true;
                out.push(held.hold.clone());
            }
        }
        out
    }

    /// When the leases run out whose commands are gone.
    fn run_outs(&self) -> impl Iterator<Item = Moment> {
        let held = self.wards.iter().filter(|(id, _)| !self.runs(**id));
        let held = held.filter_map(|(id, ward)| Some((self.holds.get(id)?, ward)));
        held.filter(|(held, ward)| ward.runs_out(held)).map(|(held, _)| held.deadline)
    }

    /// Does what is due, and says when something will be again.
    fn step(&mut self) -> Option<Moment> {
        self.begin_some();
        let now = self.clock.now();
        let (mut asked, mut killed) = (BTreeSet::new(), BTreeSet::new());
        for (id, ward) in &mut self.wards {
            if ward.running.is_some() && ward.fuse.burns_until() <= now {
                // Who has ended by itself was not told to, although it is about to be.
                ward.has_ended();
            }
            let Some(running) = &mut ward.running else { continue };
            match ward.fuse.due(now) {
                Some(Due::Ask) => _ = asked.insert(*id),
                Some(Due::Kill) => {
                    killed.insert(*id);
                    if running.kills == 0 {
                        running.kills = 1;
                        // The group at once: no fork escapes that, and often it is all there is. To look for more takes
                        // longer the more of them are dying, and there may be leases to give back meanwhile.
                        running.tree.signal(Signal::KILL, &mut self.failures);
                        for failure in self.failures.take() {
                            self.refused.push((*id, failure));
                        }
                        self.pause = AGAIN;
                        self.look_at = now + AGAIN;
                    }
                }
                None => {}
            }
        }
        killed.extend(self.overdue_start(now));
        let look = self.stirred || !killed.is_empty();
        if !asked.is_empty() || (look && now >= self.look_at) {
            let buried = self.look(asked, killed);
            let then = self.clock.now();
            let took = then.since(now).min(AT_LAST);
            let most = if self.failures.take_recent() { RETRY_AT_MOST } else { AT_LAST };
            self.pause = if buried { AGAIN } else { (self.pause * 2).min(most) };
            self.look_at = then + took.max(self.pause);
        }
        self.wakes_at()
    }

    fn wakes_at(&self) -> Option<Moment> {
        let running = self.wards.values().filter_map(|ward| Some((ward, ward.running.as_ref()?)));
        let fuses = running.map(|(ward, running)| match running.kills {
            0 => ward.fuse.burns_until(),
            // Looked at again and again.
            _ => self.look_at,
        });
        let looks = self.stirred.then_some(self.look_at);
        let starts = match &self.start {
            Some(_) => Some(self.clock.now() + START_POLL),
            None => (!self.starting.is_empty()).then_some(Moment::NEVER),
        };
        fuses.chain(looks).chain(starts).min()
    }
}

impl GuardedCommand {
    /// Whether the command itself has ended, and something of it may be left.
    fn has_ended(&mut self) -> bool {
        let Some(running) = &mut self.running else { return false };
        let ended = running.tree.ended().is_some();
        if ended {
            running.told.get_or_insert(self.fuse.burnt());
        }
        ended
    }

    /// Whether the lease runs out without anything running for it.
    fn runs_out(&self, held: &HeldLease) -> bool {
        !self.has_run_out && self.running.is_none() && held.deadline != Moment::NEVER
    }
}

async fn until(clock: &Clock, moment: Option<Moment>) {
    match moment {
        Some(moment) => clock.sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
