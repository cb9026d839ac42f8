//! Settings: precedence, errors, and `--print-config`.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use tenure_rig::command::{CommandResult, Sandbox};

/// The output of the command must never contain it.
const PASSWORD: &str = "sentinelpw";

/// A sandbox with files in it.
struct Files(Sandbox);

impl Files {
    fn new(files: &[(&str, &str)]) -> Files {
        let sandbox = Files(Sandbox::new());
        for (name, text) in files {
            sandbox.write(name, text);
        }
        sandbox
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        self.0.put(name, text)
    }

    #[track_caller]
    fn run(&self, variables: &[(&str, &str)], args: &[&str]) -> CommandResult {
        let output = self.0.command(args).envs(variables.iter().copied()).output();
        let ran = CommandResult::new(output.unwrap());
        let printed = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!printed.contains(PASSWORD), "{printed}");
        ran
    }

    /// Value and origin of a setting of `tenure run`.
    #[track_caller]
    fn setting(&self, key: &str, variables: &[(&str, &str)], args: &[&str]) -> (Value, String) {
        let args = [&["run", "--print-config", "--json"], args].concat();
        let answer = self.run(variables, &args).exits(0).json();
        let settings = answer["settings"].as_array().unwrap();
        let setting = settings.iter().find(|setting| setting["key"] == key).unwrap();
        (setting["value"].clone(), setting["origin"].as_str().unwrap().to_owned())
    }
}

#[test]
fn each_layer_takes_precedence_over_the_lower_ones() {
    let files = Files::new(&[
        ("tenure.toml", "# ours\nlease-duration = \"5s\"\n"),
        ("prod.env", "\nexport TENURE_LEASE_DURATION='6s'\n"),
    ]);
    let variable = [("TENURE_LEASE_DURATION", "7s")];
    let env_file = ["--env-file", "prod.env"];
    let typed = ["--env-file", "prod.env", "--lease-duration", "8s"];
    for (variables, args, value, origin) in [
        (&[][..], &[][..], "5s", "tenure.toml line 2"),
        (&[], &env_file[..], "6s", "prod.env line 2 (TENURE_LEASE_DURATION)"),
        (&variable[..], &env_file[..], "7s", "TENURE_LEASE_DURATION"),
        (&variable[..], &typed[..], "8s", "--lease-duration"),
    ] {
        let (found, from) = files.setting("lease-duration", variables, args);
        assert_eq!((found, from.as_str()), (json!(value), origin));
    }
    let nothing = Files::new(&[]);
    let (value, origin) = nothing.setting("lease-duration", &[], &[]);
    assert_eq!((value, origin.as_str()), (Value::Null, "default"));
    let (value, origin) = nothing.setting("health-every", &[], &[]);
    assert_eq!((value, origin.as_str()), (json!("2s"), "default"));
}

#[test]
fn the_named_file_or_the_first_existing_one_is_used() {
    let files = Files::new(&[
        ("a.toml", "node-id = 'a'"),
        ("b.toml", "node-id = 'b'"),
        (".config/tenure/tenure.toml", "node-id = 'home'"),
        ("prod.env", "TENURE_CONFIG=b.toml"),
    ]);
    let id = |variables: &[(&str, &str)], args: &[&str]| {
        let (value, origin) = files.setting("node-id", variables, args);
        (value.as_str().unwrap().to_owned(), origin)
    };
    let (value, origin) = id(&[], &[]);
    assert_eq!(value, "home");
    assert!(origin.ends_with("/.config/tenure/tenure.toml line 1"), "{origin}");
    files.write("tenure.toml", "node-id = 'here'");
    assert_eq!(id(&[], &[]).0, "here");
    assert_eq!(id(&[("TENURE_ENV_FILE", "prod.env")], &[]).0, "b");
    let config = [("TENURE_ENV_FILE", "prod.env"), ("TENURE_CONFIG", "a.toml")];
    assert_eq!(id(&config, &[]).0, "a");
    assert_eq!(id(&config, &["--config", "b.toml"]), ("b".to_owned(), "b.toml line 1".to_owned()));
}

#[test]
fn one_file_serves_all_commands() {
    let sandbox = Files::new(&[(
        "tenure.toml",
        "lock-dir = \"leases\"\nlock-name = \"n\"\nwait = \"1s\"\nmock = true\ninstance-id = 'i'\n",
    )]);
    sandbox.run(&[], &["status"]).exits(0).says("No leases yet on file:");
    sandbox.run(&[], &["doctor"]).exits(0).says("(from tenure.toml line 1)");
    let help = sandbox.run(&[], &["run", "--print-config"]);
    help.exits(0).says("lock-name = \"n\"  # from tenure.toml line 2");
    help.says("node-id = \"i\"  # from tenure.toml line 5");
    let named = sandbox.run(&[], &["run", "m", "--print-config", "--", "true", "--json"]);
    named.exits(0).says("lock-name = \"m\"  # from NAME").says("mock = false  # default");
}

