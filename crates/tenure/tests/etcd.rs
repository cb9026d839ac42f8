//! What operators see in etcd, what a lease costs there, a cluster that loses members, users, TLS, and other servers in its place.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tenure::store::{Grade, Store, StoreExt as _, Verdict};
use tenure::{Answer, CandidateId, Claim, Clock, Election, Hold, Kind, Name, Nonce};
use tenure_rig::etcd_rig::{self, ETCD, EtcdMember, EtcdTls};
use tenure_rig::redis_rig::certificates::Authority;
use tenure_rig::servers::{self, Scratch};
use tenure_rig::tests;

const TTL: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let tests: &[servers::Test] = tests![
        the_visible_key_is_the_holders_id,
        a_renewal_of_many_names_takes_two_requests,
        an_idle_waiter_sends_few_requests,
        a_clean_stop_leaves_no_etcd_lease,
        a_holder_survives_the_loss_of_the_leader,
        a_holder_survives_a_leader_that_is_frozen,
        one_member_of_three_may_be_down_from_the_start,
        a_role_with_the_prefix_is_enough,
        tls_checks_both_sides,
        a_server_that_is_not_etcd_is_named,
        examine_names_what_is_weak,
    ];
    let limit = Duration::from_secs(120);
    servers::run_tests(ETCD, etcd_rig::missing(ETCD), tests, limit)
}

async fn open(url: &str) -> Arc<dyn Store> {
    tenure::open(url).await.unwrap()
}

fn claim(name: &str) -> Claim {
    let id = CandidateId::new("web-1").unwrap();
    Claim::new(Name::new(name).unwrap(), id, Nonce::random(), TTL)
}

async fn hold(store: &dyn Store, name: &str) -> Hold {
    store.acquire_one(&claim(name)).await.unwrap().held().expect("it is free").hold
}

async fn the_visible_key_is_the_holders_id() {
    let member = EtcdMember::start(ETCD).await.unwrap();
    let store = open(&member.url()).await;
    let held = hold(&*store, "job").await;
    assert_eq!(member.etcdctl(&["get", "job", "--print-value-only"]).trim(), "web-1");
    let record = member.etcdctl(&["get", "job#tenure", "--print-value-only"]);
    assert!(record.contains(&held.token.to_string()), "{record}");
    store.release_one(held).await.unwrap();
    assert_eq!(member.etcdctl(&["get", "job"]), "");
    assert_ne!(member.etcdctl(&["get", "job#tenure"]), "", "the token outlives the term");
}

async fn a_renewal_of_many_names_takes_two_requests() {
    let member = EtcdMember::start(ETCD).await.unwrap();
    let store = open(&member.url()).await;
    let claims: Vec<Claim> =
        (0..1_000).map(|number| claim(&format!("poll:lease:{number}"))).collect();
    let answers = store.acquire(&claims).await.unwrap();
    let holds: Vec<Hold> = answers
        .into_iter()
        .map(|answer| answer.unwrap().held().expect("it is free").hold)
        .collect();
    for _ in 0..3 {
        let before = member.requests();
        let renewed = store.renew(&holds, TTL).await.unwrap();
        assert!(renewed.into_iter().all(|answer| answer.unwrap().is_held()));
        let after = member.requests();
        let sent: u64 = after.values().sum::<u64>() - before.values().sum::<u64>();
        assert_eq!(sent, 2, "{before:?} {after:?}");
    }
}

async fn an_idle_waiter_sends_few_requests() {
    let member = EtcdMember::start(ETCD).await.unwrap();
    let ttl = Duration::from_secs(4);
    let holder = open(&member.url()).await;
    let mut claim = claim("job");
    claim.ttl = ttl;
    let held = holder.acquire_one(&claim).await.unwrap().held().unwrap().hold;
    let waiter = Election::builder("job").id("waiter").ttl(ttl).start(open(&member.url()).await);
    let waiter = waiter.await.unwrap();
    let clock = Clock::boot();
    clock.sleep(Duration::from_secs(1)).await;
    let (before, seconds) = (member.requests(), 48);
    let mut renewals = 0;
    // As often as a leader renews with the default timing.
    for _ in 0..seconds * 3 / ttl.as_secs() {
        assert!(holder.renew_one(&held, ttl).await.unwrap().is_held());
        renewals += 2;
        clock.sleep(ttl / 3).await;
    }
    let after = member.requests();
    let sent: u64 = after.values().sum::<u64>() - before.values().sum::<u64>() - renewals;
    // A reading of the remaining time before the lease can expire, in whole seconds, and the document twice a minute.
    println!("an idle waiter sent {sent} requests in {seconds} s at a TTL of {ttl:?}: {after:?}");
    assert!(sent <= 28, "{before:?} {after:?}");
    waiter.stop().await;
}

