//! Tests of `ElectionConfig`: the settings of an election in an application's own JSON or TOML file.

#![allow(clippy::unwrap_used)] // Helpers of tests fail like tests.

use std::time::Duration;

use tenure::{Clock, ElectionConfig, Kind, Name};

const ALL: &str = r#"
name = "reports:nightly"
id = "web-1"
ttl = "10s"
renew_every = "2s500ms"
retry_period = "5s"
grace = "1s"
margin = "500ms"
stop_within = "1s"
drift = 2000
priority = -3
note = "http://10.0.0.1:8080"
"#;

#[test]
fn every_setting_is_read_from_toml_and_json() {
    let config: ElectionConfig = toml::from_str(ALL).unwrap();
    assert_eq!(config.name.as_str(), "reports:nightly");
    assert_eq!(config.id.as_ref().unwrap().as_str(), "web-1");
    assert_eq!(config.ttl, Some(Duration::from_secs(10)));
    assert_eq!(config.renew_every, Some(Duration::from_millis(2_500)));
    assert_eq!(config.retry_period, Some(Duration::from_secs(5)));
    assert_eq!(config.grace, Some(Duration::from_secs(1)));
    assert_eq!(config.margin, Some(Duration::from_millis(500)));
    assert_eq!(config.stop_within, Some(Duration::from_secs(1)));
    assert_eq!((config.drift, config.priority), (Some(2_000), -3));
    assert_eq!(config.note.as_str(), "http://10.0.0.1:8080");
    let value: toml::Table = toml::from_str(ALL).unwrap();
    let json = serde_json::to_string(&value).unwrap();
    assert_eq!(serde_json::from_str::<ElectionConfig>(&json).unwrap(), config);
}

#[test]
fn only_the_name_is_required() {
    let config: ElectionConfig = toml::from_str("name = 'job'").unwrap();
    assert_eq!(config, ElectionConfig::new(Name::new("job").unwrap()));
    let error = toml::from_str::<ElectionConfig>("ttl = '4s'").unwrap_err().to_string();
    assert!(error.contains("missing field `name`"), "{error}");
}

#[test]
fn an_unknown_key_is_named_and_the_known_ones_are_listed() {
    let known = [
        "name",
        "id",
        "ttl",
        "renew_every",
        "retry_period",
        "grace",
        "margin",
        "stop_within",
        "drift",
        "priority",
        "note",
    ];
    let toml = toml::from_str::<ElectionConfig>("name = 'job'\nrenew-every = '1s'").unwrap_err();
    let json = r#"{"name": "job", "renew-every": "1s"}"#;
    let json = serde_json::from_str::<ElectionConfig>(json).unwrap_err();
    assert!(toml.to_string().contains("line 2"), "{toml}");
    for error in [toml.to_string(), json.to_string()] {
        assert!(error.contains("unknown field `renew-every`"), "{error}");
        assert!(known.iter().all(|key| error.contains(&format!("`{key}`"))), "{error}");
    }
}

#[test]
fn a_wrong_value_is_refused_with_its_key() {
    for (settings, says) in [
        (r#"{"name": "job", "ttl": "4x"}"#, "ttl: '4x' is no duration: type it like 500ms"),
        (r#"{"name": "job", "grace": 4}"#, "grace: '4' has no unit: type 4s for seconds or 4ms"),
        (r#"{"name": "job", "margin": -1}"#, "margin: '-1' is no duration"),
        (r#"{"name": "job", "ttl": true}"#, "expected ttl: a duration such as \"500ms\""),
        (r#"{"name": "two words"}"#, "name: a lease name may contain only"),
        (r#"{"name": "tenure:x"}"#, "name: the name 'tenure:x' begins with 'tenure:'"),
        (r#"{"name": "job", "id": ""}"#, "id: a candidate id must not be empty"),
        (r#"{"name": "job", "note": "a\nb"}"#, "note: a note must not contain control characters"),
        (r#"{"name": "job", "drift": -1}"#, "invalid value: integer `-1`, expected u32"),
    ] {
        let error = serde_json::from_str::<ElectionConfig>(settings).unwrap_err().to_string();
        assert!(error.contains(says), "{settings}: {error}");
    }
}

#[tokio::test]
async fn the_builder_has_every_setting() {
    let store = tenure::open("memory:").await.unwrap();
    let config: ElectionConfig = toml::from_str(ALL).unwrap();
    let election = config.builder().clock(Clock::manual()).start(store.clone()).await.unwrap();
    let leadership = election.leadership().await.unwrap();
    let status = election.status();
    assert_eq!(status.candidate_id.as_str(), "web-1");
    assert_eq!(status.priority, -3);
    // 10 s with a drift of 2000 ppm and a margin of 500 ms.
    assert_eq!(leadership.valid_for(), Duration::from_millis(10_000 - 20 - 500));
    let lease = tenure::StoreExt::observe_one(&*store, election.name()).await.unwrap().unwrap();
    assert_eq!(lease.note.as_str(), "http://10.0.0.1:8080");
    assert_eq!(lease.ttl, Duration::from_secs(10));
    drop(leadership);
    election.stop().await;
    // The other durations take part in the check of all of them.
    for (key, value) in [("renew_every", "10s"), ("grace", "10s"), ("stop_within", "9s")] {
        let settings = serde_json::json!({"name": "job", "ttl": "10s", key: value});
        let config: ElectionConfig = serde_json::from_value(settings).unwrap();
        let error = config.builder().start(store.clone()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{key}");
    }
    let settings = serde_json::json!({"name": "job", "retry_period": "0s"});
    let config: ElectionConfig = serde_json::from_value(settings).unwrap();
    let error = config.builder().start(store).await.unwrap_err();
    assert!(error.to_string().contains("retry period"), "{error}");
}
