//! Starts commands on a thread of its own.
//!
//! To start a command is to wait until the kernel has replaced the child's program, and that takes as long as the file system
//! which it is on. The guard's own thread has deadlines to keep, so it does not wait with the kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::{fs, thread};

use rustix::process::Pid;

use super::spawn;

/// A command to start, a file that it inherits, and who gets its process number.
type StartJob = (Command, Option<OwnedFd>, Box<dyn FnOnce(io::Result<Pid>) + Send>);

/// A sender for as long as the process lives: then the queue never ends.
static KEPT: OnceLock<Sender<StartJob>> = OnceLock::new();

/// The thread that starts commands. It lives as long as the process: the kernel kills a command with the thread that started
/// it (see [`super::child`]).
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

    /// Starts the command when all before it have been started, and calls `reply` on the thread.
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

    /// Every child that the thread has started and that is not reaped, also one whose start is not complete; empty where the
    /// kernel keeps no such list. No orphan is among them: the kernel makes those children of the first thread.
    pub(super) fn children(&self) -> Vec<i32> {
        let thread = self.thread.load(Ordering::Acquire);
        let list = fs::read_to_string(format!("/proc/self/task/{thread}/children"));
        let list = list.unwrap_or_default();
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }
}
