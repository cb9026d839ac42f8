//! An HTTP proxy in front of the API server that counts requests and answers some of them wrongly.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tenure_rig::kubernetes_rig::{KubernetesRig, NAMESPACE};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The proxy answers itself: status, the seconds of Retry-After, and the body.
    Answer(u16, Option<u64>, &'static str),
    /// The request is sent twice, as a proxy does that retries; the second answer counts.
    Twice,
    /// The request is sent, and the proxy answers 502.
    LoseReply,
    /// The proxy never answers.
    Hang,
}

struct Shared {
    client: Client,
    /// The next faults: a method or `WATCH`, and the fault.
    faults: Mutex<Vec<(&'static str, Fault)>>,
    /// The requests so far: `GET`, `LIST`, `WATCH`, `POST`, `PUT`.
    requests: Mutex<Vec<String>>,
}

pub(crate) struct Proxy {
    shared: Arc<Shared>,
    pub(crate) url: String,
    _serving: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(rig: &KubernetesRig) -> Self {
        let kubeconfig = Kubeconfig::read_from(rig.kubeconfig("locker", rig.port())).unwrap();
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        config.default_retry = false;
        let shared = Arc::new(Shared {
            client: Client::try_from(config).unwrap(),
            faults: Mutex::default(),
            requests: Mutex::default(),
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(forward).with_state(Arc::clone(&shared));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        let path = rig.kubeconfig("proxied", port);
        let config = json!({
            "clusters": [{"name": "p", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "users": [{"name": "p", "user": {"token": "not-used"}}],
            "contexts": [{"name": "p", "context": {"cluster": "p", "user": "p"}}],
            "current-context": "p",
        });
        std::fs::write(&path, config.to_string()).unwrap();
        let url = format!("kubernetes://{NAMESPACE}?kubeconfig={}", path.display());
        Proxy { shared, url, _serving: serving }
    }

    /// The next request of this method gets this fault.
    pub(crate) fn fail(&self, method: &'static str, fault: Fault) {
        self.shared.faults.lock().unwrap().push((method, fault));
    }

    /// The number of requests of this kind since the last call.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.requests.lock().unwrap())
    }
}

async fn forward(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let query = head.uri.query().unwrap_or_default();
    let method = match head.method.as_str() {
        "GET" if query.contains("watch=true") => "WATCH",
        "GET" if head.uri.path().ends_with("/leases") => "LIST",
        method => method,
    };
    shared.requests.lock().unwrap().push(method.to_owned());
    let fault = {
        let mut faults = shared.faults.lock().unwrap();
        let at = faults.iter().position(|(of, _)| *of == method);
        at.map(|at| faults.remove(at).1)
    };
    let body = to_bytes(body, usize::MAX).await.unwrap().to_vec();
    let send = async || {
        let mut request = http::Request::builder().method(&head.method).uri(&head.uri);
        if let Some(kind) = head.headers.get("content-type") {
            request = request.header("content-type", kind);
        }
        let request = request.body(kube::client::Body::from(body.clone())).unwrap();
        match shared.client.send(request).await {
            Ok(answer) => answer.map(Body::new),
            Err(error) => answer(504, None, error.to_string()),
        }
    };
    match fault {
        None => send().await,
        Some(Fault::Answer(status, after, text)) => answer(status, after, text.to_owned()),
        Some(Fault::Twice) => {
            drop(to_bytes(send().await.into_body(), usize::MAX).await);
            send().await
        }
        Some(Fault::LoseReply) => {
            drop(to_bytes(send().await.into_body(), usize::MAX).await);
            answer(502, None, "<html>bad gateway</html>".to_owned())
        }
        Some(Fault::Hang) => std::future::pending().await,
    }
}

fn answer(status: u16, after: Option<u64>, text: String) -> Response {
    let mut answer = Response::builder().status(status);
    if let Some(seconds) = after {
        answer = answer.header("Retry-After", seconds.to_string());
    }
    answer.body(Body::from(text)).unwrap()
}
