//! A password appears in no output, in no list of arguments and in no environment but the one it was given in.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::trial;
use tenure_rig::servers::{self, Scratch, Server, free_port};
use tenure_rig::system::processes::{below, signal};
use tenure_rig::system::time::{poll_until, runtime};
use tenure_rig::system::trial_store::{SERVER, StoreKind};

const PASSWORD: &str = "sentinelpw";
const PATIENCE: Duration = Duration::from_secs(15);

const ELECTION: &[&str] = &["run", "secrets"];
/// The shards command names one shard after the number of Tenure's variables in its environment.
const FLEET: &[&str] =
    &["fleet", "run", "secrets", "--shards-command", "echo found-$(env | grep -c ^TENURE_)"];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("secrets::in_a_variable::redis".to_owned(), StoreKind::Redis, || {
            discreet(ELECTION, false)
        }),
        trial("secrets::on_the_command_line::redis".to_owned(), StoreKind::Redis, || {
            discreet(ELECTION, true);
        }),
        trial("secrets::of_a_fleet_in_a_variable::redis".to_owned(), StoreKind::Redis, || {
            discreet(FLEET, false);
        }),
        trial(
            "secrets::of_a_fleet_on_the_command_line::redis".to_owned(),
            StoreKind::Redis,
            || {
                discreet(FLEET, true);
            },
        ),
        trial(
            "secrets::a_wrong_one_ends_everything_at_once::redis".to_owned(),
            StoreKind::Redis,
            refused,
        ),
    ]
}

/// An operator must act: no command waits for a store that refuses the login.
fn refused() {
    let port = free_port();
    let server = guarded_server(port);
    let url = format!("redis://:not{PASSWORD}@127.0.0.1:{port}");
    for command in [
        &["run", "secrets", "--", "true"][..],
        &["run", "secrets", "--mock"],
        &["fleet", "run", "secrets", "--shards", "a", "--", "true", "{}"],
        &["fleet", "run", "secrets", "--mock"],
        &["status"],
        &["watch"],
        &["resign", "secrets"],
        &["drain", "secrets", "a"],
        &["revoke", "secrets", "--yes"],
        &["doctor"],
        &["fleet", "status", "secrets"],
        &["fleet", "who", "secrets", "a"],
        &["fleet", "drain", "secrets", "a"],
        &["fleet", "undrain", "secrets", "a"],
        &["fleet", "pause", "secrets", "a"],
        &["fleet", "resume", "secrets", "a"],
        &["fleet", "plan", "secrets", "--members", "a"],
    ] {
        let mut tenure = Command::new(env!("CARGO_BIN_EXE_tenure"));
        let output = tenure.args(command).env("TENURE_STORE", &url).output().unwrap();
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(123), "{command:?}: {printed}");
        assert!(printed.contains("check user and password"), "{command:?}: {printed}");
        assert!(!printed.contains(PASSWORD), "{command:?}: {printed}");
    }
    runtime().block_on(server.stop()).unwrap();
}

fn discreet(what: &[&str], typed: bool) {
    let port = free_port();
    let server = guarded_server(port);
    let scratch = Scratch::new();
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{port}");
    let output = scratch.path().join("output");
    let mut leader = start(what, &url, typed, &output);
    // As soon as the command runs its second step: the process of its first step is gone by then.
    let sleeps = |text: &String| text.starts_with("sleep\0");
    let shown = poll_until(PATIENCE, || {
        let read = |pid: &u32, what| fs::read(format!("/proc/{pid}/{what}"));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let both = |pid: &u32| Some([read(pid, "cmdline").ok()?, read(pid, "environ").ok()?]);
        let shown: Option<Vec<_>> = below(leader.id()).iter().map(both).collect();
        let shown: Vec<String> = shown?.into_iter().flatten().map(text).collect();
        shown.iter().any(sleeps).then_some(shown)
    });
    for text in shown.expect("a guard and a command") {
        assert!(!text.contains(PASSWORD), "{text}");
    }
    // Killed, so that the guard logs something too.
    signal(leader.id(), Signal::KILL);
    leader.wait().unwrap();
    let printed = poll_until(PATIENCE, || {
        let printed = fs::read_to_string(&output).unwrap();
        RELEASED.iter().any(|text| printed.contains(text)).then_some(printed)
    });
    let printed = printed.expect("the guard tells of it");
    assert!(!printed.contains(PASSWORD), "{printed}");
    if what == FLEET {
        assert!(printed.contains("endpoint=found-0"), "{printed}");
    }
    assert_eq!(printed.contains("a password on the command line"), typed, "{printed}");
    runtime().block_on(server.stop()).unwrap();
}

/// The guard's message of a release.
const RELEASED: [&str; 2] = ["released the lease", "released 2 leases"];

/// Starts `tenure run` or another command, at the most verbose log level.
fn start(what: &[&str], url: &str, typed: bool, output: &std::path::Path) -> Child {
    let output = fs::File::create(output).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["--log-level", "trace"]).args(what);
    match typed {
        true => command.args(["--store", url]),
        false => command.env("TENURE_STORE", url),
    };
    command.args(["--", "sh", "-c", "env; sleep 60; true"]).stdin(Stdio::null());
    command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap()
}

fn guarded_server(port: u16) -> Server {
    let text = port.to_string();
    let words = ["--bind", "127.0.0.1", "--dir", ".", "--port", &text, "--save", ""];
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let words = words.into_iter().chain(durable).chain(["--requirepass", PASSWORD]);
    let program = servers::find(SERVER, "redis-server").unwrap();
    let started = Server::start(Scratch::in_memory(), program, words, async || answers(port));
    runtime().block_on(started).unwrap()
}

fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let mut reply = [0; 1];
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut reply).is_ok()
}
