//! The Consul store while sessions and keys are removed by hand, the token lacks a permission, or a proxy answers instead.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use tenure::store::{Grade, Scope, Store, StoreExt as _, Verdict};
use tenure::{Answer, CandidateId, Claim, Clock, Hold, Kind, Name, Nonce};
use tenure_rig::consul_rig::{self, ConsulServer, KIND, PREFIX};

const TTL: Duration = Duration::from_secs(10);

/// The timeout of a test, against hanging.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

type Test = fn(ConsulServer) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! tests {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), (|server| Box::pin($name(server))) as Test)),*] };
}

fn main() -> ExitCode {
    let required = std::env::var("TENURE_REQUIRE_STORES").unwrap_or_default();
    let required = required.split([',', ' ']).any(|word| word == "all" || word == KIND);
    let trial = |(name, test): (&str, Test)| {
        let trial = Trial::test(name, move || {
            if let Some(hint) = consul_rig::missing() {
                return Err(hint.into());
            }
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let server = ConsulServer::start().await?;
                let tested = tokio::time::timeout(TEST_TIMEOUT, test(server)).await;
                tested.map_err(|_| "not done in time".into())
            })
        });
        match consul_rig::missing() {
            Some(hint) if !required => trial.with_kind(hint).with_ignored_flag(true),
            _ => trial,
        }
    };
    let tests = tests![
        a_destroyed_session_ends_the_term_and_starts_the_lock_delay,
        without_a_lock_delay_the_grade_is_c,
        a_deleted_key_ends_the_term,
        a_clean_stop_leaves_no_session,
        participants_leave_no_key_behind,
        a_frozen_server_is_unavailable_and_the_term_survives,
        an_unknown_token_is_denied,
        a_missing_permission_is_named,
        a_proxy_that_answers_a_page_is_unavailable,
        the_examination_names_what_it_found,
    ];
    libtest_mimic::run(&Arguments::from_args(), tests.map(trial).into()).exit_code()
}

async fn open(url: &str) -> Arc<dyn Store> {
    tenure::open(url).await.unwrap()
}

fn claim(name: &str, id: &str) -> Claim {
    let (name, id) = (Name::new(name).unwrap(), CandidateId::new(id).unwrap());
    Claim::new(name, id, Nonce::random(), TTL)
}

async fn hold(store: &dyn Store, claim: &Claim) -> Hold {
    store.acquire_one(claim).await.unwrap().held().expect("a grant").hold
}

async fn is_renewed(store: &dyn Store, hold: &Hold) -> bool {
    store.renew_one(hold, TTL).await.unwrap().is_held()
}

async fn a_destroyed_session_ends_the_term_and_starts_the_lock_delay(server: ConsulServer) {
    let (a, b) = (open(&server.url()).await, open(&server.url()).await);
    let first = hold(&*a, &claim("job", "a")).await;
    assert!(is_renewed(&*a, &first).await);
    let clock = Clock::boot();
    server.destroy_session_of(&format!("{PREFIX}job")).await;
    let destroyed = clock.now();
    assert!(!is_renewed(&*a, &first).await, "the term is lost at once");
    let other = claim("job", "b");
    let next = loop {
        match b.acquire_one(&other).await.unwrap() {
            Answer::Held(grant) => break grant.hold,
            Answer::Taken(lease) => {
                assert!(lease.left <= Duration::from_secs(1), "{lease:?}");
                assert!(!is_renewed(&*a, &first).await, "nor is it valid during the delay");
                clock.sleep(Duration::from_millis(100)).await;
            }
        }
    };
    let waited = clock.now().since(destroyed);
    assert!(waited >= TTL - Duration::from_millis(100), "{waited:?} is less than the lock-delay");
    assert!(waited < TTL + Duration::from_secs(2), "{waited:?}");
    assert!(next.token > first.token);
}

