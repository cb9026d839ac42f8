//! The serialized form of the library's values. Programs parse it, so every field is pinned.

#![allow(clippy::unwrap_used)] // Helpers of tests fail like tests.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json, to_value};
use tenure::fleet::{FleetEvent, Reason, Shard};
use tenure::machine::EndReason;
use tenure::presence::{Presence, present};
use tenure::store::memory::MemoryStore;
use tenure::{
    CandidateId, CandidateState, Checkpoint, Clock, Election, Error, Event, Histogram, Holder,
    Lease, Moment, Name, Note, PastTerm, PastTermOutcome, StartupWait, Store, Token, WaitReason,
};
use tenure_rig::system::time::until;

fn token() -> Token {
    Token::new(1_794_746_576_419_577).unwrap()
}

fn name() -> Name {
    Name::new("job").unwrap()
}

fn id(id: &str) -> CandidateId {
    CandidateId::new(id).unwrap()
}

#[tokio::test]
async fn a_status_is_spelled_as_by_the_command() {
    let clock = Clock::manual();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock.clone()));
    let start = Election::builder("job").id("a").clock(clock.clone()).start(store);
    let election = start.await.unwrap();
    let leadership = election.leadership().await.unwrap();
    until("it knows the leader", || election.current_leader().is_some()).await;
    let expected = json!({
        "isLeader": true,
        "name": "job",
        "candidateId": "a",
        "currentLeader": "a",
        "state": "leading",
        "stateReason": null,
        "priority": 0,
        "startsInMs": null,
        "startReason": null,
        "token": leadership.token().get(),
        "handles": 1,
        "since": "1970-01-01T00:16:40.000Z",
        "validForMs": 3_596,
        "transitions": 1,
        "drained": false,
        "healthy": true,
        "store": "memory:",
        "storeGrade": election.status().store_grade.as_str(),
        "storeReachable": true,
        "lastError": null,
        "lastErrorKind": null,
    });
    assert_eq!(to_value(election.status()).unwrap(), expected);
    let text = serde_json::to_string(&election.status()).unwrap();
    assert!(text.starts_with(r#"{"isLeader":true,"name":"job","#), "{text}");
    let expected = json!({"lateMs": 0, "overrunMs": 0, "idle": false, "ended": false});
    assert_eq!(to_value(election.pulse()).unwrap(), expected);
    drop(leadership);
    election.stop().await;
    let stopped = to_value(election.status()).unwrap();
    assert_eq!((&stopped["state"], &stopped["token"]), (&json!("stopping"), &Value::Null));
}

#[test]
fn each_event_has_its_own_fields() {
    let number = token().get();
    let checkpoint = Some(Checkpoint::new("secret").unwrap());
    let wait = StartupWait::new(Duration::from_micros(3_999_001), WaitReason::Restarted);
    let lost = |why| Event::lost_leadership(token(), why);
    let paused = EndReason::Paused(Duration::from_millis(5_910));
    let refused = EndReason::Refused(Some("b".to_owned()));
    let unreachable = EndReason::Unreachable(Moment::from_nanos(1));
    let corrupt = EndReason::StoreError(Error::corrupt("'job' is not a lease"));
    for (event, expected) in [
        (Event::became_leader(token(), checkpoint), json!({"event": "became", "token": number})),
        (
            Event::starting(token(), wait),
            json!({"event": "starting", "token": number, "startsInMs": 4_000, "startReason": "restarted"}),
        ),
        (lost(unreachable), json!({"event": "lost", "token": number, "reason": "unreachable"})),
        (
            lost(corrupt),
            json!({"event": "lost", "token": number, "reason": "store-error", "detail": "'job' is not a lease"}),
        ),
        (
            lost(paused),
            json!({"event": "lost", "token": number, "reason": "process-paused", "pausedMs": 5_910}),
        ),
        (lost(refused), json!({"event": "lost", "token": number, "reason": "refused", "to": "b"})),
        (lost(EndReason::Drained), json!({"event": "lost", "token": number, "reason": "drain"})),
        (Event::released(token()), json!({"event": "released", "token": number})),
        (
            Event::leader_changed(None, Some("b")),
            json!({"event": "changed", "from": null, "to": "b"}),
        ),
        (
            Event::StoreUnreachable(Error::denied("wrong password")),
            json!({
                "event": "store", "from": "reachable", "to": "unreachable",
                "reason": "wrong password", "kind": "denied",
            }),
        ),
        (
            Event::StoreBack,
            json!({"event": "store", "from": "unreachable", "to": "reachable", "reason": null, "kind": null}),
        ),
    ] {
        assert_eq!(to_value(&event).unwrap(), expected, "{event:?}");
    }
}

#[test]
fn a_lease_is_spelled_as_by_the_command() {
    let mut lease = Lease::free(name());
    let free = json!({
        "name": "job",
        "currentLeader": null,
        "state": "free",
        "startsInMs": null,
        "startReason": null,
        "token": null,
        "expiresInMs": null,
        "since": null,
        "holder": null,
        "ttlMs": null,
        "note": "",
        "next": null,
        "history": [],
    });
    assert_eq!(to_value(&lease).unwrap(), free);
    lease.holder = Some(Holder::new("a", None));
    lease.token = Some(token());
    lease.ttl = Duration::from_secs(4);
    lease.left = Duration::from_micros(2_710_999);
    lease.since = Some(1_750_258_692_041);
    lease.note = Note::new("http://a:8080").unwrap();
    lease.next = Some(id("b"));
    let (from, to) = (1_750_258_600_000, 1_750_258_692_000);
    let past = Token::new(7).unwrap();
    lease.history = vec![PastTerm::new(past, id("b"), from, to, PastTermOutcome::Died)];
    let mut held = json!({
        "name": "job",
        "currentLeader": "a",
        "state": "leading",
        "startsInMs": null,
        "startReason": null,
        "token": token().get(),
        "expiresInMs": 2_710,
        "since": "2025-06-18T14:58:12.041Z",
        "holder": "a",
        "ttlMs": 4_000,
        "note": "http://a:8080",
        "next": "b",
        "history": [{
            "token": 7,
            "candidateId": "b",
            "since": "2025-06-18T14:56:40.000Z",
            "until": "2025-06-18T14:58:12.000Z",
            "outcome": "died",
        }],
    });
    assert_eq!(to_value(&lease).unwrap(), held);
    lease.wait = Some(StartupWait::new(Duration::from_secs(2), WaitReason::Promoted));
    held["currentLeader"] = Value::Null;
    held["state"] = json!("starting");
    held["startsInMs"] = json!(2_000);
    held["startReason"] = json!("promoted");
    assert_eq!(to_value(&lease).unwrap(), held);
}

#[test]
fn values_are_numbers_and_text() {
    assert_eq!(to_value(token()).unwrap(), json!(1_794_746_576_419_577_u64));
    assert_eq!(to_value((name(), id("a"))).unwrap(), json!(["job", "a"]));
    let states = [CandidateState::Leading, CandidateState::Unhealthy("exit 1".to_owned())];
    assert_eq!(to_value(states).unwrap(), json!(["leading", "unhealthy"]));
    let error = Error::denied("wrong password");
    let expected = json!({"kind": "denied", "message": "wrong password"});
    assert_eq!(to_value(error).unwrap(), expected);
    assert_eq!(to_value(EndReason::Drained).unwrap(), json!("drain"));
}

#[tokio::test]
async fn renewals_have_a_histogram_and_a_count_for_each_cause() {
    let mut histogram = Histogram::new(std::array::from_fn(|n| Duration::from_secs(n as u64)));
    histogram.record(Duration::from_millis(500));
    let value = to_value(&histogram).unwrap();
    assert_eq!((&value["count"], &value["sumSeconds"]), (&json!(1), &json!(0.5)));
    assert_eq!(value["buckets"][1], json!({"upToSeconds": 1.0, "count": 1}));
    assert_eq!(value["buckets"].as_array().unwrap().len(), Histogram::BUCKETS);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Clock::boot()));
    let election = Election::builder("job").start(store).await.unwrap();
    let value = to_value(election.renewals()).unwrap();
    let causes = json!({"unavailable": 0, "refused": 0, "denied": 0, "corrupt": 0, "other": 0});
    assert_eq!(value["failures"], causes);
    assert_eq!(value["durations"]["count"], json!(0));
    election.stop().await;
}

