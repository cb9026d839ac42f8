//! `RedisStore::builder`: an application's own client, TLS configuration, credentials and key prefix.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use tenure::store::redis::client::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use tenure::store::redis::{RedisStore, RedisStoreBuilder};
use tenure::store::rustls::pki_types::{CertificateDer, pem::PemObject};
use tenure::store::rustls::{ClientConfig, RootCertStore, crypto::ring};
use tenure::store::{Change, Credentials, Revoke, Scope, Store};
use tenure::{Checkpoint, ClaimedWait, Election, Error, Kind, Name};

use tenure_rig::redis_rig::certificates::Authority;
use tenure_rig::redis_rig::tls_server::Secure;
use tenure_rig::redis_rig::{
    DURABLE, NOT_DURABLE, Rig, acquire, claim, granted, open, pause, release, renew, taken, tests,
};
use tenure_rig::servers::Scratch;

const SECRET: &str = "geheim/%40:4711";

fn main() -> ExitCode {
    tenure_rig::redis_rig::main(tests![
        contradictions_are_invalid,
        a_client_gives_address_database_user_and_password,
        a_client_of_a_unix_socket_works,
        a_client_with_tls_uses_the_tls_configuration_of_the_builder,
        credentials_are_asked_for_every_log_in,
        a_failing_provider_fails_as_it_says,
        no_message_shows_a_provided_password,
        every_key_and_channel_is_below_the_prefix,
        stores_with_different_prefixes_do_not_see_each_other,
        an_acl_of_the_prefix_is_enough,
        corrupt_keys_are_named_with_their_prefix,
        a_name_too_long_for_the_prefix_is_refused_alone,
        the_lists_of_a_fleet_refuse_a_key_prefix,
    ])
}

fn builder() -> RedisStoreBuilder {
    RedisStore::builder("redis://")
}

fn info(url: &str) -> ConnectionInfo {
    url.into_connection_info().unwrap()
}

fn client(url: &str) -> Client {
    Client::open(url).unwrap()
}

fn tls_address(insecure: bool) -> ConnectionInfo {
    let (host, port) = ("h".to_owned(), 1);
    info("redis://h").set_addr(ConnectionAddr::TcpTls { host, port, insecure, tls_params: None })
}

