//! A fault at the very beginning of a term: before there is a guard, before the guard knows the lease, before there is a
//! command.

use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::faults::TTL;
use crate::trial;
use tenure_rig::system::election_trial::{ElectionTrial, TIMEOUT};
use tenure_rig::system::processes::is_stopped;
use tenure_rig::system::time::{pause, poll_until};
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

/// The sweep goes from the grant to well after the command's first effect.
const STEPS: u32 = 24;
const STEP: Duration = Duration::from_micros(750);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for place in [StoreKind::File, StoreKind::Redis] {
        for (name, signal) in
            [("kill", Signal::KILL), ("term", Signal::TERM), ("freeze", Signal::STOP)]
        {
            let name = format!("early::{name}::{}", place.name());
            trials.push(trial(name, place, move || sweep(place, signal)));
        }
    }
    trials
}

fn sweep(place: StoreKind, signal: Signal) {
    let mut stage = ElectionTrial::new(place, TTL, Mode::Plain);
    let mut last = 0;
    for step in 0..STEPS {
        let (who, token) = stage.granted_after(last);
        pause(STEP * step);
        stage.contenders[who].signal(signal);
        if signal == Signal::STOP {
            let pid = stage.contenders[who].pid();
            let stopped =
                || poll_until(TIMEOUT, || is_stopped(pid).then_some(())).expect("it stops");
            stopped();
            // A candidate that is stopped while it holds a lock in the directory, without a guard that could kill it, keeps
            // every other candidate from leading: it is resumed until it holds none.
            while holds_a_lock(&stage, pid) {
                stage.contenders[who].signal(Signal::CONT);
                pause(Duration::from_millis(1));
                stage.contenders[who].signal(Signal::STOP);
                stopped();
            }
            // Until another candidate holds the lease, which is the next to be hit.
            stage.granted_after(token);
            stage.contenders[who].signal(Signal::CONT);
        } else {
            stage.ended(who);
            stage.restart(who);
        }
        last = token;
    }
    stage.steady();
    stage.finish();
}

/// Whether this process is in the middle of a change in a directory store.
fn holds_a_lock(stage: &ElectionTrial, pid: u32) -> bool {
    let url = stage.place.url();
    let Some(directory) = url.strip_prefix("file:") else { return false };
    let locks = std::fs::read_dir(Path::new(directory).join("locks")).unwrap().flatten();
    let inodes: Vec<String> = locks.map(|lock| lock.ino().to_string()).collect();
    // `1: FLOCK  ADVISORY  WRITE 4711 fe:00:5488679 0 EOF`; a waiting process has an arrow before FLOCK.
    let all = std::fs::read_to_string("/proc/locks").unwrap();
    all.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let inode = words.get(5).and_then(|file| file.rsplit(':').next());
        words[1] == "FLOCK"
            && words[4] == pid.to_string()
            && inodes.iter().any(|of| Some(of.as_str()) == inode)
    })
}
