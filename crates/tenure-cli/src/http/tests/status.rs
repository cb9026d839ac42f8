//! The read-only requests, which every client may send.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::presence::Node;
use tenure::{CandidateId, CandidateState};

use super::candidate_fixture::{CandidateFixture, CandidateSetup};
use crate::http::{HttpLimits, LastRun};

#[test]
fn the_status_is_spelled_as_in_the_manual() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    fixture.until(|| fixture.election.is_leader());
    let reply = fixture.get("/status");
    assert_eq!(reply.code, 200);
    assert_eq!(reply.head["content-type"], "application/json");
    assert_eq!(reply.head["cache-control"], "no-store");
    assert_eq!(reply.head["x-content-type-options"], "nosniff");
    assert!(!reply.head.keys().any(|name| name.starts_with("access-control")), "{reply:?}");
    let status = reply.json();
    let names: BTreeSet<&str> = status.as_object().unwrap().keys().map(String::as_str).collect();
    let manual = [
        "isLeader",
        "lastPolled",
        "name",
        "candidateId",
        "currentLeader",
        "state",
        "stateReason",
        "priority",
        "startsInMs",
        "startReason",
        "token",
        "since",
        "validForMs",
        "transitions",
        "count",
        "lastRun",
        "drained",
        "healthy",
        "store",
        "storeGrade",
        "storeReachable",
        "lastError",
        "candidates",
    ];
    assert_eq!(names, BTreeSet::from(manual));
    assert!(reply.body.starts_with("{\"isLeader\":true,\"lastPolled\":null,"), "{}", reply.body);
    assert_eq!(status["name"], "poll:leader");
    assert_eq!(status["candidateId"], "node-1");
    assert_eq!(status["currentLeader"], "node-1");
    assert_eq!(status["state"], "leading");
    assert_eq!(status["token"].as_u64(), fixture.election.status().token.map(|token| token.get()));
    assert!(is_time(status["since"].as_str().unwrap()), "{status}");
    let valid = status["validForMs"].as_u64().unwrap();
    assert!((1..10_000).contains(&valid), "{valid}");
    assert_eq!(status["transitions"], 1);
    assert!(status["count"].is_null() && status["lastRun"].is_null());
    assert_eq!((&status["drained"], &status["healthy"]), (&false.into(), &true.into()));
    assert!(status["store"].as_str().unwrap().starts_with("file:"), "{status}");
    assert_eq!(status["storeGrade"], "B");
    assert_eq!(status["storeReachable"], true);
    assert!(status["lastError"].is_null());

    fixture.work.began(1_750_258_800_000);
    let run = LastRun {
        slot: 350_051_760,
        by: "worker-1".to_owned(),
        started_at: 1_750_258_800_000,
        ended_at: None,
        outcome: None,
    };
    fixture.work.known(Some(42), Some(run.clone()));
    let status = fixture.get("/status").json();
    assert_eq!(status["lastPolled"], "2025-06-18T15:00:00.000Z");
    assert_eq!(status["count"], 42);
    let expected = serde_json::json!({
        "slot": 350_051_760, "by": "worker-1", "startedAt": "2025-06-18T15:00:00.000Z",
        "endedAt": null, "outcome": null,
    });
    assert_eq!(status["lastRun"], expected);
    let ended = LastRun { ended_at: Some(1_750_258_801_041), outcome: Some("ok".into()), ..run };
    fixture.work.known(Some(43), Some(ended));
    let status = fixture.get("/status").json();
    assert_eq!(status["lastRun"]["endedAt"], "2025-06-18T15:00:01.041Z");
    assert_eq!(status["lastRun"]["outcome"], "ok");
}

#[test]
fn the_status_has_the_fields_of_the_library() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    fixture.until(|| fixture.election.is_leader());
    let command = fixture.get("/status").json();
    let library = serde_json::to_value(fixture.election.status()).unwrap();
    for (field, value) in library.as_object().unwrap() {
        match field.as_str() {
            // Of the library only: the command has the message alone, and its work is a process.
            "lastErrorKind" | "handles" => {}
            // Time has passed in between.
            "validForMs" => assert!(command[field].is_u64()),
            _ => assert_eq!(&command[field], value, "{field}"),
        }
    }
}