async fn without_a_lock_delay_the_grade_is_c(server: ConsulServer) {
    let url = format!("{}?lock_delay=0", server.url());
    let (a, b) = (open(&url).await, open(&url).await);
    assert_eq!(a.limits().grade, Grade::C);
    let report = a.examine().await.unwrap();
    assert_eq!(report.grade, Grade::C);
    let delay = report.checks.iter().find(|check| check.what == "lock-delay").unwrap();
    assert_eq!(delay.verdict, Verdict::Weak);
    assert!(delay.found.contains("two candidates can lead"), "{delay:?}");
    hold(&*a, &claim("job", "a")).await;
    server.destroy_session_of(&format!("{PREFIX}job")).await;
    hold(&*b, &claim("job", "b")).await;
}

async fn a_deleted_key_ends_the_term(server: ConsulServer) {
    let (a, b) = (open(&server.url()).await, open(&server.url()).await);
    let first = hold(&*a, &claim("job", "a")).await;
    server.delete(&format!("{PREFIX}job")).await;
    assert!(!is_renewed(&*a, &first).await);
    let next = hold(&*b, &claim("job", "b")).await;
    assert!(next.token > first.token);
    assert!(!is_renewed(&*a, &first).await);
    assert!(is_renewed(&*b, &next).await);
}

async fn a_clean_stop_leaves_no_session(server: ConsulServer) {
    let store = open(&server.url()).await;
    let (one, two) = (hold(&*store, &claim("1", "a")).await, hold(&*store, &claim("2", "a")).await);
    assert_eq!(server.session_names().await, ["tenure:a"], "two names share one session");
    let renewing = store.detached();
    assert!(is_renewed(&*renewing, &one).await && is_renewed(&*renewing, &two).await);
    assert_eq!(server.session_names().await, ["tenure:a"], "a detached handle shares it");
    store.release_one(one).await.unwrap();
    assert!(is_renewed(&*renewing, &two).await, "the other name keeps it");
    renewing.release_one(two).await.unwrap();
    let clock = Clock::boot();
    let end = clock.now() + Duration::from_secs(5);
    while !server.session_names().await.is_empty() {
        assert!(clock.now() < end, "the session is not destroyed");
        clock.sleep(Duration::from_millis(20)).await;
    }
    // Without a lock-delay: the key was released first.
    hold(&*store, &claim("1", "b")).await;
}

async fn participants_leave_no_key_behind(server: ConsulServer) {
    let store = open(&server.url()).await;
    let (name, key) = ("tenure:node:job:a", format!("{PREFIX}tenure:node:job:a"));
    let node = |id| {
        let mut node = claim("job", id);
        (node.name, node.wait) = (Name::stored(name).unwrap(), tenure::ClaimedWait::Never);
        node
    };
    let first = hold(&*store, &node("a")).await;
    assert!(is_renewed(&*store, &first).await);
    server.destroy_session_of(&key).await;
    assert_eq!(server.get(&key).await, "");
    let second = hold(&*store, &node("a")).await;
    store.release_one(second).await.unwrap();
    assert_eq!(server.get(&key).await, "");
}

async fn a_frozen_server_is_unavailable_and_the_term_survives(server: ConsulServer) {
    let store = open(&server.url()).await;
    let held = hold(&*store, &claim("job", "a")).await;
    let pid = server.server.pid().unwrap();
    let signal = |signal| rustix::process::kill_process_group(pid, signal).unwrap();
    signal(rustix::process::Signal::STOP);
    let answer = tokio::time::timeout(Duration::from_secs(2), store.renew_one(&held, TTL)).await;
    assert!(answer.is_err(), "{answer:?}");
    signal(rustix::process::Signal::CONT);
    let clock = Clock::boot();
    loop {
        match store.renew_one(&held, TTL).await {
            Ok(answer) => {
                assert!(answer.is_held());
                break;
            }
            Err(error) => assert_eq!(error.kind(), Kind::Unavailable, "{error}"),
        }
        clock.sleep(Duration::from_millis(100)).await;
    }
}

