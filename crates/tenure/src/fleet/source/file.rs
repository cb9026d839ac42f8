//! Shards in a file, one a line.
//!
//! Its directory is watched and not the file, so that one renamed over it is seen. Neither the making nor the vanishing of the
//! file is a hint: one that was just made is still empty, and one that is gone changes nothing. A file that changes while it is
//! read is read again: half a list looks like a list.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use tokio::sync::Semaphore;

use super::lines::Lines;
use super::{Shards, Source};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::inotify::Inotify;

/// A disk that hangs holds up a thread of its own, and nobody else for longer than this.
const LIMIT: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(50);
/// How often it is tried to listen where it cannot be: the directory is not there, or there is no room for a watch.
const DEAF: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    clock: Clock,
    /// One reader at a time, so that a disk that hangs costs one thread.
    reading: Arc<Semaphore>,
}

impl File {
    pub(super) fn new(path: PathBuf) -> Self {
        File { path, clock: Clock::boot(), reading: Arc::new(Semaphore::new(1)) }
    }

    async fn settled(&self) -> Result<Shards> {
        for _ in 0..ATTEMPTS {
            let Ok(permit) = Arc::clone(&self.reading).acquire_owned().await else { break };
            let path = self.path.clone();
            let read = move || {
                let read = read(&path);
                drop(permit);
                read
            };
            match tokio::task::spawn_blocking(read).await {
                Ok(Ok(Some(shards))) => return Ok(shards),
                Ok(Ok(None)) => self.clock.sleep(BETWEEN).await,
                Ok(Err(error)) => return Err(error),
                Err(error) => return Err(Error::unavailable(format!("{}: {error}", self.shown()))),
            }
        }
        Err(Error::unavailable(format!(
            "{} changes whenever it is read: write another one and rename it over this",
            self.shown()
        )))
    }
}

#[async_trait]
impl Source for File {
    async fn read(&self) -> Result<Shards> {
        match tokio::time::timeout(LIMIT, self.settled()).await {
            Ok(read) => read,
            Err(_) => Err(Error::unavailable(format!(
                "{} could not be read within {LIMIT:?}: does its disk answer?",
                self.shown()
            ))),
        }
    }

    fn hints(&self) -> BoxStream<'static, ()> {
        let watch = Watch { path: self.path.clone(), clock: self.clock.clone(), kernel: None };
        stream::unfold(watch, async |mut watch| {
            watch.next().await;
            Some(((), watch))
        })
        .boxed()
    }

    fn shown(&self) -> String {
        format!("the file '{}'", self.path.display().to_string().escape_debug())
    }
}

/// Reads it; `None` if it changed meanwhile.
fn read(path: &Path) -> Result<Option<Shards>> {
    let cannot = |error: std::io::Error| {
        let message = format!("cannot read the shards in '{}': {error}", path.display());
        let error = match error.kind() {
            ErrorKind::PermissionDenied => Error::denied(message).caused_by(error),
            _ => Error::unavailable(message).caused_by(error),
        };
        Err(error)
    };
    // A pipe would make us wait for whoever writes into it.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let flags = i32::try_from(flags).unwrap_or_default();
    let open = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let mut file = match open {
        Ok(file) => file,
        Err(error) => return cannot(error),
    };
    let before = match file.metadata() {
        Ok(metadata) if metadata.is_file() => metadata,
        Ok(_) => {
            return Err(Error::invalid(format!(
                "'{}' is not a file that can be read again and again: for what a program prints \
                 there is --shards-command",
                path.display()
            )));
        }
        Err(error) => return cannot(error),
    };
    let mut lines = Lines::default();
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(size) => lines.push(&piece[..size]).map_err(|error| at(path, &error))?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return cannot(error),
        }
    }
    let after = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return cannot(error),
    };
    let state = |it: &std::fs::Metadata| (it.size(), it.mtime(), it.mtime_nsec(), it.ctime_nsec());
    if state(&before) != state(&after) {
        return Ok(None);
    }
    lines.finish().map(Some).map_err(|error| at(path, &error))
}

fn at(path: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("in '{}' {error}", path.display()))
}

struct Watch {
    path: PathBuf,
    clock: Clock,
    kernel: Option<Inotify>,
}

impl Watch {
    async fn next(&mut self) {
        loop {
            let Some(kernel) = &self.kernel else {
                match self.listen().await {
                    Ok(kernel) => {
                        self.kernel = Some(kernel);
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(path = %self.path.display(), %error, "cannot listen")
                    }
                }
                self.clock.sleep(DEAF).await;
                continue;
            };
            let (mut ours, mut over) = (false, false);
            let heard = kernel.hear(|event| {
                let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED;
                over |= event.events().intersects(gone | ReadFlags::UNMOUNT);
                ours |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                let name = event.file_name().map(std::ffi::CStr::to_bytes).unwrap_or_default();
                ours |= is_ours(&self.path, name);
            });
            if heard.await.is_err() || over {
                // Another directory may be in its place.
                self.kernel = None;
            } else if ours {
                return;
            }
        }
    }

    async fn listen(&self) -> std::io::Result<Inotify> {
        let kernel = Inotify::new()?;
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        tokio::task::spawn_blocking(move || {
            kernel.add(&directory, flags)?;
            Ok(kernel)
        })
        .await?
    }
}

/// Whether what happened to the entry `name` of its directory can have changed what is read.
fn is_ours(path: &Path, name: &[u8]) -> bool {
    // Kubernetes turns a link called `..data` to what it has changed.
    let linked = name.starts_with(b"..");
    linked || path.file_name().is_some_and(|own| own.as_encoded_bytes() == name)
}