fn is_time(text: &str) -> bool {
    text.len() == 24 && text.ends_with('Z') && text.as_bytes()[10] == b'T' && text > "2025-01-01"
}

#[test]
fn the_leader_answers_200_and_every_other_candidate_503() {
    let leader = CandidateFixture::new(CandidateSetup::default());
    leader.until(|| leader.election.is_leader());
    let follower =
        CandidateFixture::new(CandidateSetup { follower: true, ..CandidateSetup::default() });
    for (fixture, code, leads) in [(&leader, 200, true), (&follower, 503, false)] {
        let reply = fixture.get("/leader");
        assert_eq!((reply.code, &reply.json()["isLeader"]), (code, &leads.into()));
        let status = fixture.get("/status");
        assert_eq!(status.code, 200);
        let keys = |reply: &super::candidate_fixture::Reply| {
            reply.json().as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(keys(&reply), keys(&status), "the same body");
        let head = fixture.request("HEAD /leader", &[], "");
        assert_eq!((head.code, head.body.as_str()), (code, ""));
        assert_eq!(fixture.get("/healthz").code, 200, "both are well");
    }
    let status = follower.get("/status").json();
    assert_eq!(status["currentLeader"], "other");
    assert_eq!(status["state"], "waiting");
    assert_eq!(status["validForMs"], 0);
    assert!(status["token"].is_null(), "it is what effects are let through with");
    assert!(is_time(status["since"].as_str().unwrap()), "of the other's term: {status}");
}

#[test]
fn a_drained_or_stopping_candidate_gives_no_positive_answer() {
    let fixture = CandidateFixture::new(CandidateSetup {
        answer_for: Some(Duration::from_millis(700)),
        ..CandidateSetup::default()
    });
    fixture.until(|| fixture.election.is_leader());
    assert_eq!(fixture.instance.answers_valid_until(), tenure::Moment::PAST);
    let before = fixture.clock.now();
    let status = fixture.get("/leader").json();
    assert_eq!(status["validForMs"], 700, "no more than --answer-for");
    let until = fixture.instance.answers_valid_until();
    assert!(
        until >= before + Duration::from_millis(700)
            && until <= fixture.clock.now() + Duration::from_millis(700)
    );
    fixture.instance.answer_no();
    let reply = fixture.get("/leader");
    let status = reply.json();
    assert_eq!(
        (reply.code, &status["isLeader"], &status["validForMs"]),
        (503, &false.into(), &0.into())
    );
    assert_eq!(status["state"], "stopping");
    assert!(status["token"].is_null());
    assert_eq!(fixture.instance.answers_valid_until(), until, "nothing more was given out");
    assert!(fixture.election.is_leader(), "the lease is kept meanwhile");
    fixture.runtime.block_on(fixture.instance.answers_expired());
    assert!(fixture.clock.now() >= until && fixture.election.is_leader());
}

#[test]
fn no_positive_answer_follows_a_negative_one() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    fixture.until(|| fixture.election.is_leader());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    fixture.instance.status();
                }
            });
        }
        fixture.sleep(Duration::from_millis(50));
        fixture.instance.answer_no();
        let until = fixture.instance.answers_valid_until();
        fixture.sleep(Duration::from_millis(50));
        over.store(true, Ordering::Relaxed);
        assert_eq!(fixture.instance.answers_valid_until(), until);
    });
}

