//! Control requests: who may send them, and who may not.

use std::time::Duration;

use tenure::presence::Presence;
use tenure::{CandidateId, CandidateState};

use super::candidate_fixture::{CandidateFixture, CandidateSetup, SECRET};

#[test]
fn a_leader_resigns_for_a_client_with_the_secret() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    fixture.until(|| fixture.election.is_leader());
    let reply = fixture.post("/resign", "{\"to\":\"node-2\"}");
    assert_eq!(reply.code, 202, "{reply:?}");
    assert_eq!(reply.json()["isLeader"], false, "and it says so at once");
    assert_eq!(fixture.get("/leader").code, 503);
    fixture.until(|| fixture.election.is_leader());
    assert_eq!(fixture.post("/resign", "").code, 202, "to any candidate");

    fixture.until(|| fixture.election.is_leader());
    assert_eq!(fixture.post("/drain", "").code, 202);
    assert_eq!(fixture.get("/leader").code, 503);
    fixture.until(|| fixture.get("/status").json()["state"] == "drained");
    let status = fixture.get("/status").json();
    assert_eq!((&status["drained"], &status["isLeader"]), (&true.into(), &false.into()));
    assert_eq!(fixture.post("/undrain", "{}").code, 202);
    fixture.until(|| fixture.get("/leader").code == 200);
    assert_eq!(fixture.get("/status").json()["drained"], false);
}

#[test]
fn a_successor_that_cannot_lead_is_refused_before_the_leader_stops() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    fixture.until(|| fixture.election.is_leader());
    let token = fixture.election.status().token;
    let (name, id) = (fixture.election.name(), CandidateId::new("node-2").unwrap());
    let presence = Presence::new(name, &id, Duration::from_secs(30)).state(CandidateState::Drained);
    let presence = fixture.runtime.block_on(presence.announce(fixture.store())).unwrap();
    for (to, why) in [("node-2", "'node-2' is drained"), ("node-9", "no candidate 'node-9'")] {
        let reply = fixture.post("/resign", &format!("{{\"to\":\"{to}\"}}"));
        let (_, message) = reply.refusal();
        assert_eq!(reply.code, 409, "{reply:?}");
        assert!(message.contains(why), "{message}");
    }
    assert_eq!(fixture.election.status().token, token);
    presence.set_state(CandidateState::Waiting);
    fixture.until(|| fixture.post("/resign", "{\"to\":\"node-2\"}").code == 202);
    fixture.runtime.block_on(presence.leave());
}

#[test]
fn only_a_leader_resigns() {
    let fixture =
        CandidateFixture::new(CandidateSetup { follower: true, ..CandidateSetup::default() });
    let reply = fixture.post("/resign", "");
    let (kind, message) = reply.refusal();
    assert_eq!((reply.code, kind.as_str()), (409, "invalid"));
    assert!(message.contains("'node-1' does not lead"), "{message}");
    assert_eq!(fixture.post("/drain", "").code, 202, "that a follower can");
    fixture.until(|| fixture.election.status().drained);
}

#[test]
fn without_the_secret_every_control_request_is_refused() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    fixture.until(|| fixture.election.is_leader());
    let long = format!("Authorization: Bearer {SECRET}x");
    let twice = format!("Authorization: Bearer {SECRET}");
    for path in ["/resign", "/drain", "/undrain"] {
        for lines in [
            &[][..],
            &["Authorization: Bearer "],
            &["Authorization: Bearer open-sesam"],
            &["Authorization: Basic open-sesame"],
            &["Authorization: open-sesame"],
            &["X-ControlSecret: open-sesame"],
            &[&long],
            &[&twice, &twice],
        ] {
            let reply = fixture.request(&format!("POST {path}"), lines, "");
            assert_eq!((reply.code, reply.refusal().0.as_str()), (401, "denied"), "{lines:?}");
            assert_eq!(reply.head["www-authenticate"], "Bearer");
            assert!(!reply.body.contains(SECRET));
        }
        let reply = fixture.request(&format!("POST {path}?secret={SECRET}"), &[], "");
        assert_eq!(reply.code, 401, "a secret in an address is in every log");
    }
    assert!(fixture.election.is_leader() && !fixture.election.status().drained);

    let off = CandidateFixture::new(CandidateSetup { secret: false, ..CandidateSetup::default() });
    let reply = off.post("/resign", "");
    let (kind, message) = reply.refusal();
    assert_eq!((reply.code, kind.as_str()), (403, "denied"));
    assert!(message.contains("--control-secret-file"), "{message}");
    assert!(off.election.is_leader());
}

