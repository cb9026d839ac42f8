//! One term: the work begins, is kept informed, ends.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tenure::machine::EndReason;
use tenure::{CandidateId, Clock, Election, Error, Leadership, Moment, Store};

use crate::duration;
use crate::exit::Exit;
use crate::guard::{CommandExit, GUARD_REACTS, GuardOrder, Hook, ProcessExit, refused, reserve};
use crate::http::HttpCandidate;
use crate::logs::throttle::Throttle;
use crate::messages::CommonMessages as _;
use crate::permit::{TermDeadline as _, while_valid};
use crate::signals::{Interrupts, Signals};

use super::board::CandidateCount;
use super::command::{CommandConfig, CommandEnd, CommandEvent, RunningCommand};
use super::messages::RunMessages;
use super::scheduled::ScheduledWork;

/// Asked to stop while the lease can still be renewed, a command has at least so long.
const UNHURRIED: Duration = Duration::from_secs(5);
/// A guard gets so long to kill before we do its duty.
const GUARD_KILLS: Duration = Duration::from_millis(100);
/// Work that cannot be kept running is begun again at once the first time, then after this, twice as long each time.
const BACK_OFF: Duration = Duration::from_secs(1);
const BACK_OFF_MOST: Duration = Duration::from_secs(30);

/// What is done while leading.
pub(super) enum TermWork {
    Command(CommandConfig),
    Scheduled(Box<ScheduledWork>),
    /// Others act on what we answer.
    Serve,
}

/// Everybody who takes part in a term.
pub(super) struct TermSupervisor<'a> {
    pub(super) job: TermWork,
    pub(super) election: &'a Election,
    pub(super) store: &'a dyn Store,
    pub(super) lines: &'a RunMessages,
    pub(super) board: CandidateCount,
    pub(super) instance: Option<Arc<HttpCandidate>>,
    pub(super) on_lead: Option<String>,
    pub(super) on_lose: Option<String>,
    pub(super) stop_within: Duration,
    pub(super) backoff: Backoff,
    /// Checkpoints that could not be saved.
    pub(super) save_failures: Throttle,
}

/// How long this candidate pauses before it starts work again that could not be kept running; it outlasts a term.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    next: Cell<Duration>,
}

impl Backoff {
    /// The pause after work that ran for `ran`.
    fn after(&self, ran: Duration) -> Duration {
        let pause = if ran > BACK_OFF_MOST { Duration::ZERO } else { self.next.get() };
        self.next.set((pause * 2).clamp(BACK_OFF, BACK_OFF_MOST));
        pause
    }
}

/// How it goes on.
pub(super) enum TermOutcome {
    /// The work has come to its end.
    Ended(Exit),
    /// The term was lost, and the work has been stopped.
    Lost,
    /// The work cannot be kept running here: the lease is released, and this candidate pauses before it campaigns again.
    Paused(Duration),
    /// Nobody can do this work before an operator has acted.
    Failed(Error),
}

/// How one run of the command came out.
pub(super) enum RunResult {
    Ended(ProcessExit),
    /// It can never be run.
    Refused(Exit),
    /// Stopped, or never begun; the term may go on.
    Stopped,
}

