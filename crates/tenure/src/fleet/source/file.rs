//! Shards in a file, one per line.
//!
//! The source watches the directory, not the file, so that it notices a file that is renamed over the old one. Neither the
//! creation nor the removal of the file is a hint: a new file is still empty, and a missing file changes nothing. A file that
//! changes during a read is read again, because half a list looks like a list.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use tokio::sync::Semaphore;

use super::line_parser::LineParser;
use super::{Shards, Source};
use crate::blocking;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::inotify::Inotify;

/// How long a read may take. A disk that hangs blocks its own thread for longer, but the caller only for this time.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a file that changes during the read is read.
const MAX_ATTEMPTS: u32 = 5;
const ATTEMPT_DELAY: Duration = Duration::from_millis(50);
/// Delay before a failed watch is retried: the directory is missing, or the limit of inotify watches is reached.
const WATCH_RETRY_DELAY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct FileSource {
    path: PathBuf,
    clock: Clock,
    /// Allows one reader at a time, so that a disk that hangs blocks only one thread.
    reading: Arc<Semaphore>,
}

impl FileSource {
    pub(super) fn new(path: PathBuf) -> Self {
        FileSource { path, clock: Clock::boot(), reading: Arc::new(Semaphore::new(1)) }
    }

    async fn read_stable(&self) -> Result<Shards> {
        for _ in 0..MAX_ATTEMPTS {
            let Ok(permit) = Arc::clone(&self.reading).acquire_owned().await else { break };
            let path = self.path.clone();
            let read = move || {
                let read = read(&path);
                drop(permit);
                read
            };
            match blocking::run(read).await?? {
                Some(shards) => return Ok(shards),
                None => self.clock.sleep(ATTEMPT_DELAY).await,
            }
        }
        Err(Error::unavailable(format!(
            "{} changes whenever it is read: write another one and rename it over this",
            self.shown()
        )))
    }
}

#[async_trait]
impl Source for FileSource {
    async fn read(&self) -> Result<Shards> {
        match tokio::time::timeout(READ_TIMEOUT, self.read_stable()).await {
            Ok(read) => read,
            Err(_) => Err(Error::unavailable(format!(
                "{} could not be read within {READ_TIMEOUT:?}: does its disk answer?",
                self.shown()
            ))),
        }
    }

    fn hints(&self) -> BoxStream<'static, ()> {
        let watch = FileWatch { path: self.path.clone(), clock: self.clock.clone(), kernel: None };
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

/// Reads the file; `None` if it changed during the read.
fn read(path: &Path) -> Result<Option<Shards>> {
    let cannot = |error: std::io::Error| {
        let message = format!("cannot read the shards in '{}': {error}", path.display());
        let error = match error.kind() {
            ErrorKind::PermissionDenied => Error::denied(message).caused_by(error),
            _ => Error::unavailable(message).caused_by(error),
        };
        Err(error)
    };
    // Without this flag, opening a named pipe would wait for a writer.
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
    let mut lines = LineParser::default();
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(size) => lines.push(&piece[..size]).map_err(|error| in_file(path, &error))?,
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
    lines.finish().map(Some).map_err(|error| in_file(path, &error))
}

fn in_file(path: &Path, error: &Error) -> Error {
    Error::new(error.kind(), format!("in '{}' {error}", path.display()))
}

struct FileWatch {
    path: PathBuf,
    clock: Clock,
    kernel: Option<Inotify>,
}

impl FileWatch {
    async fn next(&mut self) {
        loop {
            let Some(kernel) = &self.kernel else {
                match self.watch_directory().await {
                    Ok(kernel) => {
                        self.kernel = Some(kernel);
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(path = %self.path.display(), %error, "cannot listen")
                    }
                }
                self.clock.sleep(WATCH_RETRY_DELAY).await;
                continue;
            };
            let (mut relevant, mut ended) = (false, false);
            let events = kernel.next_events(|event| {
                let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED;
                ended |= event.events().intersects(gone | ReadFlags::UNMOUNT);
                relevant |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                let name = event.file_name().map(std::ffi::CStr::to_bytes).unwrap_or_default();
                relevant |= is_relevant(&self.path, name);
            });
            if events.await.is_err() || ended {
                // The directory may have been replaced: watch the new one.
                self.kernel = None;
            } else if relevant {
                return;
            }
        }
    }

