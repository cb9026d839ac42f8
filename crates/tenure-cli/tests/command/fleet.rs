//! `tenure fleet status`, `who`, `drain`, `undrain`, `pause`, `resume`, `plan`, against real members in the test's own process,
//! on the directory that the command uses.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::fleet::{FleetEvent, Shard, fleet_name, overrides, source};
use tenure::{CandidateId, Checkpoint, Claim, Fleet, Name, Nonce, StoreExt as _};

use crate::local_candidates::Fixture;
use tenure_rig::command::{CommandResult, Sandbox, eventually, signal};

const FLEET: &str = "poll";

/// A member that keeps its shards until they are revoked, or forever if not `stops`.
fn member(fixture: &Fixture, id: &str, shards: &[&str], stops: bool) -> Arc<Fleet> {
    let builder =
        Fleet::builder(FLEET).member(id).note("http://127.0.0.1:3000").shards(source::list(shards));
    let joined = builder.ttl(Duration::from_secs(5)).join(fixture.store.clone());
    let fleet = Arc::new(fixture.runtime.block_on(joined).unwrap());
    let member = fleet.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut work = HashMap::new();
            while let Some(event) = member.next().await {
                match event {
                    FleetEvent::Assigned { shard, work: new, .. } => drop(work.insert(shard, new)),
                    FleetEvent::Revoked { shard, .. } if stops => drop(work.remove(&shard)),
                    _ => {}
                }
            }
        });
    });
    fleet
}

fn owns(fleet: &Fleet, count: usize) {
    eventually("it owns them", || fleet.owned().len() == count);
}

/// Acquires leases without renewing them, like a member that has just died.
fn hold_leases(fixture: &Fixture, names: impl Iterator<Item = Name>, id: &str, ttl: Duration) {
    let id = CandidateId::new(id).unwrap();
    let claims: Vec<Claim> =
        names.map(|name| Claim::new(name, id.clone(), Nonce::random(), ttl)).collect();
    let answers = fixture.runtime.block_on(fixture.store.acquire(&claims)).unwrap();
    assert!(answers.into_iter().all(|answer| answer.unwrap().is_held()));
}

fn name() -> Name {
    fleet_name(FLEET).unwrap()
}

fn lease(shard: &str) -> Name {
    Shard::new(shard).unwrap().lease(&name())
}

fn row(answer: &Value, list: &str, key: &str, value: &str) -> Value {
    let rows = answer[list].as_array().unwrap();
    rows.iter()
        .find(|row| row[key] == value)
        .unwrap_or_else(|| panic!("{value} in {answer}"))
        .clone()
}

#[test]
fn an_unused_fleet_has_no_members_and_no_shards() {
    let fixture = Fixture::new();
    let ran = fixture.run(&["fleet", "status", FLEET]);
    ran.exits(1).says("Nobody is there: the fleet 'poll' has no member.\n0 shards: 0 owned.\n");
    let answer = fixture.run(&["fleet", "status", FLEET, "--json"]).exits(1).json();
    assert_eq!(answer, json!({"name": FLEET, "members": [], "shards": []}));
    let ran = fixture.run(&["fleet", "who", FLEET, "a"]);
    ran.exits(1)
        .says("Nobody owns 'a' of 'poll', and nobody has so far. No member is there to take it.");
    let answer = fixture.run(&["fleet", "who", FLEET, "a", "--json"]).exits(1).json();
    let pinned = json!({"shard": "a", "owner": null, "token": null, "expiresInMs": null,
        "paused": false, "preferred": null});
    assert_eq!(answer, pinned);
}