async fn a_clean_stop_leaves_no_etcd_lease() {
    let member = EtcdMember::start(ETCD).await.unwrap();
    let election =
        Election::builder("job").ttl(TTL).start(open(&member.url()).await).await.unwrap();
    drop(election.leadership().await.unwrap());
    election.stop().await;
    let leases = member.etcdctl(&["lease", "list"]);
    assert!(leases.contains("found 0 leases"), "{leases}");
}

async fn renewed_for(store: &dyn Store, held: &Hold, seconds: u64) -> usize {
    let clock = Clock::boot();
    let end = clock.now() + Duration::from_secs(seconds);
    let mut count = 0;
    while clock.now() < end {
        let renewal = tokio::time::timeout(Duration::from_secs(1), store.renew_one(held, TTL));
        match renewal.await {
            Ok(Ok(Answer::Held(()))) => count += 1,
            Ok(Ok(Answer::Taken(lease))) => panic!("lost: {lease:?}"),
            // No answer, or none that proves anything: the next renewal decides.
            Ok(Err(error)) => assert_eq!(error.kind(), Kind::Unavailable, "{error}"),
            Err(_) => {}
        }
        clock.sleep(Duration::from_millis(100)).await;
    }
    count
}

fn url_of(members: &[EtcdMember]) -> String {
    let hosts: Vec<String> =
        members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
    format!("etcd://{}", hosts.join(","))
}

async fn a_holder_survives_the_loss_of_the_leader() {
    let members = EtcdMember::start_cluster(ETCD).await.unwrap();
    let store = open(&url_of(&members)).await;
    let held = hold(&*store, "job").await;
    assert!(renewed_for(&*store, &held, 1).await > 0);
    let leader = members.iter().find(|member| member.is_leader()).expect("a leader");
    leader.kill().await;
    assert!(renewed_for(&*store, &held, 6).await > 10, "it renews with another leader");
    leader.start_again().await;
    assert!(renewed_for(&*store, &held, 2).await > 5);
}

/// F23: the leader answers keepalives until it is frozen; another one is elected, and the old one resumes.
async fn a_holder_survives_a_leader_that_is_frozen() {
    let members = EtcdMember::start_cluster(ETCD).await.unwrap();
    let store = open(&url_of(&members)).await;
    let held = hold(&*store, "job").await;
    let leader = members.iter().find(|member| member.is_leader()).expect("a leader");
    leader.signal(Signal::STOP);
    assert!(renewed_for(&*store, &held, 7).await > 10, "it renews with another leader");
    leader.signal(Signal::CONT);
    assert!(renewed_for(&*store, &held, 3).await > 5);
}

async fn one_member_of_three_may_be_down_from_the_start() {
    let members = EtcdMember::start_cluster(ETCD).await.unwrap();
    members[0].kill().await;
    let store = open(&url_of(&members)).await;
    let claim = claim("job");
    let clock = Clock::boot();
    // The cluster may have to elect a leader first.
    for _ in 0..50 {
        if let Ok(Answer::Held(_)) = store.acquire_one(&claim).await {
            return;
        }
        clock.sleep(Duration::from_millis(100)).await;
    }
    panic!("no grant with two members of three");
}

