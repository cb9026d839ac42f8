//! The Kubernetes store behind a proxy that repeats, loses and refuses requests, with wrong credentials, and with little room.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use rustix::process::Signal;
use serde_json::json;
use tenure::store::{Change, Grade, Scope, Store, StoreExt, Verdict};
use tenure::{Answer, CandidateId, Claim, Clock, Hold, Kind, Name, Nonce};
use tenure_rig::kubernetes_rig::{self, KubernetesRig, LEASES, NAMESPACE, tests};

mod proxy;

use proxy::{Fault, Proxy};

const TTL: Duration = Duration::from_secs(60);
const HTML: &str = "<!DOCTYPE html><html><body>Please log in</body></html>";

fn main() -> ExitCode {
    kubernetes_rig::main(tests![
        a_write_that_a_proxy_repeats_is_the_callers_own,
        a_write_whose_reply_is_lost_is_unavailable_and_can_be_repeated,
        retry_after_holds_back_the_next_request,
        errors_of_the_server_are_unavailable,
        a_page_of_a_proxy_is_unavailable,
        a_watch_begins_again_when_its_position_is_gone,
        a_watch_survives_what_a_proxy_does,
        a_server_that_does_not_answer_costs_five_seconds,
        a_renewal_is_one_request_for_each_name,
        a_waiter_that_is_idle_sends_few_requests,
        credentials_and_permissions_are_named,
        a_missing_namespace_is_denied,
        a_bad_kubeconfig_is_invalid,
        an_exec_plugin_logs_in,
        examine_reports_the_server_and_what_is_missing,
        the_manifests_can_be_applied,
        a_frozen_server_never_has_two_holders,
    ])
}

fn claim(name: &str, id: &str) -> Claim {
    let (name, id) = (Name::new(name).unwrap(), CandidateId::new(id).unwrap());
    Claim::new(name, id, Nonce::random(), TTL)
}

async fn open(url: &str) -> Arc<dyn Store> {
    tenure::open(url).await.unwrap()
}

async fn hold(store: &dyn Store, claim: &Claim) -> Hold {
    store.acquire_one(claim).await.unwrap().held().expect("it is free").hold
}

async fn a_write_that_a_proxy_repeats_is_the_callers_own(rig: Arc<KubernetesRig>) {
    let proxy = Proxy::start(&rig).await;
    let store = open(&proxy.url).await;
    let ours = claim("repeated", "me");
    // The second create is refused with 409, the second update too.
    proxy.fail("POST", Fault::Twice);
    let held = hold(&*store, &ours).await;
    proxy.fail("PUT", Fault::Twice);
    assert!(store.renew_one(&held, TTL).await.unwrap().is_held());
    let checkpoint = tenure::Checkpoint::new("x").unwrap();
    proxy.fail("PUT", Fault::Twice);
    assert!(store.save(&held, 1, &checkpoint).await.unwrap().is_held());
    proxy.fail("PUT", Fault::Twice);
    store.release_one(held.clone()).await.unwrap();
    let lease = store.observe_one(&held.name).await.unwrap().unwrap();
    assert_eq!((lease.holder, lease.token), (None, Some(held.token)));
}

async fn a_write_whose_reply_is_lost_is_unavailable_and_can_be_repeated(rig: Arc<KubernetesRig>) {
    let proxy = Proxy::start(&rig).await;
    let store = open(&proxy.url).await;
    let ours = claim("lost-reply", "me");
    proxy.fail("POST", Fault::LoseReply);
    assert_eq!(store.acquire_one(&ours).await.unwrap_err().kind(), Kind::Unavailable);
    let held = hold(&*store, &ours).await;
    proxy.fail("PUT", Fault::LoseReply);
    assert_eq!(store.renew_one(&held, TTL).await.unwrap_err().kind(), Kind::Unavailable);
    assert!(store.renew_one(&held, TTL).await.unwrap().is_held());
    let again = hold(&*store, &ours).await;
    assert_eq!(again, held, "the same term");
    assert!(!store.acquire_one(&claim("lost-reply", "you")).await.unwrap().is_held());
}

async fn retry_after_holds_back_the_next_request(rig: Arc<KubernetesRig>) {
    let proxy = Proxy::start(&rig).await;
    let store = open(&proxy.url).await;
    let held = hold(&*store, &claim("retry-after", "me")).await;
    proxy.take_requests();
    proxy.fail("PUT", Fault::Answer(429, Some(1), "Too many requests, please try again later."));
    let error = store.renew_one(&held, TTL).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert_eq!(proxy.take_requests(), ["PUT"], "it is not repeated");
    let error = store.renew_one(&held, TTL).await.unwrap_err();
    assert!(error.to_string().contains("Retry-After"), "{error}");
    assert_eq!(proxy.take_requests().len(), 0, "nothing is sent before its time");
    Clock::boot().sleep(Duration::from_millis(1_050)).await;
    assert!(store.renew_one(&held, TTL).await.unwrap().is_held());
}

