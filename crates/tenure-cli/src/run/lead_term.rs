//! One term of leadership: the supervisor starts the work, passes deadlines, signals and stop orders on to it, and waits for
//! its end.
//!
//! Called by `run::lead_terms` with each new `Leadership`. The leadership is dropped, and with it the lease released, only
//! after the work has ended. What is done on a schedule is in `scheduled.rs`.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tenure::machine::EndReason;
use tenure::supervise::{self, SupervisedTerm as _};
use tenure::{CandidateId, Clock, Election, Error, Leadership, Moment, Store};

use crate::duration;
use crate::exit::Exit;
use crate::guard::{
    CommandExit, GUARD_REACTION_TIME, GuardOrder, Hook, ProcessExit, refused, reserve,
};
use crate::http::HttpCandidate;
use crate::logs::throttle::Throttle;
use crate::messages::CommonMessages as _;
use crate::permit::{TermPermits as _, while_valid};
use crate::signals::{Interrupts, Signals};

use super::command::{CommandConfig, CommandEnd, CommandEvent, RunningCommand};
use super::messages::RunMessages;
use super::run_reporter::RunReporter;
use super::scheduled::ScheduledWork;

/// The least time that a command gets to stop while the lease can still be renewed.
const MIN_STOP_TIME: Duration = Duration::from_secs(5);
/// How long a guard gets to kill the command before this process kills the guard and takes over.
const GUARD_KILL_TIMEOUT: Duration = Duration::from_millis(100);
/// The second pause before a restart of work that cannot be kept running. The first restart is immediate; each later pause is
/// twice as long as the one before.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The work of a leader.
pub(super) enum TermWork {
    Command(CommandConfig),
    Scheduled(Box<ScheduledWork>),
    /// No work in this process: HTTP clients act on the answers of `tenure serve`.
    Serve,
}

/// Runs the work of this candidate's terms, one term at a time.
pub(super) struct TermSupervisor<'a> {
    pub(super) work: TermWork,
    pub(super) election: &'a Election,
    pub(super) store: &'a dyn Store,
    pub(super) messages: &'a RunMessages,
    pub(super) run_reporter: RunReporter,
    pub(super) instance: Option<Arc<HttpCandidate>>,
    pub(super) on_lead: Option<String>,
    pub(super) on_lose: Option<String>,
    pub(super) stop_within: Duration,
    pub(super) backoff: Backoff,
    /// Limits how often a checkpoint that could not be saved is logged.
    pub(super) save_failures: Throttle,
}

/// The pause before this candidate restarts work that could not be kept running. It outlasts a term.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    next: Cell<Duration>,
}

impl Backoff {
    /// Returns the pause after work that ran for `ran`.
    fn after(&self, ran: Duration) -> Duration {
        let pause = if ran > MAX_BACKOFF { Duration::ZERO } else { self.next.get() };
        self.next.set((pause * 2).clamp(MIN_BACKOFF, MAX_BACKOFF));
        pause
    }
}

/// What follows a term.
pub(super) enum TermOutcome {
    /// The work has ended; the process exits.
    Ended(Exit),
    /// The term was lost and the work has been stopped.
    Lost,
    /// The work cannot be kept running here. The lease is released, and this candidate pauses before it campaigns again.
    Paused(Duration),
    /// No candidate can do this work until an operator has acted.
    Failed(Error),
}

/// The result of one run of the command.
pub(super) enum RunResult {
    Ended(ProcessExit),
    /// The command can never be run.
    Refused(Exit),
    /// The command was stopped, or never started; the term may continue.
    Stopped,
}

