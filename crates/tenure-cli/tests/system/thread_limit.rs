//! B10: the kernel refuses new threads (the pids limit of a container). A running process keeps running; a starting one reports
//! why it cannot start.
//!
//! The limit needs the control group `pids` of version 1, and root.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::Trial;

use tenure_rig::system::election_trial::TIMEOUT;
use tenure_rig::system::time::{pause, poll_until};
use tenure_rig::system::trial_directory::TrialDirectory;
use tenure_rig::system::trial_process::TrialProcess;
use tenure_rig::system::trial_store::{StoreKind, TrialStore};

const CONTROL_GROUPS: &str = "/sys/fs/cgroup/pids";
/// Idle threads of tokio end after 10 s, so the thread that opened the directory is gone at the first renewal, after 15 s.
const TTL: &str = "45s";
const IDLE: Duration = Duration::from_secs(13);
/// The first renewal comes within this time.
const LIMITED: Duration = Duration::from_secs(5);

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, place, run: fn()| {
        let trial = crate::trial(format!("thread_limit::{name}"), place, run);
        match missing() {
            Some(why) => trial.with_kind(why).with_ignored_flag(true),
            None => trial,
        }
    };
    vec![
        trial("running::file", StoreKind::File, running_on_a_directory),
        trial("running::redis", StoreKind::Redis, running_on_redis),
        trial("at_start::file", StoreKind::File, || at_start(StoreKind::File)),
        trial("at_start::redis", StoreKind::Redis, || at_start(StoreKind::Redis)),
    ]
}

fn missing() -> Option<&'static str> {
    let probe = Limit::make(Path::new("tenure-probe"));
    probe.is_none().then_some("needs root and the control group 'pids' of version 1")
}

/// A control group, removed when dropped.
struct Limit(PathBuf);

impl Limit {
    fn make(name: &Path) -> Option<Limit> {
        let group =
            Path::new(CONTROL_GROUPS).join(format!("{}-{}", name.display(), std::process::id()));
        std::fs::create_dir(&group).ok()?;
        group.join("pids.max").exists().then_some(Limit(group))
    }

    fn new(room: &TrialDirectory) -> Limit {
        Limit::make(Path::new(room.path().file_name().unwrap())).expect("it was probed")
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap();
    }

    fn current(&self) -> String {
        std::fs::read_to_string(self.0.join("pids.current")).unwrap().trim().to_owned()
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let empty = || std::fs::remove_dir(&self.0).ok();
        let _ = poll_until(TIMEOUT, || {
            let members = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
            for pid in members.lines() {
                let _ = std::fs::write(Path::new(CONTROL_GROUPS).join("cgroup.procs"), pid);
            }
            empty()
        });
    }
}

/// A leader in its own control group, without a limit yet, whose command runs.
fn leader<'a>(room: &'a TrialDirectory, place: &TrialStore, limit: &Limit) -> TrialProcess<'a> {
    let leader = TrialProcess::start_candidate(room, &place.url(), &["--lease-duration", TTL]);
    limit.write("cgroup.procs", &leader.pid().to_string());
    leader.wait_until_leading(TIMEOUT);
    leader
}

fn running_on_a_directory() {
    let room = TrialDirectory::new();
    let (place, limit) = (TrialStore::open(StoreKind::File, room.path(), 1), Limit::new(&room));
    let leader = leader(&room, &place, &limit);
    pause(IDLE);
    limit.write("pids.max", &limit.current());
    pause(LIMITED);
    limit.write("pids.max", "max");
    leader.assert_led_throughout();
}

/// Every connection breaks while no thread can be created, so the files of the connection are read again.
fn running_on_redis() {
    let room = TrialDirectory::new();
    let (place, limit) = (TrialStore::open(StoreKind::Redis, room.path(), 1), Limit::new(&room));
    let leader = leader(&room, &place, &limit);
    pause(IDLE);
    limit.write("pids.max", &limit.current());
    let mut server = place.ping().expect("a server");
    server.write_all(b"CLIENT KILL TYPE normal SKIPME yes\r\nCLIENT KILL TYPE pubsub\r\n").unwrap();
    pause(LIMITED);
    limit.write("pids.max", "max");
    leader.assert_led_throughout();
}

fn at_start(kind: StoreKind) {
    let room = TrialDirectory::new();
    let (place, limit) = (TrialStore::open(kind, room.path(), 1), Limit::new(&room));
    // The shell joins the group and becomes the command, which may not start a single thread.
    limit.write("pids.max", "1");
    let tenure = room.command();
    let join = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", limit.0.display());
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &join, "sh"]).arg(tenure.get_program());
    for (name, value) in tenure.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["--store", &place.url(), "run", "job", "--once", "--wait", "3s", "--", "true"]);
    let mut started = TrialProcess::start(&room, command);
    let (exit, printed) = (started.exit(), started.log());
    assert!(!printed.contains("panicked"), "{printed}");
    assert_eq!(exit.code(), Some(122), "{printed}");
    assert!(printed.contains("thread"), "it says why: {printed}");
}
