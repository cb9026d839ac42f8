//! A member's guard: started, heard, and replaced when it is gone.

use std::time::Duration;

use tenure::Moment;

use super::{BACK_OFF, BACK_OFF_MOST, FleetSupervisor, JobState, is_command, outcome};
use crate::duration::shown;
use crate::guard::{GuardClient, GuardEvent, GuardReport, ProcessExit, Reports};
use crate::messages::CommonMessages as _;

impl FleetSupervisor {
    /// Handles a report of the guard, or its end.
    pub(super) fn guard_event(&mut self, news: Option<GuardEvent>) {
        match news {
            Some(GuardEvent::Report(number, GuardReport::CannotKill(failure))) => {
                let shard = self.jobs.get(&number).map(|job| &job.shard);
                match shard {
                    Some(shard) => self.lines.shard_not_stopped(shard, &failure),
                    None => self.lines.not_stopped(&failure),
                }
            }
            Some(GuardEvent::Report(number, report)) => self.reported(number, report),
            Some(GuardEvent::Unresponsive) => {
                self.lines.trouble("the guard does not answer: killed it");
            }
            Some(GuardEvent::CannotKill(failure)) => self.lines.not_stopped(&failure),
            None => self.guard_is_gone(),
        }
    }

    fn reported(&mut self, number: u32, report: GuardReport) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let JobState::Command(begun) = job.state else { return };
        job.state = JobState::Resting;
        self.agenda.ended();
        let now = self.clock.now();
        let took = now.since(begun);
        if let Some(revoked) = job.revoked {
            if matches!(report, GuardReport::Gone { ended: ProcessExit::Signal(9), .. }) {
                // A deadline or a second signal may have left it less time than it usually has.
                let had = now.since(revoked).min(self.unhurried);
                let tenths = u64::try_from(had.as_millis() / 100).unwrap_or(u64::MAX);
                self.lines.hung(&job.shard, &shown(Duration::from_millis(tenths * 100)));
            }
            return self.end(number);
        }
        // Not an end: see `guard_event`.
        let Some(how) = how_it_ended(&report) else { return };
        let well = matches!(report, GuardReport::Gone { ended: ProcessExit::Code(0), .. });
        self.book.ended(outcome(well), took);
        if self.leaving.is_some() {
            // Nothing begins again.
            return;
        }
        let at = match self.task.every {
            Some(every) => {
                let at = self.next_slot(every, &self.jobs[&number].shard);
                if !well {
                    let job = &self.jobs[&number];
                    self.lines.ended(&job.shard, &how, &shown(at.since(now)));
                }
                at
            }
            None => {
                if took >= BACK_OFF_MOST {
                    job.pause = BACK_OFF;
                }
                let pause = job.pause;
                job.pause = (pause * 2).min(BACK_OFF_MOST);
                self.lines.ended(&job.shard, &how, &shown(pause));
                now + pause
            }
        };
        self.agenda.add(at, number);
    }

    /// Whether there was anything to kill.
    pub(super) fn kill_all(&mut self) -> bool {
        let now = self.clock.now();
        let mut any = false;
        for (number, job) in &self.jobs {
            if let (JobState::Command(_), Some((keeper, _))) = (&job.state, &self.keeper) {
                keeper.stop(*number, now);
                any = true;
            }
        }
        any
    }

    pub(super) fn start_guard(&mut self) -> std::io::Result<()> {
        let Some(duty) = &self.duty else { return Ok(()) };
        let (keeper, reports) = GuardClient::start(duty, self.store.clone())?;
        if let Some((number, hold, deadline)) = &self.membership {
            keeper.hold(*number, hold, None, *deadline);
        }
        for (number, job) in &self.jobs {
            let (work, shard) = (&job.work, job.shard.as_str());
            keeper.hold(*number, work.hold(), Some(shard), work.deadline());
        }
        self.keeper = Some((keeper, reports));
        Ok(())
    }

    /// Killed, or it did not act: nothing of any command is left by now. Another takes its place.
    pub(super) fn guard_is_gone(&mut self) {
        self.keeper = None;
        self.lines.trouble("the guard is gone, and with it every command: starting another");
        let now = self.clock.now();
        let running: Vec<u32> =
            self.jobs.iter().filter(|(_, job)| is_command(job)).map(|(n, _)| *n).collect();
        for number in running {
            self.agenda.ended();
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            job.state = JobState::Resting;
            if job.revoked.is_some() {
                self.end(number);
            } else {
                self.agenda.add(now + BACK_OFF, number);
            }
        }
        self.replace_guard(now);
    }

    /// While there is none no command begins, and everything else goes on: shards are revoked, signals come.
    pub(super) fn replace_guard(&mut self, now: Moment) {
        self.guard_at = None;
        if let Err(error) = self.start_guard() {
            self.lines.trouble(&format!("cannot start another guard: {error}"));
            self.guard_at = Some(now + BACK_OFF);
        }
    }
}

/// How a command ended that this member did not revoke; `None` for a report that is not an end.
fn how_it_ended(report: &GuardReport) -> Option<String> {
    Some(match report {
        GuardReport::CannotKill(_) | GuardReport::Acknowledged(_) => return None,
        GuardReport::Failed(why) => format!("could not be started: {why}"),
        GuardReport::Gone { told: true, .. } => {
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

pub(super) async fn report(keeper: &mut Option<(GuardClient, Reports)>) -> Option<GuardEvent> {
    match keeper {
        Some((_, reports)) => reports.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_the_guard_stopped_has_not_ended_by_itself() {
        let how = |ended, told| how_it_ended(&GuardReport::Gone { ended, told }).unwrap();
        assert_eq!(how(ProcessExit::Code(0), false), "has ended");
        assert_eq!(how(ProcessExit::Code(3), false), "has ended with code 3");
        assert_eq!(how(ProcessExit::Signal(9), false), "was ended by signal 9");
        let stopped = "was stopped by the guard, which received no renewal in time";
        assert_eq!(how(ProcessExit::Code(0), true), stopped);
        assert_eq!(how(ProcessExit::Signal(9), true), stopped);
        assert_eq!(how_it_ended(&GuardReport::Acknowledged(7)), None);
    }
}
