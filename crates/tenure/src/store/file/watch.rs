//! Watches the directory: inotify on the records and on the liveness files.
//!
//! A new record is moved into `leases/`, and a watcher subscribes to such moves. A renewal rewrites a tail and wakes no
//! watcher. A process that dies closes its file in `live/`. Files are read on threads where a hanging disk delays no other
//! task.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use rustix::fs::inotify::{Event, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::directory::DirectoryHandle;
use super::liveness::{entries, is_unlocked};
use super::paths::{FileKind, RecordPath, is_sub, parse_file_name};
use super::read::{ReadMode, read_record};
use super::{FileStore, FileStoreInner};
use crate::blocking;
use crate::inotify::Inotify;
use crate::lease::{Ended, Name};
use crate::store::poll::{self, Mark};
use crate::store::{Change, Scope, Store};

/// The maximum number of checks for the lock of a dead process: the kernel reports the closed file shortly before it drops the
/// lock.
const MAX_LOCK_CHECKS: u32 = 50;
/// The time between two of these checks.
const LOCK_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// How often to observe where inotify is not available.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// See [`Store::watch`](crate::store::Store::watch).
pub(super) fn watch(shared: Arc<FileStoreInner>, scope: Scope) -> BoxStream<'static, Change> {
    stream::unfold(WatchState::Begin(shared, scope), |state| async {
        match state {
            WatchState::Begin(shared, scope) => match Watches::new(&shared, &scope).await {
                Ok(watches) => {
                    let queue = VecDeque::new();
                    let watch = DirectoryWatch { shared, scope, watches, queue };
                    Some((Change::Look, WatchState::Watching(watch)))
                }
                Err(error) => {
                    let path = &shared.directory.leases.path;
                    tracing::warn!(
                        "cannot be told of changes in {path} ({error}), so they are looked for \
                         every {} ms; raise fs.inotify.max_user_instances",
                        POLL_INTERVAL.as_millis()
                    );
                    next_polled(poll(shared, scope)).await
                }
            },
            WatchState::Watching(mut watch) => {
                let change = watch.next().await;
                Some((change, WatchState::Watching(watch)))
            }
            WatchState::Polling(changes) => next_polled(changes).await,
        }
    })
    .boxed()
}

enum WatchState {
    Begin(Arc<FileStoreInner>, Scope),
    Watching(DirectoryWatch),
    Polling(BoxStream<'static, Change>),
}

/// The watch where inotify is not available.
pub(super) fn poll(shared: Arc<FileStoreInner>, scope: Scope) -> BoxStream<'static, Change> {
    let (clock, store) = (shared.clock.clone(), FileStore(shared));
    poll::watch(clock, POLL_INTERVAL, move || {
        let (store, scope) = (store.clone(), scope.clone());
        async move { Ok(store.observe(&scope).await?.iter().flatten().map(Mark::from).collect()) }
    })
}

async fn next_polled(mut changes: BoxStream<'static, Change>) -> Option<(Change, WatchState)> {
    let change = changes.next().await?;
    Some((change, WatchState::Polling(changes)))
}

/// The inotify watches of one subscription.
struct Watches {
    kernel: Inotify,
    leases: i32,
    live: i32,
    /// Whether directories of long names can contain a name of the scope.
    subs: bool,
}

/// The events of one read.
#[derive(Default)]
struct Notifications {
    records: BTreeSet<Name>,
    deaths: BTreeSet<String>,
    /// A directory of long names was created.
    subs: bool,
    /// A change that only observing the store can explain.
    needs_observe: bool,
}

impl Watches {
    async fn new(shared: &Arc<FileStoreInner>, scope: &Scope) -> std::io::Result<Self> {
        let kernel = Inotify::new()?;
        let subscribe = {
            let (kernel, shared) = (kernel.clone(), Arc::clone(shared));
            move || {
                let moved = WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM | WatchFlags::DELETE;
                let gone = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
                let directory = &shared.directory;
                let leases = add(&kernel, &directory.leases, moved | gone | WatchFlags::CREATE)?;
                let live = add(&kernel, &directory.live, WatchFlags::CLOSE_WRITE)?;
                Ok::<_, Errno>((leases, live))
            }
        };
        let (leases, live) = blocking::run(subscribe).await.map_err(std::io::Error::other)??;
        let subs = match scope {
            Scope::Names(names) => names.iter().any(|name| RecordPath::of(name).sub.is_some()),
            Scope::Prefix(_) => true,
        };
        let watches = Watches { kernel, leases, live, subs };
        watches.add_subs(shared).await;
        Ok(watches)
    }

