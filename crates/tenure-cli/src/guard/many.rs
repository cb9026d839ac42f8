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

mod keeper;
mod kin;
mod overdue;
mod returns;
mod stand;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{CandidateId, Clock, Hold, Moment, Name};

pub(crate) use keeper::{Duty, Keeper, Reports};
pub(crate) use stand::run;

use super::family;
use super::fuse::{Due, Fuse};
use super::oversee::{AGAIN, AT_LAST};
use super::tree::{Spared, Tree, reap_orphans, spared, unknown};
use super::wire::Report;
use crate::environment;

use kin::{Kin, Whose};
use returns::Free;
use words::Word;

/// Starting takes a millisecond each; nothing else may wait for more of it in one go.
const STARTING: Duration = Duration::from_millis(5);

/// A lease of the member.
struct Held {
    hold: Hold,
    /// None: the membership.
    shard: Option<String>,
    deadline: Moment,
}

/// The command of a shard, from the first time it is started.
struct Ward {
    fuse: Fuse,
    /// `None` when nothing of it is left.
    running: Option<Running>,
    /// It was said that its lease runs out.
    has_run_out: bool,
}

struct Running {
    tree: Tree,
    /// Whether it was told to stop before it ended, once it has ended.
    told: Option<bool>,
    killed: bool,
    /// From whoever reaps orphans beside us.
    _spared: Spared,
}

/// For whom the commands run.
struct Post {
    fleet: Name,
    member: CandidateId,
    stop_within: Duration,
}

/// Everything the member holds, and the commands that run for it.
struct Many {
    post: Post,
    live: Option<OwnedFd>,
    clock: Clock,
    holds: BTreeMap<u32, Held>,
    wards: BTreeMap<u32, Ward>,
    starting: VecDeque<(u32, Vec<OsString>)>,
    kin: Kin,
    reports: Vec<(u32, Report)>,
    /// Something has died, or was not clear at the last look.
    stirred: bool,
    /// Not before: looking for what is left must not take the time that dying needs.
    look_at: Moment,
    /// How long until the next look; longer, the longer nothing comes of it.
    pause: Duration,
    /// Nothing is started any more.
    over: bool,
}

impl Many {
    fn new(post: Post) -> Many {
        Many {
            post,
            live: None,
            clock: Clock::boot(),
            holds: BTreeMap::new(),
            wards: BTreeMap::new(),
            starting: VecDeque::new(),
            kin: Kin::default(),
            reports: Vec::new(),
            stirred: false,
            look_at: Moment::NEVER,
            pause: AGAIN,
            over: false,
        }
    }