async fn errors_of_the_server_are_unavailable(rig: Arc<KubernetesRig>) {
    let proxy = Proxy::start(&rig).await;
    let store = open(&proxy.url).await;
    let held = hold(&*store, &claim("server-errors", "me")).await;
    let status =
        r#"{"kind":"Status","status":"Failure","message":"etcdserver: leader changed","code":500}"#;
    for (code, body) in [(500, status), (500, "oops"), (503, ""), (504, status), (429, "busy")] {
        proxy.fail("PUT", Fault::Answer(code, None, body));
        let error = store.renew_one(&held, TTL).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(store.renew_one(&held, TTL).await.unwrap().is_held(), "after {code}");
    }
}

async fn a_page_of_a_proxy_is_unavailable(rig: Arc<KubernetesRig>) {
    let proxy = Proxy::start(&rig).await;
    let store = open(&proxy.url).await;
    let ours = claim("page", "me");
    for code in [200, 302, 401, 403, 404] {
        proxy.fail("GET", Fault::Answer(code, None, HTML));
        let error = store.acquire_one(&ours).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{code}: {error}");
        let says = "is not of a Kubernetes API server";
        assert!(error.to_string().contains(says), "{code}: {error}");
    }
    assert_eq!(rig.admin().await.lease("page").await, None, "nothing is written");
    // A page in place of the answer to a write: it may have arrived.
    proxy.fail("POST", Fault::Answer(200, None, HTML));
    assert_eq!(store.acquire_one(&ours).await.unwrap_err().kind(), Kind::Unavailable);
}

/// The next change within ten seconds.
async fn next(changes: &mut tenure::store::BoxStream<'static, Change>) -> Change {
    tokio::time::timeout(Duration::from_secs(10), changes.next()).await.unwrap().unwrap()
}

async fn a_watch_begins_again_when_its_position_is_gone(rig: Arc<KubernetesRig>) {
    let proxy = Proxy::start(&rig).await;
    let store = open(&proxy.url).await;
    let gone = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old resource version","reason":"Expired","code":410}}"#;
    let status = r#"{"kind":"Status","status":"Failure","message":"too old resource version","reason":"Expired","code":410}"#;
    proxy.fail("WATCH", Fault::Answer(200, None, gone));
    proxy.fail("WATCH", Fault::Answer(410, None, status));
    let ours = claim("gone", "me");
    let mut changes = store.watch(&Scope::name(&ours.name));
    assert_eq!(next(&mut changes).await, Change::Look);
    // One after each list, and one after each pause.
    assert_eq!(next(&mut changes).await, Change::Look);
    assert_eq!(next(&mut changes).await, Change::Look);
    let held = hold(&*store, &ours).await;
    loop {
        match next(&mut changes).await {
            Change::Look => {}
            Change::Granted { token, .. } => break assert_eq!(token, held.token),
            other => panic!("{other:?}"),
        }
    }
    let lists = proxy.take_requests().iter().filter(|it| *it == "LIST").count();
    assert_eq!(lists, 3, "one at the beginning and one after each 410");
}

async fn a_watch_survives_what_a_proxy_does(rig: Arc<KubernetesRig>) {
    let proxy = Proxy::start(&rig).await;
    let store = open(&proxy.url).await;
    proxy.fail("LIST", Fault::Answer(503, None, HTML));
    for (code, text) in [(200, HTML), (502, HTML), (200, ""), (429, "busy")] {
        proxy.fail("WATCH", Fault::Answer(code, None, text));
    }
    let ours = claim("interrupted", "me");
    let mut changes = store.watch(&Scope::name(&ours.name));
    assert_eq!(next(&mut changes).await, Change::Look);
    // Every interruption is followed by a hint.
    let mut watches = 0;
    while watches < 4 {
        assert_eq!(next(&mut changes).await, Change::Look);
        watches += proxy.take_requests().iter().filter(|it| *it == "WATCH").count();
    }
    // After a change comes some hint: the change itself, or a list that already contains it.
    let held = hold(&*store, &ours).await;
    match next(&mut changes).await {
        Change::Look => {}
        Change::Granted { token, .. } => assert_eq!(token, held.token),
        other => panic!("{other:?}"),
    }
}

