//! PURE: the requests and answers of etcd's HTTP gateway. In its JSON, bytes are base64 and 64-bit numbers are text; a field
//! with the value zero is left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EtcdBytes(pub(super) Vec<u8>);

impl From<&str> for EtcdBytes {
    fn from(text: &str) -> Self {
        EtcdBytes(text.as_bytes().to_vec())
    }
}

impl Serialize for EtcdBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for EtcdBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(EtcdBytes).map_err(D::Error::custom)
    }
}

/// A 64-bit number as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Int(pub(super) i64);

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The identifiers of members and clusters are unsigned, and are not used as numbers.
        let text = String::deserialize(deserializer)?;
        let number = text.parse().or_else(|_| text.parse::<u64>().map(u64::cast_signed));
        number.map(Int).map_err(D::Error::custom)
    }
}

/// What every answer begins with.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) member_id: Int,
    pub(super) revision: Int,
    pub(super) raft_term: Int,
}

/// A key and its value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EtcdKeyValue {
    pub(super) key: EtcdBytes,
    pub(super) value: EtcdBytes,
    pub(super) mod_revision: Int,
    /// The etcd lease that the key is attached to; zero: none.
    pub(super) lease: Int,
}

/// A read of one key, or of the keys from `key` to before `range_end`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RangeRequest {
    pub(super) key: EtcdBytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<EtcdBytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<Int>,
    pub(super) keys_only: bool,
}

impl RangeRequest {
    pub(super) fn key(key: &str) -> Self {
        RangeRequest { key: key.into(), range_end: None, limit: None, keys_only: false }
    }

    /// All keys that begin with `prefix`.
    pub(super) fn prefix(prefix: &str) -> Self {
        let (key, range_end) = prefix_range(prefix);
        RangeRequest { key, range_end: Some(range_end), limit: None, keys_only: false }
    }

    pub(super) fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }
}

/// The first key that begins with `prefix`, and the first one after all of these. For the empty prefix both are a zero byte:
/// all keys.
pub(super) fn prefix_range(prefix: &str) -> (EtcdBytes, EtcdBytes) {
    if prefix.is_empty() {
        return (EtcdBytes(vec![0]), EtcdBytes(vec![0]));
    }
    let mut end = prefix.as_bytes().to_vec();
    // The last byte of UTF-8 is never 255.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (prefix.into(), EtcdBytes(end))
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeResponse {
    pub(super) header: Header,
    pub(super) kvs: Vec<EtcdKeyValue>,
    pub(super) more: bool,
}

/// A write of one key.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PutRequest {
    pub(super) key: EtcdBytes,
    pub(super) value: EtcdBytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<Int>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) ignore_value: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) ignore_lease: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct DeleteRequest {
    pub(super) key: EtcdBytes,
}

/// One step of a transaction.
#[derive(Clone, Debug, Serialize)]
pub(super) enum RequestOp {
    #[serde(rename = "request_range")]
    Range(RangeRequest),
    #[serde(rename = "request_put")]
    Put(PutRequest),
    #[serde(rename = "request_delete_range")]
    Delete(DeleteRequest),
}

/// A condition of a transaction: the key was last written at this revision. Zero: the key does not exist.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Compare {
    key: EtcdBytes,
    target: &'static str,
    result: &'static str,
    mod_revision: Int,
}

impl Compare {
    pub(super) fn written_at(key: &str, revision: Int) -> Self {
        Compare { key: key.into(), target: "MOD", result: "EQUAL", mod_revision: revision }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct TxnRequest {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<RequestOp>,
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnResponse {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResponseOp {
    pub(super) response_range: Option<RangeResponse>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LeaseGrantRequest {
    #[serde(rename = "TTL")]
    pub(super) ttl: Int,
}

/// An etcd lease and its TTL in seconds. After a keepalive a TTL of zero means that the lease does not exist any more.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseResponse {
    pub(super) header: Header,
    #[serde(rename = "ID")]
    pub(super) id: Int,
    #[serde(rename = "TTL")]
    pub(super) ttl: Int,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LeaseRequest {
    #[serde(rename = "ID")]
    pub(super) id: Int,
}

/// One message of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct StreamItem<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<GatewayError>,
}

impl<T> Default for StreamItem<T> {
    fn default() -> Self {
        StreamItem { result: None, error: None }
    }
}

/// An error of the gateway. Its form differs between versions, and between answers and streams.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct GatewayError {
    pub(super) message: Option<String>,
    pub(super) error: Option<String>,
    /// The gRPC code.
    pub(super) code: Option<i64>,
    pub(super) grpc_code: Option<i64>,
}

impl GatewayError {
    pub(super) fn text(&self) -> &str {
        self.message.as_deref().or(self.error.as_deref()).unwrap_or_default()
    }

    pub(super) fn grpc_code(&self) -> Option<i64> {
        self.grpc_code.or(self.code)
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct WatchRequest {
    pub(super) create_request: WatchCreateRequest,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct WatchCreateRequest {
    pub(super) key: EtcdBytes,
    pub(super) range_end: EtcdBytes,
    pub(super) start_revision: Int,
    pub(super) progress_notify: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchResponse {
    pub(super) header: Header,
    pub(super) created: bool,
    pub(super) canceled: bool,
    pub(super) cancel_reason: String,
    /// The oldest revision that can be watched, if the requested one is older.
    pub(super) compact_revision: Int,
    pub(super) events: Vec<EtcdEvent>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EtcdEvent {
    /// `DELETE`, or left out for a write.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) kv: EtcdKeyValue,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_spelled_as_the_gateway_spells_them() {
        let txn = TxnRequest {
            compare: vec![Compare::written_at("a", Int(0))],
            success: vec![
                RequestOp::Put(PutRequest {
                    key: "a".into(),
                    value: "me".into(),
                    lease: Some(Int(7)),
                    ignore_value: false,
                    ignore_lease: false,
                }),
                RequestOp::Delete(DeleteRequest { key: "b".into() }),
            ],
            failure: vec![RequestOp::Range(RangeRequest::key("a").keys_only())],
        };
        assert_eq!(
            serde_json::to_string(&txn).unwrap(),
            r#"{"compare":[{"key":"YQ==","target":"MOD","result":"EQUAL","mod_revision":"0"}],"success":[{"request_put":{"key":"YQ==","value":"bWU=","lease":"7"}},{"request_delete_range":{"key":"Yg=="}}],"failure":[{"request_range":{"key":"YQ==","keys_only":true}}]}"#
        );
        let answer: RangeResponse = serde_json::from_str(
            r#"{"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","revision":"9","raft_term":"2"},
                "kvs":[{"key":"YQ==","create_revision":"8","mod_revision":"9","version":"2","value":"bWU=","lease":"7587870"}],"count":"1"}"#,
        )
        .unwrap();
        assert_eq!((answer.header.raft_term, answer.kvs[0].lease), (Int(2), Int(7_587_870)));
        assert_eq!(answer.kvs[0].value, "me".into());
    }

    #[test]
    fn a_prefix_is_a_range() {
        assert_eq!(prefix_range("a:"), ("a:".into(), "a;".into()));
        assert_eq!(prefix_range(""), (EtcdBytes(vec![0]), EtcdBytes(vec![0])));
    }
}