#[test]
fn members_and_owners_are_shown_in_text_and_in_json() {
    let fixture = Fixture::new();
    let shards = ["s-1", "s 2", "s-3", "s-4"];
    let (a, b) = (member(&fixture, "a", &shards, true), member(&fixture, "b", &shards, true));
    owns(&a, 2);
    owns(&b, 2);
    let ran = fixture.run(&["fleet", "status", FLEET]);
    ran.exits(0).says("The fleet 'poll' has 2 members.\n4 shards: 4 owned.\n");
    ran.says("MEMBER  SHARDS\na            2  http://127.0.0.1:3000\n");
    ran.says("a (2)\n").says("b (2)\n").says("'s 2'");
    let ran = fixture.run(&["fleet", "status", FLEET, "--json"]);
    assert!(
        ran.exits(0)
            .stdout
            .starts_with(r#"{"name":"poll","members":[{"id":"a","shards":2,"drained":false,"#)
    );
    let answer = ran.json();
    assert_eq!(row(&answer, "members", "id", "b")["url"], "http://127.0.0.1:3000");
    let (shard, token) = a.owned().remove(0);
    let found = row(&answer, "shards", "shard", shard.as_str());
    let pinned =
        json!({"shard": shard.as_str(), "owner": "a", "token": token.get(), "paused": false});
    assert_eq!(found, pinned);

    let ran = fixture.run(&["fleet", "who", FLEET, shard.as_str()]);
    ran.exits(0)
        .says(&format!("'a' owns '{shard}' of 'poll' (token {token}), for "))
        .says(" unless it renews.");
    let answer = fixture.run(&["fleet", "who", FLEET, shard.as_str(), "--json"]).exits(0).json();
    assert_eq!(
        (&answer["owner"], &answer["token"]),
        (&json!("a"), &json!(token.get())),
        "{answer}"
    );
    assert!((1..=5_000).contains(&answer["expiresInMs"].as_u64().unwrap()), "{answer}");
    assert_eq!(answer["preferred"], a.preferred(shard.as_str()).unwrap().as_str());
    assert_eq!(answer.as_object().unwrap().len(), 6, "{answer}");
}

#[test]
fn an_owner_that_is_not_a_member_is_shown() {
    let fixture = Fixture::new();
    let (ttl, expired) = (Duration::from_secs(60), Duration::from_millis(100));
    hold_leases(&fixture, [lease("left"), lease("behind")].into_iter(), "gone", ttl);
    hold_leases(&fixture, [lease("free")].into_iter(), "gone", expired);
    eventually("it has run out", || {
        let ran = fixture.run(&["fleet", "status", FLEET]);
        ran.exits(1);
        ran.stdout.contains("3 shards: 2 owned, 1 without an owner.")
            && ran.stdout.contains("Without an owner (1)\n  free\n")
    });
    let ran = fixture.run(&["fleet", "status", FLEET]);
    ran.exits(1).says("gone         2  no member: leaving, or gone until its leases run out");
    let ran = fixture.run(&["fleet", "who", FLEET, "free"]);
    ran.exits(1).says("Nobody owns 'free' of 'poll'. No member");
    let ran = fixture.run(&["fleet", "drain", FLEET, "gone", "--wait", "0s"]);
    ran.exits(1).says(
        "'gone' still has 2 shards, and is no member: others get them when its leases run out.",
    );
}

#[test]
fn ten_thousand_shards_are_shortened_in_text_and_complete_in_json() {
    let fixture = Fixture::new();
    let names = (0..10_000).map(|number| lease(&format!("tenant-{number}")));
    hold_leases(&fixture, names, "a", Duration::from_secs(600));
    let ran = fixture.run(&["fleet", "status", FLEET]);
    ran.exits(1).says("10,000 shards: 10,000 owned.").says("a (10,000)\n  tenant-0  tenant-1  ");
    ran.says("… and 9,950 more: --json shows all\n");
    assert!(ran.stdout.lines().count() <= 24, "{}", ran.stdout);
    let answer = fixture.run(&["fleet", "status", FLEET, "--json"]).exits(1).json();
    assert_eq!(answer["shards"].as_array().unwrap().len(), 10_000);
}

#[test]
fn hostile_names_are_escaped_on_the_terminal() {
    let fixture = Fixture::new();
    let long = "\u{1b}[2J".repeat(100);
    let shards = ["\x1b[31mred", "a\nb", "\u{202e}", "--help", "{\"x\":1}", &long];
    let a = member(&fixture, "a", &shards, true);
    owns(&a, shards.len());
    let plain = |ran: &CommandResult| {
        let all = [&*ran.stdout, &ran.stderr].concat();
        assert!(!all.contains(['\x1b', '\u{202e}']), "{all:?}");
    };
    let ran = fixture.run(&["fleet", "status", FLEET]);
    plain(ran.exits(0).says("\\u{1b}[31mred").says("a\\nb"));
    // The store has only a hash of a long name with control characters.
    let answer = fixture.run(&["fleet", "status", FLEET, "--json"]).exits(0).json();
    assert_eq!(row(&answer, "shards", "shard", "\x1b[31mred")["owner"], "a");
    for shard in shards {
        plain(fixture.run(&["fleet", "who", FLEET, "--", shard]).exits(0).says("'a' owns '"));
        let answer = fixture.run(&["fleet", "who", "--json", FLEET, "--", shard]).exits(0).json();
        assert_eq!(answer["shard"], shard);
    }
    let ran = fixture.run(&["fleet", "pause", FLEET, "--", "\x1b[31mred", "--help"]);
    plain(
        ran.exits(0)
            .says("'\\u{1b}[31mred' is paused: 'a' has let it go.")
            .says("'--help' is paused: 'a'"),
    );
    plain(
        fixture
            .run(&["fleet", "resume", FLEET, "\x1b[31mred"])
            .exits(0)
            .says("'\\u{1b}[31mred' is not"),
    );
    plain(
        fixture
            .run(&["fleet", "who", FLEET, &"\x1b".repeat(513)])
            .exits(125)
            .complains("at most 512 bytes"),
    );
    fixture.run(&["fleet", "who", FLEET, ""]).exits(125).complains("must not be empty");
    fixture.run(&["fleet", "pause", FLEET, "a", ""]).exits(125).complains("must not be empty");
    for command in ["who", "pause", "resume"] {
        let mut command = fixture.sandbox.command(&["fleet", command, FLEET]);
        let ran = CommandResult::new(command.arg(OsStr::from_bytes(b"\xff")).output().unwrap());
        ran.exits(125).complains("UTF-8");
    }
}

#[test]
fn a_drained_member_releases_its_shards_and_an_undrained_one_gets_its_share_again() {
    let fixture = Fixture::new();
    let shards = ["1", "2", "3", "4"];
    let (a, b) = (member(&fixture, "a", &shards, true), member(&fixture, "b", &shards, true));
    owns(&a, 2);
    owns(&b, 2);
    fixture
        .run(&["fleet", "drain", FLEET, "a"])
        .exits(0)
        .says("'a' has given away its 2 shards.\n");
    assert!(a.owned().is_empty());
    owns(&b, 4);
    let ran = fixture.run(&["fleet", "status", FLEET]);
    ran.exits(0).says("a            0  drained  http://127.0.0.1:3000\n");
    let answer = fixture.run(&["fleet", "status", FLEET, "--json"]).exits(0).json();
    assert_eq!(row(&answer, "members", "id", "a")["drained"], true);
    let answer = fixture.run(&["fleet", "drain", FLEET, "a", "--json"]).exits(0).json();
    let pinned =
        json!({"name": FLEET, "member": "a", "drained": true, "present": true, "shards": 0});
    assert_eq!(answer, pinned, "saying it again does no harm");
    fixture.run(&["fleet", "drain", FLEET, "a"]).exits(0).says("'a' is drained; it owned nothing.");
    let ran = fixture.run(&["fleet", "undrain", FLEET, "a"]);
    ran.exits(0).says("'a' is not drained any more, and takes its share again.");
    owns(&a, 2);
    fixture.run(&["fleet", "undrain", FLEET, "a"]).exits(0).says("'a' was not drained.");
}

#[test]
fn an_absent_member_is_drained_before_it_joins() {
    let fixture = Fixture::new();
    let ran = fixture.run(&["fleet", "drain", FLEET, "later"]);
    ran.exits(0).says("'later' is not there. If it comes it will own nothing, until 'tenure fleet undrain poll later'.");
    fixture.run(&["fleet", "status", FLEET]).exits(1).says("Drained, and not there: later.");
    let later = member(&fixture, "later", &["1"], true);
    eventually("it is there", || later.is_member());
    let ran = fixture.run(&["fleet", "who", FLEET, "1"]);
    ran.exits(1).says("Nobody owns '1' of 'poll', and nobody has so far. All members are drained.");
    let answer = fixture.run(&["fleet", "undrain", FLEET, "later", "--json"]).exits(0).json();
    assert_eq!((&answer["drained"], &answer["present"]), (&json!(false), &json!(true)), "{answer}");
    owns(&later, 1);
}

#[test]
fn work_that_does_not_stop_is_exit_1_and_the_request_is_kept() {
    let fixture = Fixture::new();
    let a = member(&fixture, "a", &["1", "2"], false);
    owns(&a, 2);
    let ran = fixture.run(&["fleet", "pause", FLEET, "1", "--wait", "200ms"]);
    ran.exits(1)
        .says("'1' is paused, but 'a' still has it: it lets it go when its work has ended.");
    let ran = fixture.run(&["fleet", "who", FLEET, "1"]);
    ran.exits(0).says("It is paused, so it will be let go.");
    let ran = fixture.run(&["fleet", "status", FLEET]);
    ran.exits(0).says("2 shards: 1 owned, 1 paused but not let go yet.");
    let ran = fixture.run(&["fleet", "drain", FLEET, "a", "--wait", "200ms"]);
    ran.exits(1)
        .says("'a' still has 2 shards. It stays drained, and gives them away as their work ends;");
    let answer =
        fixture.run(&["fleet", "drain", FLEET, "a", "--wait", "0s", "--json"]).exits(1).json();
    assert_eq!((&answer["shards"], &answer["drained"]), (&json!(2), &json!(true)), "{answer}");
    let control = fixture.runtime.block_on(overrides::read(&*fixture.store, &name())).unwrap();
    assert!(
        control.paused.contains("1") && control.drained.contains(&CandidateId::new("a").unwrap())
    );
}

#[test]
fn an_interrupt_ends_the_wait_at_once() {
    let fixture = Fixture::new();
    let a = member(&fixture, "a", &["1"], false);
    owns(&a, 1);
    let directory = fixture.directory();
    let args =
        ["--lock-dir", directory.to_str().unwrap(), "fleet", "drain", FLEET, "a", "--wait", "1h"];
    let child = fixture.sandbox.start(&args);
    eventually("it is said", || {
        let control = fixture.runtime.block_on(overrides::read(&*fixture.store, &name())).unwrap();
        !control.drained.is_empty()
    });
    // From here on the command waits, or is about to.
    eventually("it listens", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
    });
    signal(&child, Signal::INT);
    let ran = CommandResult::new(child.wait_with_output().unwrap());
    ran.exits(1).says("'a' still has 1 shard.");
}