    fn heed(&mut self, word: Word) {
        match word {
            Word::Hold { id, hold, shard, deadline } => match Hold::try_from(&hold) {
                Ok(mut hold) => {
                    // Thousands have the same one.
                    if hold.candidate == self.post.member {
                        hold.candidate = self.post.member.clone();
                    }
                    let deadline = Moment::from_nanos(deadline);
                    self.holds.insert(id, Held { hold, shard, deadline });
                }
                Err(error) => self.reports.push((id, Report::Failed(error.to_string()))),
            },
            Word::Run { id, argv } => {
                self.starting.push_back((id, argv.into_iter().map(OsString::from).collect()));
            }
            Word::Deadlines(deadlines) => {
                for (id, deadline) in deadlines {
                    self.extend(id, Moment::from_nanos(deadline));
                }
            }
            Word::Stop { id, kill_at } => self.stop(id, Moment::from_nanos(kill_at)),
            Word::Signal(number) => {
                let Some(signal) = Signal::from_named_raw(number) else { return };
                let running = self.wards.values().filter_map(|ward| ward.running.as_ref());
                running.for_each(|running| running.tree.signal(signal));
            }
            Word::Forget { id } => {
                self.holds.remove(&id);
                self.stop(id, Moment::NEVER);
                if self.wards.get(&id).is_some_and(|ward| ward.running.is_none()) {
                    self.wards.remove(&id);
                }
            }
            Word::Live => {}
            Word::Dismissed => self.cut(),
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
    }

    fn stop(&mut self, id: u32, kill_at: Moment) {
        let waiting = self.starting.len();
        self.starting.retain(|(waiting, _)| *waiting != id);
        if self.starting.len() < waiting {
            let why = "it was stopped before it began".to_owned();
            self.reports.push((id, Report::Failed(why)));
        }
        if let Some(ward) = self.wards.get_mut(&id) {
            ward.fuse.stop(kill_at);
        }
    }

    /// Everything is to end now, and nothing begins any more.
    fn cut(&mut self) {
        self.over = true;
        self.wards.values_mut().for_each(|ward| ward.fuse.cut());
    }

    /// A child has died.
    fn stir(&mut self) {
        self.stirred = true;
    }

    /// What there is to tell the member.
    fn reports(&mut self) -> Vec<(u32, Report)> {
        std::mem::take(&mut self.reports)
    }

    fn is_idle(&self) -> bool {
        self.starting.is_empty() && self.wards.values().all(|ward| ward.running.is_none())
    }

    /// The member is dead: what nothing runs for any more.
    fn take_free(&mut self) -> Free {
        let mut free = Free::default();
        let runs = |id: &u32| self.wards.get(id).is_some_and(|ward| ward.running.is_some());
        let ids: Vec<u32> = self.holds.keys().copied().filter(|id| !runs(id)).collect();
        for id in ids {
            self.wards.remove(&id);
            match self.holds.remove(&id) {
                Some(Held { hold, shard: None, .. }) => free.membership.push(hold),
                Some(Held { hold, shard: Some(_), .. }) => free.shards.push(hold),
                None => {}
            }
        }
        free
    }

    /// What the member should not believe in any more at `heard_at`, when all it had said was heard, and whose commands are
    /// gone: each is said once.
    fn run_out(&mut self, heard_at: Moment) -> Vec<Hold> {
        let mut out = Vec::new();
        for (id, ward) in &mut self.wards {
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
        let held = self.wards.iter().filter_map(|(id, ward)| Some((self.holds.get(id)?, ward)));
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
                    if !std::mem::replace(&mut running.killed, true) {
                        // The group at once: no fork escapes that, and often it is all there is. To look for more takes
                        // longer the more of them are dying, and there may be leases to give back meanwhile.
                        running.tree.signal(Signal::KILL);
                        self.pause = AGAIN;
                        self.look_at = now + AGAIN;
                    }
                }
                None => {}
            }
        }
        let look = self.stirred || !killed.is_empty();
        if !asked.is_empty() || (look && now >= self.look_at) {
            let buried = self.look(asked, killed);
            let then = self.clock.now();
            let took = then.since(now).min(AT_LAST);
            self.pause = if buried { AGAIN } else { (self.pause * 2).min(AT_LAST) };
            self.look_at = then + took.max(self.pause);
        }
        self.wakes_at()
    }

    fn wakes_at(&self) -> Option<Moment> {
        let running = self.wards.values().filter_map(|ward| Some((ward, ward.running.as_ref()?)));
        let fuses = running.map(|(ward, running)| match running.killed {
            // Looked at again and again.
            true => self.look_at,
            false => ward.fuse.burns_until(),
        });
        let looks = self.stirred.then_some(self.look_at);
        let starts = (!self.starting.is_empty()).then_some(Moment::NEVER);
        fuses.chain(looks).chain(starts).min()
    }

    /// Asks and kills, sees who has ended and what is left, and buries those of whom nothing is. Whether there were any.
    fn look(&mut self, mut asked: BTreeSet<u32>, killed: BTreeSet<u32>) -> bool {
        let now = self.clock.now();
        self.stirred = false;
        let mut ended = BTreeSet::new();
        for (id, ward) in &mut self.wards {
            if ward.has_ended() {
                ended.insert(*id);
                if !ward.fuse.burnt() {
                    // What it has left behind has the usual time to follow.
                    ward.fuse.stop(now + ward.fuse.stop_within());
                    ward.fuse.due(now);
                    asked.insert(*id);
                }
            }
            let Some(running) = &mut ward.running else { continue };
            if killed.contains(id) {
                running.tree.signal(Signal::KILL);
            } else if asked.contains(id) {
                running.tree.signal(Signal::TERM);
                running.tree.signal(Signal::CONT);
            }
        }
        reap_orphans();
        if ended.is_empty() && asked.is_empty() && killed.is_empty() {
            return false;
        }
        let any_ends = !ended.is_empty() || !killed.is_empty();
        let Some(left) = self.walk(&asked, &killed, any_ends) else {
            self.stirred = true;
            return false;
        };
        let gone: BTreeSet<u32> = ended.difference(&left).copied().collect();
        self.bury(&gone);
        !gone.is_empty()
    }

    /// One walk over all that runs. What is left of which command; `None` when it is not clear.
    fn walk(
        &mut self,
        asked: &BTreeSet<u32>,
        killed: &BTreeSet<u32>,
        any_ends: bool,
    ) -> Option<BTreeSet<u32>> {
        let me = family::me();
        let (kin, wards) = (&mut self.kin, &self.wards);
        let (mut left, mut clear) = (BTreeSet::new(), true);
        let killed_with_its_group = |id: &u32, group: i32| {
            let running = wards.get(id).and_then(|ward| ward.running.as_ref());
            running.is_some_and(|running| running.tree.main().as_raw_nonzero().get() == group)
        };
        // Those that others look after, and not we ourselves.
        let mut others = spared().clone();
        others.retain(|pid| !kin.is_main(*pid));
        kin.begin();
        let shown = family::walk(
            |pid| others.contains(&pid),
            |process, ours| {
                let whose = kin.whose(process, || family::environment(process.pid));
                let signal = |signal| family::signal_if_child_of(ours, process.pid, signal);
                match whose {
                    Whose::Main(_) => {}
                    Whose::Of(id) => {
                        left.insert(id);
                        if killed.contains(&id) && !killed_with_its_group(&id, process.group) {
                            signal(Signal::KILL);
                        } else if asked.contains(&id) && process.parent == me {
                            signal(Signal::TERM);
                            signal(Signal::CONT);
                        }
                    }
                    Whose::Unsettled => clear = false,
                    Whose::Stray => {
                        clear = false;
                        if any_ends {
                            signal(Signal::KILL);
                        }
                    }
                }
            },
        );
        // Whoever has become our child meanwhile has not been asked.
        clear &= unknown().iter().all(|pid| kin.has_found(pid.as_raw_nonzero().get()));
        // What the walk has seen dead must not be in the way of the next.
        self.stirred |= left_dead();
        (clear && shown).then_some(left)
    }

    fn bury(&mut self, gone: &BTreeSet<u32>) {
        for id in gone {
            let Some(ward) = self.wards.get_mut(id) else { continue };
            let Some(mut running) = ward.running.take() else { continue };
            if let Some(ended) = running.tree.ended() {
                let told = running.told.unwrap_or(false);
                self.reports.push((*id, Report::Gone { ended, told }));
            }
            running.tree.bury();
            if !self.holds.contains_key(id) {
                self.wards.remove(id);
            }
        }
        self.kin.remove(gone);
    }

    fn begin_some(&mut self) {
        let until = self.clock.now() + STARTING;
        while let Some((id, argv)) = self.starting.pop_front() {
            if let Err(why) = self.begin(id, &argv) {
                self.reports.push((id, Report::Failed(why)));
            }
            if self.clock.now() >= until {
                return;
            }
        }
    }

    fn begin(&mut self, id: u32, argv: &[OsString]) -> Result<(), String> {
        if self.over {
            return Err("the member is ending".to_owned());
        }
        let Some(Held { hold, shard: Some(shard), deadline }) = self.holds.get(&id) else {
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
        let mut fuse = Fuse::new(*deadline, self.post.stop_within);
        if fuse.due(self.clock.now()).is_some() {
            // We or the member did not run for a while.
            return Err("the term is over already".to_owned());
        }
        let Post { fleet, member, .. } = &self.post;
        let main = super::start(argv, None, self.live.as_ref(), |command| {
            environment::of_shard(command, fleet, member, hold.token, shard);
        });
        let main = main.map_err(|error| error.to_string())?;
        let spared = Spared::new(main);
        self.kin.add(id, main.as_raw_nonzero().get(), shard, &hold.token.to_string());
        let tree = Tree::among_others(main);
        let running = Running { tree, told: None, killed: false, _spared: spared };
        self.wards.insert(id, Ward { fuse, running: Some(running), has_run_out: false });
        Ok(())
    }
}

impl Ward {
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
    fn runs_out(&self, held: &Held) -> bool {
        !self.has_run_out && self.running.is_none() && held.deadline != Moment::NEVER
    }
}

/// Reaps the orphans that have ended; whether there were any.
fn left_dead() -> bool {
    let before = unknown().len();
    before > 0 && {
        reap_orphans();
        unknown().len() < before
    }
}

async fn until(clock: &Clock, moment: Option<Moment>) {
    match moment {
        Some(moment) => clock.sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
