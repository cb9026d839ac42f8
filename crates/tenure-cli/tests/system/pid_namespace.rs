//! Pid namespaces: one with its own `/proc`, where everything works as elsewhere, and one that sees the `/proc` of another
//! namespace, where no command is run.
//!
//! And one whose `/proc` hides the processes of other users, which do not matter to an ordinary user's guard.
//!
//! In the first, trials of this program run inside `unshare`, so that they, the candidates and the judge see the same `/proc`.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;

use crate::trial;
use tenure_rig::stderr_faults::turns;
use tenure_rig::system::time::poll_until;
use tenure_rig::system::trial_directory::TrialDirectory;
use tenure_rig::system::trial_store::StoreKind;

/// The trials that run inside: commands whose processes leave their session and parents, and storms.
const INSIDE: [(&str, StoreKind); 7] = [
    ("child::session::kill::file", StoreKind::File),
    ("child::session::freeze::file", StoreKind::File),
    ("child::daemon::kill::redis", StoreKind::Redis),
    ("fleet::the_shards_of_one_killed_are_taken_at_once::file", StoreKind::File),
    ("storm::file", StoreKind::File),
    ("storm::redis", StoreKind::Redis),
    ("fleet::storm::redis", StoreKind::Redis),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = INSIDE
        .into_iter()
        .map(|(inside, place)| {
            let name = format!("pid_namespace::own_proc::{inside}");
            trial(name, place, move || with_own_proc(inside))
        })
        .collect();
    trials.push(trial("pid_namespace::foreign_proc::file".to_owned(), StoreKind::File, refused));
    trials.push(trial("pid_namespace::hidden_proc::file".to_owned(), StoreKind::File, hidden));
    let able = unshare(&["true"]).output().is_ok_and(|output| output.status.success());
    let needs = "needs root and unshare, to make a pid namespace";
    let only_if_able = |trial: Trial| match able {
        true => trial,
        false => trial.with_kind(needs.to_owned()).with_ignored_flag(true),
    };
    trials.into_iter().map(only_if_able).collect()
}

/// A program in its own pid namespace. `--mount-proc` is another argument.
pub(crate) fn unshare(arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).args(arguments).stdin(Stdio::null());
    command
}

fn with_own_proc(inside: &str) {
    let program = std::env::current_exe().unwrap();
    let mut command = unshare(&["--mount-proc", program.to_str().unwrap(), "--exact", inside]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert!(both(&output).contains("1 passed"), "{}", both(&output));
}

pub(crate) fn both(output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{stdout}{stderr}")
}

fn refused() {
    let room = TrialDirectory::new();
    let store = format!("file:{}", room.path().join("store").display());
    let tenure = |arguments: &[&str]| {
        let tenure = room.command();
        let mut command = unshare(&[tenure.get_program().to_str().unwrap(), "--store", &store]);
        for (name, value) in tenure.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(arguments).output().unwrap()
    };
    let made = room.path().join("made");
    let touch = ["touch", made.to_str().unwrap()];
    for _ in 0..turns(1) {
        for before in [
            &["run", "job", "--"][..],
            &["run", "job", "--no-guard", "--"],
            &["run", "job", "--every", "1s", "--"],
            &["fleet", "run", "crowd", "--shards", "a", "--"],
            &["fleet", "run", "crowd", "--shards", "a", "--no-guard", "--"],
        ] {
            let output = tenure(&[before, &touch].concat());
            let printed = both(&output);
            assert_eq!(output.status.code(), Some(123), "{before:?}: {printed}");
            assert!(printed.contains("/proc belongs to another pid namespace"), "{printed}");
            assert!(printed.contains("--mount-proc"), "it says what to do: {printed}");
            assert!(!made.exists(), "{before:?}: nothing was run");
        }
    }
    // A run without a command needs no list of processes.
    let output = tenure(&["run", "job", "--mock", "--every", "1s", "--once"]);
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert!(both(&output).contains("poll 1"), "{}", both(&output));
    room.empties().unwrap();
}

/// A directory that an ordinary user can use, unlike that of a room.
struct Open(PathBuf);

impl Open {
    fn new() -> Open {
        let path = std::env::temp_dir().join(format!("tenure-hidden-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
        Open(path)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `hidepid=1`: the entries of other users cannot be read. The guard of many commands still detects that a command is gone, so
/// the next run starts.
fn hidden() {
    let open = Open::new();
    let (tenure, runs) = (open.0.join("tenure"), open.0.join("runs"));
    // By another process, as in `kill_refused`: a program that a fork of this process has open for writing cannot be executed.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tenure")).arg(&tenure).status();
    assert!(copied.unwrap().success());
    // There is a process of another user to hide. The shell stays the first process of the namespace, and dies with `unshare`:
    // a process that changes its user would not.
    let script = "mount -t proc -o hidepid=1 proc /proc && cd \"$1\" || exit 1; sleep 60 & \
                  setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=\"$1\" \
                  ./tenure --store file:\"$1\"/leases fleet run crowd --shards a --every 200ms -- \
                  sh -c 'echo run >>runs'; exit 1";
    let mut command = unshare(&["--mount", "sh", "-c", script, "sh", open.0.to_str().unwrap()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let ran = || std::fs::read_to_string(&runs).unwrap_or_default().lines().count();
    let often = poll_until(Duration::from_secs(20), || (ran() >= 5).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(often.is_some(), "{} runs: the guard did not see that a command was gone", ran());
}