#[test]
fn paused_shards_are_released_and_resumed_shards_are_claimed_again() {
    let fixture = Fixture::new();
    let a = member(&fixture, "a", &["1", "2", "3"], true);
    owns(&a, 3);
    let ran = fixture.run(&["fleet", "pause", FLEET, "1", "typo", "1"]);
    ran.exits(0);
    assert_eq!(
        ran.stdout,
        "'1' is paused: 'a' has let it go.\n'typo' is paused; nobody has owned it so far.\n"
    );
    assert!(!a.is_owned("1") && a.is_owned("2"));
    let ran = fixture.run(&["fleet", "pause", FLEET, "1"]);
    ran.exits(0).says("'1' is paused already; nobody owned it.");
    let answer = fixture.run(&["fleet", "pause", FLEET, "1", "2", "--json"]).exits(0).json();
    let row = |shard: &str| json!({"shard": shard, "paused": true, "owner": null});
    assert_eq!(answer, json!([row("1"), row("2")]));
    let ran = fixture.run(&["fleet", "status", FLEET]);
    ran.exits(0).says("4 shards: 1 owned, 3 paused.").says("Paused (3)\n  1  2  typo\n");
    let ran = fixture.run(&["fleet", "who", FLEET, "1"]);
    ran.exits(1).says("Nobody owns '1' of 'poll': it is paused.\n");
    let ran = fixture.run(&["fleet", "who", FLEET, "typo"]);
    ran.exits(1)
        .says("Nobody owns 'typo' of 'poll': it is paused, and nobody has owned it so far.\n");
    let ran = fixture.run(&["fleet", "resume", FLEET, "1", "2", "typo", "3"]);
    ran.exits(0)
        .says("'1' is not paused any more, and goes to a member again.\n")
        .says("'3' was not paused.\n");
    owns(&a, 3);
    let answer = fixture.run(&["fleet", "resume", FLEET, "1", "--json"]).exits(0).json();
    assert_eq!(answer, json!([{"shard": "1", "paused": false, "owner": "a"}]));
    let many: Vec<String> = (0..1_000).map(|number| format!("shard-{number}")).collect();
    let mut args = vec!["fleet", "pause", FLEET];
    args.extend(many.iter().map(String::as_str));
    fixture.run(&args).exits(125).complains("nothing was changed");
}

