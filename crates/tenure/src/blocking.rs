//! A thread pool for work that may block: files, locks, name services.
//!
//! Tokio's `spawn_blocking` panics when the kernel refuses a new thread, and ends idle threads after 10 seconds. So a process
//! that reached its thread limit would lose its lease in a panic. This pool keeps a few threads forever. If no other thread can
//! be started, work waits for one of them; if there is none at all, the caller gets an error.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// The number of idle threads that are never ended.
const KEPT_THREADS: usize = 4;
/// The maximum number of threads: a disk or a name service that hangs must not exhaust the process.
const MAX_THREADS: usize = 256;
/// How long a thread beyond the kept ones waits for work before it ends.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Work that returns the delivery of its result. The thread counts as idle before the result is delivered, so a caller that
/// sends work in sequence uses one thread.
type BlockingWork = Box<dyn FnOnce() -> Delivery + Send>;
type Delivery = Box<dyn FnOnce() + Send>;

struct Pool {
    /// The process that the threads belong to: a forked child has none of them.
    pid: u32,
    queue: VecDeque<BlockingWork>,
    threads: usize,
    /// Threads that wait for work, or are about to.
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { pid: 0, queue: VecDeque::new(), threads: 0, idle: 0 });
static QUEUED: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on a thread where it may block. Dropping the future does not end the work.
///
/// # Errors
/// Unavailable if no thread can be started and there is none, or if `work` panics.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    run_with(work, spawn).await
}

async fn run_with<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    spawn: fn() -> io::Result<()>,
) -> Result<T> {
    let (sender, result) = oneshot::channel();
    let work: BlockingWork = Box::new(move || {
        let result = work();
        Box::new(move || {
            // The caller may have dropped its future.
            let _ = sender.send(result);
        })
    });
    enqueue(work, spawn)?;
    result.await.map_err(|_| Error::unavailable("a thread of the store panicked"))
}

fn enqueue(work: BlockingWork, spawn: fn() -> io::Result<()>) -> Result<()> {
    let mut pool = pool();
    let pid = std::process::id();
    if pool.pid != pid {
        *pool = Pool { pid, queue: VecDeque::new(), threads: 0, idle: 0 };
    }
    if pool.queue.len() >= pool.idle && pool.threads < MAX_THREADS {
        match spawn() {
            Ok(()) => pool.threads += 1,
            // A busy thread will run the work later.
            Err(_) if pool.threads > 0 => {}
            Err(error) => return Err(no_thread(&error)),
        }
    }
    pool.queue.push_back(work);
    QUEUED.notify_one();
    Ok(())
}

fn spawn() -> io::Result<()> {
    std::thread::Builder::new().name("tenure-blocking".to_owned()).spawn(serve).map(drop)
}

/// Starts a thread with its own runtime, and runs `work` on it.
///
/// The thread is started before the runtime: a runtime must not be dropped in asynchronous code, and this would happen if the
/// thread could not be started.
///
/// # Errors
/// The error of the kernel, if the thread or the runtime cannot be created.
pub fn spawn_runtime(
    name: &str,
    work: impl FnOnce(Runtime) + Send + 'static,
) -> io::Result<(Handle, JoinHandle<()>)> {
    let (sender, runtime) = mpsc::sync_channel(1);
    let work = move || {
        if let Ok(runtime) = runtime.recv() {
            work(runtime);
        }
    };
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    // Cannot fail: the thread waits for it.
    let _ = sender.send(runtime);
    Ok((handle, thread))
}

fn no_thread(error: &io::Error) -> Error {
    Error::unavailable(format!(
        "cannot start a thread: {error}; raise the limit of processes (ulimit -u, or pids.max of \
         the control group)"
    ))
}

/// The main loop of one thread.
fn serve() {
    let mut pool = pool();
    pool.idle += 1;
    loop {
        if let Some(work) = pool.queue.pop_front() {
            pool.idle -= 1;
            drop(pool);
            let delivery = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            self::pool().idle += 1;
            // If the work panicked, the caller notices that the sender was dropped.
            if let Ok(deliver) = delivery {
                deliver();
            }
            pool = self::pool();
            continue;
        }
        let waited;
        (pool, waited) =
            QUEUED.wait_timeout(pool, IDLE_LIMIT).unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && pool.queue.is_empty() && pool.idle > KEPT_THREADS {
            pool.idle -= 1;
            pool.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::WouldBlock))
    }

    #[tokio::test]
    async fn work_waits_for_a_thread_where_no_other_can_be_started() {
        assert_eq!(run(|| 1).await.unwrap(), 1);
        // Every thread is busy, and no other can be started.
        let (release, busy) = mpsc::channel::<()>();
        let busy = std::sync::Arc::new(Mutex::new(busy));
        let mut working = Vec::new();
        while pool().idle > 0 || working.is_empty() {
            let busy = busy.clone();
            let wait = move || busy.lock().unwrap_or_else(PoisonError::into_inner).recv().is_ok();
            working.push(tokio::spawn(run(wait)));
            tokio::task::yield_now().await;
        }
        let queued = tokio::spawn(run_with(|| 2, refused));
        tokio::task::yield_now().await;
        for _ in &working {
            release.send(()).unwrap();
        }
        assert_eq!(queued.await.unwrap().unwrap(), 2);
        assert!(run(|| panic!("in the test")).await.is_err(), "a panic is an error");
        assert_eq!(run_with(|| 3, refused).await.unwrap(), 3, "and its thread goes on");
    }

    #[test]
    fn no_thread_at_all_is_an_error_that_says_what_to_do() {
        let error = no_thread(&refused().unwrap_err());
        assert_eq!(error.kind(), crate::Kind::Unavailable);
        assert!(error.to_string().contains("pids.max"), "{error}");
    }
}
