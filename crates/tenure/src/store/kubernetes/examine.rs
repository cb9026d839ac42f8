//! Examines the API server for `tenure doctor`.

use std::time::Duration;

use futures_util::stream::StreamExt;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::PostParams;
use kube::core::Request;

use super::client::ApiClient;
use super::error::Verb;
use super::settings::KubernetesSettings;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::lease::Name;
use crate::store::{Check, Grade, Report, Scope, Verdict};

const ROUND_TRIPS: usize = 5;
const VERBS: [&str; 5] = ["get", "list", "watch", "create", "update"];

pub(super) async fn examine(client: &ApiClient, clock: &Clock) -> Result<Report> {
    let settings = client.settings();
    let version = http::Request::get("/version").body(Vec::new());
    let version = version.map_err(|error| Error::invalid(error.to_string()))?;
    let version: Info = client.ask(Verb("get /version"), Ok(version)).await?;
    let permissions = permissions(client).await?;
    let round_trip = round_trip(client, clock).await?;
    let mut checks = vec![
        check("version", Verdict::Good, format!("Kubernetes {}", version.git_version)),
        permissions,
        login(&settings),
        tls(&settings),
    ];
    checks.push(watch(client).await);
    checks.push(check(
        "grade",
        Verdict::Good,
        "every write compares the resourceVersion in etcd. The server does not expire a Lease: a candidate waits until the \
         object has not changed for the recorded duration",
    ));
    let what = format!("Kubernetes {}, namespace {}", version.git_version, settings.namespace);
    Ok(Report { what, grade: Grade::A, round_trip, checks })
}

fn check(what: &'static str, verdict: Verdict, found: impl Into<String>) -> Check {
    Check { what, verdict, found: found.into() }
}

/// Whether this user may do all that the store does.
async fn permissions(client: &ApiClient) -> Result<Check> {
    let namespace = client.settings().namespace.clone();
    let reviews = Request::new("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
    let mut missing = Vec::new();
    for verb in VERBS {
        let attributes = ResourceAttributes {
            group: Some("coordination.k8s.io".to_owned()),
            resource: Some("leases".to_owned()),
            namespace: Some(namespace.clone()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let body =
            serde_json::to_vec(&review).map_err(|error| Error::invalid(error.to_string()))?;
        let request = reviews.create(&PostParams::default(), body);
        let answer: SelfSubjectAccessReview =
            client.ask(Verb("review of permissions"), request).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(verb);
        }
    }
    Ok(match &missing[..] {
        [] => check("permissions", Verdict::Good, VERBS.join(", ")),
        missing => check(
            "permissions",
            Verdict::Bad,
            format!(
                "this user may not {} leases in namespace '{namespace}': bind the Role of deploy/kubernetes/rbac.yaml to it",
                missing.join(", ")
            ),
        ),
    })
}

/// The median time of a consistent read.
async fn round_trip(client: &ApiClient, clock: &Clock) -> Result<Duration> {
    let name = Name::stored("tenure-doctor")?;
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let sent = clock.now();
        client.get(&name).await?;
        times.push(clock.now().since(sent));
    }
    times.sort_unstable();
    Ok(times[ROUND_TRIPS / 2])
}

fn login(settings: &KubernetesSettings) -> Check {
    let user = &settings.config.auth_info;
    let how = if user.exec.is_some() {
        "an exec plugin of the kubeconfig"
    } else if let Some(file) = &user.token_file {
        return check(
            "login",
            Verdict::Good,
            format!("the token in {file}, read again every minute"),
        );
    } else if user.token.is_some() {
        "a token of the kubeconfig"
    } else if user.client_certificate.is_some() || user.client_certificate_data.is_some() {
        "a client certificate"
    } else if user.username.is_some() {
        "a user and a password"
    } else {
        return check(
            "login",
            Verdict::Weak,
            "no credentials: every client of the server may have these rights",
        );
    };
    check("login", Verdict::Good, how)
}

fn tls(settings: &KubernetesSettings) -> Check {
    let server = settings.server();
    let config = &settings.config;
    if config.cluster_url.scheme_str() != Some("https") {
        return check("TLS", Verdict::Weak, format!("none: tokens go to {server} as plain text"));
    }
    if config.accept_invalid_certs {
        let found = "insecure-skip-tls-verify: any machine in between can read the token and answer for the server";
        return check("TLS", Verdict::Weak, found);
    }
    check("TLS", Verdict::Good, format!("the certificate of {server} is verified"))
}

/// Whether a watch can be started: some proxies let only short requests through.
async fn watch(client: &ApiClient) -> Check {
    let scope = Scope::Names(Vec::from_iter(Name::stored("tenure-doctor")));
    let started = async {
        let (_, position) = client.list(&scope).await?;
        client.watch(&scope, &position).await
    };
    let mut events = match started.await {
        Ok(events) => events,
        Err(error) => return check("watch", Verdict::Bad, error.to_string()),
    };
    // An error comes at once.
    match tokio::time::timeout(Duration::from_millis(300), events.next()).await {
        Err(_) | Ok(Some(Ok(_))) => check("watch", Verdict::Good, "works"),
        Ok(Some(Err(error))) => check("watch", Verdict::Bad, format!("refused: {error}")),
        Ok(None) => check("watch", Verdict::Bad, "ended at once: does a proxy end long requests?"),
    }
}
