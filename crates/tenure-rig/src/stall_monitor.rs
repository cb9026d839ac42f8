//! Notices when the whole machine stands still, so that a trial does not take that for a fault of what it tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::system::time::{now, pause};

const INTERVAL: Duration = Duration::from_millis(10);

/// A thread that sleeps for 10 ms at a time, and remembers by how much it overslept most.
pub struct StallMonitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    longest_micros: AtomicU64,
    stopped: AtomicBool,
}

impl StallMonitor {
    pub fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        StallMonitor { shared, thread: Some(thread) }
    }

    /// The longest time since the start in which this process did not run although it was due.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.shared.longest_micros.load(Ordering::SeqCst))
    }
}

impl Shared {
    fn run(&self) {
        while !self.stopped.load(Ordering::SeqCst) {
            let due = now() + INTERVAL;
            pause(INTERVAL);
            let late = u64::try_from(now().since(due).as_micros()).unwrap_or(u64::MAX);
            self.longest_micros.fetch_max(late, Ordering::SeqCst);
        }
    }
}

impl Drop for StallMonitor {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
