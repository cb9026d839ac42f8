//! Being told by the kernel of what happens in a directory.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, Event, WatchFlags};
use rustix::io::Errno;
use rustix::path::Arg;
use tokio::io::unix::AsyncFd;

use crate::clock::async_fd;

/// A queue of the kernel's, into which several directories can tell.
#[derive(Clone, Debug)]
pub(crate) struct Inotify(Arc<AsyncFd<OwnedFd>>);

impl Inotify {
    /// Must be called inside a tokio runtime with I/O enabled.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Inotify(Arc::new(async_fd(fd)?)))
    }

    /// Watches a directory too. May block, as everything that follows a path may. Adding twice is adding once.
    pub(crate) fn add(&self, path: impl Arg, flags: WatchFlags) -> rustix::io::Result<i32> {
        inotify::add_watch(self.0.get_ref(), path, flags)
    }

    /// Waits until there is something to hear, and hears all of it.
    pub(crate) async fn hear(&self, mut each: impl FnMut(&Event<'_>) + Send) -> io::Result<()> {
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
