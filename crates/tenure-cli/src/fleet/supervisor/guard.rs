//! The supervisor's side of the guard: starts the guard, handles its reports, and replaces it when it is gone.

use std::time::Duration;

use tenure::Moment;
use tenure::supervise::SupervisedTerm as _;

use super::{FleetSupervisor, JobState, MAX_BACKOFF, MIN_BACKOFF, is_command, outcome};
use crate::duration::shown;
use crate::guard::{GuardClient, GuardEvent, GuardReport, ProcessExit, Reports};
use crate::messages::CommonMessages as _;

impl FleetSupervisor {
    /// Handles a report of the guard, or its end.
    pub(super) fn guard_event(&mut self, event: Option<GuardEvent>) {
        match event {
            Some(GuardEvent::Report(number, GuardReport::CannotKill(failure))) => {
                let shard = self.jobs.get(&number).map(|job| job.work.shard());
                match shard {
                    Some(shard) => self.messages.shard_not_stopped(shard, &failure),
                    None => self.messages.not_stopped(&failure),
                }
            }
            Some(GuardEvent::Report(number, report)) => self.reported(number, report),
            Some(GuardEvent::Unresponsive) => {
                self.messages.warning("the guard does not answer: killed it");
            }
            Some(GuardEvent::CannotKill(failure)) => self.messages.not_stopped(&failure),
            None => self.guard_is_gone(),
        }
    }

    fn reported(&mut self, number: u32, report: GuardReport) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let JobState::Command(started) = job.state else { return };
        job.state = JobState::Idle;
        self.queue.ended();
        let now = self.clock.now();
        let took = now.since(started);
        if let Some(revoked) = job.revoked {
            if matches!(report, GuardReport::Gone { ended: ProcessExit::Signal(9), .. }) {
                // A deadline or a second signal may have left the command less time than the usual timeout.
                let had = now.since(revoked).min(self.stop_timeout);
                let tenths = u64::try_from(had.as_millis() / 100).unwrap_or(u64::MAX);
                self.messages.hung(job.work.shard(), &shown(Duration::from_millis(tenths * 100)));
            }
            return self.end(number);
        }
        // A report that is not an end; `guard_event` handles those.
        let Some(how) = how_it_ended(&report) else { return };
        let succeeded = matches!(report, GuardReport::Gone { ended: ProcessExit::Code(0), .. });
        self.run_stats.ended(outcome(succeeded), took);
        if self.leaving.is_some() {
            // The member leaves the fleet, so no command is started again.
            return;
        }
        let at = match self.task.every {
            Some(every) => {
                let at = self.next_slot(every, self.jobs[&number].work.shard());
                if !succeeded {
                    let job = &self.jobs[&number];
                    self.messages.ended(job.work.shard(), &how, &shown(at.since(now)));
                }
                at
            }
            None => {
                if took >= MAX_BACKOFF {
                    job.backoff = MIN_BACKOFF;
                }
                let backoff = job.backoff;
                job.backoff = (backoff * 2).min(MAX_BACKOFF);
                self.messages.ended(job.work.shard(), &how, &shown(backoff));
                now + backoff
            }
        };
        self.queue.add(at, number);
    }

    /// Kills every running command; returns whether there was one.
    pub(super) fn kill_all(&mut self) -> bool {
        let now = self.clock.now();
        let mut any = false;
        for (number, job) in &self.jobs {
            if let (JobState::Command(_), Some((guard, _))) = (&job.state, &self.guard) {
                guard.stop(*number, now);
                any = true;
            }
        }
        any
    }

    /// Starts a guard, if the config asks for one, and registers every lease that this member holds.
    pub(super) fn start_guard(&mut self) -> std::io::Result<()> {
        let Some(guard_config) = &self.guard_config else { return Ok(()) };
        let (guard, reports) = GuardClient::start(guard_config, self.store.clone())?;
        if let Some((number, hold, deadline)) = &self.membership {
            guard.hold(*number, hold, None, *deadline);
        }
        for (number, job) in &self.jobs {
            let (work, shard) = (&job.work, job.work.shard().as_str());
            guard.hold(*number, work.hold(), Some(shard), work.deadline());
        }
        self.guard = Some((guard, reports));
        Ok(())
    }

    /// Handles the end of the guard, which was killed or did not respond. No process of any command is left by now. Starts
    /// another guard.
    pub(super) fn guard_is_gone(&mut self) {
        self.guard = None;
        self.messages.warning("the guard is gone, and with it every command: starting another");
        let now = self.clock.now();
        let running: Vec<u32> =
            self.jobs.iter().filter(|(_, job)| is_command(job)).map(|(n, _)| *n).collect();
        for number in running {
            self.queue.ended();
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            job.state = JobState::Idle;
            if job.revoked.is_some() {
                self.end(number);
            } else {
                self.queue.add(now + MIN_BACKOFF, number);
            }
        }
        self.replace_guard(now);
    }

    /// Starts a new guard; on an error, tries again later. Without a guard no command starts, but everything else continues:
    /// shards are revoked and signals are handled.
    pub(super) fn replace_guard(&mut self, now: Moment) {
        self.guard_at = None;
        if let Err(error) = self.start_guard() {
            self.messages.warning(&format!("cannot start another guard: {error}"));
            self.guard_at = Some(now + MIN_BACKOFF);
        }
    }
}

/// Describes how a command ended by itself, without a revocation; `None` for a report that is not an end.
fn how_it_ended(report: &GuardReport) -> Option<String> {
    Some(match report {
        GuardReport::CannotKill(_) | GuardReport::Acknowledged(_) => return None,
        GuardReport::Failed(why) => format!("could not be started: {why}"),
        GuardReport::Gone { asked_to_stop: true, .. } => {
            "was stopped by the guard, which received no renewal in time".to_owned()
        }
        GuardReport::Gone { ended: ProcessExit::Code(0), .. } => "has ended".to_owned(),
        GuardReport::Gone { ended: ProcessExit::Code(code), .. } => {
            format!("has ended with code {code}")
        }
        GuardReport::Gone { ended: ProcessExit::Signal(signal), .. } => {
            format!("was ended by signal {signal}")
        }
    })
}

/// The next report of the guard; `None` when the guard is gone. Pending forever while there is no guard.
pub(super) async fn report(guard: &mut Option<(GuardClient, Reports)>) -> Option<GuardEvent> {
    match guard {
        Some((_, reports)) => reports.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_the_guard_stopped_has_not_ended_by_itself() {
        let how = |ended, asked_to_stop| {
            how_it_ended(&GuardReport::Gone { ended, asked_to_stop }).unwrap()
        };
        assert_eq!(how(ProcessExit::Code(0), false), "has ended");
        assert_eq!(how(ProcessExit::Code(3), false), "has ended with code 3");
        assert_eq!(how(ProcessExit::Signal(9), false), "was ended by signal 9");
        let stopped = "was stopped by the guard, which received no renewal in time";
        assert_eq!(how(ProcessExit::Code(0), true), stopped);
        assert_eq!(how(ProcessExit::Signal(9), true), stopped);
        assert_eq!(how_it_ended(&GuardReport::Acknowledged(7)), None);
    }
}
