//! A private Consul server with access control, and its administrator.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::servers::{self, Scratch, Server, free_port};

/// The kind of the server.
pub const KIND: &str = "consul-1";

/// The prefix of the keys of a store.
pub const PREFIX: &str = "tenure/";

/// The policy of docs/STORES.md.
pub const POLICY: &str = r#"key_prefix "tenure/" { policy = "write" }
session_prefix "" { policy = "write" }"#;

/// The token with [`POLICY`].
pub const TOKEN: &str = "11111111-2222-3333-4444-555555555555";

/// The token of the administrator.
const ADMIN_TOKEN: &str = "99999999-2222-3333-4444-555555555555";

/// What is missing on this machine.
pub fn missing() -> Option<String> {
    servers::find(KIND, "consul").is_none().then(|| servers::install_hint(KIND))
}

/// A server that keeps what it acknowledged.
pub struct ConsulServer {
    pub server: Server,
    pub port: u16,
}

impl ConsulServer {
    /// Starts a server with the token [`TOKEN`].
    pub async fn start() -> Result<Self, String> {
        let program = servers::find(KIND, "consul").ok_or("it has just been there")?;
        let (port, rpc_port, gossip_port) = (free_port(), free_port(), free_port());
        let mut arguments: Vec<String> = [
            "agent",
            "-server",
            "-bootstrap-expect=1",
            "-data-dir=data",
            "-node=test",
            "-bind=127.0.0.1",
            "-client=127.0.0.1",
            "-dns-port=-1",
            "-grpc-port=-1",
            "-serf-wan-port=-1",
            "-disable-host-node-id",
            "-log-level=warn",
        ]
        .map(str::to_owned)
        .into();
        arguments.extend([
            format!("-http-port={port}"),
            format!("-server-port={rpc_port}"),
            format!("-serf-lan-port={gossip_port}"),
        ]);
        let acl = format!(
            "acl {{ enabled = true default_policy = \"deny\" tokens {{ master = \"{ADMIN_TOKEN}\" }} }}"
        );
        for setting in [
            "disable_update_check = true",
            "performance { raft_multiplier = 1 }",
            // All tests connect from one address.
            "limits { http_max_conns_per_client = 4000 }",
            &acl,
        ] {
            arguments.extend(["-hcl".to_owned(), setting.to_owned()]);
        }
        let ready = async || answers(port).await;
        let server = Server::start(Scratch::in_memory(), program, arguments, ready).await?;
        let server = ConsulServer { server, port };
        server.add_token(TOKEN, "tenure", POLICY).await;
        Ok(server)
    }

    /// Starts the server again after it was stopped.
    pub async fn start_again(&self) -> Result<(), String> {
        self.server.start_again(async || answers(self.port).await).await
    }

    /// The URL of a store with the token [`TOKEN`].
    pub fn url(&self) -> String {
        format!("consul://:{TOKEN}@127.0.0.1:{}", self.port)
    }

    /// Adds a token with these rules.
    pub async fn add_token(&self, token: &str, name: &str, rules: &str) {
        self.put("acl/policy", json!({"Name": name, "Rules": rules})).await;
        self.put("acl/token", json!({"SecretID": token, "Policies": [{"Name": name}]})).await;
    }

    /// Creates a session, and returns its id.
    pub async fn create_session(&self, name: &str, ttl: u64, behavior: &str) -> String {
        let session = json!({
            "Name": name, "TTL": format!("{ttl}s"), "Behavior": behavior, "LockDelay": "0s", "NodeChecks": [],
        });
        let answer = self.put("session/create", session).await;
        answer["ID"].as_str().expect("a session has an id").to_owned()
    }

    /// Destroys the session that holds a key.
    pub async fn destroy_session_of(&self, key: &str) {
        let held: Value = serde_json::from_str(&self.get(key).await).expect("a key");
        let session = held["Session"].as_str().expect("a session holds the key").to_owned();
        self.put(&format!("session/destroy/{session}"), Value::Null).await;
    }

    /// The names of all sessions.
    pub async fn session_names(&self) -> Vec<String> {
        let sessions = self.call("GET", "session/list", Value::Null).await;
        let sessions = sessions.as_array().cloned().unwrap_or_default();
        sessions.iter().map(|s| s["Name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Writes a key; a session that holds it still does.
    pub async fn set(&self, key: &str, value: &[u8]) {
        let value = STANDARD.encode(value);
        self.put("txn", json!([{"KV": {"Verb": "set", "Key": key, "Value": value}}])).await;
    }

    /// Deletes a key.
    pub async fn delete(&self, key: &str) {
        self.put("txn", json!([{"KV": {"Verb": "delete", "Key": key}}])).await;
    }

    /// Writes a key and locks it with a session; false if it is locked.
    pub async fn lock(&self, key: &str, session: &str, value: &[u8]) -> bool {
        let value = STANDARD.encode(value);
        let lock = json!({"Verb": "lock", "Key": key, "Value": value, "Session": session});
        self.put("txn", json!([{"KV": lock}])).await["Errors"].is_null()
    }

    /// A key as Consul shows it; empty if it does not exist.
    pub async fn get(&self, key: &str) -> String {
        let answer = self.put("txn", json!([{"KV": {"Verb": "get", "Key": key}}])).await;
        let value = &answer["Results"][0]["KV"];
        if value.is_null() { String::new() } else { value.to_string() }
    }

    async fn put(&self, path: &str, body: Value) -> Value {
        self.call("PUT", path, body).await
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = request(self.port, method, path, &body).await;
        let (_, answer) = answer.expect("the server is there");
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{path}: {answer}"))
    }
}

/// Sends a request of the administrator, and returns the status line and the body of the answer.
async fn request(
    port: u16,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(String, String)> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).await?;
    let length = body.len();
    // Of version 1.0: the answer ends with the connection.
    let head = format!(
        "{method} /v1/{path} HTTP/1.0\r\nX-Consul-Token: {ADMIN_TOKEN}\r\nContent-Length: {length}\r\n\r\n"
    );
    connection.write_all((head + body).as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
}

/// Whether the server has a leader that knows the token of the administrator.
async fn answers(port: u16) -> bool {
    let answer = request(port, "GET", "acl/token/self", "").await;
    answer.is_ok_and(|(status, _)| status.contains(" 200 "))
}
