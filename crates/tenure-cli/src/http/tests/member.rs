//! The answers of a fleet member, where they differ from a candidate's.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tenure::CandidateId;
use tenure::fleet::overrides;

use super::candidate_fixture::{Reply, SECRET, read_all};
use super::events::{Subscriber, has};
use super::member_fixture::{MemberFixture, MemberSetup};
use super::status::parsed;
use crate::http::HttpLimits;

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_status_of_a_member_is_spelled_as_in_the_manual() {
    let fixture = MemberFixture::new(MemberSetup::default());
    fixture.settled(3);
    let reply = fixture.get("/leader");
    assert_eq!((reply.code, reply.head["content-type"].as_str()), (200, "application/json"));
    assert!(reply.body.starts_with("{\"isLeader\":true,\"lastPolled\":null,"), "{}", reply.body);
    let status = reply.json();
    let manual = [
        "isLeader",
        "lastPolled",
        "name",
        "candidateId",
        "state",
        "token",
        "validForMs",
        "shards",
        "unowned",
        "members",
        "drained",
        "healthy",
        "store",
        "storeGrade",
        "storeReachable",
        "lastError",
    ];
    assert_eq!(keys(&status), BTreeSet::from(manual));
    assert_eq!((&status["name"], &status["candidateId"]), (&"poll".into(), &"api-1".into()));
    assert_eq!(status["state"], "member");
    let token = fixture.fleet.membership().unwrap().0.get();
    assert_eq!(status["token"], token);
    assert!((1..10_000).contains(&status["validForMs"].as_u64().unwrap()), "{status}");
    assert_eq!((&status["shards"], &status["unowned"]), (&3.into(), &0.into()));
    assert_eq!((&status["members"], &status["drained"]), (&1.into(), &false.into()));
    assert_eq!((&status["store"], &status["healthy"]), (&"memory:".into(), &true.into()));
    assert_eq!((&status["storeReachable"], &status["lastError"]), (&true.into(), &Value::Null));
    fixture.work.began(1_750_258_800_000);
    assert_eq!(fixture.get("/status").json()["lastPolled"], "2025-06-18T15:00:00.000Z");
    assert_eq!(fixture.get("/healthz").json(), serde_json::json!({"ok": true}));

    fixture.runtime.block_on(fixture.fleet.leave());
    let reply = fixture.get("/leader");
    let status = reply.json();
    assert_eq!((reply.code, &status["state"]), (503, &"stopped".into()));
    assert_eq!((&status["isLeader"], &status["shards"]), (&false.into(), &0.into()));
    assert_eq!((&status["token"], &status["validForMs"]), (&Value::Null, &0.into()));
    let (_, message) = fixture.get("/healthz").refusal();
    assert!(message.contains("the fleet has ended"), "{message}");
}

#[test]
fn a_member_that_waits_to_join_answers_503() {
    let fixture = MemberFixture::new(MemberSetup { taken: true, ..MemberSetup::default() });
    fixture.until(|| fixture.get("/status").json()["members"] == 1);
    let reply = fixture.get("/leader");
    let status = reply.json();
    assert_eq!((reply.code, &status["state"]), (503, &"waiting".into()));
    assert_eq!((&status["isLeader"], &status["token"]), (&false.into(), &Value::Null));
    assert_eq!((&status["validForMs"], &status["shards"]), (&0.into(), &0.into()));
    assert_eq!(fixture.get("/healthz").code, 200, "a restart would not help");
}

#[test]
fn an_unhealthy_member_does_not_take_part_and_reports_it() {
    let healthy = Arc::new(AtomicBool::new(false));
    let fixture = MemberFixture::new(MemberSetup {
        healthy: Some(Arc::clone(&healthy)),
        ..MemberSetup::default()
    });
    fixture.sleep(Duration::from_millis(100));
    let reply = fixture.get("/leader");
    assert_eq!((reply.code, &reply.json()["healthy"]), (503, &false.into()));
    healthy.store(true, Ordering::Relaxed);
    fixture.settled(3);
    assert_eq!(fixture.get("/leader").json()["healthy"], true);
    let mut subscriber = Subscriber::new(&fixture, None);
    subscriber.until(has("state"));
    healthy.store(false, Ordering::Relaxed);
    fixture.until(|| fixture.get("/leader").code == 503);
    let status = fixture.get("/status").json();
    assert_eq!((&status["healthy"], &status["state"]), (&false.into(), &"waiting".into()));
    assert_eq!(fixture.get("/healthz").code, 200, "a restart would not help");
    subscriber.until(has("left"));
    let events = subscriber.events();
    let (_, _, left) = events.iter().find(|event| event.1 == "left").unwrap();
    assert_eq!(left["reason"], "unhealthy");
}

