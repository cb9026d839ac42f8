//! `tenure serve`, and HTTP beside `run`: the responses, and how long a response commits the server.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::process::Signal;
use tenure::Clock;

use tenure_rig::background_process::BackgroundProcess;
use tenure_rig::command::{CommandResult, Sandbox, eventually, pause};
use tenure_rig::http_peer::{HttpResponse, get, leads, request};

const NAME: &str = "billing";

fn serve(sandbox: &Sandbox, id: &str, args: &[&str]) -> BackgroundProcess {
    let mut command = sandbox.command(&["serve", NAME, "--node-id", id, "--http", "0"]);
    command.env("TENURE_LOCK_DIR", sandbox.path().join("leases")).args(args);
    BackgroundProcess::start(&mut command, sandbox.path(), id)
}

fn refused(sandbox: &Sandbox, args: &[&str]) -> CommandResult {
    let mut command = sandbox.command(args);
    CommandResult::new(
        command.env("TENURE_LOCK_DIR", sandbox.path().join("leases")).output().unwrap(),
    )
}

fn leader(port: u16) -> HttpResponse {
    get(port, "/leader").unwrap()
}

#[test]
fn the_leader_answers_200_and_followers_503_with_the_same_body() {
    let sandbox = Sandbox::new();
    let a = serve(&sandbox, "a", &[]);
    eventually("it leads", || leads(a.port()));
    let b = serve(&sandbox, "b", &[]);
    eventually("it knows", || leader(b.port()).json()["currentLeader"] == "a");
    let (yes, no) = (leader(a.port()), leader(b.port()));
    assert_eq!((yes.code, no.code), (200, 503));
    let (yes, no) = (yes.json(), no.json());
    // At most a third of the lease.
    let valid = yes["validForMs"].as_u64().unwrap();
    assert!(valid > 0 && valid <= 1_334, "{yes}");
    assert_eq!(
        (&no["validForMs"], &no["token"], &no["state"]),
        (&0.into(), &().into(), &"waiting".into())
    );
    assert_eq!(yes["state"], "leading");
    assert_eq!(request(b.port(), "HEAD /leader", "").unwrap().code, 503);
    assert_eq!(get(b.port(), "/healthz").unwrap().code, 200);
    assert_eq!(request(a.port(), "POST /resign", "Content-Length: 0\r\n").unwrap().code, 403);
    let leases = get(a.port(), "/leases").unwrap().json();
    assert_eq!((&leases[0]["name"], &leases[0]["currentLeader"]), (&NAME.into(), &"a".into()));
    let both = refused(&sandbox, &["status", NAME, "--json"]).json();
    assert_eq!(both["candidates"].as_array().unwrap().len(), 2, "{both}");
}

/// `a` answers that it leads, then `happens` is called. Returns how long the answer is valid, and how long after it `b` leads.
fn handover_time(happens: impl FnOnce(&mut BackgroundProcess)) -> (Duration, Duration) {
    let sandbox = Sandbox::new();
    let lease = ["--lease-duration", "3s"];
    let mut a = serve(&sandbox, "a", &lease);
    eventually("it leads", || leads(a.port()));
    let b = serve(&sandbox, "b", &lease);
    b.says("FOLLOWER - a leads");
    let clock = Clock::boot();
    let (port, asked) = (a.port(), clock.now());
    let valid = leader(port).json()["validForMs"].as_u64().unwrap();
    happens(&mut a);
    let end = asked + Duration::from_secs(8);
    while !leads(b.port()) {
        assert!(!leads(port), "it said no before");
        assert!(clock.now() < end, "nobody leads:\n{}\n{}", a.log(), b.log());
        pause(Duration::from_millis(5));
    }
    (Duration::from_millis(valid), clock.now().since(asked))
}

