//! `/events` from a subscriber's view.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::candidate_fixture::{CandidateFixture, CandidateSetup, Client};

/// A subscriber of `/events`.
pub(super) struct Subscriber {
    stream: TcpStream,
    text: String,
}

impl Subscriber {
    pub(super) fn new(client: &Client, last: Option<&str>) -> Subscriber {
        let mut stream = client.connect();
        let last = last.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        let request = format!("GET /events HTTP/1.1\r\nHost: localhost\r\n{last}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        Subscriber { stream, text: String::new() }
    }

    /// Reads until the text received so far satisfies the condition.
    pub(super) fn until(&mut self, condition: impl Fn(&str) -> bool) -> &str {
        let mut part = [0; 4096];
        while !condition(&self.text) {
            let length = self.stream.read(&mut part).unwrap();
            assert!(length > 0, "closed after {}", self.text);
            self.text += std::str::from_utf8(&part[..length]).unwrap();
        }
        &self.text
    }

    /// The events so far: id, event, data.
    pub(super) fn events(&self) -> Vec<(String, String, serde_json::Value)> {
        // Each event is a chunk of its own.
        let frames = self.text.split("id: ").skip(1);
        let event = |frame: &str| {
            let (id, rest) = frame.split_once("\nevent: ").unwrap();
            let (event, rest) = rest.split_once("\ndata: ").unwrap();
            let (data, _) = rest.split_once("\n\n").unwrap();
            (id.to_owned(), event.to_owned(), serde_json::from_str(data).unwrap())
        };
        frames.map(event).collect()
    }
}

pub(super) fn has(event: &str) -> impl Fn(&str) -> bool {
    let event = format!("event: {event}\n");
    move |text| text.find(&event).is_some_and(|at| text[at..].contains("\n\n"))
}

#[test]
fn the_state_comes_first_and_then_the_missed_events() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    fixture.until(|| fixture.election.is_leader());
    let mut subscriber = Subscriber::new(&fixture, None);
    subscriber.until(has("state"));
    assert!(subscriber.text.contains("content-type: text/event-stream"), "{}", subscriber.text);
    let (_, first, state) = subscriber.events().remove(0);
    assert_eq!(
        (first.as_str(), &state["isLeader"], &state["name"]),
        ("state", &true.into(), &"poll:leader".into())
    );
    assert!(
        fixture.instance.answers_valid_until() > fixture.clock.now(),
        "a state is an answer too"
    );

    assert_eq!(fixture.post("/drain", "").code, 202);
    subscriber.until(has("changed"));
    let events = subscriber.events();
    let (last_received, _, lost) = events.iter().find(|event| event.1 == "lost").unwrap().clone();
    let fields: Vec<&str> = lost.as_object().unwrap().keys().map(String::as_str).collect();
    let mut manual = ["at", "event", "name", "from", "to", "token", "reason"];
    manual.sort_unstable();
    let mut fields = fields;
    fields.sort_unstable();
    assert_eq!(fields, manual);
    assert_eq!((&lost["from"], &lost["reason"]), (&"node-1".into(), &"drained".into()));
    let (_, _, changed) = events.iter().find(|event| event.1 == "changed").unwrap();
    assert_eq!((&changed["from"], &changed["to"]), (&"node-1".into(), &serde_json::Value::Null));
    drop(subscriber);

    assert_eq!(fixture.post("/undrain", "").code, 202);
    fixture.until(|| fixture.election.is_leader());
    // Starts after the last received event, not with the first events, which were published before the subscription.
    let mut reconnected = Subscriber::new(&fixture, Some(&last_received));
    reconnected.until(has("became"));
    let events = reconnected.events();
    let published: Vec<&str> = events.iter().map(|event| event.1.as_str()).collect();
    assert_eq!(published, ["state", "changed", "changed", "became"], "and nothing twice");
    assert_eq!(events[0].0, last_received, "a client that loses the rest requests it again");
    assert_eq!(events[0].2["isLeader"], true);
    assert!(events[3].2["token"].as_u64() > lost["token"].as_u64());

    let mut stranger = Subscriber::new(&fixture, Some("somewhere-else-7"));
    stranger.until(has("state"));
    fixture.sleep(Duration::from_millis(50));
    assert_eq!(stranger.events().len(), 1, "only the state");
}

#[test]
fn a_lost_and_a_restored_store_are_published() {
    use std::sync::atomic::Ordering;
    let fixture = CandidateFixture::new(CandidateSetup {
        ttl: Duration::from_secs(3),
        ..CandidateSetup::default()
    });
    fixture.until(|| fixture.election.is_leader());
    let mut subscriber = Subscriber::new(&fixture, None);
    subscriber.until(has("state"));
    fixture.switches.no_renewal.store(true, Ordering::Relaxed);
    subscriber.until(has("store"));
    fixture.switches.no_renewal.store(false, Ordering::Relaxed);
    subscriber
        .until(|text| text.matches("event: store\n").count() == 2 && text.ends_with("\n\n\r\n"));
    let events = subscriber.events();
    let store: Vec<_> = events.iter().filter(|event| event.1 == "store").collect();
    assert_eq!(
        (&store[0].2["to"], &store[1].2["to"]),
        (&"unreachable".into(), &"reachable".into())
    );
    assert_eq!(store[0].2["reason"], "switched off");
}

#[test]
fn subscribers_get_keepalives_and_their_number_is_limited() {
    let mut setup = CandidateSetup::default();
    setup.limits.keepalive_interval = Duration::from_millis(50);
    setup.limits.subscribers = 2;
    // A subscriber sends nothing, and is not disconnected for that.
    setup.limits.header_timeout = Duration::from_millis(200);
    let fixture = CandidateFixture::new(setup);
    let mut first = Subscriber::new(&fixture, None);
    first.until(|text| text.matches(": still here\n\n").count() >= 12);
    let mut second = Subscriber::new(&fixture, None);
    second.until(has("state"));
    let reply = fixture.get("/events");
    assert_eq!((reply.code, reply.refusal().0.as_str()), (503, "unavailable"));
    assert!(reply.head.contains_key("retry-after"));
    drop(first);
    fixture.until(|| {
        let mut third = Subscriber::new(&fixture, None);
        !third.until(|text| text.contains("\r\n\r\n")).starts_with("HTTP/1.1 503")
    });
}

#[test]
fn a_subscriber_that_does_not_read_is_disconnected_and_delays_no_other() {
    let mut setup = CandidateSetup::default();
    setup.limits.stall_timeout = Duration::from_millis(300);
    let fixture = CandidateFixture::new(setup);
    let mut slow = Subscriber::new(&fixture, None);
    slow.until(has("state"));
    let mut quick = Subscriber::new(&fixture, None);
    quick.until(has("state"));
    // More than any socket buffers. The fast subscriber keeps reading, so it is never far behind.
    let data = format!("\"{}\"", "x".repeat(64 * 1024));
    let mut published = 0;
    for number in 0..300 {
        fixture.server().event_log().push("changed", &data);
        published += data.len();
        let id = format!("-{}\n", number + 1);
        quick.text.clear();
        quick.until(|text| text.contains(&id) || text.ends_with("\"\n\n\r\n"));
    }
    assert_eq!(fixture.get("/status").code, 200);
    fixture.sleep(Duration::from_millis(700));
    let mut got = 0;
    let mut part = vec![0; 1 << 20];
    loop {
        match slow.stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => got += length,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("still connected: {error}"),
        }
    }
    assert!(got < published, "{got} of {published}");
}
