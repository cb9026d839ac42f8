//! The supervisor of `tenure fleet run`: starts the work of assigned shards and stops the work of revoked ones.
//!
//! One loop handles all events: reports of the guard, renewals, fleet events, poll results, signals and timers. Commands run
//! under one guard process for the whole member; HTTP polls are tasks in this process. The supervisor releases a shard (drops
//! its [`ShardWork`]) only when nothing of that shard's work is left.

mod guard;

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use tenure::fleet::{FleetEvent, Shard, ShardWork};
use tenure::supervise::{self, Extensions, SupervisedTerm as _};
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
use crate::http::{HttpLimits, HttpMember, HttpServer, Listener, RunStats};
use crate::messages::{CommonMessages as _, RELEASE_TIMEOUT};
use crate::schedule::RunOutcome;
use crate::signals::{Interrupts, Signals};

use guard::report;

/// The least time a command gets to stop while its lease can still be renewed.
const MIN_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before a command that ended is started again. It doubles with each restart, up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A process that has not been a member for this long checks whether another member has its id, and repeats the check at this
/// interval.
const DUPLICATE_ID_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The work of one shard that this member owns.
struct ShardJob {
    /// Dropped only by [`FleetSupervisor::end`], never by a panic or at exit: the guard may still run the command then, and a shard
    /// whose last handle is dropped is released.
    work: ManuallyDrop<ShardWork>,
    state: JobState,
    /// When the fleet revoked the shard; `None` while the work may run.
    revoked: Option<Moment>,
    backoff: Duration,
    count: u64,
}

enum JobState {
    Idle,
    /// The guard runs a command for the shard, started at this moment.
    Command(Moment),
    /// A task of this process polls, started at this moment.
    Poll(Moment, JoinHandle<()>),
}

/// The result of a poll: the number of the term, whether the poll succeeded, and a detail for the log.
type PollResult = (u32, bool, String);

/// The state of the supervisor loop: the fleet, the guard, and a job for each shard that this member owns.
pub(super) struct FleetSupervisor {
    fleet: Arc<Fleet>,
    store: Arc<dyn Store>,
    messages: FleetMessages,
    task: FleetWork,
    guard_config: Option<GuardClientConfig>,
    guard: Option<(GuardClient, Reports)>,
    /// The membership lease: the number of its term, its hold and its deadline.
    membership: Option<(u32, Hold, Moment)>,
    extensions: Option<Extensions>,
    jobs: HashMap<u32, ShardJob>,
    queue: RunQueue,
    polled: (mpsc::UnboundedSender<PollResult>, mpsc::UnboundedReceiver<PollResult>),
    clock: Clock,
    stop_timeout: Duration,
    ttl: Duration,
    heartbeat: Option<Duration>,
    /// Statistics of the runs, for the HTTP server.
    run_stats: Arc<RunStats>,
    http: Option<(HttpServer, Arc<HttpMember>)>,
    /// When to check again whether another member has this member's id.
    duplicate_id_check_at: Option<Moment>,
    /// When to try again to start a guard, after a failed start.
    guard_at: Option<Moment>,
    leaving: Option<JoinHandle<()>>,
    interrupts: Interrupts,
    /// When this process exits although some leases are not released yet: all work has ended, but the store does not answer.
    release_timeout_at: Option<Moment>,
}

impl FleetSupervisor {
    pub(super) fn new(
        fleet: Arc<Fleet>,
        store: Arc<dyn Store>,
        messages: FleetMessages,
        task: FleetWork,
        guard_config: Option<GuardClientConfig>,
        timing: Timing,
    ) -> Result<FleetSupervisor> {
        let extensions = guard_config.as_ref().and_then(|_| Extensions::subscribe(&fleet));
        let queue = RunQueue::new(task.concurrency);
        let mut supervisor = FleetSupervisor {
            fleet,
            store,
            messages,
            task,
            guard_config,
            guard: None,
            membership: None,
            extensions,
            jobs: HashMap::new(),
            queue,
            polled: mpsc::unbounded_channel(),
            clock: Clock::boot(),
            stop_timeout: MIN_STOP_TIMEOUT.max(timing.stop_within),
            ttl: timing.ttl,
            heartbeat: None,
            run_stats: Arc::default(),
            http: None,
            duplicate_id_check_at: None,
            guard_at: None,
            leaving: None,
            interrupts: Interrupts::default(),
            release_timeout_at: None,
        };
        supervisor.duplicate_id_check_at =
            Some(supervisor.clock.now() + DUPLICATE_ID_CHECK_INTERVAL);
        supervisor
            .start_guard()
            .map_err(|error| Error::denied(format!("cannot start the guard: {error}")))?;
        Ok(supervisor)
    }

