//! Being told: inotify on the records and on the files that go with processes.
//!
//! A new record is moved into `leases/`, which is what a watcher listens for; a renewal rewrites a tail and wakes
//! nobody. A process that dies closes its file in `live/`. Files are looked at on threads where a disk that hangs holds
//! up nobody.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use rustix::fs::inotify::{Event, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::FileStoreInner;
use super::directory::DirectoryHandle;
use super::liveness::{entries, is_free};
use super::paths::{FileKind, RecordPath, is_sub, read_back};
use super::read::{ExpiryProof, look};
use crate::blocking;
use crate::inotify::Inotify;
use crate::lease::{Ended, Name};
use crate::store::{Change, Scope};

/// The kernel tells of the closed file a little before it drops the lock.
const LOCK_DROPS_WITHIN: u32 = 50;
const STEP: Duration = Duration::from_millis(1);

/// How often to tell to look where the kernel cannot tell us.
const BLIND: Duration = Duration::from_millis(200);

/// See [`Store::watch`](crate::store::Store::watch).
pub(super) fn watch(shared: Arc<FileStoreInner>, scope: Scope) -> BoxStream<'static, Change> {
    stream::unfold(WatchState::Begin(shared, scope), |state| async {
        match state {
            WatchState::Begin(shared, scope) => {
                let next = match Watches::new(&shared, &scope).await {
                    Ok(ears) => {
                        let queue = VecDeque::new();
                        WatchState::Listening(DirectoryWatch { shared, scope, ears, queue })
                    }
                    Err(error) => {
                        let path = &shared.directory.leases.path;
                        tracing::warn!(
                            "cannot be told of changes in {path} ({error}), so they are looked for \
                             every {} ms; raise fs.inotify.max_user_instances",
                            BLIND.as_millis()
                        );
                        WatchState::Blind(shared)
                    }
                };
                Some((Change::Look, next))
            }
            WatchState::Listening(mut watch) => {
                let change = watch.next().await;
                Some((change, WatchState::Listening(watch)))
            }
            WatchState::Blind(shared) => {
                shared.clock.sleep(BLIND).await;
                Some((Change::Look, WatchState::Blind(shared)))
            }
        }
    })
    .boxed()
}

enum WatchState {
    Begin(Arc<FileStoreInner>, Scope),
    Listening(DirectoryWatch),
    Blind(Arc<FileStoreInner>),
}

/// What the kernel watches for us.
struct Watches {
    kernel: Inotify,
    leases: i32,
    live: i32,
    /// Whether a directory of long names can matter.
    subs: bool,
}

/// What was heard in one reading.
#[derive(Default)]
struct Notifications {
    records: BTreeSet<Name>,
    deaths: BTreeSet<String>,
    /// A directory of long names was made.
    subs: bool,
    /// Something that only a look can tell.
    look: bool,
}

