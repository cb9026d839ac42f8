//! [`Inotify`]: notifications of the kernel about changes in directories.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, Event, WatchFlags};
use rustix::io::Errno;
use rustix::path::Arg;
use tokio::io::unix::AsyncFd;

use crate::clock::async_fd;

/// An inotify queue of the kernel, which can watch several directories.
#[derive(Clone, Debug)]
pub(crate) struct Inotify(Arc<AsyncFd<OwnedFd>>);

impl Inotify {
    /// Creates a queue. Must be called inside a tokio runtime with I/O enabled.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Inotify(Arc::new(async_fd(fd)?)))
    }

    /// Watches another directory. May block, like every operation on a path. Adding a directory twice has no further effect.
    pub(crate) fn add(&self, path: impl Arg, flags: WatchFlags) -> rustix::io::Result<i32> {
        inotify::add_watch(self.0.get_ref(), path, flags)
    }

    /// Waits for events, and passes all that are queued to `each`.
    pub(crate) async fn next_events(
        &self,
        mut each: impl FnMut(&Event<'_>) + Send,
    ) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.0.get_ref(), &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => each(&event),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    ready.clear_ready();
                    return Ok(());
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
