//! Starts commands on a separate thread.
//!
//! Starting a command means waiting until the kernel has replaced the child's program, which takes as long as the file system
//! that holds it. The guard's own thread has deadlines to meet, so it does not wait with the kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::{fs, thread};

use rustix::process::Pid;

use super::spawn;

/// A command to start, a file that it inherits, and the callback that gets its process number.
type StartJob = (Command, Option<OwnedFd>, Box<dyn FnOnce(io::Result<Pid>) + Send>);

/// A sender that lives as long as the process, so that the queue never ends.
static KEPT: OnceLock<Sender<StartJob>> = OnceLock::new();

/// The thread that starts commands. It lives as long as the process: the kernel kills a command with the thread that started it
/// (see [`super::exec`]).
#[derive(Clone, Debug)]
pub(super) struct Starter {
    jobs: Sender<StartJob>,
    thread: Arc<AtomicI32>,
}

impl Starter {
    pub(super) fn launch() -> io::Result<Starter> {
        let (jobs, queue) = mpsc::channel::<StartJob>();
        let thread = Arc::new(AtomicI32::new(0));
        let own = thread.clone();
        let work = move || {
            own.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
            for (mut command, inherited, reply) in queue {
                reply(spawn(&mut command, inherited));
            }
        };
        let builder = thread::Builder::new().name("tenure-starter".to_owned());
        builder.stack_size(256 * 1024).spawn(work)?;
        KEPT.get_or_init(|| jobs.clone());
        Ok(Starter { jobs, thread })
    }

    /// Starts the command after all earlier ones, and calls `reply` on the thread.
    pub(super) fn start(
        &self,
        command: Command,
        inherited: Option<OwnedFd>,
        reply: impl FnOnce(io::Result<Pid>) + Send + 'static,
    ) {
        let sent = self.jobs.send((command, inherited, Box::new(reply)));
        if let Err(mpsc::SendError((_, _, reply))) = sent {
            reply(Err(io::Error::other("the thread that starts commands has ended")));
        }
    }

    /// Every child that the thread has started and that is not reaped, including one whose start is not complete; empty where
    /// the kernel provides no such list. Orphans are not included: the kernel makes them children of the first thread.
    pub(super) fn children(&self) -> Vec<i32> {
        let thread = self.thread.load(Ordering::Acquire);
        let list = fs::read_to_string(format!("/proc/self/task/{thread}/children"));
        let list = list.unwrap_or_default();
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}