fn tls_config(ca: Option<&str>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = ca {
        roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

fn with_password(builder: RedisStoreBuilder, password: &'static str) -> RedisStoreBuilder {
    builder.credentials(move || async move { Ok(Credentials::from_password(password)) })
}

async fn contradictions_are_invalid() {
    let at = RedisStore::builder;
    let (tls, day) = (|| tls_config(None), Duration::from_secs(86_400));
    let relative = info("redis://h").set_addr(ConnectionAddr::Unix("x".into()));
    for (builder, says) in [
        (at("redis://h").client(client("redis://h")), "the URL names a server"),
        (at("redis://:p@").client(client("redis://h")), "the URL names a server"),
        (at("redis:///3").client(client("redis://h")), "the URL names a server"),
        (at("redis://?socket=/x").client(client("redis://h")), "the URL names a server"),
        (at("rediss://?ca=/x").connection_info(tls_address(false)), "the URL names a server"),
        (at("rediss://").client(client("redis://h")), "does not use TLS"),
        (builder().connection_info(tls_address(true)), "does not check the server's certificate"),
        (builder().client(client("redis://h")).tls(tls()), "for a server with TLS"),
        (builder().client(client("unix:///x")).tls(tls()), "TLS over a unix socket"),
        (builder().connection_info(relative), "an absolute path"),
        (at("redis://h").tls(tls()), "for a server with TLS"),
        (at("redis://?socket=/x").tls(tls()), "TLS over a unix socket"),
        (at("rediss://h?ca=/x").tls(tls()), "give one of them"),
        (with_password(at("redis://:p@h"), "q"), "give one of them"),
        (with_password(at("redis://h?password_file=/x"), "q"), "give one of them"),
        (with_password(builder().client(client("redis://:p@h")), "q"), "give one of them"),
        (at("redis://h?key_prefix=a:").key_prefix("a:"), "key_prefix is given in the URL and"),
        (at("redis://h?startup_wait=1s").startup_wait(day), "startup_wait is given in the URL and"),
        (at("redis://h").startup_wait(day + day), "a day at most"),
        (at("redis://h").key_prefix(""), "a key prefix must not be empty"),
        (at("redis://h").key_prefix("a*"), "a key prefix may contain only"),
        (builder(), "the host is missing"),
        (at("memory:"), "is not a Redis server"),
    ] {
        let shown = format!("{builder:?}");
        let error = builder.build().map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{shown}: {error}");
        assert!(error.to_string().contains(says), "{shown}: {error}");
    }
    for (builder, url) in [
        (at("redis://h").startup_wait(day), "redis://h?startup_wait=86400000ms"),
        (
            at("redis://?startup_wait=1s").client(client("redis://h")),
            "redis://h:6379?startup_wait=1000ms",
        ),
        (builder().connection_info(tls_address(false)).tls(tls()), "rediss://h:1"),
        (
            builder().client(client("unix:///x?db=2")).key_prefix("a/"),
            "redis:///2?socket=/x&key_prefix=a/",
        ),
        (with_password(at("redis://u@h"), "q"), "redis://u@h"),
        (builder().client(client("redis://u%40v:p@[::1]:7/3")), "redis://u%40v:***@[::1]:7/3"),
    ] {
        assert_eq!(builder.build().unwrap().url(), url);
    }
    // The URL that a store shows opens the same store.
    let store = builder().client(client("redis://h:1/2")).key_prefix("a:").build().unwrap();
    assert_eq!(open(&store.url()).await.url(), store.url());
}

async fn a_client_gives_address_database_user_and_password() {
    let rig = Rig::new(DURABLE);
    rig.run::<()>("ACL SETUSER app on >pw ~* &* +@all").await;
    let url = format!("redis://app:pw@127.0.0.1:{}/3", rig.port);
    for builder in [builder().client(client(&url)), builder().connection_info(info(&url))] {
        let store = builder.build().unwrap();
        let hold = granted(&*store, &claim("job", "me")).await.hold;
        assert_eq!(rig.run::<String>("INFO keyspace").await.matches("db3:").count(), 1);
        assert!(renew(&*store.detached(), &hold).await.unwrap().is_held());
        release(&*store, &hold).await;
    }
    let wrong = url.replace("pw@", "other@");
    let store = builder().client(client(&wrong)).build().unwrap();
    assert_eq!(acquire(&*store, &claim("job", "me")).await.unwrap_err().kind(), Kind::Denied);
}

async fn a_client_of_a_unix_socket_works() {
    let scratch = Scratch::new();
    let path = scratch.path().join("redis.sock").display().to_string();
    let _rig = Rig::new(&["--unixsocket", &path]);
    let store = builder().client(client(&format!("unix://{path}"))).build().unwrap();
    granted(&*store, &claim("job", "me")).await;
    assert_eq!(store.url(), format!("redis://?socket={path}"));
}

async fn a_client_with_tls_uses_the_tls_configuration_of_the_builder() {
    let scratch = Scratch::new();
    let authority = Authority::new(scratch.path(), "ca");
    let files = authority.sign(scratch.path(), "server", &["localhost"], false);
    let server = Secure::new(&authority, &files, "no");
    let (host, port) = ("localhost".to_owned(), server.port);
    let address = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
    let of_client = || builder().connection_info(info("redis://h").set_addr(address.clone()));
    let of_url = || RedisStore::builder(&format!("rediss://localhost:{port}"));
    for (name, builder) in [("client", of_client()), ("url", of_url())] {
        let store = builder.tls(tls_config(Some(&authority.ca))).build().unwrap();
        granted(&*store, &claim(name, "me")).await;
    }
    // Without the CA of the application, or with another one, the certificate is refused.
    let other = Authority::new(scratch.path(), "other");
    for builder in [of_client(), of_url().tls(tls_config(Some(&other.ca)))] {
        let store = builder.build().unwrap();
        let error = acquire(&*store, &claim("job", "me")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
}

async fn credentials_are_asked_for_every_log_in() {
    let admin = ["--requirepass", "first", "--user", "admin", "on", ">admin", "~*", "&*", "+@all"];
    let rig = Rig::with(&admin, "admin:admin@");
    let password = Arc::new(Mutex::new("first"));
    let asked = Arc::new(AtomicUsize::new(0));
    let (current, count) = (Arc::clone(&password), Arc::clone(&asked));
    let store = RedisStore::builder(&rig.url())
        .credentials(move || {
            count.fetch_add(1, Ordering::SeqCst);
            let password = *current.lock().unwrap();
            async move { Ok(Credentials::from_password(password)) }
        })
        .build()
        .unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 0, "building asks nothing");
    let hold = granted(&*store, &claim("job", "me")).await.hold;
    assert!(renew(&*store, &hold).await.unwrap().is_held());
    assert_eq!(asked.load(Ordering::SeqCst), 1, "one connection, one log-in");
    rig.run::<()>("CONFIG SET requirepass second").await;
    *password.lock().unwrap() = "second";
    rig.run::<i64>("CLIENT KILL TYPE normal SKIPME yes").await;
    pause(Duration::from_millis(50)).await;
    assert!(renew(&*store, &hold).await.unwrap().is_held(), "the new password was asked for");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    // A user of the provider, and a user of the URL.
    rig.run::<()>("ACL SETUSER app on >pw ~* &* +@all").await;
    let of_provider = RedisStore::builder(&rig.url())
        .credentials(async || Ok(Credentials::new("app", "pw")))
        .build()
        .unwrap();
    let url = format!("redis://app@127.0.0.1:{}", rig.port);
    let of_url = with_password(RedisStore::builder(&url), "pw").build().unwrap();
    for store in [of_provider, of_url] {
        taken(acquire(&*store, &claim("job", "you")).await);
    }
    // A server that is down is not a reason to ask.
    let down = tenure_rig::servers::free_port();
    let counted = Arc::clone(&asked);
    let store = RedisStore::builder(&format!("redis://127.0.0.1:{down}"))
        .credentials(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok(Credentials::from_password("x")) }
        })
        .build()
        .unwrap();
    assert_eq!(acquire(&*store, &claim("a", "me")).await.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

async fn a_failing_provider_fails_as_it_says() {
    let rig = Rig::new(NOT_DURABLE);
    for kind in [Kind::Unavailable, Kind::Denied] {
        let store = RedisStore::builder(&rig.url())
            .credentials(move || async move { Err(Error::new(kind, "the vault is sealed")) })
            .build()
            .unwrap();
        let error = acquire(&*store, &claim("job", "me")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("the vault is sealed"), "{error}");
        let starting = Election::builder("job").start(store);
        let started = tokio::time::timeout(Duration::from_secs(2), starting).await;
        assert_eq!(started.is_err(), kind == Kind::Unavailable, "only Unavailable is waited for");
    }
    let panicking = RedisStore::builder(&rig.url())
        .credentials(async || panic!("a defect of the application"))
        .build()
        .unwrap();
    let error = acquire(&*panicking, &claim("job", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    // A watch asks on its caller's thread, which must survive.
    let mut changes = panicking.watch(&Scope::Prefix(String::new()));
    assert!(tokio::time::timeout(Duration::from_millis(300), changes.next()).await.is_err());
    let hanging =
        RedisStore::builder(&rig.url()).credentials(std::future::pending).build().unwrap();
    let error = acquire(&*hanging, &claim("job", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
}

async fn no_message_shows_a_provided_password() {
    // This server repeats the arguments of AUTH in its error.
    let rig = Rig::new(&["--rename-command", "AUTH", "OTHER"]);
    let url = rig.url();
    let with_client = {
        let settings = info(&url).redis_settings().clone().set_password(SECRET);
        builder().connection_info(info(&url).set_redis_settings(settings))
    };
    for builder in [with_password(RedisStore::builder(&url), SECRET), with_client] {
        let mut messages = format!("{builder:?}");
        let store = builder.build().unwrap();
        let error = acquire(&*store, &claim("job", "me")).await.unwrap_err();
        messages += &format!("{store:?} {} {:?} {error} {error:?}", store.url(), store.detached());
        assert!(messages.contains("unknown command") && messages.contains("***"), "{messages}");
        assert!(!messages.contains("geheim"), "{messages}");
    }
}

/// Uses every operation of a store once.
async fn use_everything(store: &dyn Store) {
    let all = Scope::Prefix(String::new());
    let mut changes = store.watch(&all);
    assert_eq!(changes.next().await, Some(Change::Look));
    let first = granted(store, &claim("job", "me")).await.hold;
    let granted_change = changes.next().await.unwrap();
    assert!(matches!(&granted_change, Change::Granted { name, .. } if name.as_str() == "job"));
    let mut one = store.watch(&Scope::name(&first.name));
    assert_eq!(one.next().await, Some(Change::Look));
    assert!(renew(store, &first).await.unwrap().is_held());
    let checkpoint = Checkpoint::new(b"42").unwrap();
    assert!(store.save(&first, 1, &checkpoint).await.unwrap().is_held());
    let id = tenure::CandidateId::new("me").unwrap();
    let presence = claim("unused", "me")
        .with_name(Name::new("job").unwrap().node(&id))
        .with_wait(ClaimedWait::Never);
    granted(store, &presence).await;
    let mut names = Vec::new();
    for lease in store.observe(&all).await.unwrap() {
        names.push(lease.unwrap().name.to_string());
    }
    assert_eq!(names, ["job", "tenure:node:job:me"]);
    let below = store.observe(&Scope::Prefix("tenure:node:job:".to_owned())).await.unwrap();
    assert_eq!(below.len(), 1);
    release(store, &first).await;
    assert!(matches!(one.next().await, Some(Change::Freed { .. })));
    let second = granted(store, &claim("job", "you")).await;
    assert_eq!(second.checkpoint, Some(checkpoint));
    store.revoke(&first.name, Revoke::Now).await.unwrap();
    store.examine().await.unwrap();
}

async fn keys(rig: &Rig) -> Vec<String> {
    let mut keys: Vec<String> = rig.run("KEYS *").await;
    keys.sort_unstable();
    keys
}

async fn every_key_and_channel_is_below_the_prefix() {
    for database in [0, 3] {
        let rig = Rig::new(DURABLE);
        let url = format!("{}/{database}", rig.url());
        let store = RedisStore::builder(&url).key_prefix("app:").build().unwrap();
        let mut watch = store.watch(&Scope::Prefix(String::new()));
        watch.next().await;
        use_everything(&*store).await;
        let channels: Vec<String> = rig.run("PUBSUB CHANNELS *").await;
        assert!(channels.iter().all(|channel| channel.starts_with("app:")), "{channels:?}");
        if database == 0 {
            let keys = keys(&rig).await;
            assert!(keys.iter().all(|key| key.starts_with("app:")), "{keys:?}");
            for key in ["app:tenure:{app:job}", "app:tenure:index", "app:tenure:presence"] {
                assert!(keys.iter().any(|found| found == key), "{key}: {keys:?}");
            }
        } else {
            assert_eq!(keys(&rig).await, [""; 0], "the keys are in the database of the URL");
        }
    }
    // The option of the URL is the same.
    let rig = Rig::new(DURABLE);
    let store = open(&format!("{}?key_prefix=app:", rig.url())).await;
    granted(&*store, &claim("job", "me")).await;
    assert_eq!(rig.run::<String>("GET app:job").await, "me");
}

async fn stores_with_different_prefixes_do_not_see_each_other() {
    let rig = Rig::new(DURABLE);
    let mut stores = vec![rig.open().await];
    for prefix in ["a:", "b:", "team/a-"] {
        stores.push(RedisStore::builder(&rig.url()).key_prefix(prefix).build().unwrap());
    }
    for store in &stores {
        let mut changes = store.watch(&Scope::Prefix(String::new()));
        assert_eq!(changes.next().await, Some(Change::Look));
        let ours = claim("job", "me");
        let hold = granted(&**store, &ours).await.hold;
        assert!(matches!(changes.next().await, Some(Change::Granted { .. })));
        let other = RedisStore::builder(&store.url()).build().unwrap();
        taken(acquire(&*other, &claim("job", "you")).await);
        assert!(renew(&*other, &hold).await.unwrap().is_held(), "the shown URL is the same store");
        let seen = store.observe(&Scope::Prefix(String::new())).await.unwrap();
        assert_eq!(seen.len(), 1, "only its own lease");
        for stranger in stores.iter().filter(|stranger| stranger.url() != store.url()) {
            assert!(!renew(&**stranger, &hold).await.unwrap().is_held());
        }
        let heard = tokio::time::timeout(Duration::from_millis(100), changes.next()).await;
        assert!(heard.is_err(), "{heard:?}");
    }
    // Where one prefix begins with another, a name can be one key in both stores. Then they exclude each other.
    let (outer, inner) = (&stores[0], &stores[1]);
    taken(acquire(&**outer, &claim("a:job", "me")).await);
    granted(&**outer, &claim("a:other", "me")).await;
    taken(acquire(&**inner, &claim("other", "me")).await);
}

async fn an_acl_of_the_prefix_is_enough() {
    let rig = Rig::new(DURABLE);
    let user = "ACL SETUSER app on >pw resetkeys ~app:* resetchannels &app:* -@all \
        +ping +select +evalsha +eval +time +info +config|get +object|encoding +exists \
        +getrange +set +del +pexpireat +pexpiretime +pttl +persist +hstrlen +hmget +hset \
        +zadd +zrem +zrangebylex +zrangebyscore +publish +subscribe +psubscribe +unsubscribe +punsubscribe";
    let words: Vec<&str> = user.split_whitespace().collect();
    rig.run::<()>(&words.join(" ")).await;
    let url = format!("redis://app:pw@127.0.0.1:{}", rig.port);
    let store = RedisStore::builder(&url).key_prefix("app:").build().unwrap();
    use_everything(&*store).await;
    let error = acquire(&*open(&url).await, &claim("job", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
}

async fn corrupt_keys_are_named_with_their_prefix() {
    let rig = Rig::new(DURABLE);
    let store = RedisStore::builder(&rig.url()).key_prefix("app:").build().unwrap();
    rig.run::<()>("SET app:tenure:{app:job} garbage").await;
    let error = acquire(&*store, &claim("job", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    let text = error.to_string();
    assert!(text.contains("'app:job' and 'app:tenure:{app:job}'"), "{text}");
    assert_eq!(rig.run::<String>("GET app:tenure:{app:job}").await, "garbage");
    rig.run::<()>("SET app:tenure:index garbage").await;
    let error = store.observe(&Scope::Prefix(String::new())).await.unwrap_err();
    assert!(error.to_string().contains("'app:tenure:index'"), "{error}");
}

async fn a_name_too_long_for_the_prefix_is_refused_alone() {
    let rig = Rig::new(DURABLE);
    let store = RedisStore::builder(&rig.url()).key_prefix(&"p".repeat(100)).build().unwrap();
    let named =
        |length| claim("unused", "me").with_name(Name::stored(&"n".repeat(length)).unwrap());
    let answers = store.acquire(&[named(220), named(221), named(3)]).await.unwrap();
    let held: Vec<bool> = answers.iter().map(|answer| answer.is_ok()).collect();
    assert_eq!(held, [true, false, true]);
    assert_eq!(answers[1].as_ref().unwrap_err().kind(), Kind::Invalid);
    let listed = store.observe(&Scope::Prefix(String::new())).await.unwrap();
    assert_eq!(listed.len(), 2, "every lease that was granted is listed");
}

async fn the_lists_of_a_fleet_refuse_a_key_prefix() {
    let fleet = Name::new("poll").unwrap();
    let url = "redis://127.0.0.1?key_prefix=app:";
    let error = tenure::fleet::source::redis(url, &fleet).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(error.to_string().contains("key_prefix"), "{error}");
}
