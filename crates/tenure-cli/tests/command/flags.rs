//! Every command accepts every flag that its help lists, and refuses a flag that cannot have an effect, with the reason.

use tenure_rig::command::Sandbox;

/// A store that no command can open: a command that gets this far has accepted its flags.
const NO_STORE: &str = "file:/dev/null/store";
const STORE_REFUSED: i32 = 123;
const USAGE: i32 = 125;

/// Flags that every command has.
const GLOBAL: [&str; 10] = [
    "--store",
    "--lock-dir",
    "--json",
    "--log-level",
    "--log-format",
    "--config",
    "--env-file",
    "--print-config",
    "--color",
    "--help",
];

/// Flags of a candidate, with a value.
const TIMING: [(&str, &str); 8] = [
    ("--node-id", "a"),
    ("--lease-duration", "8s"),
    ("--renew-interval", "1s"),
    ("--retry-period", "1s"),
    ("--grace-period", "1s"),
    ("--margin", "1s"),
    ("--stop-within", "1s"),
    ("--drift", "10"),
];

const SERVICE: [(&str, &str); 8] = [
    ("--health", "true"),
    ("--health-every", "1s"),
    ("--health-fails", "1"),
    ("--health-passes", "1"),
    ("--http", "0"),
    ("--control-secret-file", "secret"),
    ("--allow-host", "localhost"),
    ("--heartbeat", "1s"),
];

/// Flags that a fleet does not have.
const ELECTION: [(&str, &str); 4] =
    [("--priority", "1"), ("--on-lead", "true"), ("--on-lose", "true"), ("--no-presence", "")];

/// The long flags that the help of this command lists, in order.
fn flags_in_help(sandbox: &Sandbox, command: &[&str]) -> Vec<String> {
    let help = sandbox.run(&[command, &["--help"]].concat());
    let flags = help.exits(0).stdout.lines().filter_map(|line| {
        let line = line.trim_start();
        let flag = line.strip_prefix("-h, ").unwrap_or(line);
        let flag = flag.split([' ', '=', ',']).next().filter(|flag| flag.starts_with("--"))?;
        // A default value that mentions a flag may start a line.
        let is_flag = line.contains("  ") || line.contains('<') || line.ends_with(flag);
        (is_flag && !GLOBAL.contains(&flag)).then(|| flag.to_owned())
    });
    let mut flags: Vec<String> = flags.collect();
    flags.sort();
    flags.dedup();
    flags
}

/// Runs the command with these arguments, until it fails to open the store.
fn code(sandbox: &Sandbox, command: &[&str], args: &[&str]) -> (i32, String) {
    let ran = sandbox.run(&[&["--store", NO_STORE], command, args].concat());
    (ran.code.unwrap(), ran.stderr)
}

/// Checks that the help lists exactly these flags, and that the command accepts each of them: the `simple` ones together with
/// `usual`, the others in the arguments that `table` has for them.
fn check(command: &[&str], usual: &str, simple: &[(&str, &str)], table: &[(&str, &str)]) {
    let sandbox = Sandbox::new();
    let secret = sandbox.put("secret", "a-secret-that-is-long-enough-to-be-one");
    std::fs::set_permissions(secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let simple = simple.iter().map(|(flag, value)| (*flag, format!("{flag} {value} {usual}")));
    let table = table.iter().map(|(flag, line)| (*flag, (*line).to_owned()));
    let mut lines: Vec<(&str, String)> = simple.chain(table).collect();
    lines.sort();
    let known: Vec<&str> = lines.iter().map(|(flag, _)| *flag).collect();
    assert_eq!(flags_in_help(&sandbox, command), known, "what {command:?} --help lists");
    for (flag, line) in &lines {
        let args: Vec<&str> = line.split_whitespace().collect();
        let (code, output) = code(&sandbox, command, &args);
        assert_eq!(code, STORE_REFUSED, "{command:?} {flag}: {line}\n{output}");
    }
}

#[test]
fn run_accepts_every_flag_that_its_help_lists() {
    let simple = [&TIMING[..], &SERVICE, &ELECTION].concat();
    let table = [
        ("--lock-name", "--lock-name job -- true"),
        ("--get", "job --get http://127.0.0.1/"),
        ("--timeout", "job --get http://127.0.0.1/ --timeout 1s"),
        ("--mock", "job --mock"),
        ("--no-guard", "job --no-guard -- true"),
        ("--every", "job --every 1s -- true"),
        ("--cron", "job --cron @daily -- true"),
        ("--timezone", "job --cron @daily --timezone UTC -- true"),
        ("--missed", "job --every 1s --missed skip -- true"),
        ("--interrupted", "job --every 1s --interrupted rerun -- true"),
        ("--once", "job --once -- true"),
        ("--wait", "job --wait 1s -- true"),
    ];
    check(&["run"], "job -- true", &simple, &table);
}

#[test]
fn serve_accepts_every_flag_that_its_help_lists() {
    let simple = [&TIMING[..], &SERVICE[..4], &SERVICE[5..], &ELECTION].concat();
    let table = [
        ("--http", "job --http 0"),
        ("--lock-name", "--lock-name job --http 0"),
        ("--answer-for", "job --http 0 --answer-for 1s"),
    ];
    check(&["serve"], "job --http 0", &simple, &table);
}

#[test]
fn fleet_run_accepts_every_flag_that_its_help_lists() {
    let simple = [&TIMING[..], &SERVICE].concat();
    let redis = "job --shards a --mock";
    let table = [
        ("--lock-name", "--lock-name job --shards a --mock"),
        ("--shards", "job --shards a --mock"),
        ("--shards-file", "job --shards-file list --mock"),
        ("--shards-command", "job --shards-command true --mock"),
        // Tested below: they need a store on Redis.
        ("--shards-redis-set", redis),
        ("--shards-redis-keys", redis),
        ("--reread", "job --shards a --reread 1s --mock"),
        ("--get", "job --shards a --get http://127.0.0.1/{}"),
        ("--timeout", "job --shards a --get http://127.0.0.1/{} --timeout 1s"),
        ("--mock", "job --shards a --mock"),
        ("--no-guard", "job --shards a --no-guard -- true {}"),
        ("--every", "job --shards a --every 1s -- true {}"),
        ("--concurrency", "job --shards a --every 1s --concurrency 2 -- true {}"),
    ];
    check(&["fleet", "run"], "job --shards a --mock", &simple, &table);
}

#[test]
fn a_flag_without_an_effect_is_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    let refused: [(&[&str], &str, &str); 9] = [
        (&["run"], "job --timeout 1s -- true", "no --get"),
        (&["run"], "job --timeout 1s --mock", "no --get"),
        (&["run"], "job --timezone UTC -- true", "--cron"),
        (&["fleet", "run"], "job --shards a --timeout 1s -- true {}", "no --get"),
        (&["fleet", "run"], "job --shards a --mock --priority 1", "the same share"),
        (&["fleet", "run"], "job --shards a --mock --on-lead true", "with each shard"),
        (&["fleet", "run"], "job --shards a --mock --no-presence", "gets no shards"),
        (&["fleet", "run"], "job --shards-redis-set a --mock", "Redis"),
        (&["fleet", "run"], "job --shards-redis-keys a:* --mock", "Redis"),
    ];
    for (command, line, reason) in refused {
        let args: Vec<&str> = line.split_whitespace().collect();
        let (code, output) = code(&sandbox, command, &args);
        assert_eq!(code, USAGE, "{command:?} {line}\n{output}");
        assert!(output.contains(reason), "{command:?} {line}\n{output}");
    }
}
