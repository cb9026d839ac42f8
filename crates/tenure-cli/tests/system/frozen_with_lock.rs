//! A leader frozen in the middle of a change: while it holds the lock of its name in a directory. A freeze from outside hits
//! those microseconds too rarely, so a tracer stops it exactly there.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;

use crate::trial;
use tenure_rig::system::election_trial::{ElectionTrial, NAME};
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

const TTL: Duration = Duration::from_secs(2);
const CYCLES: usize = 2;

pub(crate) fn trials() -> Vec<Trial> {
    let name = "stuck::frozen_with_the_lock_in_its_hand::file".to_owned();
    let able = rustix::process::geteuid().is_root() && Path::new("/usr/bin/strace").exists();
    let trial = trial(name, StoreKind::File, frozen_with_the_lock);
    vec![match able {
        true => trial,
        false => trial.with_kind("needs root and strace".to_owned()).with_ignored_flag(true),
    }]
}

fn frozen_with_the_lock() {
    let mut stage = ElectionTrial::new(StoreKind::File, TTL, Mode::Plain);
    for _ in 0..CYCLES {
        let term = stage.settled();
        let [store, _] = stage.place.paths().expect("a directory");
        let lock = store.join("locks").join(format!("{NAME}.lock"));
        let mut tracer = stop_at_the_next_lock(term.leader, &lock);
        // No candidate can lead before the name is unlocked, and only the leader's death unlocks it: the guard kills it.
        stage.next_after(term.token, TTL + Duration::from_secs(15));
        stage.ended(term.who);
        let _ = tracer.wait();
        stage.restart(term.who);
    }
    stage.finish();
}

/// Stops the process when it has locked this file the next time. It locks other files too, to find out which processes are
/// alive.
fn stop_at_the_next_lock(leader: u32, lock: &Path) -> Child {
    let mut strace = Command::new("/usr/bin/strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-p", &leader.to_string()]);
    strace.arg("-P").arg(lock);
    strace.args(["-e", "trace=flock", "-e", "inject=flock:signal=STOP:when=1"]);
    strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