#[test]
fn an_unreachable_store_is_shown_in_the_status() {
    let fixture =
        MemberFixture::new(MemberSetup { ttl: Duration::from_secs(2), ..MemberSetup::default() });
    fixture.settled(3);
    let mut subscriber = Subscriber::new(&fixture, None);
    subscriber.until(has("state"));
    fixture.switches.down.store(true, Ordering::Relaxed);
    subscriber.until(has("store"));
    let status = fixture.get("/status").json();
    assert_eq!(
        (&status["storeReachable"], &status["lastError"]),
        (&false.into(), &"switched off".into())
    );
    subscriber.until(|text| text.matches("event: revoked\n").count() == 3 && has("left")(text));
    let reply = fixture.get("/leader");
    assert_eq!((reply.code, &reply.json()["state"]), (503, &"waiting".into()));
    assert_eq!(fixture.get("/healthz").code, 200, "a restart would not help");
    assert_eq!(fixture.get("/fleet").code, 503);
    assert_eq!(fixture.post("/drain", "").code, 503, "it could not be noted down");
    fixture.switches.down.store(false, Ordering::Relaxed);
    subscriber.until(|text| text.matches("event: store\n").count() >= 2 && has("joined")(text));
    fixture.until(|| fixture.get("/leader").code == 200);
    let status = fixture.get("/status").json();
    assert_eq!((&status["storeReachable"], &status["state"]), (&true.into(), &"member".into()));
    let events = subscriber.events();
    let (_, _, gone) = events.iter().find(|event| event.1 == "store").unwrap();
    let fields = ["at", "event", "name", "from", "to", "token", "reason"];
    assert_eq!(keys(gone), BTreeSet::from(fields), "as a candidate tells it");
    assert_eq!((&gone["to"], &gone["reason"]), (&"unreachable".into(), &"switched off".into()));
    let lost: Vec<&Value> =
        events.iter().filter(|event| event.1 == "revoked").map(|event| &event.2).collect();
    assert!(lost.len() == 3 && lost.iter().all(|lost| lost["reason"] == "expired"), "{events:#?}");
}

#[test]
fn the_whole_fleet_is_shown_by_each_of_its_members() {
    let fixture = MemberFixture::new(MemberSetup::default());
    fixture.settled(3);
    let pause = |overrides: &mut overrides::Overrides| {
        overrides.paused.insert(tenure::fleet::Shard::new("b").unwrap());
        overrides.drained.insert(CandidateId::new("gone").unwrap());
    };
    let (me, wait) = (CandidateId::new("operator").unwrap(), Duration::from_secs(5));
    let change = overrides::change(&*fixture.store, fixture.fleet.name(), &me, wait, pause);
    fixture.runtime.block_on(change).unwrap();
    fixture.until(|| fixture.get("/fleet").json()["shards"][1]["owner"].is_null());
    let reply = fixture.get("/fleet");
    assert_eq!((reply.code, reply.head["content-type"].as_str()), (200, "application/json"));
    assert_eq!(reply.head["cache-control"], "no-store");
    let fleet = reply.json();
    assert_eq!(keys(&fleet), BTreeSet::from(["name", "members", "shards"]));
    let member = serde_json::json!({
        "id": "api-1", "shards": 2, "drained": false, "url": "http://127.0.0.1:3000",
    });
    assert_eq!((&fleet["name"], &fleet["members"]), (&"poll".into(), &serde_json::json!([member])));
    let shards = fleet["shards"].as_array().unwrap();
    let names: Vec<&Value> = shards.iter().map(|shard| &shard["shard"]).collect();
    assert_eq!(names, ["a", "b", "tenant \"7\""]);
    for shard in shards {
        assert_eq!(keys(shard), BTreeSet::from(["shard", "owner", "token", "paused"]));
        let paused = shard["shard"] == "b";
        assert_eq!(shard["paused"], paused);
        let owner = if paused { Value::Null } else { "api-1".into() };
        assert!(shard["owner"] == owner && shard["token"].is_u64(), "{shard}");
    }
    assert_eq!(fixture.get("/leases").json().as_array().unwrap().len(), 4, "shards and the member");
}

#[test]
fn the_fleet_is_read_rarely_and_delays_no_other_request() {
    let limits = HttpLimits { fleet_timeout: Duration::from_millis(300), ..HttpLimits::default() };
    let fixture = MemberFixture::new(MemberSetup { limits, ..MemberSetup::default() });
    fixture.settled(3);
    let before = fixture.switches.surveys.load(Ordering::Relaxed);
    let begun = fixture.clock.now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(fixture.get("/fleet").code, 200)));
        }
    });
    let most = 2 + fixture.clock.now().since(begun).as_secs() / 2;
    let surveys = fixture.switches.surveys.load(Ordering::Relaxed) - before;
    assert!((1..=most).contains(&surveys), "{surveys} surveys");
    fixture.switches.mute.store(true, Ordering::Relaxed);
    fixture.sleep(Duration::from_millis(2_100));
    let reply = fixture.get("/fleet");
    assert_eq!((reply.code, reply.refusal().0.as_str()), (503, "unavailable"));
    assert_eq!(fixture.get("/status").code, 200);
}

