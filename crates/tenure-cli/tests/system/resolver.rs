//! F45: the first server of `resolv.conf` never responds, so every lookup takes the resolver's 5 s, which is as long as a
//! connection attempt may take and longer than the default TTL.
//!
//! The trial runs in its own network namespace, where port 53 is free, and its own mount namespace, with its own `resolv.conf`.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::pid_namespace::{both, unshare};
use crate::trial;
use tenure_rig::system::time::pause;
use tenure_rig::system::trial_directory::TrialDirectory;
use tenure_rig::system::trial_process::TrialProcess;
use tenure_rig::system::trial_store::{StoreKind, TrialStore, run};

const NAME: &str = "resolver::first_server_never_answers::redis";
/// Set for the run of this program inside the namespaces.
const INSIDE: &str = "TENURE_TEST_RESOLVER_INSIDE";
const HOST: &str = "store.test";
const SILENT_SERVER: &str = "127.0.0.3";
const NAME_SERVER: &str = "127.0.0.2";
/// Ten times the time needed: a lookup of 5 s whose result the next attempt uses.
const LEADS_WITHIN: Duration = Duration::from_secs(60);
/// Two default TTLs: six renewals.
const HOLD: Duration = Duration::from_secs(8);

pub(crate) fn trials() -> Vec<Trial> {
    let trial = match std::env::var_os(INSIDE) {
        Some(_) => trial(NAME.to_owned(), StoreKind::Redis, inside),
        None => trial(NAME.to_owned(), StoreKind::Redis, in_namespaces),
    };
    let probe = unshare(&["--net", "--mount", "ip", "link", "set", "lo", "up"]).output();
    let able = probe.is_ok_and(|output| output.status.success());
    vec![match able {
        true => trial,
        false => {
            let needs = "needs root, unshare and ip, to make a network namespace";
            trial.with_kind(needs).with_ignored_flag(true)
        }
    }]
}

/// Runs this trial again in its own namespaces, which end with it.
fn in_namespaces() {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let mut command = unshare(&["--net", "--mount-proc", program, "--exact", NAME]);
    let output = command.env(INSIDE, "1").output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert!(both(&output).contains("1 passed"), "{}", both(&output));
}

fn inside() {
    assert_eq!(std::process::id(), 1, "outside of its namespaces it would change this machine");
    run(Command::new("ip").args(["link", "set", "lo", "up"]));
    let room = TrialDirectory::new();
    let resolv = format!("nameserver {SILENT_SERVER}\nnameserver {NAME_SERVER}\n");
    replace(Path::new("/etc/resolv.conf"), &room, &resolv);
    replace(Path::new("/etc/nsswitch.conf"), &room, "hosts: files dns\n");
    let silent = UdpSocket::bind((SILENT_SERVER, 53)).unwrap();
    let name_server = UdpSocket::bind((NAME_SERVER, 53)).unwrap();
    std::thread::spawn(move || answer_queries(&name_server));

    let place = TrialStore::open(StoreKind::Redis, room.path(), 1);
    let url = place.url().replace("127.0.0.1", HOST);
    let candidate = TrialProcess::start_candidate(&room, &url, &[]);
    candidate.wait_until_leading(LEADS_WITHIN);
    silent.set_nonblocking(true).unwrap();
    assert!(silent.recv(&mut [0; 512]).is_ok(), "the first server was asked");
    pause(HOLD);
    // The next connection needs the address again, before the lease ends.
    place.send(&["CLIENT KILL TYPE normal SKIPME yes", "CLIENT KILL TYPE pubsub"]);
    pause(HOLD);
    candidate.assert_led_throughout();
}

/// Mounts a file with `text` over `path`.
fn replace(path: &Path, room: &TrialDirectory, text: &str) {
    let file = room.path().join(path.file_name().unwrap());
    std::fs::write(&file, text).unwrap();
    run(Command::new("mount").arg("--bind").args([&file, path]));
}

/// A name server that knows the one host: it has the address 127.0.0.1, and none of IPv6.
fn answer_queries(socket: &UdpSocket) {
    const TYPE_A: [u8; 2] = [0, 1];
    let known: Vec<u8> = HOST.split('.').flat_map(label).chain([0]).collect();
    let mut query = [0; 512];
    while let Ok((length, client)) = socket.recv_from(&mut query) {
        // A header of 12 bytes, then the question: name, type, class.
        let question_end = 12 + known.len() + 4;
        let is_known = length >= question_end && query[12..].starts_with(&known);
        let has_address = is_known && query[12 + known.len()..].starts_with(&TYPE_A);
        let mut reply = query[..2].to_vec();
        // A reply without error, or "no such name"; one question; and the number of answers.
        reply.extend([0x81, if is_known { 0x80 } else { 0x83 }, 0, u8::from(is_known), 0]);
        reply.extend([u8::from(has_address), 0, 0, 0, 0]);
        if is_known {
            reply.extend(&query[12..question_end]);
        }
        if has_address {
            // The name of the question, type A, class IN, a TTL of 0 s, four bytes.
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
            reply.extend(Ipv4Addr::LOCALHOST.octets());
        }
        socket.send_to(&reply, client).unwrap();
    }
}

fn label(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}
