//! PURE: a Lease object and the record of a lease.
//!
//! The record is in the annotation `tenure/record`, together with the renewTime that was written with it. client-go updates
//! the object that it has read, so the annotation survives its update. A record counts only if the holderIdentity and the
//! renewTime of the `spec` are those that were written with it; otherwise another program has written since, and holds the
//! Lease or has released it.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::lease::Name;
use crate::store::cas::{Document, Entry, ForeignDocument, ForeignHolder, Swap, TermTime};
use crate::store::codec::{self, Decoded};
use crate::store::record::{Record, TermRecord};

/// The annotation with the record, as one JSON object.
pub(super) const RECORD: &str = "tenure/record";

/// The annotation with the full name, on an object whose own name is a hash.
const NAME: &str = "tenure/name";

/// The label of every Lease that has a record: `election`, or `participant` for membership and requests.
pub(super) const KIND: &str = "tenure/lease";

/// The greatest length of a holderIdentity in bytes; client-go writes a host name and a UUID.
const MAX_IDENTITY_BYTES: usize = 1024;

/// One state of a Lease object: the object as it was read or written.
#[derive(Clone)]
pub(super) struct LeaseVersion {
    object: Arc<Lease>,
    uid: String,
    resource_version: String,
}

impl LeaseVersion {
    pub(super) fn of(object: Lease) -> Result<Self> {
        let ObjectMeta { uid, resource_version, .. } = &object.metadata;
        match (uid.clone(), resource_version.clone()) {
            (Some(uid), Some(resource_version)) => {
                Ok(LeaseVersion { object: Arc::new(object), uid, resource_version })
            }
            _ => Err(Error::unavailable(
                "the API server returned a Lease without uid and resourceVersion: is a proxy in between?",
            )),
        }
    }
}

/// A Lease that was deleted and created again has another uid.
impl PartialEq for LeaseVersion {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid && self.resource_version == other.resource_version
    }
}

impl Eq for LeaseVersion {}

impl Hash for LeaseVersion {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.uid, &self.resource_version).hash(state);
    }
}

impl fmt::Debug for LeaseVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseVersion({} of {})", self.resource_version, self.uid)
    }
}

/// What the record keeps of the `spec` that was written with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Renewed {
    /// The renewTime in microseconds.
    renewed_us: i64,
}

