//! The command-line options of a schedule.

use std::time::Duration;

use clap::Args as ClapArgs;
use tenure::{Error, Result};

use super::{Interrupted, Missed, Policy, Schedule};
use crate::duration;

#[derive(Debug, ClapArgs)]
pub(crate) struct ScheduleArgs {
    /// Run it this often, counted from 1970 in UTC [default: 5s for --get and --mock]
    #[arg(long, value_name = "D", env = "TENURE_EVERY", value_parser = duration::parse)]
    pub(crate) every: Option<Duration>,

    /// Run it when this cron expression comes: minute hour day month weekday, or six with the second in front
    #[arg(long, value_name = "EXPR", env = "TENURE_CRON")]
    pub(crate) cron: Option<String>,

    /// The time zone of --cron, like Europe/Berlin [default: local]
    #[arg(long, value_name = "TZ", env = "TENURE_TIMEZONE")]
    pub(crate) timezone: Option<String>,

    /// Slots that passed without a leader [default: run-once]
    #[arg(long, value_enum, value_name = "WHAT", env = "TENURE_MISSED")]
    pub(crate) missed: Option<Missed>,

    /// A run cut off by a change of leader [default: report]
    #[arg(long, value_enum, value_name = "WHAT", env = "TENURE_INTERRUPTED")]
    pub(crate) interrupted: Option<Interrupted>,
}

impl ScheduleArgs {
    /// The schedule, if there is one; `default_every` is the default period of the work.
    pub(crate) fn schedule(&self, default_every: Option<Duration>) -> Result<Option<Schedule>> {
        let schedule = match (self.every, &self.cron) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid("--every and --cron are two schedules: give one"));
            }
            (None, Some(cron)) => Some(Schedule::cron(cron, self.timezone.as_deref())?),
            (every, None) => every.or(default_every).map(Schedule::every).transpose()?,
        };
        if self.timezone.is_some() && self.cron.is_none() {
            return Err(Error::invalid(
                "--timezone is that of --cron, and there is none: give --cron, or leave it out",
            ));
        }
        for (flag, given) in
            [("--missed", self.missed.is_some()), ("--interrupted", self.interrupted.is_some())]
        {
            if given && schedule.is_none() {
                return Err(Error::invalid(format!(
                    "{flag} is about a schedule, and there is none: give --every or --cron, or leave it out"
                )));
            }
        }
        Ok(schedule)
    }

    /// The policy for the planner; with `--once`, `once` is when the process was started.
    pub(crate) fn policy(&self, once: Option<u64>) -> Policy {
        Policy {
            missed: self.missed.unwrap_or_default(),
            interrupted: self.interrupted.unwrap_or_default(),
            once,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct ScheduleLine {
        #[command(flatten)]
        schedule: ScheduleArgs,
    }

    fn read(line: &str) -> ScheduleArgs {
        ScheduleLine::try_parse_from(format!("run {line}").split(' ')).unwrap().schedule
    }

    fn refused(line: &str) -> String {
        let error = read(line.trim_end()).schedule(None).unwrap_err();
        assert_eq!(error.kind(), tenure::Kind::Invalid);
        error.to_string()
    }

    #[test]
    fn the_default_period_is_that_of_the_work() {
        let none = ScheduleLine::try_parse_from(["run"]).unwrap().schedule;
        assert!(none.schedule(None).unwrap().is_none());
        let five = none.schedule(Some(Duration::from_secs(5))).unwrap();
        assert!(matches!(five, Some(Schedule::Every(5_000))));
        let own = read("--every 1m").schedule(Some(Duration::from_secs(5))).unwrap();
        assert!(matches!(own, Some(Schedule::Every(60_000))));
        let cron = read("--cron @daily --timezone UTC").schedule(Some(Duration::from_secs(5)));
        assert!(matches!(cron.unwrap(), Some(Schedule::Cron(_))));
    }

    #[test]
    fn contradictions_are_refused_in_one_sentence() {
        assert!(refused("--every 5s --cron @daily").contains("give one"));
        assert!(refused("--every 5s --timezone UTC").contains("give --cron"));
        assert!(refused("--timezone UTC").contains("give --cron"));
        assert!(refused("--missed skip").starts_with("--missed is about a schedule"));
        assert!(refused("--interrupted rerun").starts_with("--interrupted is about a schedule"));
        assert!(refused("--every 0s").contains("must not be zero"));
        assert!(refused("--cron @daily --timezone Mars/Olympus").contains("Europe/Berlin"));
        assert!(refused("--cron @dayly --timezone UTC").contains("character 1"));
    }

    #[test]
    fn the_policy_follows_the_options() {
        let policy = read("--every 5s --missed skip --interrupted rerun").policy(Some(7));
        assert_eq!(policy.missed, Missed::Skip);
        assert_eq!(policy.interrupted, Interrupted::Rerun);
        assert_eq!(policy.once, Some(7));
        let policy = read("--every 5s --missed run-once --interrupted report").policy(None);
        assert_eq!(policy.missed, Missed::RunOnce);
        assert_eq!(policy.interrupted, Interrupted::Report);
    }
}
