//! A trial of one election: three candidates for one name, each `tenure run NAME -- WORKER`, observed from outside.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tenure::store::{Scope, Store};
use tenure::{Lease, Moment, Name, Token};
use tokio::runtime::Runtime;

use super::checker::{HistoryVerdict, Thaw, judge};
use super::history::{History, Line};
use super::processes::{self, below, children, is_killed, is_there};
use super::time::{now, pause, poll_until, runtime};
use super::token_register::{Books, Register};
use super::trial_directory::{TenureProcess, TrialDirectory};
use super::trial_store::{StoreKind, TrialStore};
use super::worker::{HISTORY, Mode};
use crate::stderr_faults::Stderr;

const IDS: [&str; 3] = ["a", "b", "c"];
pub const NAME: &str = "system:trial";
/// Longer than anything takes that works, however busy the machine is.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// A term in progress: its leader and its processes.
#[derive(Clone, Debug)]
pub struct ObservedTerm {
    pub token: u64,
    /// The index of the candidate.
    pub who: usize,
    pub leader: u32,
    pub guard: u32,
    /// The command and all its descendants.
    pub work: Vec<u32>,
}

// Fields are dropped in this order: the users of the store and the directory end before those.
pub struct ElectionTrial {
    pub ttl: Duration,
    pub mode: Mode,
    pub contenders: Vec<TenureProcess>,
    pub thaws: Vec<Thaw>,
    pub place: TrialStore,
    stderr: Option<Stderr>,
    name: Name,
    history: History,
    register: Register,
    /// Opened at the first observation: this process must not use a disk that is to be unmounted.
    store: OnceCell<Arc<dyn Store>>,
    runtime: Runtime,
    room: TrialDirectory,
}

impl ElectionTrial {
    /// Starts all candidates.
    pub fn new(kind: StoreKind, ttl: Duration, mode: Mode) -> ElectionTrial {
        ElectionTrial::with_stderr(kind, ttl, mode, None)
    }

    /// The same with a stderr that blocks or fails.
    pub fn with_stderr(
        kind: StoreKind,
        ttl: Duration,
        mode: Mode,
        stderr: Option<Stderr>,
    ) -> ElectionTrial {
        let mut stage = ElectionTrial::empty(kind, ttl, mode);
        stage.stderr = stderr;
        (0..IDS.len()).for_each(|_| stage.add());
        stage
    }

    /// Starts no candidate yet.
    pub fn empty(kind: StoreKind, ttl: Duration, mode: Mode) -> ElectionTrial {
        let room = TrialDirectory::new();
        let place = TrialStore::open(kind, room.path(), IDS.len());
        ElectionTrial {
            ttl,
            mode,
            contenders: Vec::new(),
            thaws: Vec::new(),
            place,
            stderr: None,
            name: Name::new(NAME).unwrap(),
            history: History::create(&room.path().join(HISTORY)),
            register: Register::open(room.path()),
            store: OnceCell::new(),
            runtime: runtime(),
            room,
        }
    }

    pub fn mark(&self) -> &str {
        self.room.mark()
    }

    /// The directory for files that are kept if the trial fails.
    pub fn directory(&self) -> &Path {
        self.room.path()
    }

    /// The log of a candidate.
    pub fn log_of(&self, who: usize) -> String {
        std::fs::read_to_string(self.room.log_of(IDS[who])).unwrap_or_default()
    }

    /// The newest term of a candidate, if it ever led.
    pub fn term_of(&mut self, who: usize) -> Option<u64> {
        let of_it = |line: &&Line| line.candidate == IDS[who];
        self.history.lines().iter().filter(of_it).map(|line| line.token).max()
    }

    pub fn add(&mut self) {
        self.contenders.push(self.start(self.contenders.len()));
    }

    /// Restarts a candidate that has ended.
    pub fn restart(&mut self, who: usize) {
        let status = self.contenders[who].ended();
        assert!(status.is_some(), "contender {} still runs", IDS[who]);
        self.contenders[who] = self.start(who);
    }

