//! A member at work: begins what the fleet assigns, ends what it revokes, and says when it has ended.
//!
//! One loop does it all. Commands run under one guard for the whole member; polls are tasks of ours. A shard is given away
//! ([`Work`] is dropped) only when nothing of its work is left.

mod guard;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::fleet::{Extensions, FleetEvent, Shard, ShardWork};
use tenure::timing::Timing;
use tenure::{Clock, Error, Fleet, Hold, Moment, Result, Store};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::messages::FleetMessages;
use super::run_queue::{RunQueue, until_next};
use super::work::{FleetWork, WorkKind, command_for, with_shard};
use crate::duration::shown;
use crate::exit::Exit;
use crate::guard::{GuardClient, GuardClientConfig, Reports};
use crate::http::{HttpLimits, HttpMember, HttpServer, Listener, RunStats as Book};
use crate::messages::{CommonMessages as _, FAREWELL};
use crate::schedule::RunOutcome;
use crate::signals::{Interrupts, Signals};

use guard::report;

/// Asked to stop while its lease can still be renewed, a command has at least so long.
const UNHURRIED: Duration = Duration::from_secs(5);
/// A command that ended is begun again after this, twice as long each time.
const BACK_OFF: Duration = Duration::from_secs(1);
const BACK_OFF_MOST: Duration = Duration::from_secs(30);
/// Who is no member for so long looks whether somebody else has its id.
const LOOK_FOR_NAMESAKE: Duration = Duration::from_secs(1);

/// One shard that is ours.
struct ShardJob {
    shard: Shard,
    work: ShardWork,
    state: JobState,
    /// It is to end, since when.
    revoked: Option<Moment>,
    pause: Duration,
    count: u64,
}

enum JobState {
    Resting,
    /// The guard runs a command for it.
    Command(Moment),
    /// A task of ours polls.
    Poll(Moment, JoinHandle<()>),
}

/// What a poll came to.
type PollResult = (u32, bool, String);

pub(super) struct FleetSupervisor {
    fleet: Arc<Fleet>,
    store: Arc<dyn Store>,
    lines: FleetMessages,
    task: FleetWork,
    duty: Option<GuardClientConfig>,
    keeper: Option<(GuardClient, Reports)>,
    /// The lease the member holds on itself.
    membership: Option<(u32, Hold, Moment)>,
    extensions: Option<Extensions>,
    jobs: HashMap<u32, ShardJob>,
    agenda: RunQueue,
    polled: (mpsc::UnboundedSender<PollResult>, mpsc::UnboundedReceiver<PollResult>),
    clock: Clock,
    unhurried: Duration,
    ttl: Duration,
    heartbeat: Option<Duration>,
    /// What the work last did, for those who ask.
    book: Arc<Book>,
    answers: Option<(HttpServer, Arc<HttpMember>)>,
    /// When it is looked whether somebody else has our id.
    namesake_at: Option<Moment>,
    /// When another guard is tried, if none could be started.
    guard_at: Option<Moment>,
    leaving: Option<JoinHandle<()>>,
    interrupts: Interrupts,
    /// When we end, whatever is not given back yet: the work has ended, and the store does not answer.
    farewell_at: Option<Moment>,
}

impl FleetSupervisor {
    pub(super) fn new(
        fleet: Arc<Fleet>,
        store: Arc<dyn Store>,
        lines: FleetMessages,
        task: FleetWork,
        duty: Option<GuardClientConfig>,
        timing: Timing,
    ) -> Result<FleetSupervisor> {
        let extensions = duty.as_ref().and_then(|_| fleet.extensions());
        let agenda = RunQueue::new(task.concurrency);
        let mut crew = FleetSupervisor {
            fleet,
            store,
            lines,
            task,
            duty,
            keeper: None,
            membership: None,
            extensions,
            jobs: HashMap::new(),
            agenda,
            polled: mpsc::unbounded_channel(),
            clock: Clock::boot(),
            unhurried: UNHURRIED.max(timing.stop_within),
            ttl: timing.ttl,
            heartbeat: None,
            book: Arc::default(),
            answers: None,
            namesake_at: None,
            guard_at: None,
            leaving: None,
            interrupts: Interrupts::default(),
            farewell_at: None,
        };
        crew.namesake_at = Some(crew.clock.now() + LOOK_FOR_NAMESAKE);
        crew.start_guard()
            .map_err(|error| Error::denied(format!("cannot start the guard: {error}")))?;
        Ok(crew)
    }