#[test]
fn a_request_that_cannot_be_parsed_is_refused() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    fixture.until(|| fixture.election.is_leader());
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
        let reply = fixture.post(path, body);
        assert_eq!((reply.code, reply.refusal().0.as_str()), (400, "invalid"), "{body}");
    }
    for kind in ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", "json"] {
        let kind = format!("Content-Type: {kind}");
        let reply = fixture.request("POST /resign", &[&secret, &kind], "{}");
        assert_eq!((reply.code, reply.refusal().0.as_str()), (415, "invalid"), "{kind}");
    }
    assert_eq!(fixture.request("POST /resign", &[&secret], "{}").code, 415);
    assert!(fixture.election.is_leader());
    let kind = "Content-Type: application/json; charset=utf-8";
    assert_eq!(fixture.request("POST /resign", &[&secret, kind], "{}").code, 202);
}

#[test]
fn on_loopback_every_path_accepts_its_own_names_only() {
    let fixture = CandidateFixture::new(CandidateSetup {
        allow: vec!["build-7".to_owned()],
        ..CandidateSetup::default()
    });
    fixture.until(|| fixture.election.is_leader());
    let port = fixture.address().port();
    let secret = format!("Authorization: Bearer {SECRET}");
    let paths =
        ["GET /", "GET /status", "HEAD /leader", "GET /healthz", "GET /leases", "GET /events"];
    let more = ["GET /fleet", "GET /metrics", "GET /none", "POST /resign", "POST /drain", "PUT /"];
    for first in paths.iter().chain(&more) {
        for host in
            ["evil.example", "localhost.evil.example", "10.0.0.1", "127.0.0.1.", "", "[::2]"]
        {
            let host = format!("Host: {host}:{port}");
            let reply = fixture.request(first, &[&host, &secret], "");
            assert_eq!(reply.code, 421, "{first} {host}");
            if !first.starts_with("HEAD") {
                let (kind, message) = reply.refusal();
                assert!(kind == "denied" && message.contains("--allow-host"), "{message}");
            }
        }
    }
    let reply = fixture.request("GET http://evil.example/status", &["Host: localhost"], "");
    assert_eq!(reply.code, 421, "the address of a request counts too");
    for host in ["localhost", "127.0.0.1", "[::1]", "BUILD-7"] {
        for host in [format!("Host: {host}"), format!("Host: {host}:{port}")] {
            assert_eq!(fixture.request("GET /status", &[&host], "").code, 200, "{host}");
        }
    }
    assert!(fixture.election.is_leader());
}

#[test]
fn on_other_addresses_probes_are_accepted_and_foreign_pages_control_nothing() {
    let fixture =
        CandidateFixture::new(CandidateSetup { http: "0.0.0.0:0", ..CandidateSetup::default() });
    fixture.until(|| fixture.election.is_leader());
    for host in ["10.1.2.3:3000", "worker-1", "evil.example"] {
        assert_eq!(
            fixture.request("GET /leader", &[&format!("Host: {host}")], "").code,
            200,
            "{host}"
        );
    }
    let secret = format!("Authorization: Bearer {SECRET}");
    for origin in ["http://evil.example", "null", "http://worker-1:81", "file://"] {
        let lines = ["Host: worker-1:80", &secret, &format!("Origin: {origin}")];
        let reply = fixture.request("POST /resign", &lines, "");
        assert_eq!((reply.code, reply.refusal().0.as_str()), (403, "denied"), "{origin}");
    }
    assert_eq!(fixture.request("POST /resign", &["Host: worker-1"], "").code, 401);
    assert!(fixture.election.is_leader());
    let lines = ["Host: worker-1:80", &secret, "Origin: http://worker-1:80"];
    assert_eq!(fixture.request("POST /resign", &lines, "").code, 202, "our own page may");
}

#[test]
fn a_body_that_does_not_arrive_times_out() {
    let mut setup = CandidateSetup::default();
    setup.limits.body_timeout = Duration::from_millis(200);
    let fixture = CandidateFixture::new(setup);
    let secret = format!("Authorization: Bearer {SECRET}");
    let lines = [&secret, "Content-Length: 20", "Content-Type: application/json"];
    let reply = fixture.request("POST /drain", &lines, "");
    assert_eq!((reply.code, reply.refusal().0.as_str()), (408, "invalid"));
    assert!(!fixture.election.status().drained);
}
