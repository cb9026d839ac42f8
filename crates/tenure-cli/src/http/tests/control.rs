//! Who may steer, and who may not.

use std::time::Duration;

use tenure::presence::Presence;
use tenure::{CandidateId, CandidateState};

use super::support::{Rig, SECRET, Setup};

#[test]
fn a_leader_hands_over_to_whoever_knows_the_secret() {
    let rig = Rig::new(Setup::default());
    rig.until(|| rig.election.is_leader());
    let reply = rig.post("/resign", "{\"to\":\"node-2\"}");
    assert_eq!(reply.code, 202, "{reply:?}");
    assert_eq!(reply.json()["isLeader"], false, "and it says so at once");
    assert_eq!(rig.get("/leader").code, 503);
    rig.until(|| rig.election.is_leader());
    assert_eq!(rig.post("/resign", "").code, 202, "to anybody");

    rig.until(|| rig.election.is_leader());
    assert_eq!(rig.post("/drain", "").code, 202);
    assert_eq!(rig.get("/leader").code, 503);
    rig.until(|| rig.get("/status").json()["state"] == "drained");
    let status = rig.get("/status").json();
    assert_eq!((&status["drained"], &status["isLeader"]), (&true.into(), &false.into()));
    assert_eq!(rig.post("/undrain", "{}").code, 202);
    rig.until(|| rig.get("/leader").code == 200);
    assert_eq!(rig.get("/status").json()["drained"], false);
}

#[test]
fn a_successor_that_cannot_lead_is_refused_before_the_leader_stops() {
    let rig = Rig::new(Setup::default());
    rig.until(|| rig.election.is_leader());
    let token = rig.election.status().token;
    let (name, id) = (rig.election.name(), CandidateId::new("node-2").unwrap());
    let presence = Presence::new(name, &id, Duration::from_secs(30)).state(CandidateState::Drained);
    let presence = rig.runtime.block_on(presence.announce(rig.store())).unwrap();
    for (to, why) in [("node-2", "'node-2' is drained"), ("node-9", "no candidate 'node-9'")] {
        let reply = rig.post("/resign", &format!("{{\"to\":\"{to}\"}}"));
        let (_, message) = reply.refusal();
        assert_eq!(reply.code, 409, "{reply:?}");
        assert!(message.contains(why), "{message}");
    }
    assert_eq!(rig.election.status().token, token);
    presence.set_state(CandidateState::Waiting);
    rig.until(|| rig.post("/resign", "{\"to\":\"node-2\"}").code == 202);
    rig.runtime.block_on(presence.leave());
}

#[test]
fn only_a_leader_resigns() {
    let rig = Rig::new(Setup { follower: true, ..Setup::default() });
    let reply = rig.post("/resign", "");
    let (kind, message) = reply.refusal();
    assert_eq!((reply.code, kind.as_str()), (409, "invalid"));
    assert!(message.contains("'node-1' does not lead"), "{message}");
    assert_eq!(rig.post("/drain", "").code, 202, "that a follower can");
    rig.until(|| rig.election.status().drained);
}

#[test]
fn without_the_secret_nothing_is_done() {
    let rig = Rig::new(Setup::default());
    rig.until(|| rig.election.is_leader());
    let long = format!("Authorization: Bearer {SECRET}x");
    let twice = format!("Authorization: Bearer {SECRET}");
    for path in ["/resign", "/drain", "/undrain"] {
        for lines in [
            &[][..],
            &["Authorization: Bearer "],
            &["Authorization: Bearer open-sesam"],
            &["Authorization: Basic open-sesame"],
            &["Authorization: open-sesame"],
            &["X-Secret: open-sesame"],
            &[&long],
            &[&twice, &twice],
        ] {
            let reply = rig.ask(&format!("POST {path}"), lines, "");
            assert_eq!((reply.code, reply.refusal().0.as_str()), (401, "denied"), "{lines:?}");
            assert_eq!(reply.head["www-authenticate"], "Bearer");
            assert!(!reply.body.contains(SECRET));
        }
        let reply = rig.ask(&format!("POST {path}?secret={SECRET}"), &[], "");
        assert_eq!(reply.code, 401, "a secret in an address is in every log");
    }
    assert!(rig.election.is_leader() && !rig.election.status().drained);

    let off = Rig::new(Setup { secret: false, ..Setup::default() });
    let reply = off.post("/resign", "");
    let (kind, message) = reply.refusal();
    assert_eq!((reply.code, kind.as_str()), (403, "denied"));
    assert!(message.contains("--control-secret-file"), "{message}");
    assert!(off.election.is_leader());
}