    fn start(&self, who: usize) -> TenureProcess {
        let mut command = self.room.command();
        command.args(["--store", &self.place.url_for(who), "--log-level", "debug"]);
        command.args(["run", self.name.as_str(), "--node-id", IDS[who], "--lease-duration"]);
        command.arg(format!("{}ms", self.ttl.as_millis()));
        command.arg("--").arg(std::env::current_exe().unwrap()).args(["worker", self.mode.name()]);
        command.arg(self.room.path());
        self.room.start(IDS[who], command, self.stderr)
    }

    /// Waits until a candidate's worker writes, and returns its term.
    pub fn steady(&mut self) -> ObservedTerm {
        let found = poll_until(TIMEOUT, || {
            let line = self.history.newest()?;
            let fresh = now().since(line.at) < Duration::from_millis(100);
            fresh.then(|| self.term(&line)).flatten()
        });
        found.unwrap_or_else(|| self.fail("no candidate runs its work"))
    }

    /// As [`ElectionTrial::steady`], after the waiting candidates have had time to observe the holder.
    pub fn settled(&mut self) -> ObservedTerm {
        self.steady();
        pause(Duration::from_millis(150));
        self.steady()
    }

    fn term(&self, line: &Line) -> Option<ObservedTerm> {
        let who = self.contenders.iter().position(|each| each.id == line.candidate)?;
        let leader = self.contenders[who].pid();
        let guard = *children(leader).first()?;
        let work = below(guard);
        (!work.is_empty()).then_some(ObservedTerm { token: line.token, who, leader, guard, work })
    }

    /// The first effect of the next term.
    pub fn next_after(&mut self, token: u64, limit: Duration) -> Line {
        let found = poll_until(limit, || self.history.first_after(token));
        found
            .unwrap_or_else(|| self.fail(&format!("no candidate runs its work after term {token}")))
    }

    /// The first effect, of any term, that is not before `at`.
    pub fn next_since(&mut self, at: Moment) -> Line {
        let since = |history: &mut History| {
            history.lines().iter().filter(|line| line.at >= at).min_by_key(|line| line.at).cloned()
        };
        let found = poll_until(TIMEOUT, || since(&mut self.history));
        found.unwrap_or_else(|| self.fail("no candidate runs its work any more"))
    }

    /// The last effect of a term.
    pub fn last_of(&mut self, token: u64) -> Line {
        self.history.last_of(token).unwrap_or_else(|| self.fail(&format!("no term {token}")))
    }

    /// Waits until these processes are gone.
    pub fn gone(&mut self, pids: &[u32]) {
        self.until(pids, |pid| !is_there(pid));
    }

    /// Waits until these processes have received SIGKILL, and returns when that was observed.
    pub fn killed(&mut self, pids: &[u32]) -> Moment {
        self.until(pids, is_killed)
    }

    fn until(&mut self, pids: &[u32], is_so: impl Fn(u32) -> bool) -> Moment {
        let end = now() + TIMEOUT;
        loop {
            let at = now();
            if pids.iter().all(|pid| is_so(*pid)) {
                return at;
            }
            if at > end {
                let left = processes::described(pids);
                self.fail(&format!("processes that should be gone:\n{left}"));
            }
            // Short, because the result is a measurement, but no busy loop: the processes that are to end need the processor.
            pause(Duration::from_micros(200));
        }
    }

    /// Waits until a candidate has ended by itself.
    pub fn ended(&mut self, who: usize) -> ExitStatus {
        let ended = poll_until(TIMEOUT, || self.contenders[who].ended());
        ended.unwrap_or_else(|| self.fail(&format!("contender {} does not end", IDS[who])))
    }

