//! Hooks and the deadline of the lease.

use std::fs;
use std::time::Duration;

use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{Sandbox, eventually, pause};

/// The hook may take 2 s, but the lease ends half a second after the last renewal: without the kill, the hook would write
/// "late" while the next leader runs.
#[test]
fn on_lead_is_killed_before_the_deadline() {
    let sandbox = Sandbox::new();
    let leases = sandbox.path().join("leases");
    let marks = sandbox.marks();
    let hook = format!("echo began >> {0}; sleep 1.9; echo late >> {0}", marks.display());
    let mut command = sandbox.command(&["run", "job", "--node-id", "a"]);
    command.args(["--lease-duration", "500ms", "--on-lead", &hook, "--", "sleep", "60"]);
    command.env("TENURE_LOCK_DIR", &leases);
    let a = BackgroundProcess::start(&mut command, sandbox.path(), "a");
    eventually("the hook runs", || sandbox.marked() == ["began"]);
    // From here on every renewal fails.
    fs::rename(&leases, sandbox.path().join("elsewhere")).unwrap();
    pause(Duration::from_millis(2_200));
    assert_eq!(sandbox.marked(), ["began"], "the hook went on after the deadline");
    a.says("the hook --on-lead was not run to its end: the deadline of the lease came first");
    assert_eq!(a.end(), Some(0));
}