impl TermSupervisor<'_> {
    /// Leads for one term. The leadership is dropped, and so the lease given back, when the work has ended.
    pub(super) async fn term(&self, leadership: Leadership, signals: &mut Signals) -> TermOutcome {
        self.lines.became(leadership.token());
        if let Some(on_lead) = &self.on_lead {
            self.on_lead(on_lead, &leadership).await;
        }
        let after = match &self.job {
            TermWork::Command(recipe) => self.command(recipe, &leadership, signals).await,
            TermWork::Scheduled(table) => self.scheduled(table, &leadership, signals).await,
            TermWork::Serve => self.serve(&leadership, signals).await,
        };
        // The work has ended. Of a leader that is killed or frozen its guard does this.
        if let Some(on_lose) = &self.on_lose
            && !hook(on_lose, &leadership).run().await
        {
            self.lines.trouble("the hook --on-lose has failed, or did not end within 2 s");
        }
        // Nobody may rely on an answer of ours any more when the lease is given back.
        if let (TermWork::Serve, Some(instance)) = (&self.job, &self.instance) {
            instance.answers_run_out().await;
        }
        after
    }

    /// Leads until it is told otherwise.
    async fn serve(&self, leadership: &Leadership, signals: &mut Signals) -> TermOutcome {
        let after = tokio::select! {
            biased;
            why = leadership.lost() => {
                self.lines.lost(&why);
                TermOutcome::Lost
            }
            _ = signals.end() => TermOutcome::Ended(Exit::Done),
        };
        if let (TermOutcome::Ended(_), Some(instance)) = (&after, &self.instance) {
            instance.answer_no();
        }
        after
    }

    /// Runs the hook `--on-lead`, which is part of the work: it starts only in a valid term, and is killed before the
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
        self.lines.trouble(&format!("the hook --on-lead {problem}"));
    }

    /// Returns when whatever runs in this term has to be killed: shortly before the deadline, which every renewal moves.
    async fn time_to_kill(&self, leadership: &Leadership) {
        let clock = Clock::boot();
        loop {
            let deadline = leadership.deadline();
            tokio::select! {
                biased;
                _ = leadership.extended(deadline) => {}
                () = clock.sleep_until(deadline.before(reserve(self.stop_within))) => return,
            }
        }
    }

    async fn command(
        &self,
        recipe: &CommandConfig,
        leadership: &Leadership,
        signals: &mut Signals,
    ) -> TermOutcome {
        let clock = Clock::boot();
        let mut watch = StopSignals::default();
        loop {
            // With hardly any time left, a renewal or the loss has to come first.
            let room = async {
                while leadership.valid_for() <= self.stop_within {
                    leadership.extended(leadership.deadline()).await;
                }
            };
            tokio::select! {
                biased;
                why = leadership.lost() => {
                    self.lines.lost(&why);
                    return TermOutcome::Lost;
                }
                _ = signals.end() => return TermOutcome::Ended(Exit::Done),
                () = room => {}
            }
            let begun = clock.now();
            match self.one_run(recipe, leadership, signals, &mut watch).await {
                RunResult::Ended(ended) => {
                    if !watch.ending {
                        self.lines.work_ended();
                    }
                    return TermOutcome::Ended(ended.into());
                }
                RunResult::Refused(exit) => return TermOutcome::Ended(exit),
                RunResult::Stopped if watch.ending => return TermOutcome::Ended(Exit::Done),
                RunResult::Stopped if watch.lost => return TermOutcome::Lost,
                RunResult::Stopped => {}
            }
            let pause = self.backoff.after(clock.now().since(begun));
            if !pause.is_zero() {
                // Another candidate may be able to do the work meanwhile.
                let shown = duration::shown(pause);
                self.lines.trouble(&format!(
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

    /// Starts the command and stays with it until nothing of it is left.
    pub(super) async fn one_run(
        &self,
        recipe: &CommandConfig,
        leadership: &Leadership,
        signals: &mut Signals,
        watch: &mut StopSignals,
    ) -> RunResult {
        // A hook, or a freeze, may have used the term up. A guard would refuse; without one nobody else asks.
        let started = leadership
            .permit(self.stop_within, |permit| RunningCommand::start(recipe, permit, self.store));
        let Some(started) = started else { return RunResult::Stopped };
        let mut ward = match started {
            Ok(ward) => ward,
            // Without a guard it is the command itself that cannot be started.
            Err(error) if !recipe.guarded => {
                let refusal = refused(&recipe.command[0], &error);
                self.lines.trouble(&refusal.sentence);
                return RunResult::Refused(refusal.exit);
            }
            Err(error) => {
                self.lines.trouble(&format!("cannot start the guard: {error}"));
                return RunResult::Stopped;
            }
        };
        let fate = self.attend(&mut ward, leadership, signals, watch).await;
        ward.dismiss();
        match fate {
            CommandEnd::Gone(CommandExit { ended, told: false }) => RunResult::Ended(ended),
            // Signalled to end, and then out of time: how it ended is still its own answer.
            CommandEnd::Gone(CommandExit { ended, told: true }) if watch.ending => {
                RunResult::Ended(ended)
            }
            CommandEnd::Gone(CommandExit { told: true, .. }) => {
                if !watch.lost {
                    watch.lost = true;
                    self.overdue(leadership).await;
                }
                RunResult::Stopped
            }
            CommandEnd::Failed(why) => {
                self.lines.trouble(&format!("the guard cannot start the command: {why}"));
                RunResult::Stopped
            }
            CommandEnd::Unguarded => {
                self.lines.trouble(match recipe.guarded {
                    true => "the guard died: ended the command",
                    false => "a panic ended the task that oversees the command: ended the command",
                });
                RunResult::Stopped
            }
        }
    }

    /// The guard has ended the command although nobody told it to: it heard of no renewal in time. So the term is over, also
    /// if there was one: the guard has done what is done at its end.
    async fn overdue(&self, leadership: &Leadership) {
        if leadership.valid_for().is_zero() {
            return self.lines.lost(&leadership.lost().await);
        }
        self.lines.trouble("the guard heard of no renewal in time, and ended the command");
        leadership.resign();
        leadership.lost().await;
    }

    /// Passes on every deadline, signal and order, until nothing of the command is left.
    async fn attend(
        &self,
        ward: &mut RunningCommand,
        leadership: &Leadership,
        signals: &mut Signals,
        watch: &mut StopSignals,
    ) -> CommandEnd {
        let clock = Clock::boot();
        let mut known = leadership.deadline();
        let mut stop: Option<Moment> = None;
        let mut abandoned = false;
        let mut cannot_kill = false;
        // The deadline may have moved since the guard was told of it.
        ward.extend(known);
        loop {
            // Past this a guard that was told to stop is not doing its duty, unless it has reported why.
            let patience = stop.filter(|_| !cannot_kill).map(|kill_at| {
                let last = known.before(reserve(self.stop_within) / 2);
                (kill_at + GUARD_KILLS).min(last).max(watch.told_at + GUARD_REACTS)
            });
            let expires_at = ward.expires_at();
            tokio::select! {
                biased;
                event = ward.next() => match event {
                    CommandEvent::Ended(fate) => return fate,
                    CommandEvent::CannotKill(failure) => {
                        cannot_kill = true;
                        self.lines.not_stopped(&failure);
                    }
                },
                deadline = leadership.extended(known) => {
                    known = deadline;
                    ward.extend(deadline);
                }
                why = leadership.lost(), if stop.is_none() => {
                    self.lines.lost(&why);
                    watch.lost = true;
                    watch.told_at = clock.now();
                    let kill_at = kill_at(&why, watch.told_at, known, self.stop_within);
                    stop = Some(kill_at);
                    ward.order(GuardOrder::Stop(kill_at.as_nanos()));
                }
                caught = signals.next() => {
                    // Passed on, and no more: how long it takes to end is the command's own affair, because the lease is
                    // renewed meanwhile.
                    if caught.interrupts() {
                        match watch.interrupts.kills(clock.now()) {
                            true => ward.order(GuardOrder::Stop(Moment::NEVER.as_nanos())),
                            false => self.lines.next_interrupt_kills("the command"),
                        }
                    }
                    watch.ending |= caught.ends;
                    ward.order(GuardOrder::Signal(caught.number));
                }
                () = until(patience), if !abandoned => {
                    if ward.has_no_report() {
                        abandoned = true;
                        ward.abandon();
                    }
                }
                () = until(expires_at), if !abandoned => {
                    // It may have answered meanwhile.
                    if ward.has_no_report() && ward.expires_at().is_some_and(|at| clock.now() >= at) {
                        abandoned = true;
                        self.lines.trouble("the guard does not answer: killed it");
                        ward.abandon();
                    }
                }
            }
        }
    }
}

/// What happened while the command ran.
#[derive(Default)]
pub(super) struct StopSignals {
    /// Somebody wants us to end.
    pub(super) ending: bool,
    interrupts: Interrupts,
    /// The term is over.
    pub(super) lost: bool,
    told_at: Moment,
}

/// How long the command has to stop: as long as it likes where the lease is renewed meanwhile, within reason, and in any
/// case no longer than its fuse burns.
fn kill_at(why: &EndReason, now: Moment, deadline: Moment, stop_within: Duration) -> Moment {
    match why {
        EndReason::Unreachable(_)
        | EndReason::StoreError(_)
        | EndReason::Paused(_)
        | EndReason::Refused(_) => deadline.before(reserve(stop_within)),
        _ => now + stop_within.max(UNHURRIED),
    }
}

/// A hook of this term.
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
    fn a_pause_doubles_and_a_long_run_ends_it() {
        let backoff = Backoff::default();
        let short = Duration::from_secs(1);
        let pauses: Vec<u64> = (0..8).map(|_| backoff.after(short).as_secs()).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(backoff.after(BACK_OFF_MOST + short), Duration::ZERO);
        assert_eq!(backoff.after(short), BACK_OFF);
    }
}