    pub(super) fn with_heartbeat(mut self, heartbeat: Option<Duration>) -> FleetSupervisor {
        self.heartbeat = heartbeat;
        self
    }

    /// Starts the HTTP server, if there is a listener.
    pub(super) fn with_http(mut self, listener: Option<Listener>) -> Result<FleetSupervisor> {
        if let Some(listener) = listener {
            let member = HttpMember::new(self.fleet.clone(), self.run_stats.clone(), &self.store);
            let polls = matches!(self.task.kind, WorkKind::Get { .. });
            let limits = if polls { HttpLimits::beside_polls() } else { HttpLimits::default() };
            let server = HttpServer::start(listener, member.clone(), &self.store, limits)?;
            self.http = Some((server, member));
        }
        Ok(self)
    }

    /// Runs until a signal ends the member, or until an error makes it impossible to continue.
    pub(super) async fn work(mut self, mut signals: Signals) -> Result<Exit> {
        let mut answered = false;
        let mut heartbeat_at = self.heartbeat.map(|every| self.clock.now() + every);
        let ended = loop {
            self.start_due_jobs();
            self.release_timeout_at = match self.leaving.is_some() && self.jobs.is_empty() {
                true => {
                    self.release_timeout_at.or_else(|| Some(self.clock.now() + RELEASE_TIMEOUT))
                }
                false => None,
            };
            let times =
                [heartbeat_at, self.duplicate_id_check_at, self.guard_at, self.release_timeout_at];
            let wake_at = times.into_iter().chain([self.queue.wake_at()]).flatten().min();
            let fleet = self.fleet.clone();
            tokio::select! {
                biased;
                // Events that end work are handled before events that start work.
                event = report(&mut self.guard) => self.guard_event(event),
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
                        if let Some((guard, _)) = &self.guard {
                            guard.signal_all(caught.number);
                        }
                    } else {
                        // Only a second Ctrl-C kills. Some senders, such as timeout(1), deliver other signals twice
                        // although they mean one.
                        let again = caught.interrupts() && self.interrupts.kills(self.clock.now());
                        if caught.interrupts() && !again {
                            self.messages.next_interrupt_kills("every command");
                        }
                        if self.leaving.is_none() {
                            self.leaving = Some(tokio::spawn(async move { fleet.leave().await }));
                        } else if again && !self.kill_all() {
                            // No command is left to kill. Leases that are not released yet expire by themselves.
                            break Ok(Exit::Done);
                        }
                    }
                }
                () = until(&self.clock, wake_at) => {
                    let now = self.clock.now();
                    if let (Some(at), Some(every)) = (heartbeat_at, self.heartbeat)
                        && now >= at
                    {
                        self.messages.heartbeat(fleet.owned().len(), fleet.is_member());
                        heartbeat_at = Some(at.max(now.before(every)) + every);
                    }
                    if self.release_timeout_at.is_some_and(|at| now >= at) {
                        self.messages.not_released();
                        break Ok(Exit::Done);
                    }
                    self.check_for_duplicate_id(now);
                    if self.guard_at.is_some_and(|at| now >= at) {
                        self.replace_guard(now);
                    }
                }
            }
        };
        if let Some((server, _)) = self.http.take() {
            server.stop();
        }
        if let Some((guard, _)) = self.guard.take() {
            guard.dismiss().await;
        }
        ended
    }

    // ---- events of the fleet ----

    fn happened(&mut self, event: FleetEvent) {
        if let Some((_, member)) = &self.http {
            member.note(&event);
        }
        match event {
            FleetEvent::Joined { number, term, .. } => {
                let number = id(number);
                let (hold, deadline) = supervise::membership(&term);
                if let Some((guard, _)) = &self.guard {
                    guard.hold(number, hold, None, deadline);
                }
                self.membership = Some((number, hold.clone(), deadline));
                self.duplicate_id_check_at = None;
                self.messages.joined();
            }
            FleetEvent::Left { number, why } => {
                self.forget(id(number));
                self.membership = None;
                self.duplicate_id_check_at = Some(self.clock.now() + DUPLICATE_ID_CHECK_INTERVAL);
                self.messages.left(why);
            }
            FleetEvent::Assigned { work, .. } => self.assigned(work),
            FleetEvent::Revoked { number, .. } => self.revoked(id(number)),
            FleetEvent::Released { shard, number, why, .. } => {
                // The store answers, so restart the timeout: the remaining leases can be released too.
                self.release_timeout_at = None;
                self.forget(id(number));
                self.messages.released(&shard, why);
            }
            FleetEvent::StoreUnreachable(error) => self.messages.unreachable(&error),
            FleetEvent::StoreBack => self.messages.back(),
            FleetEvent::Source(text) => self.messages.warning(&text),
            FleetEvent::Lists(lists) => self.messages.lists(&lists),
            FleetEvent::Unowned(count, some) => {
                self.messages.unowned(count, &some, &shown(self.ttl))
            }
            _ => {}
        }
    }

    /// Warns when another member has the same id. Without the warning, this process would wait for the membership lease and
    /// seem to have nothing to do.
    fn check_for_duplicate_id(&mut self, now: Moment) {
        if self.duplicate_id_check_at.is_none_or(|at| now < at) {
            return;
        }
        let found = self.fleet.has_namesake();
        // During a clean leave this process is no longer a member, but nothing is wrong.
        let waits = self.leaving.is_none() && !self.fleet.is_member();
        if found && waits {
            self.messages.duplicate_id();
        }
        // The warning is logged once; until then the check repeats.
        self.duplicate_id_check_at = (waits && !found).then(|| now + DUPLICATE_ID_CHECK_INTERVAL);
    }

    fn assigned(&mut self, work: ShardWork) {
        self.messages.acquired(work.shard());
        let number = id(work.number());
        if let Some((guard, _)) = &self.guard {
            guard.hold(number, work.hold(), Some(work.shard().as_str()), work.deadline());
        }
        let work = ManuallyDrop::new(work);
        let job =
            ShardJob { work, state: JobState::Idle, revoked: None, backoff: MIN_BACKOFF, count: 0 };
        let first = self.task.every.map(|every| self.next_slot(every, job.work.shard()));
        self.queue.add(first.unwrap_or(self.clock.now()), number);
        self.jobs.insert(number, job);
    }

    fn revoked(&mut self, number: u32) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let now = self.clock.now();
        job.revoked = Some(now);
        match &job.state {
            JobState::Idle => self.end(number),
            JobState::Command(_) => {
                let kill_at = now + self.stop_timeout;
                if let Some((guard, _)) = &self.guard {
                    guard.stop(number, kill_at);
                }
            }
            JobState::Poll(_, poll) => {
                // A request that was already sent may still take effect; no further request is sent.
                poll.abort();
                self.queue.ended();
                self.end(number);
            }
        }
    }

    /// Removes a job of which no work is left. This drops the job's [`ShardWork`], so the shard can be released.
    fn end(&mut self, number: u32) {
        if let Some(job) = self.jobs.remove(&number) {
            drop(ManuallyDrop::into_inner(job.work));
        }
    }

    fn forget(&self, number: u32) {
        if let Some((guard, _)) = &self.guard {
            guard.forget(number);
        }
    }

    fn extended(&mut self, extended: &[(u64, Moment)]) {
        if extended.is_empty() {
            // The fleet has ended, and so has the stream of extensions.
            self.extensions = None;
            return;
        }
        let deadlines: Vec<(u32, Moment)> =
            extended.iter().map(|(number, deadline)| (id(*number), *deadline)).collect();
        if let Some((guard, _)) = &self.guard {
            guard.extend(&deadlines);
        }
        for (number, deadline) in deadlines {
            if let Some((membership, _, until)) = &mut self.membership
                && *membership == number
            {
                *until = deadline;
            }
            if let Some(job) = self.jobs.get(&number)
                && deadline != Moment::PAST
            {
                self.messages.renewed(job.work.shard());
            }
        }
    }

    // ---- the work ----

    fn start_due_jobs(&mut self) {
        let now = self.clock.now();
        while let Some(number) = self.queue.next(now) {
            self.start_job(now, number);
        }
    }

    fn start_job(&mut self, now: Moment, number: u32) {
        let next = self.task.every;
        let Some(job) = self.jobs.get_mut(&number) else { return };
        if job.revoked.is_some() || !matches!(job.state, JobState::Idle) {
            return;
        }
        // After this process was paused, this code may run before the event that reports the end of the term.
        if !job.work.is_valid() {
            return;
        }
        job.count += 1;
        self.run_stats.began(self.clock.minting_micros() / 1_000);
        match &self.task.kind {
            WorkKind::Command(command) => {
                let Some((guard, _)) = &self.guard else {
                    self.queue.add(now + MIN_BACKOFF, number);
                    return;
                };
                guard.run(number, command_for(command, job.work.shard()));
                job.state = JobState::Command(now);
                self.queue.started();
                return;
            }
            WorkKind::Mock => {
                self.messages.poll(job.work.shard(), job.count);
                self.run_stats.ended(outcome(true), Duration::ZERO);
            }
            WorkKind::Get { client, url } => {
                let get =
                    with_shard(url, job.work.shard().as_str()).map(|url| client.with_url(&url));
                // The task holds a clone of the term: the shard is released only when its poll has ended.
                let (work, polled) = (ShardWork::clone(&job.work), self.polled.0.clone());
                let poll = tokio::spawn(async move {
                    let (succeeded, detail) = match get {
                        Some(Ok(get)) => {
                            let (outcome, detail) = get.poll(&work).await;
                            (outcome == RunOutcome::Ok, detail.unwrap_or_default())
                        }
                        _ => (false, "its name cannot be part of a URL".to_owned()),
                    };
                    let _ = polled.send((number, succeeded, detail));
                });
                job.state = JobState::Poll(now, poll);
                self.queue.started();
                return;
            }
        }
        if let Some(every) = next {
            let at = self.next_slot_of(every, number);
            self.queue.add(at, number);
        }
    }

    fn next_slot_of(&self, every: Duration, number: u32) -> Moment {
        match self.jobs.get(&number) {
            Some(job) => self.next_slot(every, job.work.shard()),
            None => self.clock.now() + every,
        }
    }

    fn next_slot(&self, every: Duration, shard: &Shard) -> Moment {
        let unix_ms = self.clock.minting_micros() / 1_000;
        let hash = tenure::placement::hash(shard.as_str());
        self.clock.now() + until_next(every, hash, unix_ms)
    }

    fn polled(&mut self, (number, succeeded, detail): PollResult) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let JobState::Poll(started, _) = job.state else { return };
        job.state = JobState::Idle;
        self.run_stats.ended(outcome(succeeded), self.clock.now().since(started));
        self.messages.polled(job.work.shard(), job.count, succeeded, &detail);
        self.queue.ended();
        if let Some(every) = self.task.every {
            let at = self.next_slot_of(every, number);
            self.queue.add(at, number);
        }
    }
}

/// The label value of an outcome in the metric `tenure_runs_total`.
fn outcome(succeeded: bool) -> &'static str {
    if succeeded { "ok" } else { "failed" }
}

fn is_command(job: &ShardJob) -> bool {
    matches!(job.state, JobState::Command(_))
}

/// The number of a term in the guard's protocol. A member has fewer than four billion terms in its life.
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
