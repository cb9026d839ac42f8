//! What a member of a fleet answers, where that is not what a candidate does.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tenure::CandidateId;
use tenure::fleet::overrides;

use super::events::{Listener, has};
use super::member_fixture::{Crew, Setup};
use super::status::parsed;
use super::support::{Reply, SECRET, read_all};
use crate::http::HttpLimits;

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_status_of_a_member_is_spelled_as_in_the_manual() {
    let crew = Crew::new(Setup::default());
    crew.settled(3);
    let reply = crew.get("/leader");
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
    let token = crew.fleet.membership().unwrap().0.get();
    assert_eq!(status["token"], token);
    assert!((1..10_000).contains(&status["validForMs"].as_u64().unwrap()), "{status}");
    assert_eq!((&status["shards"], &status["unowned"]), (&3.into(), &0.into()));
    assert_eq!((&status["members"], &status["drained"]), (&1.into(), &false.into()));
    assert_eq!((&status["store"], &status["healthy"]), (&"memory:".into(), &true.into()));
    assert_eq!((&status["storeReachable"], &status["lastError"]), (&true.into(), &Value::Null));
    crew.work.began(1_750_258_800_000);
    assert_eq!(crew.get("/status").json()["lastPolled"], "2025-06-18T15:00:00.000Z");
    assert_eq!(crew.get("/healthz").json(), serde_json::json!({"ok": true}));

    crew.runtime.block_on(crew.fleet.leave());
    let reply = crew.get("/leader");
    let status = reply.json();
    assert_eq!((reply.code, &status["state"]), (503, &"stopped".into()));
    assert_eq!((&status["isLeader"], &status["shards"]), (&false.into(), &0.into()));
    assert_eq!((&status["token"], &status["validForMs"]), (&Value::Null, &0.into()));
    let (_, message) = crew.get("/healthz").refusal();
    assert!(message.contains("the fleet has ended"), "{message}");
}

#[test]
fn one_that_waits_to_take_part_says_503() {
    let crew = Crew::new(Setup { taken: true, ..Setup::default() });
    crew.until(|| crew.get("/status").json()["members"] == 1);
    let reply = crew.get("/leader");
    let status = reply.json();
    assert_eq!((reply.code, &status["state"]), (503, &"waiting".into()));
    assert_eq!((&status["isLeader"], &status["token"]), (&false.into(), &Value::Null));
    assert_eq!((&status["validForMs"], &status["shards"]), (&0.into(), &0.into()));
    assert_eq!(crew.get("/healthz").code, 200, "a restart would not help");
}

#[test]
fn one_that_is_not_fit_does_not_take_part_and_says_so() {
    let fit = Arc::new(AtomicBool::new(false));
    let crew = Crew::new(Setup { fit: Some(Arc::clone(&fit)), ..Setup::default() });
    crew.sleep(Duration::from_millis(100));
    let reply = crew.get("/leader");
    assert_eq!((reply.code, &reply.json()["healthy"]), (503, &false.into()));
    fit.store(true, Ordering::Relaxed);
    crew.settled(3);
    assert_eq!(crew.get("/leader").json()["healthy"], true);
    let mut listener = Listener::new(&crew, None);
    listener.until(has("state"));
    fit.store(false, Ordering::Relaxed);
    crew.until(|| crew.get("/leader").code == 503);
    let status = crew.get("/status").json();
    assert_eq!((&status["healthy"], &status["state"]), (&false.into(), &"waiting".into()));
    assert_eq!(crew.get("/healthz").code, 200, "a restart would not help");
    listener.until(has("left"));
    let events = listener.events();
    let (_, _, left) = events.iter().find(|event| event.1 == "left").unwrap();
    assert_eq!(left["reason"], "unhealthy");
}

#[test]
fn a_store_that_is_gone_is_seen_in_the_status() {
    let crew = Crew::new(Setup { ttl: Duration::from_secs(2), ..Setup::default() });
    crew.settled(3);
    let mut listener = Listener::new(&crew, None);
    listener.until(has("state"));
    crew.switches.down.store(true, Ordering::Relaxed);
    listener.until(has("store"));
    let status = crew.get("/status").json();
    assert_eq!(
        (&status["storeReachable"], &status["lastError"]),
        (&false.into(), &"switched off".into())
    );
    listener.until(|text| text.matches("event: revoked\n").count() == 3 && has("left")(text));
    let reply = crew.get("/leader");
    assert_eq!((reply.code, &reply.json()["state"]), (503, &"waiting".into()));
    assert_eq!(crew.get("/healthz").code, 200, "a restart would not help");
    assert_eq!(crew.get("/fleet").code, 503);
    assert_eq!(crew.post("/drain", "").code, 503, "it could not be noted down");
    crew.switches.down.store(false, Ordering::Relaxed);
    listener.until(|text| text.matches("event: store\n").count() >= 2 && has("joined")(text));
    crew.until(|| crew.get("/leader").code == 200);
    let status = crew.get("/status").json();
    assert_eq!((&status["storeReachable"], &status["state"]), (&true.into(), &"member".into()));
    let events = listener.events();
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
    let crew = Crew::new(Setup::default());
    crew.settled(3);
    let pause = |overrides: &mut overrides::Overrides| {
        overrides.paused.insert(tenure::fleet::Shard::new("b").unwrap());
        overrides.drained.insert(CandidateId::new("gone").unwrap());
    };
    let (me, wait) = (CandidateId::new("somebody").unwrap(), Duration::from_secs(5));
    let said = overrides::change(&*crew.store, crew.fleet.name(), &me, wait, pause);
    crew.runtime.block_on(said).unwrap();
    crew.until(|| crew.get("/fleet").json()["shards"][1]["owner"].is_null());
    let reply = crew.get("/fleet");
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
    assert_eq!(crew.get("/leases").json().as_array().unwrap().len(), 4, "shards and the member");
}