    /// Waits until a candidate runs without a guard and a command.
    pub fn waits(&mut self, who: usize) {
        let pid = self.contenders[who].pid();
        let idle = poll_until(TIMEOUT, || children(pid).is_empty().then_some(()));
        idle.unwrap_or_else(|| self.fail(&format!("contender {} has still work", IDS[who])));
        if let Some(status) = self.contenders[who].ended() {
            self.fail(&format!("contender {} does not wait, it ended: {status}", IDS[who]));
        }
    }

    fn observe(&self) -> tenure::Result<Option<Lease>> {
        let scope = Scope::name(&self.name);
        let store = self.store.get_or_init(|| {
            self.runtime.block_on(tenure::open(&self.place.url())).expect("the URL is right")
        });
        let found = self.runtime.block_on(store.observe(&scope))?;
        found.into_iter().next().transpose()
    }

    /// When this term's lease expires unless it is renewed; `None` if the term is over.
    pub fn expiry(&self, token: u64) -> Option<Moment> {
        let before = now();
        let lease = self.observe().unwrap()?;
        let same = lease.holder.is_some() && lease.token.map(Token::get) == Some(token);
        same.then(|| before + lease.left)
    }

    /// Waits until a candidate is granted a lease newer than `token`, before it can have acted on it. Returns the candidate and
    /// the token.
    pub fn granted_after(&self, token: u64) -> (usize, u64) {
        let end = now() + self.ttl + TIMEOUT;
        while now() < end {
            // A lease that cannot be read now can be read a moment later.
            let lease = self.observe().ok().flatten();
            let found = lease.and_then(|lease| Some((lease.holder?.id, lease.token?.get())));
            if let Some((id, granted)) = found
                && granted > token
            {
                let who = self.contenders.iter().position(|each| each.id == id);
                return (who.expect("one of ours"), granted);
            }
            pause(Duration::from_micros(100));
        }
        self.fail(&format!("no candidate leads after term {token}"));
    }

    pub fn books(&self) -> Books {
        self.register.books()
    }

    /// How long one observation of the store takes.
    pub fn round_trip(&self) -> Duration {
        let before = now();
        self.observe().unwrap();
        now().since(before)
    }

    /// Stops all candidates and checks that no process is left and that the history is clean.
    pub fn finish(mut self) -> (HistoryVerdict, Books) {
        let (verdict, books) = self.close();
        if !verdict.is_clean() || books.stale_accepted() > 0 {
            self.fail(&format!("{verdict}\nstale writes accepted: {}", books.stale_accepted()));
        }
        (verdict, books)
    }

    /// Stops all candidates, checks that no process is left, and returns the judge's verdict.
    pub fn close(&mut self) -> (HistoryVerdict, Books) {
        self.stop();
        self.room.empties().unwrap_or_else(|why| self.fail(&why));
        // A candidate that was killed together with its guard leaves its lease to the TTL.
        let free = poll_until(self.ttl + TIMEOUT, || {
            let mut status = self.room.command();
            status.args(["--store", &self.place.url(), "status", self.name.as_str()]);
            (status.stdout(Stdio::null()).status().unwrap().code() == Some(1)).then_some(())
        });
        free.unwrap_or_else(|| self.fail("a candidate still leads"));
        let verdict = judge(self.history.lines(), &self.thaws, self.mode.workers());
        (verdict, self.books())
    }

    /// Ends all candidates.
    pub fn stop(&mut self) {
        let end = if self.mode.handles_sigterm() { Signal::TERM } else { Signal::KILL };
        for contender in &mut self.contenders {
            contender.signal(Signal::CONT);
            contender.signal(end);
        }
        for who in 0..self.contenders.len() {
            self.ended(who);
        }
    }

    /// Fails the trial, and keeps its history and logs.
    pub fn fail(&self, why: &str) -> ! {
        self.room.fail(why)
    }

    /// Copies the history and the logs to a directory that outlives this process.
    pub fn keep(&self) -> PathBuf {
        self.room.keep()
    }
}

impl Drop for ElectionTrial {
    fn drop(&mut self) {
        self.room.clear(&mut self.contenders);
    }
}