#[test]
fn a_wish_that_cannot_be_read_is_refused() {
    let rig = Rig::new(Setup::default());
    rig.until(|| rig.election.is_leader());
    let secret = format!("Authorization: Bearer {SECRET}");
    for (path, body) in [
        ("/resign", "{"),
        ("/resign", "[]"),
        ("/resign", "{\"to\":7}"),
        ("/resign", "{\"to\":\"a b\"}"),
        ("/resign", "{\"to\":\"\"}"),
        ("/resign", "{\"to\":\"node-1\"}"),
        ("/resign", "{\"who\":\"a\"}"),
        ("/drain", "{\"to\":\"a\"}"),
    ] {
        let reply = rig.post(path, body);
        assert_eq!((reply.code, reply.refusal().0.as_str()), (400, "invalid"), "{body}");
    }
    for kind in ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", "json"] {
        let kind = format!("Content-Type: {kind}");
        let reply = rig.ask("POST /resign", &[&secret, &kind], "{}");
        assert_eq!((reply.code, reply.refusal().0.as_str()), (415, "invalid"), "{kind}");
    }
    assert_eq!(rig.ask("POST /resign", &[&secret], "{}").code, 415);
    assert!(rig.election.is_leader());
    let kind = "Content-Type: application/json; charset=utf-8";
    assert_eq!(rig.ask("POST /resign", &[&secret, kind], "{}").code, 202);
}

#[test]
fn on_this_machine_every_path_answers_to_its_own_names_only() {
    let rig = Rig::new(Setup { allow: vec!["build-7".to_owned()], ..Setup::default() });
    rig.until(|| rig.election.is_leader());
    let port = rig.address().port();
    let secret = format!("Authorization: Bearer {SECRET}");
    let paths =
        ["GET /", "GET /status", "HEAD /leader", "GET /healthz", "GET /leases", "GET /events"];
    let more = ["GET /fleet", "GET /metrics", "GET /none", "POST /resign", "POST /drain", "PUT /"];
    for first in paths.iter().chain(&more) {
        for host in
            ["evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.", "", "[::2]"]
        {
            let host = format!("Host: {host}:{port}");
            let reply = rig.ask(first, &[&host, &secret], "");
            assert_eq!(reply.code, 421, "{first} {host}");
            if !first.starts_with("HEAD") {
                let (kind, message) = reply.refusal();
                assert!(kind == "denied" && message.contains("--allow-host"), "{message}");
            }
        }
    }
    let reply = rig.ask("GET http://evil.example/status", &["Host: localhost"], "");
    assert_eq!(reply.code, 421, "the address of a request counts too");
    for host in ["localhost", "127.0.0.1", "[::1]", "BUILD-7"] {
        for host in [format!("Host: {host}"), format!("Host: {host}:{port}")] {
            assert_eq!(rig.ask("GET /status", &[&host], "").code, 200, "{host}");
        }
    }
    assert!(rig.election.is_leader());
}

#[test]
fn elsewhere_probes_come_by_address_and_pages_of_others_steer_nothing() {
    let rig = Rig::new(Setup { http: "0.0.0.0:0", ..Setup::default() });
    rig.until(|| rig.election.is_leader());
    for host in ["10.1.2.3:3000", "worker-1", "evil.example"] {
        assert_eq!(rig.ask("GET /leader", &[&format!("Host: {host}")], "").code, 200, "{host}");
    }
    let secret = format!("Authorization: Bearer {SECRET}");
    for origin in ["http://evil.example", "null", "http://worker-1:81", "file://"] {
        let lines = ["Host: worker-1:80", &secret, &format!("Origin: {origin}")];
        let reply = rig.ask("POST /resign", &lines, "");
        assert_eq!((reply.code, reply.refusal().0.as_str()), (403, "denied"), "{origin}");
    }
    assert_eq!(rig.ask("POST /resign", &["Host: worker-1"], "").code, 401);
    assert!(rig.election.is_leader());
    let lines = ["Host: worker-1:80", &secret, "Origin: http://worker-1:80"];
    assert_eq!(rig.ask("POST /resign", &lines, "").code, 202, "our own page may");
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let mut setup = Setup::default();
    setup.limits.body_time = Duration::from_millis(200);
    let rig = Rig::new(setup);
    let secret = format!("Authorization: Bearer {SECRET}");
    let lines = [&secret, "Content-Length: 20", "Content-Type: application/json"];
    let reply = rig.ask("POST /drain", &lines, "");
    assert_eq!((reply.code, reply.refusal().0.as_str()), (408, "invalid"));
    assert!(!rig.election.status().drained);
}
