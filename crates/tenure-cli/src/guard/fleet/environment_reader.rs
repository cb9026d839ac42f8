//! Reads `/proc/PID/environ` on a separate thread, and waits only briefly for the result.
//!
//! The kernel reads the environment from the memory of the other process, and waits for a lock that this process may hold for
//! as long as a disk does not respond. The guard's only thread has deadlines to meet, so it does not wait with the kernel. An
//! environment that is not read in time counts as unreadable; a late result is used by the next walk.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use tenure::Clock;

use super::super::procfs::ProcessInfo;

/// How long one walk waits for all its reads together: less than the time between SIGKILL and any deadline.
const WAIT_PER_WALK: Duration = Duration::from_millis(10);

/// The most reads that may hang at the same time, each on its own thread. Beyond that every environment counts as unreadable.
const MAX_PENDING: usize = 8;

/// Process number and start time.
type Key = (i32, u64);
type Environment = Option<Vec<u8>>;
type ReadEnvironmentFn = fn(i32) -> Environment;

/// A thread that reads one environment after the other. It ends when this is dropped and its read has returned.
#[derive(Debug)]
struct Reader {
    requests: Sender<(i32, Sender<Environment>)>,
}

impl Reader {
    /// `None` where no thread can be started.
    fn start(read: ReadEnvironmentFn) -> Option<Reader> {
        let (requests, queue) = mpsc::channel::<(i32, Sender<Environment>)>();
        let work = move || {
            for (pid, reply) in queue {
                // A walk that is over does not receive it.
                let _ = reply.send(read(pid));
            }
        };
        let thread = thread::Builder::new().name("tenure-environ".to_owned());
        thread.stack_size(128 * 1024).spawn(work).ok().map(|_detached| Reader { requests })
    }

    fn request(&self, pid: i32) -> Option<Receiver<Environment>> {
        let (reply, answer) = mpsc::channel();
        self.requests.send((pid, reply)).ok().map(|()| answer)
    }
}

/// Reads environments within a bounded time.
#[derive(Debug)]
pub(super) struct EnvironmentReader {
    read: ReadEnvironmentFn,
    /// The idle thread. It is started before it is needed: later the system may refuse another thread.
    idle: Option<Reader>,
    /// Reads that did not return in time.
    pending: HashMap<Key, Receiver<Environment>>,
    /// The results of reads that have returned since.
    late: HashMap<Key, Environment>,
    /// How long this walk may still wait.
    budget: Duration,
}

impl EnvironmentReader {
    pub(super) fn new(read: ReadEnvironmentFn) -> EnvironmentReader {
        EnvironmentReader {
            read,
            idle: Reader::start(read),
            pending: HashMap::new(),
            late: HashMap::new(),
            budget: WAIT_PER_WALK,
        }
    }

    /// Begins another walk over all processes.
    pub(super) fn begin_walk(&mut self) {
        self.budget = WAIT_PER_WALK;
        self.late.clear();
        let late = &mut self.late;
        self.pending.retain(|key, answer| match answer.try_recv() {
            Ok(environment) => {
                late.insert(*key, environment);
                false
            }
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Disconnected) => false,
        });
    }

    /// The environment that this process was started with; `None` if it cannot be read, or not in time.
    pub(super) fn read(&mut self, process: &ProcessInfo) -> Environment {
        let key = (process.pid, process.started);
        if let Some(environment) = self.late.remove(&key) {
            return environment;
        }
        if self.pending.contains_key(&key) || self.pending.len() >= MAX_PENDING {
            return None;
        }
        let reader = match self.idle.take() {
            Some(reader) => reader,
            None => Reader::start(self.read)?,
        };
        let answer = reader.request(process.pid)?;
        let clock = Clock::boot();
        let requested_at = clock.now();
        let environment = answer.recv_timeout(self.budget);
        self.budget = self.budget.saturating_sub(clock.now().since(requested_at));
        match environment {
            Ok(environment) => {
                self.idle = Some(reader);
                environment
            }
            Err(RecvTimeoutError::Timeout) => {
                // Its thread continues alone, and the next read gets another.
                self.pending.insert(key, answer);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Reads of processes with an odd number hang while the test holds this.
    static STUCK: Mutex<()> = Mutex::new(());

    fn stuck() -> MutexGuard<'static, ()> {
        STUCK.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(pid: i32) -> Environment {
        if pid % 2 == 1 {
            drop(stuck());
        }
        Some(pid.to_string().into_bytes())
    }

    fn process(pid: i32) -> ProcessInfo {
        ProcessInfo { pid, parent: 1, group: 1, session: 1, started: 5, ended: false }
    }

    /// Walks repeatedly until the environment of this process is known.
    fn eventually(reader: &mut EnvironmentReader, pid: i32) -> Vec<u8> {
        loop {
            reader.begin_walk();
            if let Some(environment) = reader.read(&process(pid)) {
                return environment;
            }
        }
    }

    /// One test, because all share one lock. It fails, and does not hang, if a walk waits for a read.
    #[test]
    fn a_read_that_hangs_delays_no_walk_and_its_late_result_is_used() {
        let (running, ended) = mpsc::channel::<()>();
        let walks = thread::spawn(move || {
            let _running = running;
            walk_while_reads_hang();
        });
        let ended = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(
            ended,
            Err(RecvTimeoutError::Disconnected),
            "a walk waits for a read that hangs"
        );
        walks.join().unwrap();
    }

    fn walk_while_reads_hang() {
        let mut reader = EnvironmentReader::new(read);
        assert_eq!(eventually(&mut reader, 2), b"2");
        let hanging = stuck();
        reader.begin_walk();
        assert_eq!(reader.read(&process(1)), None);
        assert_eq!(reader.budget, Duration::ZERO, "this walk waits no more");
        assert_eq!(eventually(&mut reader, 4), b"4", "others are read all the same");
        for pid in [1, 3, 5, 7, 9, 11, 13, 15, 17, 19] {
            reader.begin_walk();
            assert_eq!(reader.read(&process(pid)), None);
            assert!(reader.pending.len() <= MAX_PENDING);
        }
        assert_eq!(reader.read(&process(6)), None, "too many hang");
        drop(hanging);
        for pid in [1, 3, 15, 17, 6] {
            assert_eq!(eventually(&mut reader, pid), pid.to_string().into_bytes());
        }
        reader.late.insert((1, 5), None);
        reader.begin_walk();
        assert!(reader.late.is_empty(), "what no walk asks for is dropped");
    }
}