async fn a_role_with_the_prefix_is_enough() {
    let member = EtcdMember::start(ETCD).await.unwrap();
    for words in [
        "user add root:secret-root",
        "user grant-role root root",
        "role add tenure",
        "role grant-permission tenure readwrite /app/ --prefix=true",
        "user add tenure:secret-1",
        "user grant-role tenure tenure",
        "auth enable",
    ] {
        member.etcdctl(&words.split(' ').collect::<Vec<_>>());
    }
    let host = format!("127.0.0.1:{}", member.port);
    let store = open(&format!("etcd://tenure:secret-1@{host}?prefix=/app/")).await;
    let held = hold(&*store, "job").await;
    assert!(store.renew_one(&held, TTL).await.unwrap().is_held());
    store.release_one(held).await.unwrap();
    let report = store.examine().await.unwrap();
    assert!(report.checks.iter().all(|check| check.verdict != Verdict::Bad), "{report:?}");
    // Neither the password nor the token of the log-in, which is `NAME.NUMBER`.
    let shown = format!("{store:?} {}", store.url());
    assert!(!shown.contains("secret-1") && !shown.contains("token"), "{shown}");
    for (url, says) in [
        (format!("etcd://tenure:secret-1@{host}?prefix=/other/"), "grant-permission"),
        (format!("etcd://tenure:wrong@{host}?prefix=/app/"), "check user and password"),
        (format!("etcd://{host}?prefix=/app/"), "requires a user"),
    ] {
        let error = open(&url).await.acquire_one(&claim("job")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains("secret-1"), "{error}");
    }
    // The server forgets the tokens of log-ins when it restarts.
    member.kill().await;
    member.start_again().await;
    hold(&*store, "job").await;
}

async fn tls_checks_both_sides() {
    let scratch = Scratch::new();
    let directory = scratch.path();
    let (authority, stranger) =
        (Authority::new(directory, "ours"), Authority::new(directory, "other"));
    let names = ["127.0.0.1", "localhost"];
    let [cert, key] = authority.sign(directory, "server", &names, false);
    let [client_cert, client_key] = authority.sign(directory, "client", &["client"], false);
    let [false_cert, false_key] = stranger.sign(directory, "false", &["client"], false);
    let ca = authority.ca.clone();
    let tls = EtcdTls {
        server: vec![
            format!("--cert-file={cert}"),
            format!("--key-file={key}"),
            format!("--trusted-ca-file={ca}"),
            "--client-cert-auth".to_owned(),
        ],
        client: vec![
            format!("--cacert={ca}"),
            format!("--cert={client_cert}"),
            format!("--key={client_key}"),
        ],
    };
    let member = EtcdMember::start_with_tls(ETCD, tls).await.unwrap();
    let url = |options: &str| format!("{}?{options}", member.url());
    let good = url(&format!("ca={ca}&cert={client_cert}&key={client_key}"));
    hold(&*open(&good).await, "job").await;
    for (url, says) in [
        (url(&format!("ca={}&cert={client_cert}&key={client_key}", stranger.ca)), "certificate"),
        (url(&format!("ca={ca}&cert={false_cert}&key={false_key}")), "certificate"),
        (url(&format!("ca={ca}")), "certificate"),
        (url("tls=1"), "certificate"),
    ] {
        let error = open(&url).await.acquire_one(&claim("job")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
    // The server closes the connection without an answer.
    let error = open(&member.url()).await.acquire_one(&claim("job")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("If this port speaks TLS, add tls=1"), "{error}");
    let plain = EtcdMember::start(ETCD).await.unwrap();
    let url = format!("{}?ca={ca}", plain.url());
    let error = open(&url).await.acquire_one(&claim("job")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("If this port has no TLS, remove tls=1"), "{error}");
}

async fn a_server_that_is_not_etcd_is_named() {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let page = "<html>Bad gateway</html>";
            let answer = format!(
                "HTTP/1.1 502 Bad\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
                page.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let store = open(&format!("etcd://127.0.0.1:{port}")).await;
    let error = store.acquire_one(&claim("job")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains("Bad gateway") && text.contains("a proxy answers"), "{text}");
    let nowhere = servers::free_port();
    let store = open(&format!("etcd://127.0.0.1:{nowhere}")).await;
    let error = store.acquire_one(&claim("job")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
}

async fn examine_names_what_is_weak() {
    let member = EtcdMember::start(ETCD).await.unwrap();
    let store = open(&member.url()).await;
    let report = store.examine().await.unwrap();
    assert_eq!(report.grade, Grade::A, "{report:?}");
    let found = |what: &str| report.checks.iter().find(|check| check.what == what).unwrap();
    assert_eq!(found("permissions").verdict, Verdict::Good, "{report:?}");
    assert_eq!(found("watch").verdict, Verdict::Good, "{report:?}");
    assert!(found("members").found.contains("One member"), "{report:?}");
    assert_eq!(member.etcdctl(&["get", "", "--from-key", "--keys-only"]), "", "nothing is left");
}
