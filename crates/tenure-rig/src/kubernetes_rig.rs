//! A private Kubernetes API server with its etcd, an administrator, and a user that has only the Role of the documentation.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use libtest_mimic::{Arguments, Trial};
use rcgen::KeyPair;
use rustix::process::{Signal, kill_process_group};
use serde_json::{Value, json};
use tenure::Clock;

use crate::redis_rig::certificates::Authority;
use crate::servers::{Scratch, Server, find, free_port, install_hint};

/// The namespace of the tests.
pub const NAMESPACE: &str = "tenure-test";

/// The path of the Leases of the tests.
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/tenure-test/leases";

/// The directory with the manifests of the documentation.
pub fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes")
}

/// What is missing on this machine, and how to get it.
pub fn missing() -> Option<String> {
    let programs = [("kube-apiserver", "kube-apiserver"), ("etcd-3.4", "etcd")];
    let missing = programs.iter().find(|(kind, program)| find(kind, program).is_none());
    missing.map(|(kind, _)| install_hint(kind))
}

/// A trial on the server that all trials of a program share.
pub type KubernetesTest = (&'static str, fn(Arc<KubernetesRig>) -> LocalBoxFuture<'static, ()>);

/// Named trials of async functions that take the shared server.
#[macro_export]
macro_rules! kubernetes_tests {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), |rig| {
            Box::pin($name(rig)) as futures_util::future::LocalBoxFuture<'static, ()>
        })),*]
    };
}
pub use crate::kubernetes_tests as tests;

/// Runs trials on one server, which the first of them starts.
pub fn main(tests: &[KubernetesTest]) -> ExitCode {
    const LIMIT: Duration = Duration::from_secs(120);
    let required = std::env::var("TENURE_REQUIRE_STORES").unwrap_or_default();
    let required = required.split([',', ' ']).any(|word| word == "all" || word == "kubernetes");
    let shared: Arc<OnceLock<Result<Arc<KubernetesRig>, String>>> = Arc::default();
    let trial = |&(name, test): &KubernetesTest| {
        let shared = Arc::clone(&shared);
        let trial = Trial::test(name, move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let rig = shared.get_or_init(|| KubernetesRig::start().map(Arc::new)).clone()?;
                let done = tokio::time::timeout(LIMIT, test(rig)).await;
                done.map_err(|_| "not done in time".to_owned())
            })?;
            Ok(())
        });
        match missing() {
            Some(hint) if !required => trial.with_kind(hint).with_ignored_flag(true),
            _ => trial,
        }
    };
    let mut arguments = Arguments::from_args();
    // Most of the time is spent waiting for leases to expire.
    arguments.test_threads.get_or_insert(4);
    let trials = tests.iter().map(trial).collect();
    let code = libtest_mimic::run(&arguments, trials).exit_code();
    // Stops the server before the process ends.
    drop(shared);
    code
}

/// A running API server. It stops before its etcd does.
pub struct KubernetesRig {
    api: Server,
    etcd: Server,
    port: u16,
    files: Scratch,
}

impl KubernetesRig {
    /// Starts both servers and creates the namespace, the Role of `deploy/kubernetes/rbac.yaml`, and its binding to the
    /// restricted user. Must be called in a runtime with several threads.
    pub fn start() -> Result<Self, String> {
        let files = Scratch::new();
        let etcd = start_etcd()?;
        let port = free_port();
        let api = start_api(&etcd.1, port, files.path())?;
        let rig = KubernetesRig { api, etcd: etcd.0, port, files };
        wait_for(rig.prepare())?;
        Ok(rig)
    }

    /// The URL of the store for the restricted user.
    pub fn url(&self) -> String {
        let kubeconfig = self.kubeconfig("locker", self.port);
        format!("kubernetes://{NAMESPACE}?kubeconfig={}", kubeconfig.display())
    }

