//! A password is never in anything the command says.

#![cfg(feature = "redis")]

use crate::support::{Ran, World};

/// Nobody listens on port 1.
const URL: &str = "redis://:sentinelpw@127.0.0.1:1";

#[track_caller]
fn discreet(ran: &Ran) -> &Ran {
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(!said.contains("sentinelpw"), "{said}");
    ran
}

#[test]
fn a_password_on_the_command_line_works_and_is_warned_about() {
    let world = World::new();
    for args in [&["--store", URL, "doctor"][..], &["doctor", "--json", "--store", URL]] {
        let ran = world.run(args);
        discreet(&ran)
            .exits(122)
            .complains("a password on the command line")
            .complains("127.0.0.1");
    }
    discreet(&world.run(&["--store", URL, "--log-level", "trace", "demo"])).exits(122);
    world.assert_nothing_left();
}

#[test]
fn a_password_in_the_variable_is_not_warned_about_and_not_shown() {
    let world = World::new();
    let with = |args: &[&str]| {
        let output = world.command(args).env("TENURE_STORE", URL).output();
        Ran::new(output.unwrap())
    };
    let ran = with(&["doctor"]);
    discreet(&ran).exits(122);
    assert!(!ran.stderr.contains("command line"), "{}", ran.stderr);
    discreet(&with(&["--help"])).exits(0);
    discreet(&with(&["demo", "--help"])).exits(0);
}

#[test]
fn a_url_in_the_wrong_place_is_quoted_without_its_password() {
    let world = World::new();
    for args in [&[URL, "doctor"][..], &["doctor", URL], &["--json", "doctor", URL]] {
        discreet(&world.run(args)).exits(125);
    }
    let glued = format!("--stroe={URL}");
    discreet(&world.run(&[&glued, "doctor"])).exits(125);
}

#[test]
fn those_that_look_and_ask_are_as_discreet() {
    let world = World::new();
    for args in [
        &["status"][..],
        &["status", "a", "--json"],
        &["watch", "--json"],
        &["resign", "a"],
        &["drain", "a", "b"],
        &["undrain", "a", "b", "--json"],
        &["revoke", "a", "--yes"],
    ] {
        let command = || world.command(&["--log-level", "trace"]);
        let ran = Ran::new(command().args(args).env("TENURE_STORE", URL).output().unwrap());
        discreet(&ran).exits(122);
    }
    for args in [&["status", URL][..], &["resign", URL], &["drain", "a", URL, "--json"]] {
        discreet(&world.run(args)).exits(125);
    }
    for args in [&["man"][..], &["completions", "zsh"], &["resign", "--help"]] {
        let ran = Ran::new(world.command(args).env("TENURE_STORE", URL).output().unwrap());
        discreet(&ran).exits(0);
    }
}