    pub(super) fn beating(mut self, heartbeat: Option<Duration>) -> FleetSupervisor {
        self.heartbeat = heartbeat;
        self
    }

    /// Answers over HTTP, if there is a door.
    pub(super) fn answering(mut self, door: Option<Listener>) -> Result<FleetSupervisor> {
        if let Some(door) = door {
            let member = HttpMember::new(self.fleet.clone(), self.book.clone(), &self.store);
            let polls = matches!(self.task.kind, WorkKind::Get { .. });
            let limits = if polls { HttpLimits::beside_polls() } else { HttpLimits::default() };
            let server = HttpServer::start(door, member.clone(), &self.store, limits)?;
            self.answers = Some((server, member));
        }
        Ok(self)
    }

    /// Works until it is told to end, or nobody can go on.
    pub(super) async fn work(mut self, mut signals: Signals) -> Result<Exit> {
        let mut answered = false;
        let mut beat_at = self.heartbeat.map(|every| self.clock.now() + every);
        let ended = loop {
            self.begin_what_is_due();
            self.farewell_at = match self.leaving.is_some() && self.jobs.is_empty() {
                true => self.farewell_at.or_else(|| Some(self.clock.now() + FAREWELL)),
                false => None,
            };
            let times = [beat_at, self.namesake_at, self.guard_at, self.farewell_at];
            let wake_at = times.into_iter().chain([self.agenda.wake_at()]).flatten().min();
            let fleet = self.fleet.clone();
            tokio::select! {
                biased;
                // What ends comes before what begins.
                news = report(&mut self.keeper) => self.guard_event(news),
                extended = extended(&mut self.extensions) => self.extended(&extended),
                event = fleet.next() => match event {
                    Some(event) => self.happened(event),
                    None if self.leaving.is_some() => break Ok(Exit::Done),
                    None => break Err(Error::unavailable(
                        "the fleet has ended by itself, which it never should: what it held runs out; start it again",
                    )),
                },
                Some(polled) = self.polled.1.recv() => self.polled(polled),
                refused = fleet.answered(), if !answered => {
                    answered = true;
                    if let Err(error) = refused {
                        break Err(error);
                    }
                }
                caught = signals.next() => {
                    if !caught.ends {
                        if let Some((keeper, _)) = &self.keeper {
                            keeper.signal_all(caught.number);
                        }
                    } else {
                        // Only Ctrl-C kills when it comes again. Other signals come twice from some who send them once,
                        // such as timeout(1).
                        let again = caught.interrupts() && self.interrupts.kills(self.clock.now());
                        if caught.interrupts() && !again {
                            self.lines.next_interrupt_kills("every command");
                        }
                        if self.leaving.is_none() {
                            self.leaving = Some(tokio::spawn(async move { fleet.leave().await }));
                        } else if again && !self.kill_all() {
                            // With nothing left to end: what is not given back yet is left to its time.
                            break Ok(Exit::Done);
                        }
                    }
                }
                () = until(&self.clock, wake_at) => {
                    let now = self.clock.now();
                    if let (Some(at), Some(every)) = (beat_at, self.heartbeat)
                        && now >= at
                    {
                        self.lines.beat(fleet.owned().len(), fleet.is_member());
                        beat_at = Some(at.max(now.before(every)) + every);
                    }
                    if self.farewell_at.is_some_and(|at| now >= at) {
                        self.lines.left_behind();
                        break Ok(Exit::Done);
                    }
                    self.look_for_namesake(now);
                    if self.guard_at.is_some_and(|at| now >= at) {
                        self.replace_guard(now);
                    }
                }
            }
        };
        if let Some((server, _)) = self.answers.take() {
            server.stop();
        }
        if let Some((keeper, _)) = self.keeper.take() {
            keeper.dismiss().await;
        }
        ended
    }