#[test]
fn a_stopping_server_answers_no_at_once_and_releases_when_its_last_yes_has_expired() {
    let (valid, after) = handover_time(|a| {
        a.signal(Signal::TERM);
        pause(Duration::from_millis(200));
        // The server still runs, until no client may rely on its last answer any more.
        assert_eq!(leader(a.port()).code, 503);
    });
    assert!(after >= valid, "{after:?} < {valid:?}");
    assert!(after < valid + Duration::from_millis(1_500), "{after:?}, {valid:?}");
}

#[test]
fn the_death_of_a_server_releases_nothing_early() {
    let (valid, after) = handover_time(BackgroundProcess::kill);
    assert!(after >= valid, "{after:?} < {valid:?}");
    // The directory store would notice the death; but clients may still act on the last answer.
    assert!(after > Duration::from_millis(1_500), "{after:?}");
}

#[test]
fn hooks_run_at_the_start_and_the_end_of_a_term() {
    let sandbox = Sandbox::new();
    let marks = sandbox.path().join("marks");
    let hook =
        |word: &str| format!("echo {word} $TENURE_NAME $TENURE_CANDIDATE >> {}", marks.display());
    let hooks = ["--on-lead", &hook("lead"), "--on-lose", &hook("lose")].map(str::to_owned);
    let hooks: Vec<&str> = hooks.iter().map(String::as_str).collect();
    let marked = || fs::read_to_string(&marks).unwrap_or_default();
    let a = serve(&sandbox, "a", &hooks);
    eventually("it leads", || marked() == "lead billing a\n");
    assert_eq!(a.end(), Some(0));
    assert_eq!(marked(), "lead billing a\nlose billing a\n");
    fs::remove_file(&marks).unwrap();
    let mut command = sandbox.command(&["run", NAME, "--node-id", "b", "--mock"]);
    command.env("TENURE_LOCK_DIR", sandbox.path().join("leases")).args(&hooks);
    let b = BackgroundProcess::start(&mut command, sandbox.path(), "b");
    b.says("[b] poll 1");
    assert_eq!(marked(), "lead billing b\n", "before the work begins");
    assert_eq!(b.end(), Some(0));
    assert_eq!(marked(), "lead billing b\nlose billing b\n");
}

#[test]
fn a_request_with_the_secret_may_resign() {
    let sandbox = Sandbox::new();
    let secret = sandbox.path().join("secret");
    fs::write(&secret, "sesame\n").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let a = serve(&sandbox, "a", &["--control-secret-file", secret.to_str().unwrap()]);
    eventually("it leads", || leads(a.port()));
    let b = serve(&sandbox, "b", &[]);
    b.says("FOLLOWER - a leads");
    let resign = |secret: &str| {
        let headers = format!("Authorization: Bearer {secret}\r\nContent-Length: 0\r\n");
        request(a.port(), "POST /resign", &headers).unwrap()
    };
    assert_eq!(resign("sesam").code, 401);
    let answer = resign("sesame");
    assert_eq!((answer.code, &answer.json()["isLeader"]), (202, &false.into()));
    eventually("the other leads", || leads(b.port()));
    assert_eq!(resign("sesame").code, 409);
}

#[test]
fn invalid_usage_is_125_before_anything_is_started() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let secret = sandbox.path().join("secret");
    fs::write(&secret, "sesame\n").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let secret = ["--http", "0", "--control-secret-file", secret.to_str().unwrap()];
    for (args, says) in [
        (&["--http", &port][..], "is taken by another program"),
        (&["--http", "here"], "HOST:PORT"),
        (&secret, "chmod 600"),
        (&["--http", "0", "--control-secret-file", "none"], "No such file"),
        (&["--http", "0", "--answer-for", "1h"], "no longer than the lease"),
    ] {
        refused(&sandbox, &[&["serve", NAME], args].concat()).exits(125).complains(says);
        if args[0] == "--http" && !args.contains(&"--answer-for") {
            let run = [&["run", NAME, "--mock"], args].concat();
            refused(&sandbox, &run).exits(125).complains(says);
        }
    }
    refused(&sandbox, &["serve"]).exits(125).complains("needs a name");
}
