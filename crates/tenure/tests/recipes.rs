//! Runs the recipes of the fencing chapter, extracted verbatim, against SQLite and Redis.
//!
//! A recipe that cannot run here is reported as ignored, with the reason, unless `TENURE_REQUIRE_STORES` is `all`.

use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use tenure_rig::servers::{Scratch, Server};

const CHAPTER: &str = include_str!("../src/docs/fencing.md");

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let server = tenure_rig::servers::find("redis-7", "redis-server")
        .zip(tenure_rig::servers::find("redis-7", "redis-cli"));
    let sqlite = Command::new("python3").args(["-c", "import sqlite3"]).output();
    let no_sqlite = match sqlite {
        Ok(output) if output.status.success() => None,
        _ => Some("python3 with sqlite3 is missing".to_owned()),
    };
    let no_redis = server.is_none().then(|| tenure_rig::servers::install_hint("redis-7"));
    let trials = vec![
        trial("sql_statement_refuses_a_stale_token", no_sqlite, sql),
        trial("redis_script_refuses_a_stale_token", no_redis, redis),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, missing: Option<String>, run: fn() -> Result<(), Failed>) -> Trial {
    let required = std::env::var("TENURE_REQUIRE_STORES").is_ok_and(|stores| stores == "all");
    match missing {
        None => Trial::test(name, run),
        Some(reason) if required => Trial::test(name, || Err(reason.into())),
        Some(reason) => Trial::test(name, run).with_kind(reason).with_ignored_flag(true),
    }
}

/// The only code block of this language in the chapter.
fn block(language: &str) -> &'static str {
    let (_, rest) = CHAPTER.split_once(&format!("```{language}\n")).expect("the recipe is there");
    let (block, rest) = rest.split_once("```").expect("it ends");
    assert!(!rest.contains(&format!("```{language}\n")), "one recipe in {language}");
    block
}

const SQLITE_SCRIPT: &str = r#"
import sqlite3, sys
statement = sys.argv[1]
jobs = sqlite3.connect(":memory:")
jobs.execute("CREATE TABLE jobs (id TEXT PRIMARY KEY, result TEXT, token BIGINT NOT NULL DEFAULT 0)")
jobs.execute("INSERT INTO jobs (id) VALUES ('night')")
for token, result in [(7, "a"), (7, "b"), (9007199254740990, "c"), (7, "late"), (9007199254740989, "late")]:
    changed = jobs.execute(statement, {"1": token, "2": "night", "3": result}).rowcount
    print(changed, *jobs.execute("SELECT result, token FROM jobs").fetchone())
"#;

fn sql() -> Result<(), Failed> {
    let python = Command::new("python3").args(["-c", SQLITE_SCRIPT, block("sql")]).output()?;
    let output = String::from_utf8(python.stdout)?;
    let lines: Vec<&str> = output.lines().collect();
    let kept = "0 c 9007199254740990";
    let errors = String::from_utf8_lossy(&python.stderr);
    assert_eq!(lines, ["1 a 7", "1 b 7", "1 c 9007199254740990", kept, kept], "{errors}");
    Ok(())
}

fn redis() -> Result<(), Failed> {
    let find = |program| tenure_rig::servers::find("redis-7", program).ok_or("it was there");
    let (server, client) = (find("redis-server")?, find("redis-cli")?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let scratch = Scratch::new();
        let socket = scratch.path().join("socket");
        let arguments = ["--port", "0", "--unixsocket", "socket", "--save", ""];
        let probe =
            async || redis_cli(&client, &socket, &["PING"]).is_ok_and(|output| output == "PONG");
        let _server = Server::start(scratch, server, arguments, probe).await?;
        let write = |token: &str, value: &str| {
            let script = block("lua");
            redis_cli(&client, &socket, &["EVAL", script, "1", "report", token, "text", value])
        };
        assert_eq!(write("7", "a")?, "1");
        assert_eq!(write("7", "b")?, "1");
        assert_eq!(write("9007199254740990", "c")?, "1");
        assert_eq!(write("9007199254740989", "late")?, "0");
        assert_eq!(write("7", "late")?, "0");
        let found = redis_cli(&client, &socket, &["HMGET", "report", "token", "text"])?;
        assert_eq!(found, "9007199254740990\nc");
        Ok(())
    })
}

fn redis_cli(client: &Path, socket: &Path, command: &[&str]) -> std::io::Result<String> {
    let output = Command::new(client).arg("-s").arg(socket).args(command).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