async fn an_unknown_token_is_denied(server: ConsulServer) {
    let url = format!("consul://:s3cret@127.0.0.1:{}", server.port);
    let store = open(&url).await;
    let error = store.acquire_one(&claim("job", "a")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("does not know the token"), "{error}");
    let shown = format!("{error} {store:?} {}", store.url());
    assert!(!shown.contains("s3cret"), "{shown}");
}

async fn a_missing_permission_is_named(server: ConsulServer) {
    let keys = r#"key_prefix "tenure/" { policy = "write" }"#;
    let sessions = r#"session_prefix "" { policy = "write" }"#;
    let read_only = r#"key_prefix "tenure/" { policy = "read" }"#;
    let refused = [
        ("keys", keys.to_owned(), sessions),
        ("sessions", sessions.to_owned(), keys),
        ("read-only", format!("{read_only}\n{sessions}"), keys),
    ];
    for (number, (name, rules, lacks)) in refused.iter().enumerate() {
        let token = format!("0000000{number}-2222-3333-4444-555555555555");
        server.add_token(&token, name, rules).await;
        let store = open(&format!("consul://:{token}@127.0.0.1:{}", server.port)).await;
        let error = store.acquire_one(&claim("job", "a")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{name}: {error}");
        assert!(error.to_string().contains(lacks), "{name}: {error}");
        assert_eq!(server.get(&format!("{PREFIX}job")).await, "", "nothing is written");
        let report = store.examine().await.unwrap();
        let check = report.checks.iter().find(|check| check.what == "permissions").unwrap();
        assert!(check.verdict == Verdict::Bad && check.found.contains(lacks), "{check:?}");
    }
    let store = open(&format!("consul://127.0.0.1:{}", server.port)).await;
    let error = store.acquire_one(&claim("job", "a")).await.unwrap_err();
    assert!(error.to_string().contains("requests without a token"), "{error}");
}

async fn a_proxy_that_answers_a_page_is_unavailable(_server: ConsulServer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for status in ["200 OK", "404 Not Found", "502 Bad Gateway", "403 Forbidden"].iter().cycle()
        {
            let Ok((mut connection, _)) = listener.accept() else { return };
            let _ = connection.read(&mut [0; 4096]);
            let page = "<html>Welcome</html>";
            let _ = write!(
                connection,
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
                page.len()
            );
        }
    });
    let store = open(&format!("consul://127.0.0.1:{port}")).await;
    for _ in 0..4 {
        let error = store.acquire_one(&claim("job", "a")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        assert!(error.to_string().contains("whether a proxy answers"), "{error}");
        let error = store.observe(&Scope::Prefix("job".to_owned())).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    }
}

async fn the_examination_names_what_it_found(server: ConsulServer) {
    let store = open(&server.url()).await;
    let report = store.examine().await.unwrap();
    assert_eq!((report.what.as_str(), report.grade), ("Consul", Grade::A));
    let verdict = |what: &str| {
        let check = report.checks.iter().find(|check| check.what == what).unwrap();
        (check.verdict, check.found.clone())
    };
    assert_eq!(verdict("permissions").0, Verdict::Good, "{report:?}");
    assert_eq!(verdict("watch").0, Verdict::Good, "{report:?}");
    assert_eq!(verdict("lock-delay"), (Verdict::Good, "covers TTLs up to 60 s".to_owned()));
    assert!(verdict("servers").1.starts_with("1, the leader is 127.0.0.1:"), "{report:?}");
    let rules = format!("{}\nagent_prefix \"\" {{ policy = \"read\" }}", consul_rig::POLICY);
    let token = "33333333-2222-3333-4444-555555555555";
    server.add_token(token, "doctor", &rules).await;
    let store = open(&format!("consul://:{token}@127.0.0.1:{}", server.port)).await;
    assert_eq!(store.examine().await.unwrap().what, "Consul 1.8.7");
    assert!(server.session_names().await.is_empty(), "an examination leaves nothing behind");
}
