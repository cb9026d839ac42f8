//! `tenure fleet run` with a shell: the name of a shard as an argument, as a variable, and as code.

use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{Sandbox, eventually};

const SHELL_CODE_WARNING: &str = "{} is inside the code of 'sh -c'";
/// The warning about a command that does not mention the shard.
const NO_SHARD_WARNING: &str = "{} stands nowhere in what is run";
const HOSTILE: &str = "x; echo injected";

/// Runs a member with this command and a shard with a hostile name until it has written something; returns its log.
fn run(sandbox: &Sandbox, command: &[&str]) -> String {
    let mut member = sandbox.command(&["fleet", "run", "poll", "--node-id", "a"]);
    member.env("TENURE_LOCK_DIR", sandbox.path().join("leases"));
    member.args(["--shards", HOSTILE, "--"]).args(command);
    let node = BackgroundProcess::start(&mut member, sandbox.path(), "a");
    eventually("the command has run", || !sandbox.marked().is_empty());
    let log = node.log();
    assert_eq!(node.end(), Some(0));
    eventually("no process is left", || sandbox.processes().is_empty());
    log
}

#[test]
fn a_shard_in_the_code_is_warned_about() {
    let sandbox = Sandbox::new();
    let code = format!("(echo {{}}) >> {}; sleep 60", sandbox.marks().display());
    let log = run(&sandbox, &["env", "sh", "-c", &code]);
    assert!(
        log.contains(SHELL_CODE_WARNING) && log.contains("write \"$TENURE_SHARD\" there"),
        "{log}"
    );
    // The reason for the warning: the code was run.
    assert!(sandbox.marked().contains(&"injected".to_owned()), "{:?}", sandbox.marked());
}

#[test]
fn a_shard_in_a_variable_or_an_argument_is_not_run_as_code() {
    for (code, arguments) in [("\"$TENURE_SHARD\"", &[][..]), ("\"$1\"", &["sh", "{}"])] {
        let sandbox = Sandbox::new();
        let code = format!("echo {code} >> {}; sleep 60", sandbox.marks().display());
        let log = run(&sandbox, &[&["sh", "-c", &code], arguments].concat());
        assert!(!log.contains(SHELL_CODE_WARNING) && !log.contains(NO_SHARD_WARNING), "{log}");
        assert_eq!(sandbox.marked(), [HOSTILE]);
    }
}