async fn a_server_that_does_not_answer_costs_five_seconds(rig: Arc<KubernetesRig>) {
    let proxy = Proxy::start(&rig).await;
    let store = open(&proxy.url).await;
    let held = hold(&*store, &claim("hang", "me")).await;
    proxy.fail("PUT", Fault::Hang);
    let (clock, begin) = (Clock::boot(), Clock::boot().now());
    let error = store.renew_one(&held, TTL).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    let took = clock.now().since(begin);
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(store.renew_one(&held, TTL).await.unwrap().is_held());
}

async fn a_renewal_is_one_request_for_each_name(rig: Arc<KubernetesRig>) {
    const COUNT: usize = 100;
    let proxy = Proxy::start(&rig).await;
    let store = open(&proxy.url).await;
    let claims: Vec<Claim> = (0..COUNT).map(|n| claim(&format!("count-{n}"), "me")).collect();
    let answers = store.acquire(&claims).await.unwrap();
    let held = |answer: tenure::Result<Answer<tenure::Grant>>| answer.unwrap().held().unwrap().hold;
    let holds: Vec<Hold> = answers.into_iter().map(held).collect();
    proxy.take_requests();
    for _ in 0..3 {
        let renewed = store.renew(&holds, TTL).await.unwrap();
        assert!(renewed.iter().all(|answer| answer.as_ref().is_ok_and(Answer::is_held)));
        let requests = proxy.take_requests();
        assert_eq!(requests.len(), COUNT);
        assert!(requests.iter().all(|request| request == "PUT"), "{requests:?}");
    }
}

async fn a_waiter_that_is_idle_sends_few_requests(rig: Arc<KubernetesRig>) {
    let proxy = Proxy::start(&rig).await;
    let ttl = Duration::from_secs(3);
    let name = Name::new("idle-waiter").unwrap();
    let leader = tenure::Election::builder(name.as_str()).id("leader").ttl(ttl);
    let leader = leader.start(open(&rig.url()).await).await.unwrap();
    let clock = Clock::boot();
    while !leader.is_leader() {
        clock.sleep(Duration::from_millis(20)).await;
    }
    let waiter = tenure::Election::builder(name.as_str()).id("waiter").ttl(ttl);
    let waiter = waiter.start(open(&proxy.url).await).await.unwrap();
    clock.sleep(ttl).await;
    proxy.take_requests();
    clock.sleep(ttl * 5).await;
    let requests = proxy.take_requests();
    println!("an idle waiter sent {requests:?} in 5 TTL of 3 s");
    // One in each TTL, and one in ten seconds.
    assert!(requests.len() <= 5 + 2, "{requests:?}");
    assert!(leader.is_leader() && !waiter.is_leader());
}

