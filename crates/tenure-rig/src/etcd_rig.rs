//! Private etcd servers: one member, or a cluster of three, with `etcdctl` as the administrator.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, kill_process_group};

use crate::servers::{self, Scratch, Server, free_port};

/// The version for tests that need one only.
pub const ETCD: &str = "etcd-3.5";

/// Why the server of this kind is not available here.
pub fn missing(kind: &str) -> Option<String> {
    servers::find(kind, "etcd").is_none().then(|| servers::install_hint(kind))
}

/// How a server talks to its clients, and `etcdctl` to it.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// Arguments of the server: `--cert-file` and so on.
    pub server: Vec<String>,
    /// Arguments of `etcdctl`: `--cacert` and so on.
    pub client: Vec<String>,
}

/// One member.
pub struct EtcdMember {
    pub server: Server,
    pub port: u16,
    kind: &'static str,
    tls: Option<EtcdTls>,
}

/// The ports of a member: for clients and for other members.
type Ports = (u16, u16);

impl EtcdMember {
    /// Starts a cluster of one member.
    pub async fn start(kind: &'static str) -> Result<EtcdMember, String> {
        EtcdMember::start_one(kind, 0, &[(free_port(), free_port())], None).await
    }

    /// Starts a cluster of one member that speaks TLS to its clients.
    pub async fn start_with_tls(kind: &'static str, tls: EtcdTls) -> Result<EtcdMember, String> {
        EtcdMember::start_one(kind, 0, &[(free_port(), free_port())], Some(tls)).await
    }

    /// Starts a cluster of three members.
    pub async fn start_cluster(kind: &'static str) -> Result<Vec<EtcdMember>, String> {
        let ports: Vec<Ports> = (0..3).map(|_| (free_port(), free_port())).collect();
        let start = |number| EtcdMember::start_one(kind, number, &ports, None);
        // A member is ready only when it has found the others.
        let (a, b, c) = tokio::join!(start(0), start(1), start(2));
        Ok(vec![a?, b?, c?])
    }

    async fn start_one(
        kind: &'static str,
        number: usize,
        ports: &[Ports],
        tls: Option<EtcdTls>,
    ) -> Result<EtcdMember, String> {
        let program = servers::find(kind, "etcd").ok_or_else(|| servers::install_hint(kind))?;
        let port = ports[number].0;
        let mut arguments = arguments(number, ports, if tls.is_some() { "https" } else { "http" });
        arguments.extend(tls.iter().flat_map(|tls| tls.server.clone()));
        let ready = async || is_ready(kind, port, tls.as_ref());
        let server = Server::start(Scratch::in_memory(), program, arguments, ready).await?;
        Ok(EtcdMember { server, port, kind, tls })
    }

    /// The URL of a store on this member.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// Runs `etcdctl` and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn etcdctl(&self, words: &[&str]) -> String {
        etcdctl(self.kind, self.port, self.tls.as_ref(), words).unwrap()
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: Signal) {
        kill_process_group(self.server.pid().expect("it runs"), signal).expect("it runs");
    }

    /// Kills the server, and returns when it has ended.
    pub async fn kill(&self) {
        self.signal(Signal::KILL);
        self.server.stop().await.expect("it is dead");
    }

    /// Starts the server again with the data that it kept.
    pub async fn start_again(&self) {
        let ready = async || is_ready(self.kind, self.port, self.tls.as_ref());
        self.server.start_again(ready).await.expect("it starts as it did before");
    }

    /// Whether this member is the leader of its cluster.
    pub fn is_leader(&self) -> bool {
        metric(self.port, "etcd_server_is_leader").values().any(|value| *value > 0)
    }

    /// How many requests of each method the server has received, by the name of the method. Each message of a stream counts.
    pub fn requests(&self) -> BTreeMap<String, u64> {
        let method = |(labels, count): (String, u64)| {
            let (_, rest) = labels.split_once("grpc_method=\"")?;
            Some((rest.split('"').next()?.to_owned(), count))
        };
        let received = metric(self.port, "grpc_server_msg_received_total");
        received.into_iter().filter_map(method).filter(|(_, count)| *count > 0).collect()
    }
}

fn arguments(number: usize, ports: &[Ports], scheme: &str) -> Vec<String> {
    let peer = |port: u16| format!("http://127.0.0.1:{port}");
    let cluster: Vec<String> =
        (0..ports.len()).map(|number| format!("m{number}={}", peer(ports[number].1))).collect();
    let (client, own) =
        (format!("{scheme}://127.0.0.1:{}", ports[number].0), peer(ports[number].1));
    vec![
        format!("--name=m{number}"),
        "--data-dir=data".to_owned(),
        "--unsafe-no-fsync".to_owned(),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={own}"),
        format!("--initial-advertise-peer-urls={own}"),
        format!("--initial-cluster={}", cluster.join(",")),
    ]
}

/// Whether the server answers, which it does only with a leader.
fn is_ready(kind: &str, port: u16, tls: Option<&EtcdTls>) -> bool {
    match tls {
        None => get(port, "/health").is_some_and(|answer| answer.contains("\"health\":\"true\"")),
        // A server that requires users refuses this, and so it answers.
        Some(_) => match etcdctl(kind, port, tls, &["endpoint", "health"]) {
            Ok(_) => true,
            Err(why) => why.contains("user name is empty"),
        },
    }
}

fn etcdctl(kind: &str, port: u16, tls: Option<&EtcdTls>, words: &[&str]) -> Result<String, String> {
    let program = servers::find(kind, "etcdctl").ok_or_else(|| servers::install_hint(kind))?;
    let mut command = Command::new(program);
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints=127.0.0.1:{port}"));
    command.args(tls.iter().flat_map(|tls| tls.client.clone())).args(words);
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// The values of a metric that counts, by their labels.
fn metric(port: u16, name: &str) -> BTreeMap<String, u64> {
    let page = get(port, "/metrics").unwrap_or_default();
    let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    lines.filter_map(|(labels, value)| Some((labels.to_owned(), value.parse().ok()?))).collect()
}

fn get(port: u16, path: &str) -> Option<String> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    server.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    server.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    server.read_to_string(&mut answer).ok()?;
    Some(answer)
}