#[test]
fn leases_are_read_rarely_however_often_clients_request_them() {
    let limits = HttpLimits { store_timeout: Duration::from_millis(300), ..HttpLimits::default() };
    let fixture = CandidateFixture::new(CandidateSetup { limits, ..CandidateSetup::default() });
    let reply = fixture.get("/leases");
    assert_eq!(reply.code, 200, "{reply:?}");
    let leases = reply.json();
    assert_eq!(leases.as_array().unwrap().len(), 1);
    assert_eq!(
        (&leases[0]["name"], &leases[0]["currentLeader"]),
        (&"poll:leader".into(), &"node-1".into())
    );
    let fields = [
        "name",
        "currentLeader",
        "state",
        "startsInMs",
        "startReason",
        "token",
        "expiresInMs",
        "since",
        "count",
        "lastRun",
        "candidates",
    ];
    let names: BTreeSet<&str> = leases[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(fields));
    fixture.sleep(Duration::from_millis(300));
    let before = fixture.switches.reads.load(Ordering::Relaxed);
    let begun = fixture.clock.now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(fixture.get("/leases").code, 200)));
        }
    });
    let most = 2 + fixture.clock.now().since(begun).as_millis() / 250;
    let reads = fixture.switches.reads.load(Ordering::Relaxed) - before;
    assert!(u128::from(reads) <= most, "{reads} reads");

    fixture.switches.mute.store(true, Ordering::Relaxed);
    fixture.sleep(Duration::from_millis(300));
    let reply = fixture.get("/leases");
    assert_eq!((reply.code, reply.refusal().0.as_str()), (503, "unavailable"));
    assert_eq!(fixture.get("/status").code, 200, "no other request waits for the store");
}

#[test]
fn a_probe_fails_only_where_a_restart_would_help() {
    let ttl = Duration::from_millis(600);
    let fixture = CandidateFixture::new(CandidateSetup { ttl, ..CandidateSetup::default() });
    let work = fixture.runtime.block_on(fixture.election.leadership()).unwrap();
    fixture.switches.no_renewal.store(true, Ordering::Relaxed);
    fixture.until(|| !fixture.election.is_leader());
    assert_eq!(fixture.get("/healthz").code, 200, "a store that is down is none of our faults");
    fixture.until(|| fixture.get("/healthz").code == 503);
    let (kind, message) = fixture.get("/healthz").refusal();
    assert!(kind == "unavailable" && message.contains("after its time was over"), "{message}");
    fixture.switches.no_renewal.store(false, Ordering::Relaxed);
    drop(work);
    fixture.until(|| fixture.get("/healthz").code == 200);
    fixture.until(|| fixture.election.is_leader());

    let stalled = fixture.switches.block.lock().unwrap();
    fixture.until(|| fixture.get("/healthz").code == 503);
    let (_, message) = fixture.get("/healthz").refusal();
    assert!(message.contains("the loop that renews"), "{message}");
    assert!(!fixture.get("/status").json()["isLeader"].as_bool().unwrap(), "by the clock alone");
    drop(stalled);
    fixture.until(|| fixture.get("/healthz").code == 200);
    fixture.runtime.block_on(fixture.election.stop());
    assert_eq!(fixture.get("/healthz").code, 503, "nothing is renewed any more");
    assert_eq!(fixture.get("/status").json()["state"], "stopping");
}