    // ---- what the fleet says ----

    fn happened(&mut self, event: FleetEvent) {
        if let Some((_, member)) = &self.answers {
            member.note(&event);
        }
        match event {
            FleetEvent::Joined { hold, number, deadline } => {
                let number = id(number);
                if let Some((keeper, _)) = &self.keeper {
                    keeper.hold(number, &hold, None, deadline);
                }
                self.membership = Some((number, hold, deadline));
                self.namesake_at = None;
                self.lines.joined();
            }
            FleetEvent::Left { number, why } => {
                self.forget(id(number));
                self.membership = None;
                self.namesake_at = Some(self.clock.now() + LOOK_FOR_NAMESAKE);
                self.lines.left(why);
            }
            FleetEvent::Assigned { shard, work, .. } => self.assigned(shard, work),
            FleetEvent::Revoked { number, .. } => self.revoked(id(number)),
            FleetEvent::Released { shard, number, why, .. } => {
                // As long as the store takes one after the other, all are given back.
                self.farewell_at = None;
                self.forget(id(number));
                self.lines.released(&shard, why);
            }
            FleetEvent::StoreUnreachable(error) => self.lines.unreachable(&error),
            FleetEvent::StoreBack => self.lines.back(),
            FleetEvent::Source(text) => self.lines.trouble(&text),
            FleetEvent::Lists(lists) => self.lines.lists(&lists),
            FleetEvent::Unowned(count, some) => self.lines.unowned(count, &some, &shown(self.ttl)),
            _ => {}
        }
    }

    /// Who waits for its own id without knowing would look as if it had nothing to do.
    fn look_for_namesake(&mut self, now: Moment) {
        if self.namesake_at.is_none_or(|at| now < at) {
            return;
        }
        let found = self.fleet.has_namesake();
        // A clean leave ends with the lease that it waits for.
        let waits = self.leaving.is_none() && !self.fleet.is_member();
        if found && waits {
            self.lines.namesake();
        }
        // Told once; it goes on to look while there is nothing to tell.
        self.namesake_at = (waits && !found).then(|| now + LOOK_FOR_NAMESAKE);
    }

    fn assigned(&mut self, shard: Shard, work: ShardWork) {
        self.lines.acquired(&shard);
        let number = id(work.number());
        if let Some((keeper, _)) = &self.keeper {
            keeper.hold(number, work.hold(), Some(shard.as_str()), work.deadline());
        }
        let job = ShardJob {
            shard,
            work,
            state: JobState::Resting,
            revoked: None,
            pause: BACK_OFF,
            count: 0,
        };
        let first = self.task.every.map(|every| self.next_slot(every, &job.shard));
        self.agenda.add(first.unwrap_or(self.clock.now()), number);
        self.jobs.insert(number, job);
    }

