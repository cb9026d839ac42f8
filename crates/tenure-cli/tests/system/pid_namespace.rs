//! A pid namespace with its own `/proc`, where everything works as elsewhere, and one that sees the `/proc` of another, where
//! no command is run.
//!
//! In the first, trials of this program run inside `unshare`, so that they, the contenders and the judge see one `/proc`.

use std::process::{Command, Output, Stdio};

use libtest_mimic::Trial;

use crate::rig::output::turns;
use crate::rig::place::Kind;
use crate::rig::room::Room;
use crate::trial;

/// What is tried inside: children that leave the command's session and its family, and storms.
const INSIDE: [(&str, Kind); 7] = [
    ("child::session::kill::file", Kind::File),
    ("child::session::freeze::file", Kind::File),
    ("child::daemon::kill::redis", Kind::Redis),
    ("fleet::the_shards_of_one_killed_are_taken_at_once::file", Kind::File),
    ("storm::file", Kind::File),
    ("storm::redis", Kind::Redis),
    ("fleet::storm::redis", Kind::Redis),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = INSIDE
        .into_iter()
        .map(|(inside, place)| {
            let name = format!("pid_namespace::own_proc::{inside}");
            trial(name, place, move || with_own_proc(inside))
        })
        .collect();
    trials.push(trial("pid_namespace::foreign_proc::file".to_owned(), Kind::File, refused));
    let able = unshare(&["true"]).output().is_ok_and(|output| output.status.success());
    let needs = "needs root and unshare, to make a pid namespace";
    let only_if_able = |trial: Trial| match able {
        true => trial,
        false => trial.with_kind(needs.to_owned()).with_ignored_flag(true),
    };
    trials.into_iter().map(only_if_able).collect()
}

/// A program in a pid namespace of its own. `--mount-proc` is another argument.
fn unshare(arguments: &[&str]) -> Command {
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

fn both(output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{stdout}{stderr}")
}

fn refused() {
    let room = Room::new();
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
            let said = both(&output);
            assert_eq!(output.status.code(), Some(123), "{before:?}: {said}");
            assert!(said.contains("/proc belongs to another pid namespace"), "{said}");
            assert!(said.contains("--mount-proc"), "it says what to do: {said}");
            assert!(!made.exists(), "{before:?}: nothing was run");
        }
    }
    // What runs no command needs no list of processes.
    let output = tenure(&["run", "job", "--mock", "--every", "1s", "--once"]);
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    assert!(both(&output).contains("poll 1"), "{}", both(&output));
    room.empties().unwrap();
}
