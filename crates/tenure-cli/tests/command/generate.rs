//! `tenure completions` and `tenure man`.

use std::process::Command;

use tenure_rig::command::Sandbox;

#[test]
fn completions_have_every_public_command_and_no_hidden_one() {
    let sandbox = Sandbox::new();
    for (shell, begins) in [("bash", "_tenure()"), ("zsh", "#compdef tenure"), ("fish", "# ")] {
        let ran = sandbox.run(&["completions", shell]);
        ran.exits(0).says("status").says("undrain").says("lock-dir").says("shards-redis-set");
        assert!(ran.stdout.starts_with(begins), "{shell}: {:.80}", ran.stdout);
        assert!(!ran.stdout.contains("demo-node"), "{shell}");
    }
    sandbox.run(&["completions", "tcsh"]).exits(125).complains("bash");
}

#[test]
fn bash_can_read_its_completions() {
    let sandbox = Sandbox::new();
    let script = sandbox.path().join("tenure.bash");
    std::fs::write(&script, &sandbox.run(&["completions", "bash"]).exits(0).stdout).unwrap();
    let checked = Command::new("bash").arg("-n").arg(&script).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn the_manual_is_printed_or_written_as_pages() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["man"]);
    ran.exits(0).says(".TH tenure 1").says("TENURE_STORE").says(".SH EXAMPLES\n.nf\n");
    assert!(!ran.stdout.contains("demo-node") && !ran.stdout.contains("demo\\-node"));
    let directory = sandbox.path().join("man/man1");
    sandbox.run(&["man", "--dir", directory.to_str().unwrap()]).exits(0).says("tenure.1");
    for page in
        ["tenure.1", "tenure-status.1", "tenure-revoke.1", "tenure-fleet.1", "tenure-fleet-who.1"]
    {
        let text = std::fs::read_to_string(directory.join(page)).unwrap();
        assert!(text.contains("Examples:"), "{page}");
    }
    assert!(!directory.join("tenure-fleet-help.1").exists(), "that one is clap's own");
    sandbox.run(&["man", "--dir", "/proc/nowhere"]).exits(123).complains("/proc/nowhere");
}