    /// The port of the API server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Writes a kubeconfig for `admin`, for `locker`, who has the Role of the documentation, or for another token. `port` is
    /// that of the server or of a proxy that forwards bytes to it.
    pub fn kubeconfig(&self, user: &str, port: u16) -> PathBuf {
        let path = self.files.path().join(format!("{user}-{port}.yaml"));
        let ca = self.files.path().join("ca.crt");
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority": ca,
            }}],
            "users": [{"name": user, "user": {"token": format!("{user}token")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        });
        // JSON is YAML. Renamed into place: another trial may be reading the same file.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let draft = path.with_extension(format!("{}.new", COUNT.fetch_add(1, Ordering::Relaxed)));
        std::fs::write(&draft, config.to_string()).unwrap();
        std::fs::rename(&draft, &path).unwrap();
        path
    }

    /// A client of the administrator, for the current runtime.
    pub async fn admin(&self) -> Admin {
        Admin::new(&self.kubeconfig("admin", self.port)).await
    }

    /// Kills both servers and starts them again with the data that etcd has.
    pub fn restart(&self) {
        for server in [&self.api, &self.etcd] {
            if let Some(pid) = server.pid() {
                kill_process_group(pid, Signal::KILL).expect("it runs");
            }
            wait_for(server.stop()).expect("it is dead");
        }
        wait_for(self.etcd.start_again(async || true)).expect("etcd starts");
        let admin = self.kubeconfig("admin", self.port);
        wait_for(self.api.start_again(async || is_ready(&admin).await)).expect("it starts");
        wait_for(self.wait_for_role()).expect("the restricted user has its Role");
    }

    /// Sends a signal to the API server.
    pub fn signal(&self, signal: Signal) {
        kill_process_group(self.api.pid().expect("it runs"), signal).expect("it runs");
    }

    async fn prepare(&self) -> Result<(), String> {
        let admin = self.admin().await;
        let namespace = json!({"metadata": {"name": NAMESPACE}});
        admin.create("/api/v1/namespaces", &namespace).await?;
        apply(&admin, NAMESPACE, &manifests().join("rbac.yaml")).await?;
        let binding = json!({
            "metadata": {"name": "locker"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenure"},
            "subjects": [{"kind": "User", "name": "locker", "apiGroup": "rbac.authorization.k8s.io"}],
        });
        let path =
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings");
        admin.create(&path, &binding).await?;
        // A server can be ready and still fail at every Lease: see SERVERS.md.
        let probe = json!({"metadata": {"name": "probe"}, "spec": {"holderIdentity": "probe"}});
        admin.create(LEASES, &probe).await?;
        admin.delete(&format!("{LEASES}/probe")).await?;
        self.wait_for_role().await
    }

    async fn wait_for_role(&self) -> Result<(), String> {
        let locker = Admin::new(&self.kubeconfig("locker", self.port)).await;
        for _ in 0..200 {
            if locker.get(LEASES).await.0 == 200 {
                return Ok(());
            }
            Clock::boot().sleep(Duration::from_millis(50)).await;
        }
        Err("the restricted user never got its Role".to_owned())
    }
}

/// Plain requests as the user of a kubeconfig.
pub struct Admin(Client);

impl Admin {
    pub async fn new(kubeconfig: &Path) -> Self {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        Admin(Client::try_from(config).unwrap())
    }

    /// The status code and the body of a request.
    pub async fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", "application/json")
            .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default().into())
            .unwrap();
        let Ok(response) = self.0.send(request).await else { return (0, Value::Null) };
        let code = response.status().as_u16();
        let body = response.into_body().collect_bytes().await.unwrap_or_default();
        (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.request("GET", path, None).await
    }

    pub async fn create(&self, path: &str, object: &Value) -> Result<Value, String> {
        success(self.request("POST", path, Some(object)).await)
    }

    pub async fn replace(&self, path: &str, object: &Value) -> Result<Value, String> {
        success(self.request("PUT", path, Some(object)).await)
    }

    pub async fn delete(&self, path: &str) -> Result<Value, String> {
        success(self.request("DELETE", path, None).await)
    }

    /// The Lease object with this name.
    pub async fn lease(&self, object: &str) -> Option<Value> {
        let (code, lease) = self.get(&format!("{LEASES}/{object}")).await;
        (code == 200).then_some(lease)
    }
}