async fn credentials_and_permissions_are_named(rig: Arc<KubernetesRig>) {
    let url = |user: &str| {
        let path = rig.kubeconfig(user, rig.port());
        format!("kubernetes://{NAMESPACE}?kubeconfig={}", path.display())
    };
    let error = open(&url("nobody")).await.acquire_one(&claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("does not accept these credentials"), "{error}");
    assert!(!error.to_string().contains("nobodytoken"), "{error}");
    // A user without the Role.
    let store = open(&url("stranger")).await;
    let error = store.acquire_one(&claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("get on leases in namespace 'tenure-test'"), "{error}");
    assert!(error.to_string().contains("Bind a Role"), "{error}");
    // The restricted user in another namespace.
    let path = rig.kubeconfig("locker", rig.port());
    let url = format!("kubernetes://default?kubeconfig={}", path.display());
    let error = open(&url).await.acquire_one(&claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
}

async fn a_missing_namespace_is_denied(rig: Arc<KubernetesRig>) {
    let path = rig.kubeconfig("admin", rig.port());
    let store = open(&format!("kubernetes://no-such?kubeconfig={}", path.display())).await;
    let error = store.acquire_one(&claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("create the namespace"), "{error}");
}

async fn a_bad_kubeconfig_is_invalid(rig: Arc<KubernetesRig>) {
    let garbage = rig.kubeconfig("garbage", rig.port());
    std::fs::write(&garbage, ": not\nyaml [").unwrap();
    let good = rig.kubeconfig("locker", rig.port());
    let (garbage, good) = (garbage.display(), good.display());
    for (url, says) in [
        (format!("kubernetes://ns?kubeconfig={garbage}"), "cannot be used"),
        ("kubernetes://ns?kubeconfig=/no/such/file".to_owned(), "cannot be used"),
        (format!("kubernetes://ns?kubeconfig={good}&context=other"), "cannot be used"),
        (format!("kubernetes://?kubeconfig={good}"), "names no namespace"),
        (format!("kubernetes://Upper?kubeconfig={good}"), "names no namespace"),
        ("kubernetes://ns?kubeconfig=".to_owned(), "needs a value"),
        ("kubernetes://ns?token=x".to_owned(), "no option 'token'"),
    ] {
        let error = tenure::open(&url).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}

async fn an_exec_plugin_logs_in(rig: Arc<KubernetesRig>) {
    let path = rig.kubeconfig("exec", rig.port());
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "lockertoken"},
    });
    let mut with_plugin = async |command: &str, name: &str| {
        config["users"][0]["user"] = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "/bin/sh",
            "args": ["-c", command],
            "interactiveMode": "Never",
        }});
        let path = path.with_file_name(format!("{name}.yaml"));
        std::fs::write(&path, config.to_string()).unwrap();
        open(&format!("kubernetes://{NAMESPACE}?kubeconfig={}", path.display())).await
    };
    let store = with_plugin(&format!("echo '{credential}'"), "exec-good").await;
    hold(&*store, &claim("exec-plugin", "me")).await;
    let store = with_plugin("echo a-secret-token; exit 3", "exec-bad").await;
    let error = store.acquire_one(&claim("exec-plugin", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(!error.to_string().contains("a-secret-token"), "{error}");
}

async fn examine_reports_the_server_and_what_is_missing(rig: Arc<KubernetesRig>) {
    let report = open(&rig.url()).await.examine().await.unwrap();
    assert_eq!(report.grade, Grade::A);
    assert!(report.what.contains("v1.20.2"), "{report:?}");
    for what in ["version", "permissions", "login", "TLS", "watch", "grade"] {
        let check = report.checks.iter().find(|check| check.what == what).unwrap();
        assert_eq!(check.verdict, Verdict::Good, "{check:?}");
    }
    // A Role without update and watch.
    let admin = rig.admin().await;
    let role = json!({"metadata": {"name": "reader"}, "rules": [{
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "create"],
    }]});
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}");
    admin.create(&format!("{path}/roles"), &role).await.unwrap();
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "reader"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "User", "name": "reader", "apiGroup": group}]});
    admin.create(&format!("{path}/rolebindings"), &binding).await.unwrap();
    let kubeconfig = rig.kubeconfig("reader", rig.port());
    let url = format!("kubernetes://{NAMESPACE}?kubeconfig={}", kubeconfig.display());
    let store = open(&url).await;
    let report = loop {
        match store.examine().await {
            Ok(report) => break report,
            // The authorizer needs a moment.
            Err(error) => assert_eq!(error.kind(), Kind::Denied, "{error}"),
        }
        Clock::boot().sleep(Duration::from_millis(50)).await;
    };
    let bad = |what: &str| {
        let check = report.checks.iter().find(|check| check.what == what).unwrap();
        assert_eq!(check.verdict, Verdict::Bad, "{check:?}");
        check.found.clone()
    };
    assert!(bad("permissions").contains("may not watch, update leases"));
    bad("watch");
}

async fn the_manifests_can_be_applied(rig: Arc<KubernetesRig>) {
    let admin = rig.admin().await;
    admin.create("/api/v1/namespaces", &json!({"metadata": {"name": "manifests"}})).await.unwrap();
    for file in ["rbac.yaml", "run.yaml", "sidecar.yaml"] {
        let manifest = kubernetes_rig::manifests().join(file);
        let created = kubernetes_rig::apply(&admin, "manifests", &manifest).await.unwrap();
        assert!(!created.is_empty(), "{file}");
    }
}

async fn a_frozen_server_never_has_two_holders(_shared: Arc<KubernetesRig>) {
    // Its own server: the other trials must not wait.
    let rig = KubernetesRig::start().unwrap();
    let (store, other) = (open(&rig.url()).await, open(&rig.url()).await);
    let ttl = Duration::from_secs(2);
    let ours = claim("frozen", "me").with_ttl(ttl);
    let held = hold(&*store, &ours).await;
    let theirs = claim("frozen", "you").with_ttl(ttl);
    assert!(!other.acquire_one(&theirs).await.unwrap().is_held());
    rig.signal(Signal::STOP);
    assert_eq!(store.renew_one(&held, ttl).await.unwrap_err().kind(), Kind::Unavailable);
    rig.signal(Signal::CONT);
    // The renewal that got no answer may have arrived late: then the challenger waits again. Never do both hold the lease.
    let renewed = store.renew_one(&held, ttl).await.unwrap().is_held();
    let claimed = other.acquire_one(&theirs).await.unwrap().is_held();
    assert!(!(renewed && claimed), "two holders");
    let (code, lease) = rig.admin().await.get(&format!("{LEASES}/frozen")).await;
    assert_eq!(code, 200);
    if renewed {
        assert_eq!(lease["spec"]["holderIdentity"], format!("me_{}", ours.nonce));
    }
}