impl Watches {
    async fn new(shared: &Arc<FileStoreInner>, scope: &Scope) -> std::io::Result<Self> {
        let kernel = Inotify::new()?;
        let listen = {
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
        let (leases, live) = blocking::run(listen).await.map_err(std::io::Error::other)??;
        let subs = match scope {
            Scope::Names(names) => names.iter().any(|name| RecordPath::of(name).sub.is_some()),
            Scope::Prefix(_) => true,
        };
        let ears = Watches { kernel, leases, live, subs };
        ears.add_subs(shared).await;
        Ok(ears)
    }

    /// Directories of long names are few: all of them are watched, and any of them is a reason to look.
    async fn add_subs(&self, shared: &Arc<FileStoreInner>) {
        if !self.subs {
            return;
        }
        let (kernel, shared) = (self.kernel.clone(), Arc::clone(shared));
        let listen = move || {
            let leases = &shared.directory.leases;
            for entry in entries(leases).unwrap_or_default().iter().filter(|entry| is_sub(entry)) {
                if let Ok(Some(sub)) = leases.sub(entry, false) {
                    // Without it a long name is looked at when its time is up.
                    let _ = add(&kernel, &sub, WatchFlags::MOVED_TO);
                }
            }
        };
        let _ = blocking::run(listen).await;
    }

    /// Waits until there is something to hear, and hears all of it.
    async fn hear(&self, scope: &Scope) -> std::io::Result<Notifications> {
        let mut heard = Notifications::default();
        self.kernel.hear(|event| self.sort(event, scope, &mut heard)).await?;
        Ok(heard)
    }

    fn sort(&self, event: &Event<'_>, scope: &Scope, heard: &mut Notifications) {
        let name = event.file_name().and_then(|name| name.to_str().ok()).unwrap_or_default();
        let what = event.events();
        if event.wd() == self.live {
            heard.deaths.insert(name.to_owned());
        } else if what.contains(ReadFlags::CREATE) {
            heard.subs |= self.subs && is_sub(name);
        } else if event.wd() == self.leases && what.contains(ReadFlags::MOVED_TO) {
            match read_back(None, name) {
                FileKind::Of(name) if scope.contains(&name) => {
                    heard.records.insert(name);
                }
                FileKind::Of(_) | FileKind::Other => {}
                FileKind::Stranger(_) => heard.look = true,
            }
        } else {
            // Removed, moved, overflown, or in a directory of long names.
            heard.look = true;
        }
    }
}

/// Through the open handle, so that it is the directory we opened and no other at its path.
fn add(kernel: &Inotify, handle: &DirectoryHandle, flags: WatchFlags) -> rustix::io::Result<i32> {
    kernel.add(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()), flags)
}

struct DirectoryWatch {
    shared: Arc<FileStoreInner>,
    scope: Scope,
    ears: Watches,
    queue: VecDeque<Change>,
}

impl DirectoryWatch {
    async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.queue.pop_front() {
                return change;
            }
            match self.ears.hear(&self.scope).await {
                Ok(heard) => self.digest(heard).await,
                Err(error) => {
                    tracing::warn!("cannot hear of changes: {error}");
                    self.shared.clock.sleep(BLIND).await;
                    return Change::Look;
                }
            }
        }
    }

    async fn digest(&mut self, heard: Notifications) {
        if heard.subs {
            // What was put there before we listened is seen by looking.
            self.ears.add_subs(&self.shared).await;
        }
        for id in &heard.deaths {
            self.wait_for_lock(id).await;
        }
        if heard.look || heard.subs || !heard.deaths.is_empty() {
            // Looking finds everything else too.
            self.queue.push_back(Change::Look);
            return;
        }
        let shared = Arc::clone(&self.shared);
        let read = move || heard.records.iter().map(|name| change(&shared, name)).collect();
        let changes: Vec<Change> = blocking::run(read).await.unwrap_or_else(|_| vec![Change::Look]);
        self.queue.extend(changes);
    }

    /// Returns when the dead process's lock is free, so that whoever looks then finds it so.
    async fn wait_for_lock(&self, id: &str) {
        for _ in 0..LOCK_DROPS_WITHIN {
            let (shared, id) = (Arc::clone(&self.shared), id.to_owned());
            let free = move || is_free(&shared.directory.live, &id, None);
            if blocking::run(free).await.unwrap_or(true) {
                return;
            }
            self.shared.clock.sleep(STEP).await;
        }
    }
}

/// What happened to a record, as far as it shows.
fn change(shared: &FileStoreInner, name: &Name) -> Change {
    let Ok(Some(sight)) = look(&shared.directory, name, ExpiryProof::Glance) else {
        return Change::Look;
    };
    let record = sight.record;
    let name = name.clone();
    match (&record.term, record.before) {
        (Some(term), _) if term.nonce.is_some() => {
            let holder = Some(term.candidate.clone());
            Change::Granted { name, token: record.token, holder }
        }
        (None, Ended::Released(token)) if token == record.token => {
            Change::Freed { name, next: record.next }
        }
        // Revoked.
        _ => Change::Look,
    }
}
