//! The sets NAME:shards and NAME:paused that a fleet on Redis has beside its leases: shown and changed by the command.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output};

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;
use tenure_rig::servers::Scratch;
use tenure_rig::system::trial_store::{StoreKind, TrialStore};

pub(crate) fn trials() -> Vec<Trial> {
    let sets = |name: &str, run: fn(&SetsFixture)| {
        trial(format!("fleet_sets::{name}::redis"), StoreKind::Redis, move || {
            run(&SetsFixture::new())
        })
    };
    vec![
        sets("shards_that_nobody_owns_are_shown", shown),
        sets("resume_takes_them_out_of_the_set", resumed),
        sets("a_plan_is_made_for_what_is_in_the_set", planned),
        sets("a_set_that_cannot_be_read_is_in_nobodys_way", spoilt),
    ]
}

/// A private server, and the command that reads it.
struct SetsFixture {
    scratch: Scratch,
    place: TrialStore,
}

impl SetsFixture {
    fn new() -> SetsFixture {
        let scratch = Scratch::new();
        let place = TrialStore::open(StoreKind::Redis, scratch.path(), 0);
        SetsFixture { scratch, place }
    }

    /// Sends a command to the server, and returns its reply.
    fn send(&self, words: &str) -> String {
        let mut server = self.place.ping().unwrap();
        server.write_all(format!("{words}\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(server).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    fn tenure(&self, args: &[&str], code: i32) -> (String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command
            .arg("fleet")
            .args(args)
            .current_dir(self.scratch.path())
            .env("HOME", self.scratch.path());
        let Output { status, stdout, stderr } =
            command.env("TENURE_STORE", self.place.url()).output().unwrap();
        let (stdout, stderr) =
            (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        assert_eq!(status.code(), Some(code), "{args:?}\n{stdout}\n{stderr}");
        (stdout, stderr)
    }

    fn json(&self, args: &[&str], code: i32) -> Value {
        let args = [args, &["--json"]].concat();
        serde_json::from_str(&self.tenure(&args, code).0).unwrap()
    }
}

fn shown(fixture: &SetsFixture) {
    fixture.send("SADD poll:shards 1 2 3");
    fixture.send("SADD poll:paused 2 elsewhere");
    let row = |shard: &str, paused: bool| json!({"shard": shard, "owner": null, "token": null, "paused": paused});
    let shards = [row("1", false), row("2", true), row("3", false), row("elsewhere", true)];
    assert_eq!(
        fixture.json(&["status", "poll"], 1),
        json!({"name": "poll", "members": [], "shards": shards})
    );
    let (text, _) = fixture.tenure(&["status", "poll"], 1);
    assert!(text.contains("4 shards: 0 owned, 2 paused, 2 without an owner."), "{text}");
    assert_eq!(fixture.json(&["who", "poll", "2"], 1)["paused"], true);
    assert_eq!(fixture.json(&["who", "poll", "1"], 1)["paused"], false);
}

fn resumed(fixture: &SetsFixture) {
    fixture.send("SADD poll:paused 1 2");
    fixture.tenure(&["pause", "poll", "3"], 0);
    let (text, _) = fixture.tenure(&["resume", "poll", "1", "3", "4"], 0);
    let lines: Vec<bool> = text.lines().map(|line| line.contains("not paused any more")).collect();
    assert_eq!(lines, [true, true, false], "{text}");
    assert_eq!(fixture.send("SISMEMBER poll:paused 1"), ":0");
    assert_eq!(fixture.send("SISMEMBER poll:paused 2"), ":1", "nobody has said anything about it");
}

fn planned(fixture: &SetsFixture) {
    fixture.send("SADD poll:shards 1 2 3 4");
    fixture.send("SADD poll:paused 4");
    fixture.send("SADD other 5 6");
    let plan = fixture.json(&["plan", "poll", "--members", "a,b,c"], 0);
    assert_eq!((&plan["spread"], &plan["paused"]), (&json!(0), &json!(["4"])), "{plan}");
    let plan = fixture.json(&["plan", "poll", "--members", "a", "--shards-redis-set", "other"], 0);
    assert_eq!(plan["members"], json!([{"id": "a", "shards": 2, "before": null}]));
}

fn spoilt(fixture: &SetsFixture) {
    fixture.send("SET poll:shards text");
    fixture.send("SET poll:paused text");
    let (text, printed) = fixture.tenure(&["status", "poll"], 1);
    assert!(text.contains("0 shards: 0 owned.") && printed.is_empty(), "{text}{printed}");
    fixture.tenure(&["who", "poll", "1"], 1);
    fixture.tenure(&["pause", "poll", "1"], 0);
    // They may be paused in the set, which cannot be read.
    let (text, printed) = fixture.tenure(&["resume", "poll", "1"], 0);
    assert!(
        text.contains("not paused any more") && printed.contains("'poll:paused'"),
        "{text}{printed}"
    );
    let (_, printed) = fixture.tenure(&["plan", "poll", "--members", "a"], 123);
    assert!(printed.contains("'poll:shards'"), "{printed}");
}
