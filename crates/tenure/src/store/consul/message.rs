//! PURE: the requests and answers of Consul's HTTP API. Values of keys are base64.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An empty value is `null`.
        let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        STANDARD.decode(text).map(Bytes).map_err(D::Error::custom)
    }
}

/// The id of a session.
pub(super) type ConsulSessionId = String;

/// One step of a transaction.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct KvOperation {
    verb: &'static str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<ConsulSessionId>,
}

impl KvOperation {
    fn new(verb: &'static str, key: &str) -> Self {
        KvOperation { verb, key: key.to_owned(), ..KvOperation::default() }
    }

    /// Reads a key that must exist.
    pub(super) fn get(key: &str) -> Self {
        KvOperation::new("get", key)
    }

    /// Reads the keys that begin with `prefix`, which is not empty.
    pub(super) fn get_tree(prefix: &str) -> Self {
        KvOperation::new("get-tree", prefix)
    }

    /// The key must have been written last at this index; zero: it must not exist.
    pub(super) fn check(key: &str, index: u64) -> Self {
        match index {
            0 => KvOperation::new("check-not-exists", key),
            index => KvOperation { index: Some(index), ..KvOperation::new("check-index", key) },
        }
    }

    /// Writes the key and gives it to the session. No other session may hold it.
    pub(super) fn lock(key: &str, session: &ConsulSessionId, value: Vec<u8>) -> Self {
        let session = Some(session.clone());
        KvOperation { value: Some(Bytes(value)), session, ..KvOperation::new("lock", key) }
    }

    /// Writes the key and takes it from the session, which must hold it.
    pub(super) fn unlock(key: &str, session: &ConsulSessionId, value: Vec<u8>) -> Self {
        KvOperation { verb: "unlock", ..KvOperation::lock(key, session, value) }
    }

    /// Writes the key if it was written last at this index; zero: if it does not exist. Its session stays.
    pub(super) fn replace(key: &str, index: u64, value: Vec<u8>) -> Self {
        let value = Some(Bytes(value));
        KvOperation { value, index: Some(index), ..KvOperation::new("cas", key) }
    }

    /// Deletes the key if it was written last at this index.
    pub(super) fn delete(key: &str, index: u64) -> Self {
        KvOperation { index: Some(index), ..KvOperation::new("delete-cas", key) }
    }
}

/// An operation as a transaction contains it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) struct TxnOperation {
    pub(super) kv: KvOperation,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct TxnAnswer {
    /// `null` if nothing was done.
    pub(super) results: Option<Vec<TxnResult>>,
    /// `null` if everything was done.
    pub(super) errors: Option<Vec<TxnError>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) struct TxnResult {
    pub(super) kv: KeyValue,
}

/// Why a transaction did nothing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct TxnError {
    /// The number of the operation.
    pub(super) op_index: usize,
    pub(super) what: String,
}

/// What an error of a transaction means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxnRefusal {
    Denied,
    /// The key's last session ended without a release, and the lock-delay runs.
    LockDelay,
    /// The session does not exist.
    NoSession,
    /// The key, or the session that holds it, is not as expected.
    NotAsExpected,
}

impl TxnError {
    pub(super) fn refusal(&self) -> TxnRefusal {
        let what = &self.what;
        if what.contains("Permission denied") {
            TxnRefusal::Denied
        } else if what.contains("due to lock delay") {
            TxnRefusal::LockDelay
        } else if what.contains("invalid session") {
            TxnRefusal::NoSession
        } else {
            TxnRefusal::NotAsExpected
        }
    }
}

/// A key and its value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct KeyValue {
    pub(super) key: String,
    pub(super) value: Bytes,
    /// The session that holds the key.
    pub(super) session: Option<ConsulSessionId>,
    /// When the key, or its session, was last changed.
    pub(super) modify_index: u64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SessionRequest {
    pub(super) name: String,
    #[serde(rename = "TTL")]
    pub(super) ttl: String,
    pub(super) lock_delay: String,
    pub(super) behavior: &'static str,
    /// None: the health of the node must not end the session.
    pub(super) node_checks: [&'static str; 0],
    /// The name of the same field before Consul 1.7.
    pub(super) checks: [&'static str; 0],
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SessionInfo {
    #[serde(rename = "ID")]
    pub(super) id: String,
    #[serde(rename = "Name")]
    pub(super) name: String,
    #[serde(rename = "TTL")]
    pub(super) ttl: String,
}

/// Consul counts in whole seconds here. Rounded up: the server must not expire a term before its holder does.
pub(super) fn whole_seconds(time: Duration) -> String {
    format!("{}s", time.as_millis().div_ceil(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_spelled_as_consul_spells_them() {
        let session: ConsulSessionId = "s".into();
        let operations = [
            KvOperation::check("a", 0),
            KvOperation::check("a", 7),
            KvOperation::lock("a", &session, b"me".to_vec()),
            KvOperation::delete("b", 8),
        ];
        let operations = operations.map(|kv| TxnOperation { kv });
        assert_eq!(
            serde_json::to_string(&operations).unwrap(),
            r#"[{"KV":{"Verb":"check-not-exists","Key":"a"}},{"KV":{"Verb":"check-index","Key":"a","Index":7}},{"KV":{"Verb":"lock","Key":"a","Value":"bWU=","Session":"s"}},{"KV":{"Verb":"delete-cas","Key":"b","Index":8}}]"#
        );
        let answer: TxnAnswer = serde_json::from_str(
            r#"{"Results":[{"KV":{"LockIndex":1,"Key":"k","Flags":0,"Value":"bWU=","Session":"s","CreateIndex":18,"ModifyIndex":20}},{"KV":{"Key":"l","Value":null,"ModifyIndex":3}}],"Errors":null,"Index":0}"#,
        )
        .unwrap();
        let found: Vec<_> = answer.results.unwrap().into_iter().map(|result| result.kv).collect();
        assert_eq!((found[0].modify_index, found[0].session.clone()), (20, Some(session)));
        assert_eq!((&found[0].value.0[..], &found[1].value.0[..]), (&b"me"[..], &b""[..]));
    }

    #[test]
    fn each_refusal_is_recognized() {
        for (what, refusal) in [
            ("Permission denied", TxnRefusal::Denied),
            (r#"failed to lock key "/" due to lock delay"#, TxnRefusal::LockDelay),
            (r#"invalid session "3fc1a639""#, TxnRefusal::NoSession),
            (r#"failed to lock key "k", lock is already held"#, TxnRefusal::NotAsExpected),
            (r#"key "k" doesn't exist"#, TxnRefusal::NotAsExpected),
        ] {
            let error = TxnError { op_index: 0, what: what.to_owned() };
            assert_eq!(error.refusal(), refusal, "{what}");
        }
    }

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(whole_seconds(Duration::from_millis(10_001)), "11s");
        assert_eq!(whole_seconds(Duration::ZERO), "0s");
    }
}
