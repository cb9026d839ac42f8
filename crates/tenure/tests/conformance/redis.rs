//! Real Redis and Valkey servers, directly, with the minimal ACL of the store's documentation, and behind a delay line.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use rustix::process::{Signal, kill_process_group};
use tenure::store::Store;
use tenure::store::conformance::{self, Capability, Fixture, Property};
use tenure::store::memory::Corruption;
use tenure::{Clock, Name, Token};
use tokio::sync::OnceCell;

use crate::Subject;
use tenure_rig::servers::{self, Scratch, Server, free_port};

use tenure_rig::redis_rig::certificates::Authority;
use tenure_rig::redis_rig::delay_line::{DelayLine, ONE_WAY};

const PASSWORD: &str = "s3cret";

/// Key patterns for names that do not begin with the property's name: those at the limits.
const ODD_NAMES: &str = "~x* ~X* ~0 ~-* ~_* ~:* ~.* ~/* ~a* ~A* ~b/* ~live* ~NUL ~con";

/// The permissions that the store's module header lists, except for the keys.
const PERMISSIONS: &str = "resetchannels &tenure:wake:* -@all \
    +ping +select +evalsha +eval +time +info +config|get +object|encoding +exists \
    +getrange +set +del +pexpireat +pexpiretime +pttl +persist +hstrlen +hmget +hset \
    +zadd +zrem +zrangebylex +zrangebyscore +publish +subscribe +psubscribe +unsubscribe +punsubscribe";

/// The properties that are always tested behind a delay line: one of each group.
const DELAYED: &[&str] = &[
    "second_claim_is_refused",
    "cancelled_claim_can_be_repeated",
    "detached_handle_sees_the_same_leases",
    "expiry_frees_within_the_limit",
    "renew_extends",
    "before_says_how_the_last_term_ended",
    "prefix_shows_what_the_name_shows",
    "release_wakes_a_waiter",
    "watch_outlives_a_restart",
    "batch_of_1_000_keeps_order",
    "checkpoint_comes_with_the_grant",
    "foreign_holder_is_taken",
    "revoke_waits_out_the_holders_time",
    "same_id_twice_never_both_hold",
    "handle_outlives_a_restart",
];

pub(crate) fn subjects() -> Vec<Arc<dyn Subject>> {
    let family = |name, kind, program, access| -> Arc<dyn Subject> {
        Arc::new(Family { name, kind, program, access, shared: OnceCell::new() })
    };
    vec![
        family("redis-6", "redis-6", "redis-server", Access::Direct),
        family("redis-7", "redis-7", "redis-server", Access::Direct),
        family("redis-7-acl", "redis-7", "redis-server", Access::Limited),
        family("redis-7-delayed", "redis-7", "redis-server", Access::Delayed),
        family("redis-7-tls-delayed", "redis-7", "redis-server", Access::TlsDelayed),
        family("redis-8", "redis-8", "redis-server", Access::Direct),
        family("valkey-8", "valkey-8", "valkey-server", Access::Direct),
    ]
}

/// How the store reaches the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Direct,
    /// As a user with only the permissions that the store needs.
    Limited,
    /// Behind a delay line, with a round trip of 300 ms.
    Delayed,
    /// The same over TLS.
    TlsDelayed,
}

struct Family {
    name: &'static str,
    kind: &'static str,
    program: &'static str,
    access: Access,
    shared: OnceCell<Arc<Private>>,
}

#[async_trait]
impl Subject for Family {
    fn name(&self) -> &'static str {
        self.name
    }

    fn has_capability(&self, capability: Capability) -> bool {
        // A Redis key cannot be locked.
        capability != Capability::Lock
    }

    fn is_extra(&self) -> bool {
        self.kind == "redis-6"
    }

    fn skip_reason(&self, property: &Property) -> Option<&'static str> {
        if matches!(self.access, Access::Direct | Access::Limited) {
            return None;
        }
        let all = std::env::var("TENURE_DELAYED").is_ok_and(|which| which == "all");
        if property.name == "contended_counter_loses_no_update" {
            return Some("its many rounds take minutes behind a delay line");
        }
        let is_tried = all || DELAYED.contains(&property.name);
        (!is_tried).then_some("takes minutes behind a delay line: TENURE_DELAYED=all tries it")
    }

    fn missing(&self) -> Option<String> {
        servers::find(self.kind, self.program).is_none().then(|| servers::install_hint(self.kind))
    }

    async fn fixture(&self, alone: bool) -> Result<Box<dyn Fixture>, String> {
        let program = servers::find(self.kind, self.program).ok_or("it has just been there")?;
        let start = || Private::start(program, self.access).map(Arc::new);
        let server = if alone {
            start()?
        } else {
            self.shared.get_or_try_init(|| std::future::ready(start())).await?.clone()
        };
        let line = match self.access {
            Access::Direct | Access::Limited => None,
            Access::Delayed => Some(DelayLine::start(server.port, ONE_WAY).await),
            Access::TlsDelayed => Some(DelayLine::start(server.tls_port, ONE_WAY).await),
        };
        Ok(Box::new(OnServer { server, line, corrupted: Mutex::default() }))
    }
}