impl TermSupervisor<'_> {
    /// Leads for one term. When the work has ended, the caller drops the leadership, which releases the lease.
    pub(super) async fn term(&self, leadership: &Leadership, signals: &mut Signals) -> TermOutcome {
        self.messages.became(leadership.token());
        if let Some(on_lead) = &self.on_lead {
            self.on_lead(on_lead, leadership).await;
        }
        let outcome = match &self.work {
            TermWork::Command(config) => self.command(config, leadership, signals).await,
            TermWork::Scheduled(work) => self.scheduled(work, leadership, signals).await,
            TermWork::Serve => self.serve(leadership, signals).await,
        };
        // The work has ended. If the leader is killed or frozen, its guard runs this hook.
        if let Some(on_lose) = &self.on_lose
            && !hook(on_lose, leadership).run().await
        {
            self.messages.warning("the hook --on-lose has failed, or did not end within 2 s");
        }
        // The lease is released only when no client may rely on a positive answer any more.
        if let (TermWork::Serve, Some(instance)) = (&self.work, &self.instance) {
            instance.answers_expired().await;
        }
        outcome
    }

    /// Leads until the term is lost or a signal ends the process.
    async fn serve(&self, leadership: &Leadership, signals: &mut Signals) -> TermOutcome {
        let outcome = tokio::select! {
            biased;
            reason = leadership.lost() => {
                self.messages.lost(&reason);
                TermOutcome::Lost
            }
            _ = signals.end() => TermOutcome::Ended(Exit::Done),
        };
        if let (TermOutcome::Ended(_), Some(instance)) = (&outcome, &self.instance) {
            instance.answer_no();
        }
        outcome
    }

    /// Runs the hook `--on-lead`. The hook is part of the work: it starts only in a valid term and is killed before the
    /// deadline.
    async fn on_lead(&self, line: &str, leadership: &Leadership) {
        let ran = tokio::select! {
            biased;
            () = self.time_to_kill(leadership) => None,
            ran = while_valid(leadership, hook(line, leadership).run()) => ran,
        };
        let problem = match ran {
            Some(true) => return,
            Some(false) => "has failed, or did not end within 2 s",
            None => "was not run to its end: the deadline of the lease came first",
        };
        self.messages.warning(&format!("the hook --on-lead {problem}"));
    }

    /// Returns when everything that runs in this term must be killed: shortly before the deadline, which every renewal moves.
    async fn time_to_kill(&self, leadership: &Leadership) {
        let clock = Clock::boot();
        loop {
            let deadline = leadership.deadline();
            tokio::select! {
                biased;
                _ = supervise::extended(leadership, deadline) => {}
                () = clock.sleep_until(deadline.before(reserve(self.stop_within))) => return,
            }
        }
    }

    async fn command(
        &self,
        config: &CommandConfig,
        leadership: &Leadership,
        signals: &mut Signals,
    ) -> TermOutcome {
        let clock = Clock::boot();
        let mut stop_signals = StopSignals::default();
        loop {
            // If too little time is left, a renewal or the loss must come before the command is started.
            let enough_time = async {
                while leadership.valid_for() <= self.stop_within {
                    supervise::extended(leadership, leadership.deadline()).await;
                }
            };
            tokio::select! {
                biased;
                reason = leadership.lost() => {
                    self.messages.lost(&reason);
                    return TermOutcome::Lost;
                }
                _ = signals.end() => return TermOutcome::Ended(Exit::Done),
                () = enough_time => {}
            }
            let started_at = clock.now();
            match self.run_command(config, leadership, signals, &mut stop_signals).await {
                RunResult::Ended(ended) => {
                    if !stop_signals.ending {
                        self.messages.work_ended();
                    }
                    return TermOutcome::Ended(ended.into());
                }
                RunResult::Refused(exit) => return TermOutcome::Ended(exit),
                RunResult::Stopped if stop_signals.ending => return TermOutcome::Ended(Exit::Done),
                RunResult::Stopped if stop_signals.lost => return TermOutcome::Lost,
                RunResult::Stopped => {}
            }
            let pause = self.backoff.after(clock.now().since(started_at));
            if !pause.is_zero() {
                // Another candidate may be able to do the work during the pause.
                let shown = duration::shown(pause);
                self.messages.warning(&format!(
                    "the command cannot be kept running here: releasing the lease, campaigning again in {shown}"
                ));
                self.election.withdraw();
                leadership.lost().await;
                return TermOutcome::Paused(pause);
            }
        }
    }

    pub(super) fn id(&self) -> &CandidateId {
        self.election.candidate_id()
    }

    /// Starts the command and supervises it until no process of it is left.
    pub(super) async fn run_command(
        &self,
        config: &CommandConfig,
        leadership: &Leadership,
        signals: &mut Signals,
        stop_signals: &mut StopSignals,
    ) -> RunResult {
        // A hook or a freeze may have used up the term. A guard would refuse to start the command; without a guard this is the
        // only check.
        let started = leadership
            .permit(self.stop_within, |permit| RunningCommand::start(config, permit, self.store));
        let Some(started) = started else { return RunResult::Stopped };
        let mut command = match started {
            Ok(command) => command,
            // Without a guard the error concerns the command itself.
            Err(error) if !config.guarded => {
                let refusal = refused(&config.command[0], &error);
                self.messages.warning(&refusal.sentence);
                return RunResult::Refused(refusal.exit);
            }
            Err(error) => {
                self.messages.warning(&format!("cannot start the guard: {error}"));
                return RunResult::Stopped;
            }
        };
        let end = self.supervise(&mut command, leadership, signals, stop_signals).await;
        command.dismiss();
        match end {
            CommandEnd::Gone(CommandExit { ended, asked_to_stop: false }) => {
                RunResult::Ended(ended)
            }
            // The command got a signal to end and then ran out of time. Its own exit still counts.
            CommandEnd::Gone(CommandExit { ended, asked_to_stop: true }) if stop_signals.ending => {
                RunResult::Ended(ended)
            }
            CommandEnd::Gone(CommandExit { asked_to_stop: true, .. }) => {
                if !stop_signals.lost {
                    stop_signals.lost = true;
                    self.end_overdue_term(leadership).await;
                }
                RunResult::Stopped
            }
            CommandEnd::Failed(reason) => {
                self.messages.warning(&format!("the guard cannot start the command: {reason}"));
                RunResult::Stopped
            }
            CommandEnd::Unguarded => {
                self.messages.warning(match config.guarded {
                    true => "the guard died: ended the command",
                    false => "a panic ended the task that oversees the command: ended the command",
                });
                RunResult::Stopped
            }
        }
    }

    /// Ends the term after the guard has ended the command without an order, because no renewal reached it in time. The term is
    /// over even if there was a renewal: the guard has already done what is done at the end of a term.
    async fn end_overdue_term(&self, leadership: &Leadership) {
        if leadership.valid_for().is_zero() {
            return self.messages.lost(&leadership.lost().await);
        }
        self.messages.warning("the guard heard of no renewal in time, and ended the command");
        leadership.resign();
        leadership.lost().await;
    }

    /// Passes every deadline, signal and stop order on to the command, until no process of it is left.
    async fn supervise(
        &self,
        command: &mut RunningCommand,
        leadership: &Leadership,
        signals: &mut Signals,
        stop_signals: &mut StopSignals,
    ) -> CommandEnd {
        let clock = Clock::boot();
        let mut known_deadline = leadership.deadline();
        let mut stop: Option<Moment> = None;
        let mut abandoned = false;
        let mut cannot_kill = false;
        // The deadline may have moved since it was sent to the guard.
        command.extend(known_deadline);
        loop {
            // A guard that was ordered to stop the command and has not done so by this time has failed, unless it has reported
            // why it cannot.
            let kill_by = stop.filter(|_| !cannot_kill).map(|kill_at| {
                let last = known_deadline.before(reserve(self.stop_within) / 2);
                (kill_at + GUARD_KILL_TIMEOUT)
                    .min(last)
                    .max(stop_signals.stop_ordered_at + GUARD_REACTION_TIME)
            });
            let expires_at = command.expires_at();
            tokio::select! {
                biased;
                event = command.next() => match event {
                    CommandEvent::Ended(end) => return end,
                    CommandEvent::CannotKill(failure) => {
                        cannot_kill = true;
                        self.messages.not_stopped(&failure);
                    }
                },
                deadline = supervise::extended(leadership, known_deadline) => {
                    known_deadline = deadline;
                    command.extend(deadline);
                }
                reason = leadership.lost(), if stop.is_none() => {
                    self.messages.lost(&reason);
                    stop_signals.lost = true;
                    stop_signals.stop_ordered_at = clock.now();
                    let kill_at = kill_at(&reason, stop_signals.stop_ordered_at, known_deadline, self.stop_within);
                    stop = Some(kill_at);
                    command.order(GuardOrder::Stop(kill_at.as_nanos()));
                }
                caught = signals.next() => {
                    // The signal is only passed on. The command may take as long as it needs to end, because the lease is
                    // renewed meanwhile.
                    if caught.interrupts() {
                        match stop_signals.interrupts.kills(clock.now()) {
                            true => command.order(GuardOrder::Stop(Moment::PAST.as_nanos())),
                            false => self.messages.next_interrupt_kills("the command"),
                        }
                    }
                    stop_signals.ending |= caught.ends;
                    command.order(GuardOrder::Signal(caught.number));
                }
                () = until(kill_by), if !abandoned => {
                    if command.has_no_report() {
                        abandoned = true;
                        command.abandon();
                    }
                }
                () = until(expires_at), if !abandoned => {
                    // The guard may have acknowledged in the meantime.
                    if command.has_no_report() && command.expires_at().is_some_and(|at| clock.now() >= at) {
                        abandoned = true;
                        self.messages.warning("the guard does not answer: killed it");
                        command.abandon();
                    }
                }
            }
        }
    }
}

