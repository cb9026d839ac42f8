//! Hostile clients: F42. In every case other clients are answered and renewals are on time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::candidate_fixture::{CandidateFixture, CandidateSetup, Reply, SECRET, read_all};

/// Sends the bytes; whether the server took all of them.
fn send(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).is_ok()
}

/// Whether the server closes the connection within `time`.
fn closes(stream: &mut TcpStream, time: Duration) -> bool {
    stream.set_read_timeout(Some(time)).unwrap();
    match stream.read(&mut [0; 1024]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_huge_body_is_not_read() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    let head = format!(
        "Host: localhost\r\nAuthorization: Bearer {SECRET}\r\nContent-Type: application/json"
    );
    let mut stream = fixture.connect();
    let request = format!("POST /resign HTTP/1.1\r\n{head}\r\nContent-Length: 100000000\r\n\r\n");
    send(&mut stream, request.as_bytes());
    let reply = Reply::read(&mut stream);
    assert_eq!((reply.code, reply.refusal().0.as_str()), (413, "invalid"), "by its length alone");

    let mut stream = fixture.connect();
    let request = format!("POST /resign HTTP/1.1\r\n{head}\r\nTransfer-Encoding: chunked\r\n\r\n");
    send(&mut stream, request.as_bytes());
    let chunk = format!("400\r\n{}\r\n", "x".repeat(0x400));
    let took = (0..10_000).take_while(|_| send(&mut stream, chunk.as_bytes())).count();
    assert!(took < 10_000, "it went on taking");
    let fits = format!("{{\"to\":\"node-1\"{}}}", " ".repeat(4_080));
    assert_eq!(fixture.post("/resign", &fits).code, 400, "4 KiB are read");
    assert_eq!(fixture.post("/resign", &format!("{fits}  ")).code, 413, "and no more");
    assert!(fixture.election.is_leader());
}

#[test]
fn a_head_that_is_too_long_or_invalid_closes_the_connection() {
    let fixture = CandidateFixture::new(CandidateSetup::default());
    let many: String = (0..100).map(|number| format!("X-{number}: y\r\n")).collect();
    for request in [
        format!("GET /status HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "y".repeat(100_000)),
        format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "y".repeat(100_000)),
        format!("GET /status HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"),
        "\u{0}\u{1}\u{2} nonsense\r\n\r\n".to_owned(),
        "GET /status HTTP/9.9\r\nHost: localhost\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "GET /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
            .to_owned(),
    ] {
        let mut stream = fixture.connect();
        send(&mut stream, request.as_bytes());
        let code = Reply::read(&mut stream).code;
        assert!([0, 400, 414, 431].contains(&code), "{code} for {}", &request[..30]);
    }
    assert_eq!(fixture.get("/status").code, 200);
}

#[test]
fn a_request_that_arrives_too_slowly_is_cut_off() {
    let mut setup = CandidateSetup::default();
    setup.limits.header_timeout = Duration::from_millis(300);
    let fixture = CandidateFixture::new(setup);
    let begun = fixture.clock.now();
    let mut silent = fixture.connect();
    let mut slow = fixture.connect();
    let mut idle = fixture.connect();
    assert!(send(&mut idle, b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let mut drips = 0;
    // A byte now and then does not restart the timeout.
    for byte in
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nX: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"
    {
        if !send(&mut slow, &[*byte]) || fixture.clock.now().since(begun) > Duration::from_secs(5) {
            break;
        }
        drips += 1;
        fixture.sleep(Duration::from_millis(50));
    }
    assert!(drips < 40, "cut off after {drips}");
    assert!(closes(&mut silent, Duration::from_secs(1)), "who says nothing is let go");
    idle.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(read_all(&mut idle).starts_with("HTTP/1.1 200"), "and who has nothing more to say too");
    assert!(fixture.clock.now().since(begun) < Duration::from_secs(5));
}

#[test]
fn idle_connections_delay_neither_other_clients_nor_renewals() {
    let mut setup = CandidateSetup { ttl: Duration::from_secs(4), ..CandidateSetup::default() };
    setup.limits.connections = 210;
    let fixture = CandidateFixture::new(setup);
    fixture.until(|| fixture.election.is_leader());
    let token = fixture.election.status().token;
    let idle: Vec<TcpStream> = (0..200).map(|_| fixture.connect()).collect();
    let before = fixture.election.renewals();
    let begun = fixture.clock.now();
    while fixture.clock.now().since(begun) < Duration::from_millis(1_500) {
        assert_eq!(fixture.get("/leader").code, 200);
    }
    let after = fixture.election.renewals();
    assert!(after.durations.count > before.durations.count && after.unavailable == 0, "{after:?}");
    assert_eq!(fixture.election.status().token, token, "the same term all the time");
    assert_eq!(idle.len(), 200);
    // Beyond the limit: closed at once, and served as soon as there is room again.
    let mut more: Vec<TcpStream> = (0..40).map(|_| fixture.connect()).collect();
    fixture.until(|| {
        let closed = |stream: &mut TcpStream| closes(stream, Duration::from_millis(1));
        more.iter_mut().map(closed).filter(|closed| *closed).count() >= 30
    });
    drop((idle, more));
    fixture.until(|| {
        let mut stream = fixture.connect();
        send(&mut stream, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        Reply::read(&mut stream).code == 200
    });
}

/// B14: slow clients take every connection, and each keeps it for longer than this test waits.
#[test]
fn slow_clients_block_no_health_check_and_cut_no_request() {
    let mut setup = CandidateSetup::default();
    setup.limits.connections = 100;
    setup.limits.header_timeout = Duration::from_secs(300);
    let fixture = CandidateFixture::new(setup);
    // A slow request: its response has begun and never ends.
    let mut events = fixture.connect();
    assert!(send(&mut events, b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert!(events.read(&mut [0; 16]).unwrap() > 0);
    events.set_nonblocking(true).unwrap();
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = fixture.connect();
            send(&mut stream, b"GET /status HTTP/1.1\r\nHost: localhost\r\nX: ");
            stream
        })
        .collect();
    let healthz = || {
        let mut stream = fixture.connect();
        send(&mut stream, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        Reply::read(&mut stream).code
    };
    fixture.until(|| healthz() == 200);
    // More requests than connections: each replaces a slow client, and is not closed before it is answered.
    for _ in 0..150 {
        assert_eq!(healthz(), 200);
    }
    let mut rest = [0; 64 * 1024];
    let open = loop {
        match events.read(&mut rest) {
            Ok(0) => break false,
            Ok(_) => {}
            Err(error) => break error.kind() == ErrorKind::WouldBlock,
        }
    };
    assert!(open, "the request that was being answered was cut");
    assert_eq!(slow.len(), 200);
}
