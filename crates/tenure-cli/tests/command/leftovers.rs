//! The files that the command creates in a directory, and those that it leaves there.

use std::path::Path;

use tenure_rig::command::Sandbox;

fn files(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for part in std::fs::read_dir(path).unwrap().flatten() {
        let entries = std::fs::read_dir(part.path()).unwrap().flatten();
        found.extend(entries.map(|entry| entry.path().display().to_string()));
    }
    found
}

/// B3: earlier versions left a record, a lock and a process file for each run. `TENURE_TURNS=1000` repeats the figure of the
/// issue.
#[test]
fn runs_leave_few_files() {
    let sandbox = Sandbox::new();
    let runs = std::env::var("TENURE_TURNS").ok().and_then(|runs| runs.parse().ok());
    for _ in 0..runs.unwrap_or(12) {
        let run = ["--lock-dir", "leases", "run", "job", "--once", "--", "true"];
        sandbox.run(&run).exits(0);
    }
    let files = files(&sandbox.path().join("leases"));
    assert!(files.len() <= 10, "{files:?}");
}

/// UX 11.
#[test]
fn commands_that_only_read_make_no_directory() {
    let sandbox = Sandbox::new();
    for (command, exit) in [
        (&["status"][..], 0),
        (&["status", "job"], 1),
        (&["doctor"], 0),
        (&["doctor", "job"], 0),
        (&["drain", "job", "a", "--wait", "1s"], 125),
        (&["revoke", "job", "--yes"], 125),
        (&["fleet", "drain", "f", "a", "--wait", "1s"], 125),
    ] {
        for directory in ["missing", "missing/too"] {
            let ran = sandbox.run(&[&["--lock-dir", directory], command].concat());
            assert!(!sandbox.path().join("missing").exists(), "{command:?}");
            ran.exits(exit);
        }
    }
    for command in [&["resign", "job"][..], &["fleet", "status", "f"], &["fleet", "who", "f", "s"]]
    {
        let ran = sandbox.run(&[&["--lock-dir", "missing"], command].concat());
        assert!(!sandbox.path().join("missing").exists(), "{command:?}: {}", ran.stderr);
    }
    sandbox.assert_nothing_left();
}

#[test]
fn run_refuses_a_directory_of_other_files() {
    let sandbox = Sandbox::new();
    let file = sandbox.put("project/Cargo.toml", "");
    for command in [&["run", "job", "--once", "--", "true"][..], &["status"]] {
        let ran = sandbox.run(&[&["--lock-dir", "project"], command].concat());
        ran.exits(123).complains("('Cargo.toml')").complains("project/tenure");
    }
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}
