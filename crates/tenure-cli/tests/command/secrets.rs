//! The output of the command never contains a password.

#![cfg(feature = "redis")]

use tenure_rig::command::{CommandResult, Sandbox};

/// No server listens on port 1.
const URL: &str = "redis://:sentinelpw@127.0.0.1:1";

#[track_caller]
fn assert_no_password(ran: &CommandResult) -> &CommandResult {
    let printed = format!("{}{}", ran.stdout, ran.stderr);
    assert!(!printed.contains("sentinelpw"), "{printed}");
    ran
}

#[test]
fn a_password_on_the_command_line_works_and_is_warned_about() {
    let sandbox = Sandbox::new();
    for args in [&["--store", URL, "doctor"][..], &["doctor", "--json", "--store", URL]] {
        let ran = sandbox.run(args);
        assert_no_password(&ran)
            .exits(122)
            .complains("a password on the command line")
            .complains("127.0.0.1");
    }
    assert_no_password(&sandbox.run(&["--store", URL, "--log-level", "trace", "demo"])).exits(122);
    sandbox.assert_nothing_left();
}

#[test]
fn a_password_in_the_variable_is_not_warned_about_and_not_shown() {
    let sandbox = Sandbox::new();
    let with = |args: &[&str]| {
        let output = sandbox.command(args).env("TENURE_STORE", URL).output();
        CommandResult::new(output.unwrap())
    };
    let ran = with(&["doctor"]);
    assert_no_password(&ran).exits(122);
    assert!(!ran.stderr.contains("command line"), "{}", ran.stderr);
    assert_no_password(&with(&["--help"])).exits(0);
    assert_no_password(&with(&["demo", "--help"])).exits(0);
}

#[test]
fn a_url_in_the_wrong_place_is_quoted_without_its_password() {
    let sandbox = Sandbox::new();
    for args in [&[URL, "doctor"][..], &["doctor", URL], &["--json", "doctor", URL]] {
        assert_no_password(&sandbox.run(args)).exits(125);
    }
    let glued = format!("--stroe={URL}");
    assert_no_password(&sandbox.run(&[&glued, "doctor"])).exits(125);
}

#[test]
fn read_and_request_commands_show_no_password() {
    let sandbox = Sandbox::new();
    for args in [
        &["status"][..],
        &["status", "a", "--json"],
        &["watch", "--json"],
        &["resign", "a"],
        &["drain", "a", "b"],
        &["undrain", "a", "b", "--json"],
        &["revoke", "a", "--yes"],
    ] {
        let command = || sandbox.command(&["--log-level", "trace"]);
        let ran =
            CommandResult::new(command().args(args).env("TENURE_STORE", URL).output().unwrap());
        assert_no_password(&ran).exits(122);
    }
    for args in [&["status", URL][..], &["resign", URL], &["drain", "a", URL, "--json"]] {
        assert_no_password(&sandbox.run(args)).exits(125);
    }
    for args in [&["man"][..], &["completions", "zsh"], &["resign", "--help"]] {
        let ran =
            CommandResult::new(sandbox.command(args).env("TENURE_STORE", URL).output().unwrap());
        assert_no_password(&ran).exits(0);
    }
}
