//! B8: a member that polls many slow servers keeps descriptors for its store.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::trial;
use tenure_rig::servers::Scratch;
use tenure_rig::system::election_trial::TIMEOUT;
use tenure_rig::system::time::{now, pause};
use tenure_rig::system::trial_store::{StoreKind, TrialStore};

const SHARDS: usize = 400;
/// Fewer descriptors than shards.
const FILES: u64 = 300;
const TTL: Duration = Duration::from_secs(6);

pub(crate) fn trials() -> Vec<Trial> {
    let name = "fleet_polls::many_slow_polls_leave_descriptors_for_the_store::redis".to_owned();
    vec![trial(name, StoreKind::Redis, many_slow_polls)]
}

/// A member whose process ends with the trial.
struct Member {
    process: Child,
    log: PathBuf,
}

impl Member {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let limit = now() + TIMEOUT;
        while !holds() {
            assert!(now() < limit, "{what}: not in time\n{}", self.log());
            pause(Duration::from_millis(20));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let limit = now() + Duration::from_secs(5);
        while now() < limit && matches!(self.process.try_wait(), Ok(None)) {
            pause(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn many_slow_polls() {
    let scratch = Scratch::new();
    let place = TrialStore::open(StoreKind::Redis, scratch.path(), 0);
    // It accepts connections, and never responds.
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/{{}}", server.local_addr().unwrap());
    std::thread::spawn(move || {
        let accepted: Vec<_> = server.incoming().take_while(Result::is_ok).collect();
        drop(accepted);
    });
    let shards: String = (0..SHARDS).map(|number| format!("shard-{number}\n")).collect();
    fs::write(scratch.path().join("shards"), shards).unwrap();
    let log = scratch.path().join("log");
    let limited = format!("ulimit -n {FILES} && exec \"$@\"");
    let mut command = Command::new("sh");
    command
        .args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_tenure"), "fleet", "run", "poll"])
        .args(["--node-id", "a", "--shards-file", "shards", "--get", &url, "--every", "1s"])
        .args(["--lease-duration", &format!("{}s", TTL.as_secs()), "--timeout", "60s"])
        .current_dir(scratch.path())
        .env("HOME", scratch.path())
        .env("TENURE_STORE", place.url())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap());
    let member = Member { process: command.spawn().unwrap(), log };
    let acquired = || member.log().matches("Lease acquired: ").count();
    member.until("it owns every shard", || acquired() == SHARDS);
    // Each shard is due once a second, and no poll ends.
    pause(Duration::from_secs(3));
    let most = usize::try_from(FILES).unwrap() / 2;
    assert!(member.open_files() < most, "{} open files", member.open_files());
    for kind in ["normal", "pubsub"] {
        let mut client = place.ping().unwrap();
        client.write_all(format!("CLIENT KILL TYPE {kind}\r\n").as_bytes()).unwrap();
        pause(Duration::from_millis(200));
    }
    pause(3 * TTL);
    let log = member.log();
    assert!(!log.contains("Left the fleet") && !log.contains("Lease released: "), "{log}");
}