fn success((code, body): (u16, Value)) -> Result<Value, String> {
    if (200..300).contains(&code) { Ok(body) } else { Err(format!("HTTP {code}: {body}")) }
}

/// Creates the objects of a manifest in a namespace.
pub async fn apply(admin: &Admin, namespace: &str, manifest: &Path) -> Result<Vec<Value>, String> {
    let text = std::fs::read_to_string(manifest).map_err(|error| error.to_string())?;
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&text).map_err(|error| error.to_string())?;
    let mut created = Vec::new();
    for object in objects {
        let version = object["apiVersion"].as_str().ok_or("no apiVersion")?;
        let kind = object["kind"].as_str().ok_or("no kind")?;
        let root = if version.contains('/') { "apis" } else { "api" };
        let kinds = format!("{}s", kind.to_lowercase());
        let path = format!("/{root}/{version}/namespaces/{namespace}/{kinds}");
        let answer = admin.create(&path, &object).await;
        created.push(answer.map_err(|error| format!("{kind}: {error}"))?);
    }
    Ok(created)
}

fn start_etcd() -> Result<(Server, u16), String> {
    let program = find("etcd-3.4", "etcd").ok_or_else(|| install_hint("etcd-3.4"))?;
    let (port, peers) = (free_port(), free_port());
    let (clients, peers) =
        (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
    let arguments = [
        "--name=t",
        "--data-dir=data",
        "--unsafe-no-fsync",
        &format!("--listen-client-urls={clients}"),
        &format!("--advertise-client-urls={clients}"),
        &format!("--listen-peer-urls={peers}"),
        &format!("--initial-advertise-peer-urls={peers}"),
        &format!("--initial-cluster=t={peers}"),
    ];
    // The API server waits until it answers.
    let server = wait_for(Server::start(Scratch::in_memory(), program, arguments, async || true))?;
    Ok((server, port))
}

fn start_api(etcd: &u16, port: u16, files: &Path) -> Result<Server, String> {
    let program = find("kube-apiserver", "kube-apiserver").ok_or(install_hint("kube-apiserver"))?;
    let authority = Authority::new(files, "ca");
    let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"];
    let [certificate, key] = authority.sign(files, "tls", &names, false);
    let file = |name: &str, content: &str| {
        let path = files.join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let pair = KeyPair::generate().unwrap();
    let account = file("account.key", &pair.serialize_pem());
    let account_public = file("account.pub", &pair.public_key_pem());
    let tokens = file(
        "tokens.csv",
        "admintoken,admin,admin,system:masters\nlockertoken,locker,locker\nstrangertoken,stranger,stranger\nreadertoken,reader,reader\n",
    );
    let arguments = [
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={certificate}"),
        format!("--tls-private-key-file={key}"),
        format!("--client-ca-file={}", authority.ca),
        format!("--token-auth-file={tokens}"),
        format!("--service-account-signing-key-file={account}"),
        format!("--service-account-key-file={account_public}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--insecure-port=0".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        "--anonymous-auth=false".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
    ];
    let kubeconfig = files.join("probe.yaml");
    let config = json!({
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority": authority.ca,
        }}],
        "users": [{"name": "admin", "user": {"token": "admintoken"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let ready = async || is_ready(&kubeconfig).await;
    wait_for(Server::start(Scratch::in_memory(), program, arguments, ready))
}

async fn is_ready(kubeconfig: &Path) -> bool {
    let admin = Admin::new(kubeconfig).await;
    let ready = admin.get("/readyz");
    matches!(tokio::time::timeout(Duration::from_secs(2), ready).await, Ok((200, _)))
}

/// The compiler cannot prove that probes are `Send` futures, so they stay on this thread.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}