/// A private server that keeps what it acknowledged.
struct Private {
    server: Server,
    port: u16,
    tls_port: u16,
    access: Access,
    /// The CA of its certificate, and where its files are.
    authority: Option<(Authority, Scratch)>,
}

impl Private {
    fn start(program: PathBuf, access: Access) -> Result<Self, String> {
        let (port, tls_port) = (free_port(), free_port());
        let (text, tls_text) = (port.to_string(), tls_port.to_string());
        let mut arguments = vec!["--port", &text, "--bind", "127.0.0.1", "--save", ""];
        arguments.extend(["--appendonly", "yes", "--appendfsync", "always", "--dir", "."]);
        let user = user();
        if access == Access::Limited {
            arguments.push("--user");
            arguments.extend(user.split(' '));
        }
        let authority = (access == Access::TlsDelayed).then(|| {
            let scratch = Scratch::new();
            (Authority::new(scratch.path(), "ca"), scratch)
        });
        let files = authority.as_ref().map(|(authority, scratch)| {
            authority.sign(scratch.path(), "server", &["localhost"], false)
        });
        if let (Some((authority, _)), Some([cert, key])) = (&authority, &files) {
            arguments.extend(["--tls-port", &tls_text, "--tls-auth-clients", "no"]);
            arguments.extend(["--tls-cert-file", cert, "--tls-key-file", key]);
            arguments.extend(["--tls-ca-cert-file", &authority.ca]);
        }
        let answers = async || answers(port).await;
        let server = wait_for(Server::start(Scratch::in_memory(), program, arguments, answers))?;
        Ok(Private { server, port, tls_port, access, authority })
    }

    /// The URL of the store; `line` is the port of the delay line, if there is one.
    fn url(&self, line: Option<u16>) -> String {
        let port = line.unwrap_or(self.port);
        match (self.access, &self.authority) {
            (Access::Limited, _) => format!("redis://tenure:{PASSWORD}@127.0.0.1:{port}"),
            (_, Some((authority, _))) => format!("rediss://localhost:{port}?ca={}", authority.ca),
            _ => format!("redis://127.0.0.1:{port}"),
        }
    }
}

/// The compiler cannot prove that probes are `Send` futures, so they stay on this thread.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

/// The user of the documentation, with access to exactly the names that the trials use.
fn user() -> String {
    let keys: Vec<String> = conformance::names().map(|name| format!("~{name}:*")).collect();
    let keys = keys.join(" ");
    let words =
        format!("tenure on >{PASSWORD} resetkeys {keys} {ODD_NAMES} ~tenure:* {PERMISSIONS}");
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

async fn answers(port: u16) -> bool {
    let Ok(mut admin) = admin(port).await else { return false };
    redis::cmd("PING").query_async::<Value>(&mut admin).await.is_ok()
}

async fn admin(port: u16) -> redis::RedisResult<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    // Against hanging; the default timeouts are too short for a busy machine.
    let limit = Some(Duration::from_secs(20));
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
    client.get_multiplexed_async_connection_with_config(&config).await
}

struct OnServer {
    server: Arc<Private>,
    line: Option<DelayLine>,
    /// The content of the two keys of a name after it was corrupted.
    corrupted: Mutex<HashMap<Name, [Content; 2]>>,
}

/// The logical content of a key. The fields of a large hash change their order when a client reads them (Redis 6 then continues
/// to move them to a larger table), so two DUMPs of it may differ.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    kind: String,
    words: Vec<Vec<Vec<u8>>>,
    /// The key does not expire.
    is_persistent: bool,
}

fn bytes(value: Value) -> Vec<u8> {
    redis::from_redis_value(value).expect("a string")
}

impl OnServer {
    async fn run(&self, words: &[&[u8]]) -> Value {
        let mut admin = admin(self.server.port).await.expect("the server is there");
        let (verb, arguments) = words.split_first().expect("a command");
        let mut command = redis::Cmd::new();
        command.arg(*verb);
        for argument in arguments {
            command.arg(*argument);
        }
        command.query_async(&mut admin).await.expect("an administrator's command")
    }

    async fn content(&self, name: &Name) -> [Content; 2] {
        [self.content_of(name.as_str()).await, self.content_of(&companion(name)).await]
    }