/// The reasons to stop that occurred while the command ran.
#[derive(Default)]
pub(super) struct StopSignals {
    /// A signal requests that this process ends.
    pub(super) ending: bool,
    interrupts: Interrupts,
    /// The term is over.
    pub(super) lost: bool,
    stop_ordered_at: Moment,
}

/// When a command whose term ended for `reason` is killed. While the lease can still be renewed, the command gets at least
/// [`MIN_STOP_TIME`]. Otherwise it is killed before the deadline, as the guard's kill schedule does in any case.
fn kill_at(reason: &EndReason, now: Moment, deadline: Moment, stop_within: Duration) -> Moment {
    match reason {
        EndReason::Unreachable(_)
        | EndReason::StoreError(_)
        | EndReason::Paused(_)
        | EndReason::Refused(_) => deadline.before(reserve(stop_within)),
        _ => now + stop_within.max(MIN_STOP_TIME),
    }
}

/// A hook with this term's name, candidate and token.
fn hook(line: &str, leadership: &Leadership) -> Hook {
    let hold = leadership.hold();
    Hook::new(line, &hold.name, &hold.candidate, Some(hold.token))
}

async fn until(moment: Option<Moment>) {
    match moment {
        Some(moment) => Clock::boot().sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_and_a_long_run_resets_it() {
        let backoff = Backoff::default();
        let short = Duration::from_secs(1);
        let pauses: Vec<u64> = (0..8).map(|_| backoff.after(short).as_secs()).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(backoff.after(MAX_BACKOFF + short), Duration::ZERO);
        assert_eq!(backoff.after(short), MIN_BACKOFF);
    }
}
