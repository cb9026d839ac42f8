//! Checks of Dockerfile, compose.yaml, .env and .dockerignore.

use std::process::Command;

use libtest_mimic::Trial;
use serde_json::Value;

use crate::compose::{Compose, variables};
use crate::{needs, root, text, trial};

const WORKERS: [(&str, &str); 3] =
    [("worker-1", "3000"), ("worker-2", "3001"), ("worker-3", "3002")];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("compose::has_redis_and_three_workers", None, compose_has_redis_and_three_workers),
        trial(
            "compose::a_real_parser_reads_the_same",
            needs("python3", &["-c", "import yaml"]),
            a_real_parser_reads_the_same,
        ),
        trial("env::has_three_names_with_a_comment_each", None, env_has_three_names),
        trial("dockerfile::is_what_it_should_be", None, dockerfile_is_what_it_should_be),
        trial("dockerfile::everything_it_needs_is_sent", None, everything_it_needs_is_sent),
    ]
}

fn compose_has_redis_and_three_workers() {
    let compose = Compose::read();
    assert_eq!(compose.services(), ["redis", "worker-1", "worker-2", "worker-3"]);
    let one = |service: &str, key: &str| compose.values(service, key).join(" ");
    assert_eq!(one("redis", "container_name"), "leader-election-redis");
    let command = one("redis", "command");
    for word in [
        "\"--appendonly\", \"yes\"",
        "\"--appendfsync\", \"always\"",
        "\"--no-appendfsync-on-rewrite\", \"no\"",
        "noeviction",
    ] {
        assert!(command.contains(word), "{command}");
    }
    assert!(!one("redis", "healthcheck.test").is_empty());
    for (worker, port) in WORKERS {
        let environment = compose.environment(worker);
        assert_eq!(environment["REDIS_URL"], "redis://redis:6379/0");
        assert_eq!(environment["TENURE_NODE_ID"], worker, "so that 'docker stop' can name it");
        assert_eq!(environment["PORT"], port);
        assert_eq!(environment.len(), 3, "{environment:?}");
        assert_eq!(one(worker, "container_name"), worker);
        assert_eq!(one(worker, "ports"), format!("{port}:{port}"));
        assert_eq!(one(worker, "env_file"), ".env");
        assert_eq!(one(worker, "build"), ".");
        assert_eq!(one(worker, "depends_on.redis.condition"), "service_healthy");
    }
}

fn a_real_parser_reads_the_same() {
    let script = "import json, yaml; print(json.dumps(yaml.safe_load(open('compose.yaml'))))";
    let ran = Command::new("python3").args(["-c", script]).current_dir(root()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let parsed: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let compose = Compose::read();
    let services = parsed["services"].as_object().unwrap();
    let mut names = compose.services();
    names.sort();
    assert_eq!(services.keys().cloned().collect::<Vec<_>>(), names);
    for (service, read) in services {
        assert_eq!(compose.values(service, "container_name").join(""), read["container_name"]);
        let ports = read["ports"].as_array().unwrap();
        let ports: Vec<&str> = ports.iter().map(|port| port.as_str().unwrap()).collect();
        assert_eq!(compose.values(service, "ports"), ports);
        let environment = serde_json::to_value(compose.environment(service)).unwrap();
        let none = Value::Object(serde_json::Map::new());
        assert_eq!(&environment, read.get("environment").unwrap_or(&none), "{service}");
        if service != "redis" {
            assert_eq!(compose.values(service, "env_file").join(""), read["env_file"]);
        }
    }
}

fn env_has_three_names() {
    let file = text(".env");
    let read: Vec<(String, String)> = variables(&file).into_iter().collect();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let (every, key) = (pair("POLL_INTERVAL", "5000"), pair("REDIS_LOCK_KEY", "poll:leader"));
    assert_eq!(read, [every, key, pair("REDIS_LOCK_TTL", "4000")]);
    let lines: Vec<&str> = file.lines().collect();
    for pair in lines.windows(2).filter(|pair| pair[1].contains('=')) {
        assert!(pair[0].starts_with("# "), "no comment above {}", pair[1]);
    }
}

fn dockerfile_is_what_it_should_be() {
    let file = text("Dockerfile").replace("\\\n", " ");
    let lines: Vec<&str> = file.lines().collect();
    let begins = |word: &str| lines.iter().filter(|line| line.starts_with(word)).count();
    assert_eq!(begins("FROM "), 2, "one stage builds, the other is shipped");
    let shipped: Vec<&str> =
        lines.iter().copied().skip_while(|line| !line.starts_with("FROM debian")).collect();
    let one = |word: &str| {
        let found: Vec<&&str> = shipped.iter().filter(|line| line.starts_with(word)).collect();
        assert_eq!(found.len(), 1, "{word}: {found:?}");
        found[0][word.len()..].to_owned()
    };
    let build = lines.iter().find(|line| line.contains("cargo build")).unwrap();
    assert_eq!(build.matches("--mount=type=cache,target=").count(), 2, "{build}");
    assert!(build.contains("--locked") && build.contains("--release"), "{build}");
    let user = one("USER ");
    assert!(user.split(':').all(|part| part.parse::<u32>().is_ok_and(|id| id > 0)), "{user}");
    assert_eq!(one("ENV "), "TENURE_HTTP_HOST=0.0.0.0");
    assert_eq!(one("ENTRYPOINT "), "[\"tenure\"]");
    assert_eq!(one("CMD "), "[\"run\"]");
    let health = one("HEALTHCHECK ");
    assert!(health.contains("GET /healthz"), "{health}");
    assert!(shipped.iter().any(|line| line.starts_with("COPY --from=build ")));
}

/// .dockerignore must not list what the build needs, and must list what is large.
fn everything_it_needs_is_sent() {
    let ignored = text(".dockerignore");
    let ignored: Vec<&str> = ignored.lines().collect();
    for large in ["target", ".git"] {
        assert!(ignored.contains(&large), "{large}");
    }
    for needed in ["Cargo.toml", "Cargo.lock", "crates", "rustfmt.toml", "**/*.md", "*"] {
        assert!(!ignored.contains(&needed), "{needed}");
    }
}
