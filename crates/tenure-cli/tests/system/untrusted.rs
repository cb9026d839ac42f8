//! Settings files that another user replaces while `tenure` starts: the other user's settings are never used.
//!
//! There are two users: this process is root, and a thread of it with the rights of user 65534 attacks.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use libtest_mimic::Trial;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use tenure_rig::servers::Scratch;

const STRANGER: u32 = 65534;
const TRIES: usize = 300;
/// After this many tries without every expected outcome the attack does not work.
const MAX_TRIES: usize = 10 * TRIES;

pub(crate) fn trials() -> Vec<Trial> {
    let attacks = [("link", Attack::Link), ("rename", Attack::Rename)];
    let files = [("tenure_toml", TENURE_TOML), ("dot_env", DOT_ENV)];
    let all = files.into_iter().flat_map(|file| attacks.map(|attack| (file, attack)));
    let trial = |((file, target), (name, attack)): ((&str, Target), (&str, Attack))| {
        let trial = Trial::test(format!("untrusted::{file}::{name}"), move || {
            strangers_settings_are_never_used(target, attack);
            Ok(())
        });
        match geteuid().is_root() {
            true => trial,
            false => trial.with_kind("needs root").with_ignored_flag(true),
        }
    };
    all.map(trial).collect()
}

/// A settings file, and a command that shows which file it has used.
#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    args: &'static [&'static str],
    /// The content, in which `WHO` names the owner of these settings.
    text: &'static str,
}

const TENURE_TOML: Target =
    Target { name: "tenure.toml", args: &["run", "--print-config"], text: "on-lead = \"WHO\"\n" };
/// Both contents are wrong, so that nothing is started, and each is quoted in the error.
const DOT_ENV: Target = Target { name: ".env", args: &["run"], text: "REDIS_LOCK_TTL=WHO\n" };

/// What user 65534 replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// Its own symbolic link in a world-writable directory, to a file of root or to a file of its own.
    Link,
    /// A file of root and one of its own, in its own directory.
    Rename,
}

#[derive(Debug, Default)]
struct Outcomes {
    ours: usize,
    refused: usize,
    strangers: usize,
}

fn strangers_settings_are_never_used(target: Target, attack: Attack) {
    let scratch = Scratch::new();
    let directory = scratch.path();
    match attack {
        Attack::Link => fs::set_permissions(directory, Permissions::from_mode(0o1777)).unwrap(),
        Attack::Rename => {
            chown(directory, Some(STRANGER), None).unwrap();
            fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
        }
    }
    let put = |name: &str, who: &str, uid: u32| {
        let path = directory.join(name);
        fs::write(&path, target.text.replace("WHO", who)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        chown(&path, Some(uid), None).unwrap();
    };
    let (mut outcomes, mut refusal) = (Outcomes::default(), String::new());
    let (ours, strangers) = match attack {
        Attack::Link => ("ours", "strangers"),
        Attack::Rename => ("ours", target.name),
    };
    put(ours, "from-root", 0);
    put(strangers, "from-the-stranger", STRANGER);
    let exchange = Exchange::start(directory, target.name, attack);
    let complete = |outcomes: &Outcomes| match attack {
        // Every link of the other user is refused, also a link to root's file.
        Attack::Link => outcomes.refused > 0,
        Attack::Rename => outcomes.refused > 0 && outcomes.ours > 0,
    };
    for tries in 0.. {
        if tries >= TRIES && (complete(&outcomes) || tries >= MAX_TRIES) {
            break;
        }
        let printed = run(directory, target.args);
        if printed.contains("from-the-stranger") {
            outcomes.strangers += 1;
        } else if printed.contains("from-root") {
            outcomes.ours += 1;
        } else {
            outcomes.refused += 1;
            refusal = printed;
        }
    }
    exchange.stop();
    println!("{} {outcomes:?}", target.name);
    assert_eq!(outcomes.strangers, 0, "{outcomes:?}");
    assert!(complete(&outcomes), "the attack had no effect: {outcomes:?}");
    let names_owner = refusal.contains("of user 65534") || refusal.contains("to user 65534");
    assert!(names_owner, "{refusal}");
}

/// The output of `tenure ARGS` in that directory.
fn run(directory: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.env_clear().env("HOME", directory.join("home")).current_dir(directory).args(args);
    let output = command.output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// A thread with the rights of user 65534 that attacks until it is stopped or dropped.
struct Exchange {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exchange {
    fn start(directory: &Path, name: &'static str, attack: Attack) -> Exchange {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, directory) = (stop.clone(), directory.to_owned());
        let thread = std::thread::spawn(move || {
            become_stranger();
            let mut targets = ["ours", "strangers"].into_iter().cycle();
            while !stopped.load(Ordering::Relaxed) {
                match attack {
                    Attack::Link => {
                        let new = directory.join("new-link");
                        symlink(targets.next().unwrap(), &new).unwrap();
                        fs::rename(&new, directory.join(name)).unwrap();
                    }
                    Attack::Rename => {
                        let (one, other) = (directory.join("ours"), directory.join(name));
                        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                    }
                }
            }
        });
        Exchange { stop, thread: Some(thread) }
    }

    /// A panic of the attacker fails the trial.
    fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// These change the calling thread only.
fn become_stranger() {
    let (uid, gid) = (Uid::from_raw(STRANGER), Gid::from_raw(STRANGER));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
}