#[test]
fn many_shards_are_sent_completely_and_to_a_limited_number_of_clients() {
    // More than the system buffers for a client that does not read.
    let name = |number: usize| format!("tenant-{number:06}-{}", "x".repeat(400));
    let shards: Vec<String> = (0..20_000).map(name).collect();
    let limits = HttpLimits { large: 1, ..HttpLimits::default() };
    let fixture = MemberFixture::new(MemberSetup {
        limits,
        shards: shards.clone(),
        ..MemberSetup::default()
    });
    fixture.until(|| fixture.fleet.shards().shards().len() == shards.len());
    let reply = fixture.get("/fleet");
    let fleet = reply.json();
    assert_eq!(reply.head["content-length"], reply.body.len().to_string());
    let named: Vec<&str> = fleet["shards"].as_array().unwrap().iter().map(shard).collect();
    assert!(named == shards, "also those that no member owns yet");
    assert_eq!(fixture.request("HEAD /fleet", &[], "").body, "");

    let mut slow = fixture.connect();
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow, 32 * 1024).unwrap();
    slow.write_all(b"GET /fleet HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut first = [0; 1];
    slow.read_exact(&mut first).unwrap();
    let refused = fixture.get("/fleet");
    assert_eq!((refused.code, refused.refusal().0.as_str()), (503, "unavailable"));
    assert!(refused.head.contains_key("retry-after"));
    assert_eq!(fixture.get("/status").code, 200);
    let rest = read_all(&mut slow);
    assert!(rest.ends_with("}]}"), "the slow one gets all of it");
    fixture.until(|| fixture.get("/fleet").code == 200);
}

fn shard(row: &Value) -> &str {
    row["shard"].as_str().unwrap()
}

#[test]
fn assigned_and_revoked_shards_are_published() {
    let fixture =
        MemberFixture::new(MemberSetup { ttl: Duration::from_secs(1), ..MemberSetup::default() });
    fixture.settled(3);
    let mut subscriber = Subscriber::new(&fixture, None);
    subscriber.until(has("state"));
    let (_, _, state) = subscriber.events().remove(0);
    assert_eq!((&state["state"], &state["shards"]), (&"member".into(), &3.into()));
    assert_eq!(fixture.post("/drain", "").code, 202);
    subscriber.until(has("unowned"));
    let events = subscriber.events();
    let revoked: Vec<&Value> =
        events.iter().filter(|event| event.1 == "revoked").map(|event| &event.2).collect();
    assert_eq!(revoked.len(), 3);
    let fields = ["at", "event", "name", "shard", "token", "reason"];
    assert_eq!(keys(revoked[0]), BTreeSet::from(fields));
    assert_eq!((&revoked[0]["name"], &revoked[0]["reason"]), (&"poll".into(), &"drain".into()));
    let (last_received, _, unowned) = events.iter().find(|event| event.1 == "unowned").unwrap();
    assert_eq!(keys(unowned), BTreeSet::from(["at", "event", "name", "count"]));
    assert_eq!(unowned["count"], 3);
    assert_eq!(fixture.get("/status").json()["unowned"], 3);
    let page = parsed(&fixture.get("/metrics").body);
    assert_eq!((page["tenure_shards_unowned"], page["tenure_shards_owned"]), (3.0, 0.0));
    drop(subscriber);

    assert_eq!(fixture.post("/undrain", "{}").code, 202);
    fixture.settled(3);
    let mut back = Subscriber::new(&fixture, Some(last_received));
    back.until(|text| text.matches("event: assigned\n").count() == 3 && text.ends_with("\n\r\n"));
    let events = back.events();
    assert_eq!(events[0].1, "state");
    let (_, _, assigned) = events.iter().find(|event| event.1 == "assigned").unwrap();
    assert_eq!(keys(assigned), BTreeSet::from(["at", "event", "name", "shard", "token"]));
    let again = revoked.iter().find(|event| event["shard"] == assigned["shard"]).unwrap();
    assert!(assigned["token"].as_u64() > again["token"].as_u64(), "a new term");

    fixture.runtime.block_on(fixture.fleet.leave());
    back.until(has("left"));
    let events = back.events();
    let (_, _, left) = events.iter().find(|event| event.1 == "left").unwrap();
    assert_eq!(keys(left), BTreeSet::from(["at", "event", "name", "reason"]));
    assert_eq!(left["reason"], "shutdown");
}