/// The name of the object that holds a lease.
pub(super) fn object_name(name: &Name) -> String {
    let text = name.as_str();
    if is_subdomain(text) && !is_hashed(text) {
        return text.to_owned();
    }
    let digest = hmac_sha256::Hash::hash(text.as_bytes());
    digest.iter().fold("t-".to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

/// Whether the text is a DNS-1123 subdomain.
fn is_subdomain(text: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(is_alphanumeric)
            && bytes.last().is_some_and(is_alphanumeric)
            && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Whether the text looks like the name of an object for a name that is no subdomain.
fn is_hashed(text: &str) -> bool {
    let digits = text.strip_prefix("t-").unwrap_or_default().as_bytes();
    digits.len() == 64 && digits.iter().all(u8::is_ascii_hexdigit)
}

/// The name of the lease in an object that has the label; `None` if it cannot be told.
pub(super) fn name_of(object: &Lease) -> Option<Name> {
    let object_name = object.metadata.name.as_deref()?;
    match annotation(object, NAME) {
        Some(name) => Name::stored(name).ok(),
        None if is_hashed(object_name) => None,
        None => Name::stored(object_name).ok(),
    }
}

fn annotation<'a>(object: &'a Lease, key: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// What an object says about the lease `name`.
///
/// # Errors
/// Corrupt, if it is not a Lease that Tenure or client-go could have written.
pub(super) fn entry(name: &Name, object: Lease) -> Result<Entry<LeaseVersion>> {
    let corrupt = |reason: &str| {
        let object = object_name(name);
        Error::corrupt(format!(
            "the Lease '{object}' for '{name}' is not one that can be used: {}. It is left as it is; delete it if no \
             candidate leads by it",
            reason.escape_debug()
        ))
    };
    if annotation(&object, NAME).is_some_and(|other| other != name.as_str()) {
        return Err(corrupt("its annotation tenure/name is another name"));
    }
    let spec = object.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty());
    if holder.as_ref().is_some_and(|holder| holder.len() > MAX_IDENTITY_BYTES) {
        return Err(corrupt("its holderIdentity is longer than 1024 bytes"));
    }
    let decoded = match annotation(&object, RECORD) {
        None => None,
        Some(text) => {
            let decoded: Decoded<Renewed> =
                codec::decode_with(text.as_bytes()).map_err(|reason| corrupt(&reason))?;
            if decoded.name != *name {
                return Err(corrupt("its record is that of another name: it was copied"));
            }
            Some(decoded)
        }
    };
    match decoded {
        Some(Decoded { record, extra, .. }) if is_current(&record, extra, &spec) => {
            let version = LeaseVersion::of(object)?;
            Ok(Entry::Document(Document { record, version, left: Duration::ZERO }))
        }
        decoded => {
            let seconds = spec.lease_duration_seconds.and_then(|count| u64::try_from(count).ok());
            let holder = match (holder, seconds) {
                (None, _) => None,
                (Some(id), Some(seconds @ 1..)) => {
                    Some(ForeignHolder { id, ttl: Duration::from_secs(seconds) })
                }
                (Some(_), _) => {
                    return Err(corrupt("it has a holder and no positive leaseDurationSeconds"));
                }
            };
            let record = decoded.map(|decoded| decoded.record);
            let version = LeaseVersion::of(object)?;
            Ok(Entry::ForeignDocument(ForeignDocument { version, holder, record }))
        }
    }
}

/// Whether the `spec` is still the one that was written with the record.
fn is_current(record: &Record, renewed: Option<Renewed>, spec: &LeaseSpec) -> bool {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    match (&record.term, renewed) {
        (Some(term), Some(Renewed { renewed_us })) => {
            holder == identity(term) && micros(spec.renew_time.as_ref()) == Some(renewed_us)
        }
        _ => holder.is_empty(),
    }
}

/// The holderIdentity of a term.
fn identity(term: &TermRecord) -> String {
    match term.nonce {
        Some(nonce) => format!("{}_{nonce}", term.candidate),
        None => format!("{}_revoked", term.candidate),
    }
}

fn micros(time: Option<&MicroTime>) -> Option<i64> {
    time.map(|time| time.0.as_microsecond())
}

fn micro_time(micros: i64) -> Option<MicroTime> {
    Timestamp::from_microsecond(micros).ok().map(MicroTime)
}

/// The object to write for a swap. `now_us` is the wall clock in microseconds.
pub(super) fn written(swap: &Swap<LeaseVersion>, now_us: u64) -> Result<Lease> {
    let mut object = match &swap.expected {
        Some(version) => (*version.object).clone(),
        None => Lease {
            metadata: ObjectMeta { name: Some(object_name(&swap.name)), ..ObjectMeta::default() },
            spec: None,
        },
    };
    let now_us = i64::try_from(now_us).unwrap_or(i64::MAX);
    let old = object.spec.take().unwrap_or_default();
    let transitions = old.lease_transitions.unwrap_or_default();
    let (spec, renewed) = match &swap.record.term {
        Some(term) => {
            let renewed_us = match swap.time {
                TermTime::Unchanged => micros(old.renew_time.as_ref()).unwrap_or(now_us),
                _ => now_us,
            };
            let since_us = i64::try_from(term.since_micros).unwrap_or(i64::MAX);
            let spec = LeaseSpec {
                holder_identity: Some(identity(term)),
                lease_duration_seconds: Some(whole_seconds(term.ttl)),
                acquire_time: micro_time(since_us),
                renew_time: micro_time(renewed_us),
                // As client-go counts: every acquisition of an existing Lease.
                lease_transitions: Some(match (swap.time, &swap.expected) {
                    (TermTime::Begins, Some(_)) => transitions.saturating_add(1),
                    _ => transitions,
                }),
                ..old
            };
            (spec, Some(Renewed { renewed_us }))
        }
        // As client-go releases.
        None => {
            let spec = LeaseSpec {
                holder_identity: Some(String::new()),
                lease_duration_seconds: Some(1),
                acquire_time: micro_time(now_us),
                renew_time: micro_time(now_us),
                lease_transitions: Some(transitions),
                ..old
            };
            (spec, None)
        }
    };
    object.spec = Some(spec);
    let record = codec::encode_with(&swap.name, &swap.record, renewed)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| {
            Error::invalid(format!("the record of '{}' is too long to be written", swap.name))
        })?;
    let annotations = object.metadata.annotations.get_or_insert_with(BTreeMap::new);
    annotations.insert(RECORD.to_owned(), record);
    if object.metadata.name.as_deref() != Some(swap.name.as_str()) {
        annotations.insert(NAME.to_owned(), swap.name.to_string());
    }
    let kind = if swap.record.ephemeral { "participant" } else { "election" };
    let labels = object.metadata.labels.get_or_insert_with(BTreeMap::new);
    labels.insert(KIND.to_owned(), kind.to_owned());
    Ok(object)
}

/// A TTL as client-go reads it. Rounded up: the fields never state less time than was granted.
fn whole_seconds(ttl: Duration) -> i32 {
    i32::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests;