#[test]
fn the_fleet_is_read_seldom_and_nobody_else_waits_for_it() {
    let limits = HttpLimits { fleet_time: Duration::from_millis(300), ..HttpLimits::default() };
    let crew = Crew::new(Setup { limits, ..Setup::default() });
    crew.settled(3);
    let before = crew.switches.surveys.load(Ordering::Relaxed);
    let begun = crew.clock.now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(crew.get("/fleet").code, 200)));
        }
    });
    let most = 2 + crew.clock.now().since(begun).as_secs() / 2;
    let surveys = crew.switches.surveys.load(Ordering::Relaxed) - before;
    assert!((1..=most).contains(&surveys), "{surveys} surveys");
    crew.switches.mute.store(true, Ordering::Relaxed);
    crew.sleep(Duration::from_millis(2_100));
    let reply = crew.get("/fleet");
    assert_eq!((reply.code, reply.refusal().0.as_str()), (503, "unavailable"));
    assert_eq!(crew.get("/status").code, 200);
}

#[test]
fn many_shards_are_sent_whole_and_not_to_too_many_at_a_time() {
    // More than the system keeps for a client that does not read.
    let name = |number: usize| format!("tenant-{number:06}-{}", "x".repeat(400));
    let shards: Vec<String> = (0..20_000).map(name).collect();
    let limits = HttpLimits { large: 1, ..HttpLimits::default() };
    let crew = Crew::new(Setup { limits, shards: shards.clone(), ..Setup::default() });
    crew.until(|| crew.fleet.shards().shards.len() == shards.len());
    let reply = crew.get("/fleet");
    let fleet = reply.json();
    assert_eq!(reply.head["content-length"], reply.body.len().to_string());
    let named: Vec<&str> = fleet["shards"].as_array().unwrap().iter().map(shard).collect();
    assert!(named == shards, "also those that nobody owns yet");
    assert_eq!(crew.ask("HEAD /fleet", &[], "").body, "");

    let mut slow = crew.connect();
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow, 32 * 1024).unwrap();
    slow.write_all(b"GET /fleet HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut first = [0; 1];
    slow.read_exact(&mut first).unwrap();
    let refused = crew.get("/fleet");
    assert_eq!((refused.code, refused.refusal().0.as_str()), (503, "unavailable"));
    assert!(refused.head.contains_key("retry-after"));
    assert_eq!(crew.get("/status").code, 200);
    let rest = read_all(&mut slow);
    assert!(rest.ends_with("}]}"), "the slow one gets all of it");
    crew.until(|| crew.get("/fleet").code == 200);
}

fn shard(row: &Value) -> &str {
    row["shard"].as_str().unwrap()
}

#[test]
fn shards_that_come_and_go_are_told_of() {
    let crew = Crew::new(Setup { ttl: Duration::from_secs(1), ..Setup::default() });
    crew.settled(3);
    let mut listener = Listener::new(&crew, None);
    listener.until(has("state"));
    let (_, _, state) = listener.events().remove(0);
    assert_eq!((&state["state"], &state["shards"]), (&"member".into(), &3.into()));
    assert_eq!(crew.post("/drain", "").code, 202);
    listener.until(has("unowned"));
    let events = listener.events();
    let revoked: Vec<&Value> =
        events.iter().filter(|event| event.1 == "revoked").map(|event| &event.2).collect();
    assert_eq!(revoked.len(), 3);
    let fields = ["at", "event", "name", "shard", "token", "reason"];
    assert_eq!(keys(revoked[0]), BTreeSet::from(fields));
    assert_eq!((&revoked[0]["name"], &revoked[0]["reason"]), (&"poll".into(), &"drain".into()));
    let (seen, _, unowned) = events.iter().find(|event| event.1 == "unowned").unwrap();
    assert_eq!(keys(unowned), BTreeSet::from(["at", "event", "name", "count"]));
    assert_eq!(unowned["count"], 3);
    assert_eq!(crew.get("/status").json()["unowned"], 3);
    let page = parsed(&crew.get("/metrics").body);
    assert_eq!((page["tenure_shards_unowned"], page["tenure_shards_owned"]), (3.0, 0.0));
    drop(listener);

    assert_eq!(crew.post("/undrain", "{}").code, 202);
    crew.settled(3);
    let mut back = Listener::new(&crew, Some(seen));
    back.until(|text| text.matches("event: assigned\n").count() == 3 && text.ends_with("\n\r\n"));
    let events = back.events();
    assert_eq!(events[0].1, "state");
    let (_, _, assigned) = events.iter().find(|event| event.1 == "assigned").unwrap();
    assert_eq!(keys(assigned), BTreeSet::from(["at", "event", "name", "shard", "token"]));
    let again = revoked.iter().find(|event| event["shard"] == assigned["shard"]).unwrap();
    assert!(assigned["token"].as_u64() > again["token"].as_u64(), "a new term");

    crew.runtime.block_on(crew.fleet.leave());
    back.until(has("left"));
    let events = back.events();
    let (_, _, left) = events.iter().find(|event| event.1 == "left").unwrap();
    assert_eq!(keys(left), BTreeSet::from(["at", "event", "name", "reason"]));
    assert_eq!(left["reason"], "shutdown");
}