    /// Directories of long names are few: all are watched, and a change in any of them yields [`Change::Look`].
    async fn add_subs(&self, shared: &Arc<FileStoreInner>) {
        if !self.subs {
            return;
        }
        let (kernel, shared) = (self.kernel.clone(), Arc::clone(shared));
        let subscribe = move || {
            let leases = &shared.directory.leases;
            for entry in entries(leases).unwrap_or_default().iter().filter(|entry| is_sub(entry)) {
                if let Ok(Some(sub)) = leases.sub(entry, false) {
                    // Without this watch, a waiter observes a long name when its lease expires.
                    let _ = add(&kernel, &sub, WatchFlags::MOVED_TO);
                }
            }
        };
        let _ = blocking::run(subscribe).await;
    }

    /// Waits for events and reads all that are available.
    async fn read(&self, scope: &Scope) -> std::io::Result<Notifications> {
        let mut notifications = Notifications::default();
        self.kernel.next_events(|event| self.sort(event, scope, &mut notifications)).await?;
        Ok(notifications)
    }

    fn sort(&self, event: &Event<'_>, scope: &Scope, notifications: &mut Notifications) {
        let name = event.file_name().and_then(|name| name.to_str().ok()).unwrap_or_default();
        let what = event.events();
        if event.wd() == self.live {
            notifications.deaths.insert(name.to_owned());
        } else if what.contains(ReadFlags::CREATE) {
            notifications.subs |= self.subs && is_sub(name);
        } else if event.wd() == self.leases && what.contains(ReadFlags::MOVED_TO) {
            match parse_file_name(None, name) {
                FileKind::Of(name) if scope.contains(&name) => {
                    notifications.records.insert(name);
                }
                FileKind::Of(_) | FileKind::Other => {}
                FileKind::Invalid(_) => notifications.needs_observe = true,
            }
        } else {
            // A removal, a move, a queue overflow, or an event in a directory of long names.
            notifications.needs_observe = true;
        }
    }
}

/// Adds the watch through the open handle, so that it is on the directory that was opened and not on another one at its path.
fn add(kernel: &Inotify, handle: &DirectoryHandle, flags: WatchFlags) -> rustix::io::Result<i32> {
    kernel.add(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()), flags)
}

struct DirectoryWatch {
    shared: Arc<FileStoreInner>,
    scope: Scope,
    watches: Watches,
    queue: VecDeque<Change>,
}

impl DirectoryWatch {
    async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.queue.pop_front() {
                return change;
            }
            match self.watches.read(&self.scope).await {
                Ok(notifications) => self.process(notifications).await,
                Err(error) => {
                    tracing::warn!("cannot hear of changes: {error}");
                    self.shared.clock.sleep(POLL_INTERVAL).await;
                    return Change::Look;
                }
            }
        }
    }

    async fn process(&mut self, notifications: Notifications) {
        if notifications.subs {
            // Records that were created before the watch existed are found by observing.
            self.watches.add_subs(&self.shared).await;
        }
        for id in &notifications.deaths {
            self.wait_for_lock(id).await;
        }
        if notifications.needs_observe || notifications.subs || !notifications.deaths.is_empty() {
            // An observation covers all other events too.
            self.queue.push_back(Change::Look);
            return;
        }
        let shared = Arc::clone(&self.shared);
        let read = move || notifications.records.iter().map(|name| change(&shared, name)).collect();
        let changes: Vec<Change> = blocking::run(read).await.unwrap_or_else(|_| vec![Change::Look]);
        self.queue.extend(changes);
    }

    /// Returns when the dead process's lock is free, so that a caller that observes afterwards finds it free.
    async fn wait_for_lock(&self, id: &str) {
        for _ in 0..MAX_LOCK_CHECKS {
            let (shared, id) = (Arc::clone(&self.shared), id.to_owned());
            let free = move || is_unlocked(&shared.directory.live, &id, None);
            if blocking::run(free).await.unwrap_or(true) {
                return;
            }
            self.shared.clock.sleep(LOCK_CHECK_INTERVAL).await;
        }
    }
}

/// The change of a record, as far as the record shows it.
fn change(shared: &FileStoreInner, name: &Name) -> Change {
    let Ok(Some(found)) = read_record(&shared.directory, name, ReadMode::Unlocked) else {
        return Change::Look;
    };
    let record = found.stored.record;
    let name = name.clone();
    match (&record.term, record.before) {
        (Some(term), _) if term.nonce.is_some() => {
            let holder = Some(term.candidate.clone());
            Change::Granted { name, token: record.token, holder }
        }
        (None, Ended::Released(token)) if token == record.token => {
            Change::Freed { name, next: record.next }
        }
        // The lease was revoked.
        _ => Change::Look,
    }
}