#[tokio::test]
async fn a_present_candidate_is_spelled_as_by_the_command() {
    let clock = Clock::boot();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock));
    let presence = Presence::new(&name(), &id("a"), Duration::from_secs(12))
        .url("http://10.0.0.1:3000")
        .state(CandidateState::Unhealthy("exit 1".to_owned()))
        .announce(store.clone())
        .await
        .unwrap();
    until("it is visible", || presence.is_visible()).await;
    let nodes = to_value(present(&*store, &name()).await.unwrap()).unwrap();
    let mut expected = json!({
        "candidateId": "a",
        "url": "http://10.0.0.1:3000",
        "state": "unhealthy",
        "reason": "exit 1",
        "priority": 0,
    });
    expected["since"] = nodes[0]["since"].clone();
    assert!(expected["since"].is_string());
    assert_eq!(nodes, json!([expected]));
    presence.leave().await;
}

#[test]
fn the_events_of_a_fleet_are_spelled_as_by_the_command() {
    let shard = Shard::new("tenant-1").unwrap();
    for (event, expected) in [
        (
            FleetEvent::Revoked { shard, token: token(), number: 1, why: Reason::Drain },
            json!({"event": "revoked", "shard": "tenant-1", "token": token().get(), "reason": "drain"}),
        ),
        (
            FleetEvent::Left { number: 1, why: Reason::Shutdown },
            json!({"event": "left", "reason": "shutdown"}),
        ),
        (FleetEvent::Unowned(2, Vec::new()), json!({"event": "unowned", "count": 2})),
        (
            FleetEvent::Lists(vec![(id("a"), 5), (id("b"), 4)]),
            json!({"event": "lists", "lists": {"a": 5, "b": 4}}),
        ),
    ] {
        assert_eq!(to_value(&event).unwrap(), expected, "{event:?}");
    }
}
