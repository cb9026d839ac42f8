//! A candidate behind a port, and a client that sends exactly what a test gives it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tenure::{Clock, Election, Store};
use tenure_rig::servers::Scratch;
use tokio::runtime::Runtime;

use super::counting_store::{SwitchedStore, Switches};
use crate::http::{HttpArgs, HttpCandidate, HttpLimits, HttpServer, Listener, RunStats};

/// The control secret.
pub(super) const SECRET: &str = "open-sesame";
/// Long enough that a slow machine loses no lease.
const TTL: Duration = Duration::from_secs(10);

/// The settings of a candidate.
pub(super) struct CandidateSetup {
    pub(super) http: &'static str,
    pub(super) secret: bool,
    pub(super) allow: Vec<String>,
    pub(super) limits: HttpLimits,
    pub(super) ttl: Duration,
    pub(super) answer_for: Option<Duration>,
    /// Another candidate leads first.
    pub(super) follower: bool,
}

impl Default for CandidateSetup {
    fn default() -> CandidateSetup {
        CandidateSetup {
            http: "0",
            secret: true,
            allow: Vec::new(),
            limits: HttpLimits::default(),
            ttl: TTL,
            answer_for: None,
            follower: false,
        }
    }
}

/// A running candidate. Its lease is in a directory of its own.
pub(super) struct CandidateFixture {
    pub(super) runtime: Runtime,
    pub(super) election: Arc<Election>,
    /// Leads until it is dropped.
    _other: Option<Election>,
    pub(super) instance: Arc<HttpCandidate>,
    pub(super) work: Arc<RunStats>,
    pub(super) switches: Arc<Switches>,
    pub(super) clock: Clock,
    client: Client,
    server: Option<HttpServer>,
    _scratch: Scratch,
}

impl CandidateFixture {
    pub(super) fn new(setup: CandidateSetup) -> CandidateFixture {
        let scratch = Scratch::new();
        let listener = open_listener(&scratch, setup.http, setup.secret, setup.allow);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = format!("file:{}", scratch.path().join("leases").display());
        let (store, switches) = SwitchedStore::wrap(runtime.block_on(tenure::open(&url)).unwrap());
        let start = |id: &str| {
            let builder = Election::builder("poll:leader").id(id).ttl(setup.ttl);
            runtime.block_on(builder.start(Arc::clone(&store))).unwrap()
        };
        let clock = Clock::boot();
        let _other = setup.follower.then(|| {
            let other = start("other");
            runtime.block_on(until(&clock, || other.is_leader()));
            other
        });
        let election = Arc::new(start("node-1"));
        let leader = if setup.follower { "other" } else { "node-1" };
        runtime.block_on(until(&clock, || election.current_leader().as_deref() == Some(leader)));
        let work = Arc::<RunStats>::default();
        let instance =
            HttpCandidate::new(Arc::clone(&election), Arc::clone(&work), setup.answer_for);
        let server =
            HttpServer::start(listener, Arc::clone(&instance), &store, setup.limits).unwrap();
        let client = Client(server.address());
        let server = Some(server);
        let _scratch = scratch;
        CandidateFixture {
            runtime,
            election,
            _other,
            instance,
            work,
            switches,
            clock,
            client,
            server,
            _scratch,
        }
    }

    pub(super) fn server(&self) -> &HttpServer {
        self.server.as_ref().unwrap()
    }

    /// The candidate's store, opened by another participant.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        let url = format!("file:{}", self._scratch.path().join("leases").display());
        self.runtime.block_on(tenure::open(&url)).unwrap()
    }

    pub(super) fn until(&self, condition: impl FnMut() -> bool) {
        self.runtime.block_on(until(&self.clock, condition));
    }

    pub(super) fn sleep(&self, time: Duration) {
        self.runtime.block_on(self.clock.sleep(time));
    }
}

impl Deref for CandidateFixture {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for CandidateFixture {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
        if !std::thread::panicking() {
            let held = Arc::strong_count(&self.instance);
            assert_eq!(held, 1, "a server that was stopped keeps nothing");
        }
    }
}

/// Opens the port of a candidate; with a secret, control is on.
pub(super) fn open_listener(
    scratch: &Scratch,
    http: &str,
    secret: bool,
    allow_host: Vec<String>,
) -> Listener {
    let path = scratch.path().join("secret");
    fs::write(&path, format!("{SECRET}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let args = HttpArgs {
        http: Some(http.parse().unwrap()),
        control_secret_file: secret.then_some(path),
        allow_host,
    };
    Listener::open(&args, None, None).unwrap().unwrap()
}

/// An HTTP client of this address.
pub(super) struct Client(pub(super) SocketAddr);

impl Client {
    pub(super) fn address(&self) -> SocketAddr {
        let mut address = self.0;
        if address.ip().is_unspecified() {
            address.set_ip("127.0.0.1".parse().unwrap());
        }
        address
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    /// Sends a request with these header lines; Host and `Connection: close` are added.
    pub(super) fn request(&self, first: &str, lines: &[&str], body: &str) -> Reply {
        let mut text = format!("{first} HTTP/1.1\r\nConnection: close\r\n");
        if !lines.iter().any(|line| line.to_lowercase().starts_with("host:")) {
            text += "Host: localhost\r\n";
        }
        for line in lines {
            text += &format!("{line}\r\n");
        }
        if !body.is_empty() {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut stream = self.connect();
        stream.write_all(format!("{text}\r\n{body}").as_bytes()).unwrap();
        Reply::read(&mut stream)
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        self.request(&format!("GET {path}"), &[], "")
    }

    /// Sends a control request with the secret.
    pub(super) fn post(&self, path: &str, body: &str) -> Reply {
        let secret = format!("Authorization: Bearer {SECRET}");
        let lines = [secret.as_str(), "Content-Type: application/json"];
        self.request(&format!("POST {path}"), &lines, body)
    }
}

pub(super) async fn until(clock: &Clock, mut condition: impl FnMut() -> bool) {
    let limit = clock.now() + Duration::from_secs(20);
    while !condition() {
        assert!(clock.now() < limit, "waited in vain");
        clock.sleep(Duration::from_millis(2)).await;
    }
}

/// A response.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) code: u16,
    pub(super) head: BTreeMap<String, String>,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn read(stream: &mut TcpStream) -> Reply {
        let text = read_all(stream);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let first = lines.next().unwrap_or_default();
        let code = first.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let head = lines.filter_map(|line| line.split_once(": "));
        let head = head.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        Reply { code, head, body: body.to_owned() }
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The kind and the sentence of an error response.
    pub(super) fn refusal(&self) -> (String, String) {
        let error = &self.json()["error"];
        let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
        assert_eq!(error.as_object().map(|error| error.len()), Some(2), "{self:?}");
        (text("kind"), text("message"))
    }
}

/// Reads until the server closes or resets the connection.
pub(super) fn read_all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&bytes)),
        }
    }
    String::from_utf8(bytes).unwrap()
}