#[test]
fn metrics_of_a_member_have_no_line_for_each_shard() {
    let crew = Crew::new(Setup { ttl: Duration::from_secs(2), ..Setup::default() });
    crew.settled(3);
    crew.until(|| crew.fleet.renewals().count > 0);
    crew.work.ended("ok", Duration::from_millis(20));
    let reply = crew.get("/metrics");
    let page = parsed(&reply.body);
    let of = |name: &str| page.get(name).copied().unwrap_or_else(|| panic!("{name}: {page:?}"));
    assert_eq!((of("tenure_is_leader"), of("tenure_members")), (1.0, 1.0));
    assert_eq!((of("tenure_shards_owned"), of("tenure_shards_unowned")), (3.0, 0.0));
    let token = crew.fleet.membership().unwrap().0;
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
fn a_member_is_drained_for_all_to_see_by_whoever_knows_the_secret() {
    let crew = Crew::new(Setup::default());
    crew.settled(3);
    let drained = || -> Vec<String> {
        let read = overrides::read(&*crew.store, crew.fleet.name());
        crew.runtime.block_on(read).unwrap().drained.iter().map(ToString::to_string).collect()
    };
    let none: Vec<String> = Vec::new();
    let (port, secret) = (crew.address().port(), format!("Authorization: Bearer {SECRET}"));
    for path in ["POST /drain", "POST /undrain", "POST /resign", "GET /fleet"] {
        let host = format!("Host: evil.example:{port}");
        assert_eq!(crew.ask(path, &[&host, &secret], "").code, 421, "{path}");
    }
    for path in ["POST /drain", "POST /undrain", "POST /resign"] {
        for lines in [&[][..], &["Authorization: Bearer open-sesam"], &["X: open-sesame"]] {
            let reply = crew.ask(path, lines, "");
            assert_eq!((reply.code, reply.refusal().0.as_str()), (401, "denied"), "{lines:?}");
        }
        let lines = [secret.as_str(), "Origin: http://evil.example"];
        assert_eq!(crew.ask(path, &lines, "").code, 403, "a page of somebody else");
    }
    for body in ["{\"to\":\"api-2\"}", "{", "{\"who\":1}"] {
        assert_eq!(crew.post("/drain", body).code, 400, "{body}");
    }
    assert_eq!(drained(), none);
    let reply = crew.post("/resign", "");
    let (kind, message) = reply.refusal();
    assert_eq!((reply.code, kind.as_str()), (409, "invalid"));
    assert!(message.contains("'api-1'") && message.contains("/drain"), "{message}");

    let reply = crew.post("/drain", "");
    assert_eq!((reply.code, &reply.json()["drained"]), (202, &true.into()), "{reply:?}");
    assert_eq!(drained(), ["api-1"], "it outlives the process");
    crew.settled(0);
    assert_eq!(crew.get("/leader").code, 200, "it still takes part, and owns nothing");
    crew.until(|| crew.get("/fleet").json()["members"][0]["drained"] == true);
    assert_eq!(crew.post("/drain", "{}").code, 202, "once more does no harm");
    let reply = crew.post("/undrain", "");
    assert_eq!((reply.code, &reply.json()["drained"]), (202, &false.into()), "{reply:?}");
    assert_eq!(drained(), none);
    crew.settled(3);

    let off = Crew::new(Setup { secret: false, ..Setup::default() });
    for path in ["/drain", "/undrain", "/resign"] {
        let reply: Reply = off.post(path, "");
        let (kind, message) = reply.refusal();
        assert_eq!((reply.code, kind.as_str()), (403, "denied"));
        assert!(message.contains("--control-secret-file"), "{message}");
    }
    assert_eq!(off.get("/fleet").code, 200, "everybody may look");
}