#[test]
fn unreadable_leases_are_reported_and_a_corrupt_control_record_is_refused() {
    let fixture = Fixture::new();
    let a = member(&fixture, "a", &["1"], true);
    owns(&a, 1);
    let bad = fixture.directory().join("leases/poll:lease:bad.lease");
    std::fs::write(bad, "\x1b[2Jnonsense").unwrap();
    let ran = fixture.run(&["fleet", "status", FLEET]);
    ran.exits(0).says("1 shard: 1 owned.").complains("bad.lease");
    assert!(!ran.stderr.contains('\x1b'), "{:?}", ran.stderr);
    fixture.run(&["fleet", "status", FLEET, "--json"]).exits(0).complains(r#""kind":"corrupt""#);
    fixture.run(&["fleet", "who", FLEET, "bad"]).exits(123).complains("bad.lease");
    fixture.run(&["fleet", "pause", FLEET, "bad"]).exits(123).complains("bad.lease");

    let claim = Claim::new(
        overrides::name(&name()),
        CandidateId::new("x").unwrap(),
        Nonce::random(),
        Duration::from_secs(5),
    );
    fixture.runtime.block_on(async {
        let grant = fixture.store.acquire_one(&claim).await.unwrap().held().unwrap();
        let garbage = Checkpoint::new(b"garbage").unwrap();
        assert!(fixture.store.save(&grant.hold, 1, &garbage).await.unwrap().is_held());
        fixture.store.release_one(grant.hold).await.unwrap();
    });
    for args in [
        &["status", FLEET][..],
        &["who", FLEET, "1"],
        &["drain", FLEET, "a"],
        &["undrain", FLEET, "a"],
        &["pause", FLEET, "1"],
        &["resume", FLEET, "1"],
    ] {
        let ran = fixture.run(&[&["fleet"], args].concat());
        ran.exits(123).complains("'tenure:control:poll'");
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn a_plan_without_a_change_shows_all_owners() {
    let sandbox = Sandbox::new();
    let args = ["fleet", "plan", FLEET, "--members", "web-2,web-1", "--shards", "a,b,c,d,e,e,"];
    let ran = sandbox.run(&args);
    ran.exits(0).says("5 shards of 'poll' from the list given.").says("MEMBER  SHARDS\nweb-1  ");
    ran.says("max - min: 1\n").says("web-1 (").complains("left out: number 7 of the list");
    let ran = sandbox.run(&[&args[..], &["--json"]].concat());
    let answer = ran.exits(0).json();
    assert_eq!((&answer["spread"], &answer["moves"]), (&json!(1), &json!(null)), "{answer}");
    assert_eq!((&answer["bound"], &answer["paused"]), (&json!(null), &json!([])), "{answer}");
    assert_eq!(answer["shards"].as_array().unwrap().len(), 5);
    let shares: Vec<u64> = ["web-1", "web-2"]
        .map(|id| row(&answer, "members", "id", id)["shards"].as_u64().unwrap())
        .into();
    assert_eq!(shares.iter().sum::<u64>(), 5);
    // The plan does not depend on the order of the list, and opens no store.
    let other =
        ["fleet", "plan", FLEET, "--members", "web-1,web-2", "--shards", "e,d,c,b,a", "--json"];
    assert_eq!(sandbox.run(&other).exits(0).json(), answer);
    sandbox.assert_nothing_left();
    let ran = sandbox.run(&["fleet", "plan", FLEET, "--members", "a", "--shards-command", "true"]);
    ran.exits(0).says("0 shards of 'poll' from ").says("max - min: 0");
}

/// The example of docs/PLACEMENT.md.
#[test]
fn a_plan_with_a_join_or_a_leave_shows_the_moves() {
    let sandbox = Sandbox::new();
    let shards: Vec<String> = (0..10).map(|number| format!("shard-{number}")).collect();
    std::fs::write(sandbox.path().join("shards"), shards.join("\n")).unwrap();
    let plan = |members: &str, rest: &[&str]| {
        let args = ["fleet", "plan", FLEET, "--members", members, "--shards-file", "shards"];
        sandbox.run(&[&args[..], rest].concat())
    };
    let ran = plan("web-1,web-2", &["--join", "web-3"]);
    ran.exits(0)
        .says("web-1        5      3\nweb-2        5      4\nweb-3        -      3  joins\n");
    ran.says("moves: 3, at most 7 (⌈10/3⌉ + 3)\nmax - min: 1\n");
    ran.says("shard-1  web-2  →  web-3\nshard-3  web-1  →  web-3\nshard-6  web-1  →  web-3\n");
    let answer = plan("web-1,web-2", &["--join", "web-3", "--json"]).exits(0).json();
    assert_eq!(
        (&answer["moves"], &answer["bound"], &answer["spread"]),
        (&json!(3), &json!(7), &json!(1))
    );
    let moved = row(&answer, "shards", "shard", "shard-6");
    assert_eq!(moved, json!({"shard": "shard-6", "owner": "web-3", "before": "web-1"}));
    let new_member = row(&answer, "members", "id", "web-3");
    assert_eq!(new_member, json!({"id": "web-3", "shards": 3, "before": 0}));

    let answer = plan("web-1,web-2,web-3", &["--leave", "web-2", "--json"]).exits(0).json();
    let leaver = row(&answer, "members", "id", "web-2");
    assert_eq!(
        (&leaver["shards"], &leaver["before"]),
        (&json!(0), &answer["moves"]),
        "what it had moves, and nothing else"
    );
    assert_eq!((&answer["bound"], &answer["spread"]), (&json!(7), &json!(0)), "{answer}");
    plan("web-1,web-2,web-3", &["--leave", "web-2"]).exits(0).says("  -  leaves\n");
}

#[test]
fn a_plan_for_many_shards_fits_on_a_screen() {
    let sandbox = Sandbox::new();
    let shards: Vec<String> = (0..100_000).map(|number| format!("tenant-{number}")).collect();
    std::fs::write(sandbox.path().join("shards"), shards.join("\n")).unwrap();
    let args = ["fleet", "plan", FLEET, "--members", "a,b,c", "--shards-file", "shards"];
    let ran = sandbox.run(&args);
    ran.exits(0)
        .says("100,000 shards of 'poll' from the file '")
        .says("… and 99,952 more: --json shows all");
    assert!(ran.stdout.lines().count() <= 30, "{}", ran.stdout);
    let ran = sandbox.run(&[&args[..], &["--join", "d"]].concat());
    ran.exits(0).says("moves: 25,000, at most 25,004 (⌈100,000/4⌉ + 4)\nmax - min: 0\n");
    assert!(ran.stdout.lines().count() <= 40, "{}", ran.stdout);
}

#[test]
fn invalid_usage_exits_125_and_an_unreachable_store_122() {
    let sandbox = Sandbox::new();
    let plan = |rest: &[&'static str]| [&["plan", FLEET, "--shards", "1"], rest].concat();
    for (args, says) in [
        (vec![], "Usage"),
        (vec!["frobnicate"], "frobnicate"),
        (vec!["status"], "NAME"),
        (vec!["status", "a b"], "' '"),
        (vec!["status", "tenure:x"], "begins with 'tenure:'"),
        (vec!["status", "a:lease:b"], "must not hold"),
        (vec!["who", FLEET], "SHARD"),
        (vec!["drain", FLEET], "MEMBER"),
        (vec!["drain", FLEET, "b c"], "' '"),
        (vec!["drain", FLEET, "b", "--wait", "10"], "10s for seconds"),
        (vec!["undrain", FLEET, "b", "--wait", "1s"], "--wait"),
        (vec!["pause", FLEET], "SHARD"),
        (vec!["resume", FLEET], "SHARD"),
        (vec!["plan", FLEET, "--members", "a"], "no shards: give --shards"),
        (
            vec!["plan", FLEET, "--members", "a", "--shards", "1", "--shards-file", "f"],
            "give one of them",
        ),
        (vec!["plan", FLEET, "--members", "a", "--shards-redis-set", "k"], "not on Redis"),
        (plan(&[]), "--members"),
        (plan(&["--members", ""]), "must not be empty"),
        (plan(&["--members", "a,,b"]), "must not be empty"),
        (plan(&["--members", "a,b,a"]), "'a' is there twice"),
        (
            plan(&["--members", "a,b", "--join", "b"]),
            "--join 'b': it is among the --members already",
        ),
        (plan(&["--members", "a,b", "--leave", "c"]), "--leave 'c': it is not among the --members"),
        (plan(&["--members", "a", "--leave", "a"]), "nobody would be left"),
        (plan(&["--members", "a,b", "--leave", "a", "--join", "c"]), "cannot be used with"),
    ] {
        let ran = sandbox.run(&[&["fleet"], &args[..]].concat());
        ran.exits(125).complains(says);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    sandbox
        .run(&["--store", "memory:", "fleet", "status", FLEET])
        .exits(125)
        .complains("one process only");
    if cfg!(feature = "redis") {
        for args in [
            &["status", FLEET][..],
            &["who", FLEET, "1"],
            &["drain", FLEET, "a"],
            &["undrain", FLEET, "a"],
            &["pause", FLEET, "1"],
            &["resume", FLEET, "1"],
            &["plan", FLEET, "--members", "a"],
        ] {
            sandbox.run(&[&["--store", "redis://127.0.0.1:1", "fleet"], args].concat()).exits(122);
        }
    }
}