    fn revoked(&mut self, number: u32) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let now = self.clock.now();
        job.revoked = Some(now);
        match &job.state {
            JobState::Resting => self.end(number),
            JobState::Command(_) => {
                let kill_at = now + self.unhurried;
                if let Some((keeper, _)) = &self.keeper {
                    keeper.stop(number, kill_at);
                }
            }
            JobState::Poll(_, poll) => {
                // What was sent may have had its effect; nothing more is.
                poll.abort();
                self.agenda.ended();
                self.end(number);
            }
        }
    }

    /// Nothing of its work is left: the shard may go.
    fn end(&mut self, number: u32) {
        self.jobs.remove(&number);
    }

    fn forget(&self, number: u32) {
        if let Some((keeper, _)) = &self.keeper {
            keeper.forget(number);
        }
    }

    fn extended(&mut self, extended: &[(u64, Moment)]) {
        if extended.is_empty() {
            // The fleet has ended, and with it this.
            self.extensions = None;
            return;
        }
        let deadlines: Vec<(u32, Moment)> =
            extended.iter().map(|(number, deadline)| (id(*number), *deadline)).collect();
        if let Some((keeper, _)) = &self.keeper {
            keeper.extend(&deadlines);
        }
        for (number, deadline) in deadlines {
            if let Some((membership, _, until)) = &mut self.membership
                && *membership == number
            {
                *until = deadline;
            }
            if let Some(job) = self.jobs.get(&number)
                && deadline != Moment::NEVER
            {
                self.lines.renewed(&job.shard);
            }
        }
    }

    // ---- the work ----

    fn begin_what_is_due(&mut self) {
        let now = self.clock.now();
        while let Some(number) = self.agenda.next(now) {
            self.begin(now, number);
        }
    }

    fn begin(&mut self, now: Moment, number: u32) {
        let next = self.task.every;
        let Some(job) = self.jobs.get_mut(&number) else { return };
        if job.revoked.is_some() || !matches!(job.state, JobState::Resting) {
            return;
        }
        // After a pause of this process we may run before anybody has said that it is over.
        if !job.work.is_valid() {
            return;
        }
        job.count += 1;
        self.book.began(self.clock.minting_micros() / 1_000);
        match &self.task.kind {
            WorkKind::Command(command) => {
                let Some((keeper, _)) = &self.keeper else {
                    self.agenda.add(now + BACK_OFF, number);
                    return;
                };
                keeper.run(number, command_for(command, &job.shard));
                job.state = JobState::Command(now);
                self.agenda.begun();
                return;
            }
            WorkKind::Mock => {
                self.lines.poll(&job.shard, job.count);
                self.book.ended(outcome(true), Duration::ZERO);
            }
            WorkKind::Get { client, url } => {
                let get = with_shard(url, job.shard.as_str()).map(|url| client.at(&url));
                // The task holds the term too: a shard is released only when its poll has ended.
                let (work, polled) = (job.work.clone(), self.polled.0.clone());
                let poll = tokio::spawn(async move {
                    let (well, detail) = match get {
                        Some(Ok(get)) => {
                            let (outcome, detail) = get.poll(&work).await;
                            (outcome == RunOutcome::Ok, detail.unwrap_or_default())
                        }
                        _ => (false, "its name cannot be part of a URL".to_owned()),
                    };
                    let _ = polled.send((number, well, detail));
                });
                job.state = JobState::Poll(now, poll);
                self.agenda.begun();
                return;
            }
        }
        if let Some(every) = next {
            let at = self.next_slot_of(every, number);
            self.agenda.add(at, number);
        }
    }

    fn next_slot_of(&self, every: Duration, number: u32) -> Moment {
        match self.jobs.get(&number) {
            Some(job) => self.next_slot(every, &job.shard),
            None => self.clock.now() + every,
        }
    }

    fn next_slot(&self, every: Duration, shard: &Shard) -> Moment {
        let unix_ms = self.clock.minting_micros() / 1_000;
        let hash = tenure::placement::hash(shard.as_str());
        self.clock.now() + until_next(every, hash, unix_ms)
    }

    fn polled(&mut self, (number, well, detail): PollResult) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let JobState::Poll(begun, _) = job.state else { return };
        job.state = JobState::Resting;
        self.book.ended(outcome(well), self.clock.now().since(begun));
        self.lines.polled(&job.shard, job.count, well, &detail);
        self.agenda.ended();
        if let Some(every) = self.task.every {
            let at = self.next_slot_of(every, number);
            self.agenda.add(at, number);
        }
    }
}

/// The word in `tenure_runs_total`.
fn outcome(well: bool) -> &'static str {
    if well { "ok" } else { "failed" }
}

fn is_command(job: &ShardJob) -> bool {
    matches!(job.state, JobState::Command(_))
}

/// A member has less than four thousand million terms in its life.
fn id(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

async fn extended(extensions: &mut Option<Extensions>) -> Vec<(u64, Moment)> {
    match extensions {
        Some(extensions) => extensions.next().await,
        None => std::future::pending().await,
    }
}

async fn until(clock: &Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}
