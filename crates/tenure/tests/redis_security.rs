//! Security of the Redis store: authentication, TLS, and secrets in messages.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::time::Duration;

use tenure::store::Store;
use tenure::{Clock, Kind, Name};

use tenure_rig::redis_rig::certificates::Authority;
use tenure_rig::redis_rig::tls_server::Secure;
use tenure_rig::redis_rig::{DURABLE, Rig, acquire, claim, granted, open, renew, tests};
use tenure_rig::servers::Scratch;

/// The password in every URL; it must appear in no message.
const SECRET: &str = "geheim/%40:4711";
/// The password as encoded in a URL.
const ENCODED: &str = "geheim%2F%2540%3A4711";

fn main() -> ExitCode {
    tenure_rig::redis_rig::main(tests![
        malformed_urls_are_invalid,
        no_message_shows_a_password,
        a_wrong_password_is_denied,
        a_password_quoted_by_the_server_is_not_repeated,
        a_password_file_is_read_for_every_connection,
        revoked_permissions_are_denied_and_take_no_lease,
        tls_with_the_right_ca_and_client_certificate_works,
        tls_fails_closed,
        tls_and_plaintext_do_not_mix,
        certificates_are_read_for_every_connection,
    ])
}

async fn malformed_urls_are_invalid() {
    for (url, says) in [
        ("redis:host", "'//'"),
        ("redis://", "the host is missing"),
        ("redis://h:0", "the port"),
        ("redis://h:70000", "the port"),
        ("redis://h/one", "the number of a database"),
        ("redis://h/-1", "the number of a database"),
        ("redis://h/+1", "the number of a database"),
        ("redis://h/1/2", "the number of a database"),
        ("redis://h o", "the host"),
        ("redis://[::1", "']'"),
        ("redis://[::1]6379", "':PORT'"),
        (
            "redis://h?pasword=x",
            "has no option 'pasword'; it has password_file, ca, cert, key, socket, startup_wait, key_prefix",
        ),
        ("redis://h?ca=/x", "for rediss://"),
        ("rediss://h?cert=/x", "cert and key come together"),
        ("redis://h?startup_wait=12", "a duration"),
        ("redis://h?quarantine=1s&startup_wait=1s", "both given"),
        ("redis://h?quarantine=48h", "a duration"),
        ("redis://h?key_prefix=", "a key prefix must not be empty"),
        ("redis://h?key_prefix=a%20b", "a key prefix may contain only"),
        ("redis://h?key_prefix=tenure:x", "kept for Tenure's own keys"),
        ("redis://h?socket=/x", "give one of them"),
        ("redis://?socket=x", "an absolute path"),
        ("rediss://?socket=/x", "TLS over a unix socket"),
        ("redis://user@h", "a user without a password"),
        ("redis://:x@h?password_file=/x", "give one of them"),
        ("redis://:%zz@h", "two hexadecimal digits"),
        ("redis://:%ff@h", "UTF-8"),
        ("redis://h?ca", "the path of a file"),
        ("rediss://h?ca=", "the path of a file"),
    ] {
        let error = tenure::open(url).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{url}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
    for url in ["redis://h", "redis://[::1]:7/3", "rediss://u:p%40@h.example:1?quarantine=0s"] {
        let store = tenure::open(url).await.unwrap();
        assert!(format!("{store:?}").contains("h") || url.contains("::1"));
    }
    // The error about a password that should have been encoded does not reveal it.
    for url in [
        "redis://:1sec/ret@h",
        "redis://u:1sec?ret@h",
        "redis://u:1?secret@h",
        "redis://u:secret#@h/x",
    ] {
        let error = tenure::open(url).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{url}");
        assert!(
            !error.to_string().contains("sec") && !error.to_string().contains("ret@"),
            "{error}"
        );
    }
}

/// All text that a store shows of itself and of its errors.
async fn all_messages(store: &dyn Store) -> String {
    let name = Name::new("a").unwrap();
    let mut messages = format!("{store:?} {} ", store.url());
    let detached = store.detached();
    messages += &format!("{detached:?} {}", detached.url());
    let mut errors = vec![
        acquire(store, &claim("a", "me")).await.map(drop).err(),
        store.examine().await.map(drop).err(),
        store.observe(&tenure::store::Scope::name(&name)).await.map(drop).err(),
    ];
    for error in errors.drain(..).flatten() {
        messages += &format!(
            " {error} {error:?} {:?}",
            std::error::Error::source(&error).map(|e| e.to_string())
        );
    }
    messages
}

async fn no_message_shows_a_password() {
    let rig = Rig::with(&["--requirepass", SECRET], &format!(":{ENCODED}@"));
    let down = tenure_rig::servers::free_port();
    for url in [
        format!("redis://:{ENCODED}@127.0.0.1:{down}"),
        format!("redis://default:{ENCODED}@127.0.0.1:{}", rig.port),
        format!("redis://nobody:{ENCODED}@127.0.0.1:{}/3", rig.port),
        format!("redis://:{ENCODED}@127.0.0.1:{}/99", rig.port),
        format!("redis://:{ENCODED}@no-such-host.invalid"),
    ] {
        let messages = all_messages(&*open(&url).await).await;
        assert!(
            !messages.contains(SECRET)
                && !messages.contains(ENCODED)
                && !messages.contains("geheim"),
            "{messages}"
        );
    }
}

async fn a_wrong_password_is_denied() {
    let rig = Rig::with(&["--requirepass", "right"], ":right@");
    for login in ["", ":wrong@", "default:wrong@", "nobody:right@"] {
        let url = format!("redis://{login}127.0.0.1:{}", rig.port);
        let error = acquire(&*open(&url).await, &claim("a", "me")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{login}: {error}");
        assert!(error.to_string().contains("check user and password"), "{error}");
    }
    let right = open(&format!("redis://:right@127.0.0.1:{}", rig.port)).await;
    granted(&*right, &claim("a", "me")).await;
    assert_eq!(right.url(), format!("redis://:***@127.0.0.1:{}", rig.port));
}

async fn a_password_quoted_by_the_server_is_not_repeated() {
    let rig = Rig::new(&["--rename-command", "AUTH", "OTHER"]);
    let store = open(&format!("redis://user:{ENCODED}@127.0.0.1:{}", rig.port)).await;
    let messages = all_messages(&*store).await;
    assert!(messages.contains("unknown command") && messages.contains("***"), "{messages}");
    assert!(!messages.contains(SECRET) && !messages.contains("geheim"), "{messages}");
}

async fn a_password_file_is_read_for_every_connection() {
    let admin = ["--requirepass", "first", "--user", "admin", "on", ">admin", "~*", "&*", "+@all"];
    let rig = Rig::with(&admin, "admin:admin@");
    let scratch = Scratch::new();
    let file = scratch.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let url = format!("redis://127.0.0.1:{}?password_file={}", rig.port, file.display());
    let store = open(&url).await;
    assert_eq!(store.url(), url);
    let hold = granted(&*store, &claim("a", "me")).await.hold;
    rig.run::<()>("CONFIG SET requirepass second").await;
    std::fs::write(&file, "second\r\n").unwrap();
    assert!(renew(&*store, &hold).await.unwrap().is_held(), "what is connected stays");
    rig.run::<i64>("CLIENT KILL TYPE normal SKIPME yes").await;
    tenure_rig::redis_rig::pause(Duration::from_millis(50)).await;
    assert!(renew(&*store, &hold).await.unwrap().is_held(), "the new password was read");
    for (content, says) in
        [(Some(""), "is empty"), (Some("wrong"), "WRONGPASS"), (None, "cannot read")]
    {
        match content {
            Some(content) => std::fs::write(&file, content).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let error = renew(&*open(&url).await, &hold).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

async fn revoked_permissions_are_denied_and_take_no_lease() {
    let rig = Rig::new(DURABLE);
    rig.run::<()>("ACL SETUSER t on >pw ~* &* +@all").await;
    let store = open(&format!("redis://t:pw@127.0.0.1:{}", rig.port)).await;
    let hold = granted(&*store, &claim("a", "me")).await.hold;
    for (narrow, back) in [("-hset", "+hset"), ("-evalsha", "+evalsha"), ("resetkeys ~b*", "~*")] {
        rig.run::<()>(&format!("ACL SETUSER t {narrow}")).await;
        let error = renew(&*store, &hold).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{narrow}: {error}");
        assert!(error.to_string().contains("allow the commands"), "{error}");
        assert_eq!(rig.run::<String>("GET a").await, "me", "the lease stands until its time");
        rig.run::<()>(&format!("ACL SETUSER t {back}")).await;
        assert!(renew(&*store, &hold).await.unwrap().is_held());
    }
    // A user without the permission to publish still acquires and releases leases; the waiters learn of it by their timers.
    rig.run::<()>("ACL SETUSER t resetchannels -publish").await;
    let store = open(&format!("redis://t:pw@127.0.0.1:{}", rig.port)).await;
    let hold = granted(&*store, &claim("b", "me")).await.hold;
    tenure_rig::redis_rig::release(&*store, &hold).await;
    rig.run::<()>("ACL SETUSER t off").await;
    let store = open(&format!("redis://t:pw@127.0.0.1:{}", rig.port)).await;
    assert_eq!(acquire(&*store, &claim("c", "me")).await.unwrap_err().kind(), Kind::Denied);
}

async fn tls_with_the_right_ca_and_client_certificate_works() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let authority = Authority::new(dir, "ca");
    let server = authority.sign(dir, "server", &["localhost", "127.0.0.1"], false);
    let [cert, key] = authority.sign(dir, "client", &["client"], false);
    let ca = &authority.ca;
    let open_to_all = Secure::new(&authority, &server, "no");
    for host in ["localhost", "127.0.0.1"] {
        let store = open_to_all.open(host, &format!("ca={ca}")).await;
        granted(&*store, &claim(host, "me")).await;
        let mut changes = store.watch(&tenure::store::Scope::Prefix(String::new()));
        let first = futures_util::StreamExt::next(&mut changes).await;
        assert_eq!(first, Some(tenure::store::Change::Look), "a watch speaks TLS too");
    }
    let closed = Secure::new(&authority, &server, "yes");
    let store = closed.open("localhost", &format!("ca={ca}&cert={cert}&key={key}")).await;
    granted(&*store, &claim("a", "me")).await;
    for options in [
        format!("ca={ca}"),
        {
            let other = Authority::new(dir, "other-ca");
            let [cert, key] = other.sign(dir, "stranger", &["client"], false);
            format!("ca={ca}&cert={cert}&key={key}")
        },
        format!("ca={ca}&cert={cert}&key={cert}"),
        format!("ca={ca}&cert={key}&key={key}"),
        format!("ca={ca}&cert={cert}&key=/no/such/file"),
    ] {
        let store = closed.open("localhost", &options).await;
        let error = acquire(&*store, &claim("b", "me")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{options}: {error}");
    }
}

async fn tls_fails_closed() {
    let scratch = Scratch::new();
    let dir = scratch.path();
    let (authority, other) = (Authority::new(dir, "ca"), Authority::new(dir, "other"));
    let right = authority.sign(dir, "right", &["localhost"], false);
    let expired = authority.sign(dir, "expired", &["localhost"], true);
    let elsewhere = authority.sign(dir, "elsewhere", &["elsewhere.example"], false);
    let (ours, theirs) = (format!("ca={}", authority.ca), format!("ca={}", other.ca));
    for (what, files, options) in [
        ("another CA", &right, theirs.as_str()),
        ("the system's roots", &right, ""),
        ("another name", &elsewhere, ours.as_str()),
        ("expired", &expired, ours.as_str()),
    ] {
        let server = Secure::new(&authority, files, "no");
        let store = server.open("localhost", options).await;
        let error = acquire(&*store, &claim("a", "me")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{what}: {error}");
        assert!(error.to_string().contains("certificate"), "{what}: {error}");
        assert_eq!(server.rig.run::<i64>("DBSIZE").await, 0, "{what}");
    }
    let server = Secure::new(&authority, &right, "no");
    for options in ["ca=/no/such/file", &format!("ca={}", right[1])] {
        let error = acquire(&*server.open("localhost", options).await, &claim("a", "me"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{options}: {error}");
    }
    // The certificate contains the host name, and not its address.
    let error =
        acquire(&*server.open("127.0.0.1", &ours).await, &claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
}

async fn tls_and_plaintext_do_not_mix() {
    let scratch = Scratch::new();
    let authority = Authority::new(scratch.path(), "ca");
    let files = authority.sign(scratch.path(), "server", &["localhost"], false);
    let server = Secure::new(&authority, &files, "no");
    let clock = Clock::boot();
    let start = clock.now();
    let url = format!("rediss://localhost:{}?ca={}", server.rig.port, authority.ca);
    let error = acquire(&*open(&url).await, &claim("a", "me")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("the server does not speak TLS; use redis://"), "{error}");
    assert!(clock.now().since(start) < Duration::from_secs(8));
    let store = open(&format!("redis://127.0.0.1:{}", server.port)).await;
    let error = acquire(&*store, &claim("a", "me")).await.unwrap_err();
    // The server closes the connection, as a server that is shutting down would: the store checks whether it speaks TLS.
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("the server speaks TLS; use rediss://"), "{error}");
    assert_eq!(server.rig.run::<i64>("DBSIZE").await, 0);
}

async fn certificates_are_read_for_every_connection() {
    let scratch = Scratch::new();
    let (before, after) =
        (Authority::new(scratch.path(), "old"), Authority::new(scratch.path(), "new"));
    let files = after.sign(scratch.path(), "server", &["localhost"], false);
    let server = Secure::new(&after, &files, "no");
    let ca = scratch.path().join("trusted.crt");
    std::fs::copy(&before.ca, &ca).unwrap();
    let store = server.open("localhost", &format!("ca={}", ca.display())).await;
    assert_eq!(acquire(&*store, &claim("a", "me")).await.unwrap_err().kind(), Kind::Denied);
    std::fs::copy(&after.ca, &ca).unwrap();
    granted(&*store, &claim("a", "me")).await;
}