#[test]
fn metrics_of_a_member_have_no_line_for_each_shard() {
    let fixture =
        MemberFixture::new(MemberSetup { ttl: Duration::from_secs(2), ..MemberSetup::default() });
    fixture.settled(3);
    fixture.until(|| fixture.fleet.renewals().durations.count > 0);
    fixture.work.ended("ok", Duration::from_millis(20));
    let reply = fixture.get("/metrics");
    let page = parsed(&reply.body);
    let of = |name: &str| page.get(name).copied().unwrap_or_else(|| panic!("{name}: {page:?}"));
    assert_eq!((of("tenure_is_leader"), of("tenure_members")), (1.0, 1.0));
    assert_eq!((of("tenure_shards_owned"), of("tenure_shards_unowned")), (3.0, 0.0));
    let token = fixture.fleet.membership().unwrap().0;
    assert!(reply.body.contains(&format!("\ntenure_token {token}\n")), "{}", reply.body);
    assert!((0.1..2.0).contains(&of("tenure_deadline_seconds")));
    assert!(of("tenure_renew_seconds_count") >= 1.0);
    assert_eq!(of("tenure_renew_failures_total{cause=\"unavailable\"}"), 0.0);
    assert_eq!(of("tenure_runs_total{outcome=\"ok\"}"), 1.0);
    assert_eq!(of("tenure_run_seconds_count"), 1.0);
    let build = "tenure_build_info{version=\"0.1.0\",name=\"poll\",candidate=\"api-1\"}";
    assert_eq!(of(build), 1.0);
    assert!(!reply.body.contains("tenant"), "{}", reply.body);
}

#[test]
fn a_client_with_the_secret_drains_a_member_for_the_whole_fleet() {
    let fixture = MemberFixture::new(MemberSetup::default());
    fixture.settled(3);
    let drained = || -> Vec<String> {
        let read = overrides::read(&*fixture.store, fixture.fleet.name());
        fixture.runtime.block_on(read).unwrap().drained.iter().map(ToString::to_string).collect()
    };
    let none: Vec<String> = Vec::new();
    let (port, secret) = (fixture.address().port(), format!("Authorization: Bearer {SECRET}"));
    for path in ["POST /drain", "POST /undrain", "POST /resign", "GET /fleet"] {
        let host = format!("Host: evil.example:{port}");
        assert_eq!(fixture.request(path, &[&host, &secret], "").code, 421, "{path}");
    }
    for path in ["POST /drain", "POST /undrain", "POST /resign"] {
        for lines in [&[][..], &["Authorization: Bearer open-sesam"], &["X: open-sesame"]] {
            let reply = fixture.request(path, lines, "");
            assert_eq!((reply.code, reply.refusal().0.as_str()), (401, "denied"), "{lines:?}");
        }
        let lines = [secret.as_str(), "Origin: http://evil.example"];
        assert_eq!(fixture.request(path, &lines, "").code, 403, "a page of another site");
    }
    for body in ["{\"to\":\"api-2\"}", "{", "{\"who\":1}"] {
        assert_eq!(fixture.post("/drain", body).code, 400, "{body}");
    }
    assert_eq!(drained(), none);
    let reply = fixture.post("/resign", "");
    let (kind, message) = reply.refusal();
    assert_eq!((reply.code, kind.as_str()), (409, "invalid"));
    assert!(message.contains("'api-1'") && message.contains("/drain"), "{message}");

    let reply = fixture.post("/drain", "");
    assert_eq!((reply.code, &reply.json()["drained"]), (202, &true.into()), "{reply:?}");
    assert_eq!(drained(), ["api-1"], "it outlives the process");
    fixture.settled(0);
    assert_eq!(fixture.get("/leader").code, 200, "it still takes part, and owns nothing");
    fixture.until(|| fixture.get("/fleet").json()["members"][0]["drained"] == true);
    assert_eq!(fixture.post("/drain", "{}").code, 202, "once more does no harm");
    let reply = fixture.post("/undrain", "");
    assert_eq!((reply.code, &reply.json()["drained"]), (202, &false.into()), "{reply:?}");
    assert_eq!(drained(), none);
    fixture.settled(3);

    let off = MemberFixture::new(MemberSetup { secret: false, ..MemberSetup::default() });
    for path in ["/drain", "/undrain", "/resign"] {
        let reply: Reply = off.post(path, "");
        let (kind, message) = reply.refusal();
        assert_eq!((reply.code, kind.as_str()), (403, "denied"));
        assert!(message.contains("--control-secret-file"), "{message}");
    }
    assert_eq!(off.get("/fleet").code, 200, "every client may read");
}