    async fn content_of(&self, key: &str) -> Content {
        let key = key.as_bytes();
        let kind = self.run(&[b"TYPE", key]).await;
        let Value::SimpleString(kind) = kind else { panic!("not a type: {kind:?}") };
        let value = match kind.as_str() {
            "none" => Value::Nil,
            "string" => self.run(&[b"GET", key]).await,
            "list" => self.run(&[b"LRANGE", key, b"0", b"-1"]).await,
            "hash" => self.run(&[b"HGETALL", key]).await,
            other => panic!("nobody has put a {other} here"),
        };
        let is_persistent = self.run(&[b"PTTL", key]).await == Value::Int(-1);
        // A hash as pairs, in any order; for all other types the order counts.
        let mut words: Vec<Vec<Vec<u8>>> = match value {
            Value::Map(fields) => {
                fields.into_iter().map(|(field, value)| vec![bytes(field), bytes(value)]).collect()
            }
            Value::Array(words) if kind == "hash" => {
                let words: Vec<Vec<u8>> = words.into_iter().map(bytes).collect();
                words.chunks(2).map(<[Vec<u8>]>::to_vec).collect()
            }
            Value::Array(words) => vec![words.into_iter().map(bytes).collect()],
            Value::Nil => Vec::new(),
            one => vec![vec![bytes(one)]],
        };
        words.sort_unstable();
        Content { kind, words, is_persistent }
    }

    /// Writes a companion of a free lease as the store does.
    async fn write(&self, name: &Name, token: &str) {
        let key = companion(name);
        self.run(&[b"DEL", key.as_bytes()]).await;
        let mut words: Vec<&[u8]> = vec![b"HSET", key.as_bytes()];
        let fields = [
            ("v", "2"),
            ("origin", "1"),
            ("token", token),
            ("leads_from", ""),
            ("candidate", ""),
            ("nonce", ""),
            ("ttl", "0"),
            ("until", "0"),
            ("since", "0"),
            ("saved", ""),
            ("before", ""),
            ("next", ""),
            ("note", ""),
        ];
        words.extend(fields.iter().flat_map(|(field, value)| [field.as_bytes(), value.as_bytes()]));
        self.run(&words).await;
    }
}

fn companion(name: &Name) -> String {
    format!("tenure:{{{name}}}")
}

#[async_trait]
impl Fixture for OnServer {
    async fn open(&self) -> Arc<dyn Store> {
        let url = self.server.url(self.line.as_ref().map(DelayLine::port));
        tenure::open(&url).await.expect("the URL is right")
    }

    fn short_ttl(&self) -> Duration {
        // The default TTL if a call takes 300 ms.
        Duration::from_secs(if self.line.is_some() { 4 } else { 1 })
    }

    async fn pass(&self, time: Duration) {
        Clock::boot().sleep(time).await;
    }

    async fn corrupt(&self, name: &Name, spoil: Corruption) -> bool {
        if spoil == Corruption::Locked {
            return false;
        }
        static KIND: AtomicUsize = AtomicUsize::new(0);
        let (visible, key) = (name.as_str().as_bytes(), companion(name));
        let key = key.as_bytes();
        self.write(name, "5").await;
        let huge = vec![b'x'; 10 << 20];
        let commands: &[&[&[u8]]] = match KIND.fetch_add(1, Ordering::Relaxed) % 11 {
            0 => &[&[b"DEL", key], &[b"SET", key, b"something else"]],
            1 => &[&[b"DEL", key], &[b"LPUSH", key, b"a", b"b"]],
            2 => &[&[b"DEL", visible], &[b"LPUSH", visible, b"a", b"b"]],
            3 => &[&[b"HSET", key, b"token", b"9007199254740992"]],
            4 => &[&[b"HSET", key, b"token", b"12x"]],
            5 => &[&[b"HSET", key, b"v", b"1"]],
            6 => &[&[b"HSET", key, b"note", &huge]],
            7 => &[&[b"HSET", key, b"candidate", b"\xff\xfe"]],
            8 => &[&[b"HDEL", key, b"until"]],
            9 => &[&[b"HSET", key, b"until", b"18446741302000"]],
            _ => &[&[b"HSET", key, b"note", b"\xc3\x28"]],
        };
        for words in commands {
            self.run(words).await;
        }
        let content = self.content(name).await;
        self.corrupted.lock().expect("not poisoned").insert(name.clone(), content);
        true
    }

    async fn is_untouched(&self, name: &Name) -> bool {
        let corrupted = self.corrupted.lock().expect("not poisoned").get(name).cloned();
        corrupted == Some(self.content(name).await)
    }

    async fn set_token(&self, name: &Name, last: Token) -> bool {
        self.write(name, &last.to_string()).await;
        true
    }

    async fn restart(&self) -> bool {
        let server = &self.server.server;
        if let Some(pid) = server.pid() {
            kill_process_group(pid, Signal::KILL).expect("it runs");
        }
        wait_for(server.stop()).expect("it is dead");
        let port = self.server.port;
        let again = wait_for(server.start_again(async || answers(port).await));
        again.expect("it starts as it did before");
        true
    }

    async fn take_as_foreign_holder(&self, name: &Name, id: &str, ttl: Duration) -> bool {
        let millis = ttl.as_millis().to_string();
        let words: [&[u8]; 6] =
            [b"SET", name.as_str().as_bytes(), id.as_bytes(), b"NX", b"PX", millis.as_bytes()];
        self.run(&words).await == Value::Okay
    }
}
