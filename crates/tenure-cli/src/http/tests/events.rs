//! `/events`, as a listener gets them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::support::{Client, Rig, Setup};

/// Somebody who listens.
pub(super) struct Listener {
    stream: TcpStream,
    text: String,
}

impl Listener {
    pub(super) fn new(client: &Client, last: Option<&str>) -> Listener {
        let mut stream = client.connect();
        let last = last.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        let request = format!("GET /events HTTP/1.1\r\nHost: localhost\r\n{last}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        Listener { stream, text: String::new() }
    }

    /// Reads until what came so far pleases.
    pub(super) fn until(&mut self, pleases: impl Fn(&str) -> bool) -> &str {
        let mut part = [0; 4096];
        while !pleases(&self.text) {
            let length = self.stream.read(&mut part).unwrap();
            assert!(length > 0, "closed after {}", self.text);
            self.text += std::str::from_utf8(&part[..length]).unwrap();
        }
        &self.text
    }

    /// The events so far: id, what, data.
    pub(super) fn events(&self) -> Vec<(String, String, serde_json::Value)> {
        // Each stands in a chunk of its own.
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
fn the_state_comes_first_and_what_was_missed_after_it() {
    let rig = Rig::new(Setup::default());
    rig.until(|| rig.election.is_leader());
    let mut listener = Listener::new(&rig, None);
    listener.until(has("state"));
    assert!(listener.text.contains("content-type: text/event-stream"), "{}", listener.text);
    let (_, first, state) = listener.events().remove(0);
    assert_eq!(
        (first.as_str(), &state["isLeader"], &state["name"]),
        ("state", &true.into(), &"poll:leader".into())
    );
    assert!(rig.instance.given_out_until() > rig.clock.now(), "a state is an answer too");

    assert_eq!(rig.post("/drain", "").code, 202);
    listener.until(has("changed"));
    let events = listener.events();
    let (seen, _, lost) = events.iter().find(|event| event.1 == "lost").unwrap().clone();
    let fields: Vec<&str> = lost.as_object().unwrap().keys().map(String::as_str).collect();
    let mut manual = ["at", "event", "name", "from", "to", "token", "reason"];
    manual.sort_unstable();
    let mut fields = fields;
    fields.sort_unstable();
    assert_eq!(fields, manual);
    assert_eq!((&lost["from"], &lost["reason"]), (&"node-1".into(), &"drained".into()));
    let (_, _, changed) = events.iter().find(|event| event.1 == "changed").unwrap();
    assert_eq!((&changed["from"], &changed["to"]), (&"node-1".into(), &serde_json::Value::Null));
    drop(listener);

    assert_eq!(rig.post("/undrain", "").code, 202);
    rig.until(|| rig.election.is_leader());
    // Not the first of the whole stream, which were told before anybody listened.
    let mut back = Listener::new(&rig, Some(&seen));
    back.until(has("became"));
    let events = back.events();
    let told: Vec<&str> = events.iter().map(|event| event.1.as_str()).collect();
    assert_eq!(told, ["state", "changed", "changed", "became"], "and nothing twice");
    assert_eq!(events[0].0, seen, "whoever loses the rest asks for it again");
    assert_eq!(events[0].2["isLeader"], true);
    assert!(events[3].2["token"].as_u64() > lost["token"].as_u64());

    let mut stranger = Listener::new(&rig, Some("somewhere-else-7"));
    stranger.until(has("state"));
    rig.sleep(Duration::from_millis(50));
    assert_eq!(stranger.events().len(), 1, "only the state");
}

#[test]
fn a_store_that_is_gone_and_back_is_told_of() {
    use std::sync::atomic::Ordering;
    let rig = Rig::new(Setup { ttl: Duration::from_secs(3), ..Setup::default() });
    rig.until(|| rig.election.is_leader());
    let mut listener = Listener::new(&rig, None);
    listener.until(has("state"));
    rig.switches.no_renewal.store(true, Ordering::Relaxed);
    listener.until(has("store"));
    rig.switches.no_renewal.store(false, Ordering::Relaxed);
    listener
        .until(|text| text.matches("event: store\n").count() == 2 && text.ends_with("\n\n\r\n"));
    let events = listener.events();
    let store: Vec<_> = events.iter().filter(|event| event.1 == "store").collect();
    assert_eq!(
        (&store[0].2["to"], &store[1].2["to"]),
        (&"unreachable".into(), &"reachable".into())
    );
    assert_eq!(store[0].2["reason"], "switched off");
}

#[test]
fn listeners_hear_that_we_are_there_and_are_not_too_many() {
    let mut setup = Setup::default();
    setup.limits.beat = Duration::from_millis(50);
    setup.limits.listeners = 2;
    // Whoever listens has nothing to say, and is not let go for it.
    setup.limits.header_time = Duration::from_millis(200);
    let rig = Rig::new(setup);
    let mut first = Listener::new(&rig, None);
    first.until(|text| text.matches(": still here\n\n").count() >= 12);
    let mut second = Listener::new(&rig, None);
    second.until(has("state"));
    let reply = rig.get("/events");
    assert_eq!((reply.code, reply.refusal().0.as_str()), (503, "unavailable"));
    assert!(reply.head.contains_key("retry-after"));
    drop(first);
    rig.until(|| {
        let mut third = Listener::new(&rig, None);
        !third.until(|text| text.contains("\r\n\r\n")).starts_with("HTTP/1.1 503")
    });
}

#[test]
fn who_does_not_read_is_let_go_and_nobody_waits_for_it() {
    let mut setup = Setup::default();
    setup.limits.stall = Duration::from_millis(300);
    let rig = Rig::new(setup);
    let mut slow = Listener::new(&rig, None);
    slow.until(has("state"));
    let mut quick = Listener::new(&rig, None);
    quick.until(has("state"));
    // More than any socket takes. The quick one reads along, so it is never far behind.
    let data = format!("\"{}\"", "x".repeat(64 * 1024));
    let mut told = 0;
    for number in 0..300 {
        rig.server().news().push("changed", &data);
        told += data.len();
        let id = format!("-{}\n", number + 1);
        quick.text.clear();
        quick.until(|text| text.contains(&id) || text.ends_with("\"\n\n\r\n"));
    }
    assert_eq!(rig.get("/status").code, 200);
    rig.sleep(Duration::from_millis(700));
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
    assert!(got < told, "{got} of {told}");
}
