//! The command-line options of `tenure run` and `tenure serve`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args as ClapArgs;
use clap::builder::BoolishValueParser;
use tenure::timing::TimingOptions;
use tenure::{CandidateId, Error, HealthGate, Name, Result};

use crate::http::{AnswerArgs, HttpArgs};
use crate::schedule::ScheduleArgs;
use crate::{duration, selector};

const GET_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure run billing:nightly -- /opt/billing/run.sh        only where this candidate leads
  tenure run migrate --once --wait 5m -- ./migrate up      at start-up, one at a time
  tenure run report --wait 0s -- ./report.sh               now or not at all (exit 120)
  tenure run report --once --every 1d -- ./report.sh       in the crontab of many hosts: one run a day
  tenure run poll --get http://127.0.0.1:8080/ --every 5s  polls where it leads
  tenure run                                               a whole instance, from REDIS_URL and PORT, or a .env
  tenure run db --health 'pg_isready -q' -- ./promote.sh   fit candidates only
  tenure run demo --mock --heartbeat 1s                    nothing but the election

The command gets TENURE_NAME, TENURE_TOKEN and TENURE_CANDIDATE. It is run without a shell. When it
ends, the lease is released and its exit code is ours. When leadership is lost it is stopped (SIGTERM,
then SIGKILL before anyone else may lead), and we campaign again.

Exit codes: the command's own, 128+N if it died of signal N; 0 stopped with no command running;
120 --wait ran out; 121 leadership lost, with --once; 122 store unreachable, with --wait; 123 an
operator must act; 125 usage; 126, 127 the command cannot be run, is not found.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,

    #[command(flatten, next_help_heading = "Timing")]
    pub(crate) timing: TimingArgs,

    #[command(flatten, next_help_heading = "Work")]
    pub(crate) work: WorkArgs,

    #[command(flatten, next_help_heading = "Service")]
    pub(crate) service: ServiceArgs,
}

/// Which lease.
#[derive(Debug, ClapArgs)]
pub(crate) struct LeaseArgs {
    /// The lease
    #[arg(value_parser = selector::name)]
    pub(crate) name: Option<Name>,

    /// Another way to give NAME
    #[arg(long, value_name = "NAME", env = "TENURE_LOCK_NAME", value_parser = selector::name)]
    pub(crate) lock_name: Option<Name>,
}

