//! A directory on a disk, and a directory in memory.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::{FlockOperation, flock};
use tenure::store::Store;
use tenure::store::conformance::{Capability, Fixture};
use tenure::store::file::{FileOptions, FileStore, test_records};
use tenure::store::memory::Corruption;
use tenure::{Clock, Name, Token};

use crate::Subject;
use tenure_rig::servers::Scratch;

pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    vec![
        Arc::new(Directory { name: "file", parent: env!("CARGO_TARGET_TMPDIR").into() }),
        Arc::new(Directory { name: "file-tmpfs", parent: "/dev/shm".into() }),
    ]
}

struct Directory {
    name: &'static str,
    parent: PathBuf,
}

#[async_trait]
impl Subject for Directory {
    fn name(&self) -> &'static str {
        self.name
    }

    fn has_capability(&self, capability: Capability) -> bool {
        matches!(
            capability,
            Capability::Garbage | Capability::Lock | Capability::Tokens | Capability::Restart
        )
    }

    fn missing(&self) -> Option<String> {
        let exists = self.parent.is_dir();
        (!exists).then(|| format!("no directory {}", self.parent.display()))
    }

    async fn fixture(&self, _alone: bool) -> Result<Box<dyn Fixture>, String> {
        Ok(Box::new(InDirectory {
            scratch: Scratch::within(&self.parent),
            locked: Mutex::default(),
            garbage: Mutex::default(),
        }))
    }
}

struct InDirectory {
    /// Contains the store's directory, which the first caller that opens it creates.
    scratch: Scratch,
    /// Locks held from outside the store, through other open files.
    locked: Mutex<Vec<File>>,
    garbage: Mutex<HashMap<Name, Vec<u8>>>,
}

impl InDirectory {
    fn directory(&self) -> PathBuf {
        self.scratch.path().join("store")
    }
}

/// The garbage to put in place of a record: a different kind for each number.
fn garbage(number: usize) -> Vec<u8> {
    match number % 6 {
        0 => b"somebody else's notes\n".to_vec(),
        1 => Vec::new(),
        2 => vec![0; 66],
        3 => b"{\"format\":1}\ncrc=00000000\n".to_vec(),
        4 => vec![b'x'; 1 << 20],
        _ => b"\xff\xfe{}".to_vec(),
    }
}

#[async_trait]
impl Fixture for InDirectory {
    async fn open(&self) -> Arc<dyn Store> {
        let store = FileStore::open(self.directory(), FileOptions::default()).await;
        Arc::new(store.expect("a private directory can be opened"))
    }

    async fn pass(&self, time: Duration) {
        Clock::boot().sleep(time).await;
    }

    async fn corrupt(&self, name: &Name, spoil: Corruption) -> bool {
        // Opening the store creates its directories.
        drop(self.open().await);
        let path = match spoil {
            Corruption::Garbage => test_records::record_path(&self.directory(), name),
            Corruption::Locked => test_records::lock_path(&self.directory(), name),
        };
        std::fs::create_dir_all(path.parent().expect("it is in a directory")).expect("made");
        match spoil {
            Corruption::Garbage => {
                let mut all = self.garbage.lock().expect("nobody panicked");
                let bytes = garbage(all.len());
                std::fs::write(&path, &bytes).expect("written");
                all.insert(name.clone(), bytes);
            }
            Corruption::Locked => {
                let file = File::options().create(true).truncate(false).write(true).open(&path);
                let file = file.expect("opened");
                flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
                self.locked.lock().expect("nobody panicked").push(file);
            }
        }
        make_private(&path);
        true
    }

    async fn is_untouched(&self, name: &Name) -> bool {
        let expected = self.garbage.lock().expect("nobody panicked").get(name).cloned();
        let found = std::fs::read(test_records::record_path(&self.directory(), name)).ok();
        // For a locked name, no garbage was written.
        found == expected
    }

    async fn set_token(&self, name: &Name, last: Token) -> bool {
        drop(self.open().await);
        test_records::free(&self.directory(), name, last).expect("planted");
        true
    }

    async fn restart(&self) -> bool {
        // A directory has no running server: a process that opens it again finds what was kept.
        true
    }
}

fn make_private(path: &std::path::Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(path, mode).expect("it is ours");
}
