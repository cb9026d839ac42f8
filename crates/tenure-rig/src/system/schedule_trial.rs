//! A trial of one schedule: three candidates run it, observed from outside.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use super::checker::{HistoryVerdict, Workers, judge};
use super::election_trial::TIMEOUT;
use super::history::{History, Line};
use super::poll_server::PollServer;
use super::processes::is_stopped;
use super::slots::{Observer, ScheduleObservation, SlotVerdict, Started, check_slots};
use super::time::{poll_until, runtime};
use super::trial_directory::{TenureProcess, TrialDirectory};
use super::trial_store::{StoreKind, TrialStore};
use super::worker::HISTORY;

const IDS: [&str; 3] = ["a", "b", "c"];
pub const NAME: &str = "system:schedule";

/// The work of a schedule, and its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A command, `--every` this many milliseconds.
    Every(u64),
    /// A command, by `--cron`, each second.
    Cron,
    /// `--get`, `--every` this many milliseconds.
    Get(u64),
}

impl Work {
    pub fn name(self) -> &'static str {
        match self {
            Work::Every(_) => "every",
            Work::Cron => "cron",
            Work::Get(_) => "get",
        }
    }

    /// The time between two slots, in milliseconds.
    pub fn period_ms(self) -> u64 {
        match self {
            Work::Every(ms) | Work::Get(ms) => ms,
            Work::Cron => 1_000,
        }
    }
}

// Fields are dropped in this order: the users of the store and the directory end before those.
pub struct Scheduled {
    pub candidates: Vec<TenureProcess>,
    pub observer: Observer,
    _polled: Option<PollServer>,
    pub place: TrialStore,
    history: History,
    arguments: Vec<String>,
    ttl: Duration,
    room: TrialDirectory,
}

impl Scheduled {
    /// Starts all candidates; `more` are further arguments of `tenure run`.
    pub fn new(kind: StoreKind, ttl: Duration, work: Work, more: &[&str]) -> Scheduled {
        let room = TrialDirectory::new();
        let place = TrialStore::open(kind, room.path(), IDS.len());
        let history = History::create(&room.path().join(HISTORY));
        let url = place.url();
        let polled =
            matches!(work, Work::Get(_)).then(|| PollServer::start(room.path(), &url, NAME));
        let mut arguments: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
        arguments.extend(match work {
            Work::Cron => ["--cron".to_owned(), "* * * * * *".to_owned()],
            Work::Every(ms) | Work::Get(ms) => ["--every".to_owned(), format!("{ms}ms")],
        });
        match &polled {
            Some(polled) => arguments.extend(["--get".to_owned(), polled.url()]),
            None => {
                let program = std::env::current_exe().unwrap().display().to_string();
                let directory = room.path().display().to_string();
                let command = ["--", &program, "slot", &url, NAME, &directory];
                arguments.extend(command.map(str::to_owned));
            }
        }
        let observer = Observer::open(&url, NAME);
        let candidates = Vec::new();
        let mut stage = Scheduled {
            candidates,
            observer,
            _polled: polled,
            place,
            history,
            arguments,
            ttl,
            room,
        };
        (0..IDS.len()).for_each(|who| {
            let started = stage.start(who);
            stage.candidates.push(started);
        });
        stage
    }

    fn start(&self, who: usize) -> TenureProcess {
        let mut command = self.room.command();
        command.args(["--store", &self.place.url_for(who), "run", NAME, "--node-id", IDS[who]]);
        command.args(["--lease-duration", &format!("{}ms", self.ttl.as_millis())]);
        command.args(&self.arguments);
        self.room.start(IDS[who], command, None)
    }

    /// Waits until a killed candidate has ended, and starts it again.
    pub fn restart(&mut self, who: usize) {
        let ended = poll_until(TIMEOUT, || self.candidates[who].ended());
        assert!(ended.is_some(), "candidate {} does not end", IDS[who]);
        self.candidates[who] = self.start(who);
    }

    /// Sends SIGSTOP and waits until the process has stopped.
    pub fn freeze(&mut self, who: usize) {
        self.candidates[who].signal(Signal::STOP);
        let pid = self.candidates[who].pid();
        poll_until(TIMEOUT, || is_stopped(pid).then_some(())).expect("it stops");
    }

    pub fn directory(&self) -> &Path {
        self.room.path()
    }

    /// What a candidate has logged.
    pub fn log_of(&self, who: usize) -> String {
        std::fs::read_to_string(self.room.log_of(IDS[who])).unwrap_or_default()
    }

    /// The index of the candidate with this id.
    pub fn who(&self, id: &str) -> usize {
        IDS.iter().position(|each| *each == id).expect("one of the three")
    }

    /// Waits until the store shows what `wanted` accepts.
    pub fn until<T>(
        &self,
        what: &str,
        mut wanted: impl FnMut(ScheduleObservation) -> Option<T>,
    ) -> T {
        let found =
            poll_until(self.ttl + TIMEOUT, || self.observer.observe().and_then(&mut wanted));
        found.unwrap_or_else(|| self.fail(&format!("not within its time: {what}")))
    }

    /// Waits for a leader that has finished a run of its own. Returns its index, and what the store shows.
    pub fn at_work(&self) -> (usize, ScheduleObservation) {
        let saved = self.until("a leader has finished a run", |saved| {
            let mine = saved.holder.as_ref() == Some(&saved.by);
            (mine && !saved.running).then_some(saved)
        });
        (self.who(&saved.by), saved)
    }

    /// Every effect so far.
    pub fn effects(&mut self) -> Vec<Line> {
        self.history.lines().to_vec()
    }

    /// Ends all candidates, and checks everything that they have done.
    pub fn close(&mut self) -> (HistoryVerdict, SlotVerdict) {
        for candidate in &mut self.candidates {
            candidate.signal(Signal::CONT);
            candidate.signal(Signal::TERM);
        }
        for (who, id) in IDS.iter().enumerate() {
            let ended = poll_until(TIMEOUT, || self.candidates[who].ended());
            ended.unwrap_or_else(|| self.fail(&format!("candidate {id} does not end")));
        }
        self.room.empties().unwrap_or_else(|why| self.fail(&why));
        let verdict = judge(&self.effects(), &[], Workers::One);
        (verdict, check_slots(&Started::read(self.directory())))
    }

    /// As [`Scheduled::close`]; fails if two terms overlap or a slot was started twice.
    pub fn finish(mut self) -> (HistoryVerdict, SlotVerdict) {
        let (verdict, slots) = self.close();
        if !verdict.is_clean() || !slots.is_clean() {
            self.fail(&format!("{verdict}\n{slots}"));
        }
        (verdict, slots)
    }

    /// Fails the trial, and keeps its history and logs.
    pub fn fail(&self, why: &str) -> ! {
        self.room.fail(why)
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        self.room.clear(&mut self.candidates);
    }
}

/// Now in Unix milliseconds: slots are named by the wall clock.
pub fn unix_ms() -> u64 {
    tenure::Clock::boot().minting_micros() / 1_000
}

/// Waits for the time that is `before_ms` before the next slot of a period.
pub fn pause_until_before_slot(period_ms: u64, before_ms: u64) {
    let into = (unix_ms() + before_ms) % period_ms;
    let wait = Duration::from_millis(period_ms - into);
    runtime().block_on(tenure::Clock::boot().sleep(wait));
}