    async fn watch_directory(&self) -> std::io::Result<Inotify> {
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
        let watch = move || {
            kernel.add(&directory, flags)?;
            Ok(kernel)
        };
        blocking::run(watch).await.map_err(std::io::Error::other)?
    }
}

/// Whether an event of the directory entry `name` may have changed the list.
fn is_relevant(path: &Path, name: &[u8]) -> bool {
    // Kubernetes updates a mounted ConfigMap by replacing the symbolic link `..data`.
    let linked = name.starts_with(b"..");
    linked || path.file_name().is_some_and(|own| own.as_encoded_bytes() == name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tenure_rig::servers::Scratch;

    use super::*;
    use crate::error::Kind;
    use crate::fleet::source::{LastGood, SourceMessage};

    /// Replaces a file as recommended: writes a new file and renames it over the old one.
    fn replace(scratch: &Scratch, name: &str, text: &str) {
        let new = scratch.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, scratch.path().join(name)).unwrap();
    }

    fn names(shards: &Shards) -> Vec<&str> {
        shards.shards.iter().map(|shard| shard.as_str()).collect()
    }

    async fn hinted(hints: &mut BoxStream<'static, ()>) -> bool {
        tokio::time::timeout(Duration::from_secs(10), hints.next()).await.is_ok()
    }

    async fn silent(hints: &mut BoxStream<'static, ()>) -> bool {
        tokio::time::timeout(Duration::from_millis(100), hints.next()).await.is_err()
    }

    #[tokio::test]
    async fn a_missing_file_drops_no_shard() {
        let scratch = Scratch::new();
        let source = super::super::file(scratch.path().join("shards"));
        let mut last_good = LastGood::default();
        let change = last_good.take(source.read().await);
        assert!(
            matches!(&change.messages[..], [SourceMessage::Fails { kept: None, .. }]),
            "{change:?}"
        );
        assert_eq!(last_good.shards(), None);
        replace(&scratch, "shards", "a\nb\n");
        let change = last_good.take(source.read().await);
        assert!(change.changed && change.messages == [SourceMessage::Back]);
        fs::remove_file(scratch.path().join("shards")).unwrap();
        let error = source.read().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("No such file"), "{error}");
        let change = last_good.take(Err(error));
        assert!(
            !change.changed
                && matches!(&change.messages[..], [SourceMessage::Fails { kept: Some(2), .. }])
        );
        assert_eq!(names(last_good.shards().unwrap()), ["a", "b"]);
        replace(&scratch, "shards", "# all gone\n");
        let change = last_good.take(source.read().await);
        assert!(
            change.changed && change.messages == [SourceMessage::Back, SourceMessage::Emptied(2)]
        );
    }

    #[tokio::test]
    async fn a_rename_or_a_write_is_a_hint() {
        let scratch = Scratch::new();
        replace(&scratch, "shards", "a\n");
        let source = super::super::file(scratch.path().join("shards"));
        let mut hints = source.hints();
        assert!(hinted(&mut hints).await, "the watch has started");
        replace(&scratch, "shards", "a\nb\n");
        assert!(hinted(&mut hints).await);
        assert_eq!(names(&source.read().await.unwrap()), ["a", "b"]);
        fs::write(scratch.path().join("shards"), "c\n").unwrap();
        assert!(hinted(&mut hints).await);
        assert_eq!(names(&source.read().await.unwrap()), ["c"]);
        replace(&scratch, "others", "d\n");
        fs::remove_file(scratch.path().join("shards")).unwrap();
        assert!(silent(&mut hints).await, "neither another file nor the removal is a hint");
    }

    #[tokio::test]
    async fn a_replaced_symbolic_link_is_a_hint() {
        // As Kubernetes mounts a ConfigMap.
        let scratch = Scratch::new();
        for (version, text) in [("..1", "a\n"), ("..2", "b\n")] {
            fs::create_dir(scratch.path().join(version)).unwrap();
            fs::write(scratch.path().join(version).join("shards"), text).unwrap();
        }
        symlink("..1", scratch.path().join("..data")).unwrap();
        symlink("..data/shards", scratch.path().join("shards")).unwrap();
        let source = super::super::file(scratch.path().join("shards"));
        let mut hints = source.hints();
        assert!(hinted(&mut hints).await);
        assert_eq!(names(&source.read().await.unwrap()), ["a"]);
        symlink("..2", scratch.path().join("..data_tmp")).unwrap();
        fs::rename(scratch.path().join("..data_tmp"), scratch.path().join("..data")).unwrap();
        assert!(hinted(&mut hints).await);
        assert_eq!(names(&source.read().await.unwrap()), ["b"]);
    }

    #[tokio::test]
    async fn a_replaced_directory_is_watched_again() {
        let scratch = Scratch::new();
        let directory = scratch.path().join("etc");
        fs::create_dir(&directory).unwrap();
        let source = super::super::file(directory.join("shards"));
        let mut hints = source.hints();
        assert!(hinted(&mut hints).await);
        fs::rename(&directory, scratch.path().join("old")).unwrap();
        fs::create_dir(&directory).unwrap();
        assert!(hinted(&mut hints).await, "it watches the new directory");
        fs::write(directory.join("shards"), "a\n").unwrap();
        assert!(hinted(&mut hints).await);
    }

    #[tokio::test]
    async fn a_path_that_is_not_a_regular_file_is_refused_without_waiting() {
        let scratch = Scratch::new();
        let pipe = scratch.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        for path in [pipe, scratch.path().to_owned(), PathBuf::from("/dev/null")] {
            let error = super::super::file(path).read().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains("--shards-command"), "{error}");
        }
        replace(&scratch, "secret", "a");
        fs::set_permissions(scratch.path().join("secret"), fs::Permissions::from_mode(0o0))
            .unwrap();
        if fs::File::open(scratch.path().join("secret")).is_err() {
            let error = super::super::file(scratch.path().join("secret")).read().await.unwrap_err();
            assert_eq!(error.kind(), Kind::Denied);
        }
    }
}