/// Parses every line of a metrics page by its name with its labels; fails on a line that Prometheus would not accept.
pub(super) fn parsed(page: &str) -> std::collections::BTreeMap<String, f64> {
    let mut values = std::collections::BTreeMap::new();
    let mut typed = BTreeSet::new();
    for line in page.lines() {
        if let Some(about) = line.strip_prefix("# ") {
            let mut words = about.splitn(3, ' ');
            if words.next() == Some("TYPE") {
                assert!(typed.insert(words.next().unwrap().to_owned()), "twice: {line}");
                assert!(["gauge", "counter", "histogram"].contains(&words.next().unwrap()));
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        let bare = name.split('{').next().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| bare.strip_suffix(end));
        assert!(typed.contains(bare) || base.is_some_and(|base| typed.contains(base)), "{line}");
        assert!(values.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{line}");
    }
    values
}

#[test]
fn metrics_are_named_as_in_the_manual_also_on_followers() {
    let fixture = CandidateFixture::new(CandidateSetup {
        ttl: Duration::from_secs(3),
        ..CandidateSetup::default()
    });
    fixture.until(|| fixture.election.renewals().durations.count >= 1);
    fixture.work.ended("ok", Duration::from_millis(20));
    fixture.work.ended("failed", Duration::from_secs(2));
    fixture.work.passed("skipped");
    let node = |id: &str| Node {
        id: CandidateId::new(id).unwrap(),
        url: None,
        priority: 0,
        state: Some(CandidateState::Drained),
        since: None,
    };
    fixture.instance.set_candidates(["a", "b", "c"].map(node).to_vec());
    let reply = fixture.get("/metrics");
    assert_eq!(reply.head["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let page = parsed(&reply.body);
    let of = |name: &str| page.get(name).copied().unwrap_or_else(|| panic!("{name}: {page:?}"));
    assert_eq!(of("tenure_is_leader"), 1.0);
    let token = fixture.election.status().token.unwrap().get();
    assert!(reply.body.contains(&format!("\ntenure_token {token}\n")), "{}", reply.body);
    assert!((0.1..3.0).contains(&of("tenure_deadline_seconds")));
    assert!(of("tenure_renew_seconds_count") >= 1.0 && of("tenure_renew_seconds_sum") > 0.0);
    assert_eq!(of("tenure_renew_seconds_bucket{le=\"+Inf\"}"), of("tenure_renew_seconds_count"));
    assert_eq!(of("tenure_renew_failures_total{cause=\"unavailable\"}"), 0.0);
    assert_eq!(of("tenure_transitions_total"), 1.0);
    assert!(of("tenure_leaderless_seconds_total") < 5.0);
    assert!(of("tenure_leadership_seconds") > 0.5);
    assert_eq!(of("tenure_runs_total{outcome=\"ok\"}"), 1.0);
    assert_eq!(of("tenure_runs_total{outcome=\"skipped\"}"), 1.0);
    assert_eq!(of("tenure_run_seconds_count"), 2.0);
    assert_eq!(of("tenure_run_seconds_bucket{le=\"0.05\"}"), 1.0);
    assert_eq!(of("tenure_candidates"), 3.0);
    assert!(page.keys().any(|name| name.starts_with("tenure_build_info{version=")));
    fixture.switches.no_renewal.store(true, Ordering::Relaxed);
    fixture.until(|| fixture.election.renewals().unavailable > 0);

    let fixture =
        CandidateFixture::new(CandidateSetup { follower: true, ..CandidateSetup::default() });
    let page = parsed(&fixture.get("/metrics").body);
    assert_eq!((page["tenure_is_leader"], page["tenure_token"]), (0.0, 0.0));
    assert_eq!((page["tenure_deadline_seconds"], page["tenure_leadership_seconds"]), (0.0, 0.0));
    assert_eq!(page["tenure_renew_seconds_count"], 0.0);
    assert!(!page.contains_key("tenure_candidates"), "they have not been counted");
}

#[test]
fn every_other_response_is_a_sentence() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    let page = fixture.get("/");
    assert_eq!((page.code, page.head["content-type"].as_str()), (200, "text/html; charset=utf-8"));
    assert!(page.head["content-security-policy"].contains("default-src 'none'"));
    for path in [
        "/status",
        "/leader",
        "/healthz",
        "/leases",
        "/fleet",
        "/events",
        "/metrics",
        "POST /resign",
    ] {
        assert!(page.body.contains(path), "{path}");
    }
    let (kind, message) = fixture.get("/fleet").refusal();
    assert!(kind == "invalid" && message.contains("tenure fleet run"), "{message}");
    for path in ["/fleet", "/nothing", "/status/", "/STATUS", "//", "/../etc/passwd", "/%2e%2e"] {
        let reply = fixture.get(path);
        assert_eq!(reply.code, 404, "{path}");
        assert_eq!(reply.head["cache-control"], "no-store");
        reply.refusal();
    }
    for first in
        ["POST /status", "PUT /leader", "GET /resign", "GET /drain", "OPTIONS /status", "DELETE /"]
    {
        let reply = fixture.request(first, &[], "");
        assert_eq!(reply.code, 405, "{first}");
        assert!(reply.head.contains_key("allow"), "{first}: {reply:?}");
        reply.refusal();
    }
    assert!(fixture.election.is_leader(), "none of them has done anything");
}