impl LeaseArgs {
    /// The name of the lease, from NAME or `--lock-name`.
    pub(crate) fn name(&self) -> Result<Option<&Name>> {
        if self.name.is_some() && self.lock_name.is_some() {
            return Err(Error::invalid("NAME and --lock-name both name the lease: give one"));
        }
        Ok(self.name.as_ref().or(self.lock_name.as_ref()))
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TimingArgs {
    /// This candidate's id, unique among them [default: HOSTNAME-PID-RANDOM]
    #[arg(long, value_name = "ID", env = "TENURE_NODE_ID", value_parser = selector::id)]
    #[arg(visible_alias = "instance-id")]
    pub(crate) node_id: Option<CandidateId>,

    /// TTL: time to recovery when a machine vanishes [default: 4s, fleet 30s]
    #[arg(long, value_name = "D", env = "TENURE_LEASE_DURATION", value_parser = duration::parse)]
    pub(crate) lease_duration: Option<Duration>,

    /// How often the holder renews [default: TTL/3]
    #[arg(long, value_name = "D", env = "TENURE_RENEW_INTERVAL", value_parser = duration::parse)]
    pub(crate) renew_interval: Option<Duration>,

    /// Longest a waiter goes without looking at the store itself [default: TTL]
    #[arg(long, value_name = "D", env = "TENURE_RETRY_PERIOD", value_parser = duration::parse)]
    pub(crate) retry_period: Option<Duration>,

    /// Step down after renewals failed this long [default: the deadline decides]
    #[arg(long, value_name = "D", env = "TENURE_GRACE_PERIOD", value_parser = duration::parse)]
    pub(crate) grace_period: Option<Duration>,

    /// The cut between the lease and the leader's own deadline [default: TTL/10]
    #[arg(long, value_name = "D", env = "TENURE_MARGIN", value_parser = duration::parse)]
    pub(crate) margin: Option<Duration>,

    /// The time the command gets to stop, before the deadline [default: TTL/5]
    #[arg(long, value_name = "D", env = "TENURE_STOP_WITHIN", value_parser = duration::parse)]
    pub(crate) stop_within: Option<Duration>,

    /// How far clocks may drift apart, in millionths [default: 1000]
    #[arg(long, value_name = "PPM", env = "TENURE_DRIFT")]
    pub(crate) drift: Option<u32>,

    /// On a free lease higher numbers come first; never takes a live one
    #[arg(long, value_name = "N", env = "TENURE_PRIORITY", default_value_t = 0)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) priority: i32,
}

impl TimingArgs {
    /// The durations as options of the library.
    pub(crate) fn options(&self) -> TimingOptions {
        let mut options = TimingOptions::default();
        options.ttl = self.lease_duration;
        options.renew_every = self.renew_interval;
        options.retry = self.retry_period;
        options.grace = self.grace_period;
        options.margin = self.margin;
        options.stop_within = self.stop_within;
        options.drift_ppm = self.drift;
        options
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WorkArgs {
    #[command(flatten)]
    pub(crate) task: TaskArgs,

    #[command(flatten)]
    pub(crate) schedule: ScheduleArgs,

    /// One run at most: end when it has ended or leadership is lost. With a schedule: run the current slot unless somebody has
    #[arg(long, env = "TENURE_ONCE", value_parser = BoolishValueParser::new())]
    pub(crate) once: bool,

    /// Give up when not leading after D; 0s tries once [default: wait for ever]
    #[arg(long, value_name = "D", env = "TENURE_WAIT", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
}

/// What the leader does, and the owner of a shard.
#[derive(Debug, ClapArgs)]
pub(crate) struct TaskArgs {
    /// The command, with its arguments, behind --
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    /// No command: poll this URL; 2xx is success
    #[arg(long, value_name = "URL", env = "TENURE_GET", hide_env_values = true)]
    get: Option<String>,

    /// How long an answer to --get may take [default: 10s]
    #[arg(long, value_name = "D", env = "TENURE_TIMEOUT", value_parser = duration::parse)]
    timeout: Option<Duration>,

    /// No command: count in the log, to see what happens
    #[arg(long, env = "TENURE_MOCK", value_parser = BoolishValueParser::new())]
    mock: bool,

    /// No process that ends the command when we are killed or frozen
    #[arg(long, env = "TENURE_NO_GUARD", value_parser = BoolishValueParser::new())]
    pub(crate) no_guard: bool,
}

/// The work that was given on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GivenWork<'a> {
    /// The command with its arguments; never empty.
    Command(&'a [OsString]),
    Get(&'a str),
    Mock,
}

impl TaskArgs {
    /// Returns the work that was given, if any.
    pub(crate) fn given(&self) -> Result<Option<GivenWork<'_>>> {
        if self.timeout.is_some() && self.get.is_none() {
            return Err(Error::invalid(
                "--timeout is how long an answer to --get may take, and there is no --get: leave it out \
                 (for a command: -- timeout 30 CMD)",
            ));
        }
        match (&self.command[..], self.get.as_deref(), self.mock) {
            ([], None, false) => Ok(None),
            (command @ [_, ..], None, false) => Ok(Some(GivenWork::Command(command))),
            ([], Some(url), false) => Ok(Some(GivenWork::Get(url))),
            ([], None, true) => Ok(Some(GivenWork::Mock)),
            _ => Err(Error::invalid(
                "a command, --get and --mock are kinds of work: give one of them",
            )),
        }
    }

    /// How long a response to `--get` may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(GET_TIMEOUT)
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ServiceArgs {
    /// Lead only while this shell command succeeds
    #[arg(long, value_name = "CMD", env = "TENURE_HEALTH")]
    pub(crate) health: Option<String>,

    /// How often to ask it, and how long it may take
    #[arg(long, value_name = "D", env = "TENURE_HEALTH_EVERY", value_parser = duration::parse)]
    #[arg(default_value = "2s")]
    pub(crate) health_every: Duration,

    /// So many failures in a row make this candidate unfit
    #[arg(long, value_name = "N", env = "TENURE_HEALTH_FAILS", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) health_fails: u32,

    /// So many successes in a row make it fit again
    #[arg(long, value_name = "N", env = "TENURE_HEALTH_PASSES", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) health_passes: u32,

    /// Shell command to run when this candidate has become leader, before its work begins
    #[arg(long, value_name = "CMD", env = "TENURE_ON_LEAD")]
    pub(crate) on_lead: Option<String>,

    /// Shell command to run when it leads no more and its work has ended
    #[arg(long, value_name = "CMD", env = "TENURE_ON_LOSE")]
    pub(crate) on_lose: Option<String>,

    #[command(flatten)]
    pub(crate) http: HttpArgs,

    /// Do not show others that this candidate is there
    #[arg(long, env = "TENURE_NO_PRESENCE", value_parser = BoolishValueParser::new())]
    pub(crate) no_presence: bool,

    /// A line about where this candidate stands, this often
    #[arg(long, value_name = "D", env = "TENURE_HEARTBEAT", value_parser = duration::parse)]
    pub(crate) heartbeat: Option<Duration>,
}

impl ServiceArgs {
    pub(crate) fn gate(&self) -> HealthGate {
        HealthGate::new(self.health_every, self.health_fails, self.health_passes)
    }
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  tenure serve billing                                 GET http://127.0.0.1:3000/leader: 200 or 503
  tenure serve billing --http 0.0.0.0:8080 --on-lead 'logger leads' --on-lose 'logger lost'
  tenure run billing --http 3000 -- /opt/billing/run   a program that runs only where it leads

Start no program by --on-lead that must not run twice (systemctl start): no guard ends it when
tenure is killed or frozen, and it runs on beside the next leader's.

An answer says for how long it may be relied on (validForMs); the lease is given back only when the last
one has run out. What others do with an answer cannot be seen from here, so our death does not free the
lease early: the TTL does.

Exit codes: 0 stopped; 122 store unreachable; 123 an operator must act; 125 usage.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,

    #[command(flatten, next_help_heading = "Timing")]
    pub(crate) timing: TimingArgs,

    #[command(flatten, next_help_heading = "Service")]
    pub(crate) service: ServiceArgs,

    #[command(flatten, next_help_heading = "Service")]
    pub(crate) answers: AnswerArgs,
}