#[test]
fn the_store_of_the_higher_layer_wins_and_a_layer_has_one_store() {
    let files = Files::new(&[("tenure.toml", "store = 'memory:'")]);
    let doctor = |variables: &[(&str, &str)], args: &[&str]| {
        files.run(variables, &[&["doctor"], args].concat())
    };
    doctor(&[], &[]).exits(0).says("(from tenure.toml line 1)");
    doctor(&[("TENURE_LOCK_DIR", "d")], &[]).exits(0).says("(from TENURE_LOCK_DIR)");
    let both = [("TENURE_LOCK_DIR", "d"), ("TENURE_STORE", "memory:")];
    doctor(&both, &[]).exits(125).complains("TENURE_STORE and TENURE_LOCK_DIR both name a store");
    doctor(&both, &["--lock-dir", "e"]).exits(0).says("(from --lock-dir)");
    files.write("tenure.toml", "store = 'memory:'\n\nlock-dir = 'd'\n");
    doctor(&[], &[]).exits(125).complains("tenure.toml line 1 and tenure.toml line 3 both name");
}

#[test]
fn errors_name_the_file_and_the_line() {
    for (text, says) in [
        (
            "json = false\n\nlease-durtion = '3s'",
            "tenure.toml line 3: 'lease-durtion' is no setting; did you mean 'lease-duration'?",
        ),
        ("lease_duration = '3s'", "did you mean 'lease-duration'?"),
        ("nodes = 3", "tenure.toml line 1: 'nodes' is no setting"),
        ("config = 'x'", "'config' is no setting"),
        ("a = '''\n'''\n[b]\n", "tenure.toml line 1: 'a' is no setting"),
        ("[run]\nwait = '1s'", "tenure.toml line 1: 'run' is no setting"),
        ("once = true\nwait = 5", "tenure.toml line 2: 'wait': invalid value '5'"),
        ("log-level = 'loud'", "tenure.toml line 1: 'log-level': invalid value 'loud'"),
        ("once = 'true'", "tenure.toml line 1: 'once' takes true or false"),
        ("drift = 1.5", "tenure.toml line 1: 'drift' takes text"),
        ("health-fails = 0", "tenure.toml line 1: 'health-fails': invalid value '0'"),
        ("store = ", "tenure.toml line 1: this is no TOML"),
        ("once = true\nonce = true", "tenure.toml line 2: this is no TOML"),
        ("node-id = 'a'\ninstance-id = 'b'", "are the same setting and differ"),
        ("'redis://:sentinelpw@h' = 1", "is no setting"),
        ("node-id = 'redis://:sentinelpw@h'", "tenure.toml line 1: 'node-id'"),
        ("wait = 'redis://:a\"  \\sentinelpw@h'", "tenure.toml line 1: 'wait'"),
    ] {
        let files = Files::new(&[("tenure.toml", text)]);
        let ran = files.run(&[], &["run", "a"]);
        ran.exits(125).complains(says);
        assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{}", ran.stderr);
        let ran = files.run(&[("TENURE_JSON", "yes")], &["run", "a"]);
        let error: Value = serde_json::from_str(&ran.exits(125).stderr).unwrap();
        assert_eq!(error["error"]["kind"], "invalid");
        assert!(error["error"]["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn a_line_of_an_env_file_is_never_quoted() {
    for (text, says) in [
        ("A=1\nTENURE_STORE = redis://:sentinelpw@h", "prod.env line 2: no space"),
        ("sentinelpw", "prod.env line 1: no '='"),
        ("A='sentinelpw", "prod.env line 1: the quote is not closed"),
        ("TENURE_WAIT=1", "prod.env line 1 (TENURE_WAIT): invalid value '1'"),
        ("TENURE_MOCK=perhaps", "prod.env line 1 (TENURE_MOCK): takes true or false"),
    ] {
        let files = Files::new(&[("prod.env", text)]);
        files.run(&[], &["run", "a", "--env-file", "prod.env"]).exits(125).complains(says);
        let ran = files.run(&[("TENURE_ENV_FILE", "prod.env")], &["--json", "run", "a"]);
        let error: Value = serde_json::from_str(&ran.exits(125).stderr).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(says), "{error}");
    }
}

#[test]
fn a_named_file_must_exist_and_an_existing_file_must_be_readable() {
    let files = Files::new(&[]);
    for (variables, args) in [
        (&[][..], &["--config", "no.toml"][..]),
        (&[("TENURE_CONFIG", "no.toml")], &[]),
        (&[], &["--env-file", "no.toml"]),
        (&[("TENURE_ENV_FILE", "no.toml")], &[]),
    ] {
        let ran = files.run(variables, &[&["status"], args].concat());
        ran.exits(125).complains("cannot read the settings in no.toml");
    }
    std::fs::create_dir(files.0.path().join("tenure.toml")).unwrap();
    files.run(&[], &["status"]).exits(125).complains("cannot read the settings in tenure.toml");
    // These two use nothing of the file, and a starting shell runs one of them.
    files.run(&[], &["completions", "bash"]).exits(0);
    files.run(&[], &["man"]).exits(0);
    // This command gets its config only from the demo.
    files.run(&[("TENURE_CONFIG", "no.toml")], &["demo-node"]).exits(125).complains("tenure demo");
    let other = Files::new(&[]);
    other.0.put("tenure.toml", b"# \n\xff");
    other.run(&[], &["status"]).exits(125).complains("tenure.toml line 2: this is no UTF-8");
}

#[test]
fn an_invalid_variable_is_named() {
    let files = Files::new(&[]);
    for (variable, value, args, says) in [
        ("TENURE_WAIT", "5", &["run", "a"][..], "TENURE_WAIT: invalid value '5'"),
        ("TENURE_JSON", "maybe", &["status"], "TENURE_JSON: takes true or false"),
        ("TENURE_LOG_FORMAT", "xml", &["status"], "TENURE_LOG_FORMAT: invalid value 'xml'"),
        ("TENURE_COLOR", "red", &["status"], "TENURE_COLOR: invalid value 'red'"),
        ("TENURE_FAULT", "flood", &["demo"], "TENURE_FAULT: invalid value 'flood'"),
    ] {
        files.run(&[(variable, value)], args).exits(125).complains(says);
    }
    let ids = [("TENURE_NODE_ID", "a"), ("TENURE_INSTANCE_ID", "b")];
    files.run(&ids, &["run", "a"]).exits(125).complains("are the same setting and differ");
    let (value, origin) = files.setting("node-id", &ids[1..], &[]);
    assert_eq!((value, origin.as_str()), (json!("b"), "TENURE_INSTANCE_ID"));
}

#[test]
fn print_config_prints_an_equivalent_tenure_toml() {
    let files =
        Files::new(&[("tenure.toml", "wait = \"1m\"\nhealth = 'a \"b\" \\\\'\ndrift = 7\n")]);
    let ran = files.run(&[("TENURE_STORE", "memory:")], &["run", "n", "--once", "--print-config"]);
    ran.exits(0)
        .says("wait = \"1m\"  # from tenure.toml line 1\n")
        .says("drift = 7  # from tenure.toml line 3\n")
        .says("store = \"memory:\"  # from TENURE_STORE\n")
        .says("once = true  # from --once\n")
        .says("mock = false  # default\n")
        .says("# margin: not set (default: TTL/10)\n")
        .says("# heartbeat: not set\n");
    assert_eq!(ran.stderr, "");
    let values = |ran: &CommandResult| {
        let lines = ran.stdout.lines().map(|line| line.split("  # ").next().unwrap().to_owned());
        lines.collect::<Vec<_>>()
    };
    files.write("tenure.toml", &ran.stdout);
    assert_eq!(values(&files.run(&[], &["run", "--print-config"])), values(&ran));
    // `--print-config` does nothing else.
    files.run(&[], &["demo", "--print-config"]).exits(0).says("nodes = 3  # default");
    files.run(&[], &["revoke", "n", "--yes", "--print-config"]).exits(0);
}

#[test]
fn a_password_is_hidden_and_warned_about_where_others_can_read_it() {
    let store = "store = 'redis://:sentinelpw@127.0.0.1:1'";
    let files = Files::new(&[("tenure.toml", store)]);
    let (value, _) = files.setting("store", &[], &[]);
    assert_eq!(value, "redis://:***@127.0.0.1:1");
    files.run(&[], &["run", "--print-config"]).exits(0).says(":***@");
    files.write("prod.env", "TENURE_STORE=redis://:sentinelpw@127.0.0.1:1");
    if !cfg!(feature = "redis") {
        return;
    }
    for (file, args) in [("tenure.toml", &[][..]), ("prod.env", &["--env-file", "prod.env"])] {
        let path = files.0.path().join(file);
        let doctor = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            files.run(&[], &[&["doctor"], args].concat())
        };
        let warned = doctor(0o640);
        warned.exits(122).complains(&format!("chmod 600 {file}"));
        assert_eq!(warned.stderr.matches("chmod").count(), 1, "{}", warned.stderr);
        assert!(!doctor(0o600).stderr.contains("chmod"));
    }
}

#[test]
fn a_password_in_the_wrong_flag_is_not_quoted() {
    let files = Files::new(&[]);
    for flag in ["--wait=redis://:sentinelpw@h", "--wait=redis://:a\"sentinelpw@h"] {
        files.run(&[], &["run", "a", flag]).exits(125).complains("'--wait <D>'");
        files.run(&[], &["run", "a", "--json", flag]).exits(125).complains("--wait <D>");
    }
    let variable = [("TENURE_WAIT", "redis://:sentinelpw@h")];
    files.run(&variable, &["run", "a"]).exits(125).complains("TENURE_WAIT: invalid value");
}

#[test]
fn colours_are_for_terminals_by_default() {
    let files = Files::new(&[]);
    let coloured = |variables: &[(&str, &str)], args: &[&str]| {
        let ran = files.run(variables, args);
        format!("{}{}", ran.stdout, ran.stderr).contains('\x1b')
    };
    assert!(!coloured(&[], &["--help"]));
    assert!(coloured(&[], &["--color=always", "--help"]));
    assert!(coloured(&[], &["--help", "--color", "always"]));
    assert!(coloured(&[("TENURE_COLOR", "always")], &["--frobnicate"]));
    assert!(!coloured(&[("TENURE_COLOR", "always")], &["--color", "never", "--frobnicate"]));
    assert!(!coloured(&[("NO_COLOR", "1")], &["--color", "auto", "--frobnicate"]));
}

#[test]
fn a_world_writable_file_is_ignored_unless_it_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let file = sandbox.put("tenure.toml", "lock-name = \"x\"\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let args = ["run", "--print-config"];
    sandbox.run(&args).exits(125).complains("tenure.toml can be written by everybody");
    sandbox
        .run(&["run", "--print-config", "--config", "tenure.toml"])
        .exits(0)
        .says("lock-name = \"x\"");
}

#[test]
fn a_group_writable_file_is_refused_unless_it_is_named() {
    let sandbox = Sandbox::new();
    let put = |name: &str, text: &str| {
        let path = sandbox.put(name, text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
        path
    };
    let file = put("tenure.toml", "lock-name = \"x\"\n");
    sandbox
        .run(&["run", "--print-config"])
        .exits(125)
        .complains("tenure.toml can be written by its group (owner ")
        .complains(", mode 664), so its settings are not used")
        .complains("run 'chmod go-w tenure.toml', or name it by --config");
    sandbox
        .run(&["run", "--print-config", "--config", "/dev/null"])
        .exits(0)
        .says("# lock-name: not");
    std::fs::remove_file(file).unwrap();
    // The value is invalid, so that a used file is named in the error and nothing is started.
    put(".env", "REDIS_LOCK_TTL=wrong\n");
    sandbox
        .run(&["run"])
        .exits(125)
        .complains(".env can be written by its group (owner ")
        .complains("run 'chmod go-w .env', or name it by --env-file");
    sandbox.run(&["run", "--env-file", "./.env"]).exits(125).complains("'wrong' is not a number");
}

#[test]
fn a_fifo_found_as_settings_file_is_refused_at_once() {
    for (name, args) in [("tenure.toml", &["run", "--print-config"][..]), (".env", &["run"])] {
        let sandbox = Sandbox::new();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, sandbox.path().join(name), mode).unwrap();
        let says = format!("cannot read the settings in {name}: it is not a regular file");
        sandbox.run(args).exits(125).complains(&says);
    }
}

#[test]
fn the_command_may_be_in_the_file_and_the_command_line_wins() {
    let sandbox = Sandbox::new();
    sandbox
        .put("tenure.toml", "lock-name = \"x\"\ncommand = [\"echo\", \"from the\", \"--file\"]\n");
    let run = |args: &[&str]| {
        let mut command = sandbox.command(&["run", "-q"]);
        CommandResult::new(
            command.env("TENURE_LOCK_DIR", sandbox.path().join("l")).args(args).output().unwrap(),
        )
    };
    run(&[]).exits(0).says("from the --file\n");
    run(&["--", "echo", "typed"]).exits(0).says("typed\n");
    run(&["--print-config"])
        .exits(0)
        .says("command = [\"echo\", \"from the\", \"--file\"]  # from tenure.toml line 2");
    sandbox.put("tenure.toml", "lock-name = \"x\"\ncommand = \"echo hi\"\n");
    run(&[]).exits(125).complains("tenure.toml line 2: 'command' takes a list of words");
}
