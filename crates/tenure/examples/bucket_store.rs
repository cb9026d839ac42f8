//! A store of your own: leases in an object bucket with conditional writes, as S3 and similar services offer them.
//!
//! `cargo run --example bucket_store` runs one election on it. The file has three parts: the store, a bucket in this process
//! as a stand-in for the service, and the election. To use a real service, replace the bucket by calls of its client. The
//! chapter "Write a store" (`tenure::docs::stores`) explains every part. `tests/conformance/bucket.rs` runs the table of
//! properties on this file.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tenure::store::cas::{Backend, CasStore, Document, Entry, Expiry, Reading, Swap, Swapped};
use tenure::store::poll::{self, Mark};
use tenure::store::{
    BoxStream, Change, Check, Grade, Limits, Notification, Report, Scope, Store, Verdict,
    async_trait, codec,
};
use tenure::{Clock, Election, Error, Name, Nonce, Result};

// ---- The store ----

/// The folder of the leases in the bucket.
const LEASES: &str = "leases/";

/// The object that [`BucketBackend::check_conditions`] writes. It is not in the folder of the leases.
const PROBE: &str = "probe";

/// The number of calls in flight: the service takes one object per call.
const MAX_IN_FLIGHT: usize = 32;

/// The length of the line before the record: see [`object`].
const UNIQUE_LINE_BYTES: usize = 33;

/// The calls of the bucket. `CasStore` makes a store of them.
#[derive(Clone, Debug)]
pub(crate) struct BucketBackend {
    bucket: Arc<Bucket>,
    /// The clock of this process, for watches.
    clock: Clock,
    poll_interval: Duration,
}

impl BucketBackend {
    /// Opens the bucket. A watch reads the leases once per `poll_interval`.
    pub(crate) async fn open(
        bucket: Arc<Bucket>,
        clock: Clock,
        poll_interval: Duration,
    ) -> Result<Self> {
        let backend = BucketBackend { bucket, clock, poll_interval };
        backend.check_conditions().await?;
        Ok(backend)
    }

    /// Checks that the bucket refuses a write whose condition is not met. Some services ignore a condition that they do not
    /// know. On such a service two candidates lead at once, so the store refuses to open it.
    async fn check_conditions(&self) -> Result<()> {
        let write = async |if_match: Option<&str>| {
            let written = self.bucket.put(PROBE, b"written by Tenure".to_vec(), if_match).await;
            match written {
                Ok(_) => Ok(true),
                Err(BucketError::PreconditionFailed) => Ok(false),
                Err(error) => Err(self.error("write the probe", &error)),
            }
        };
        write(None).await?; // Afterwards the object exists.
        if write(None).await? || write(Some("the ETag of no object")).await? {
            let url = self.url();
            return Err(Error::denied(format!(
                "{url} ignores the conditions of a write, so two candidates could lead: use a bucket with conditional writes"
            )));
        }
        Ok(())
    }

    async fn read_one(&self, name: &Name) -> Result<Option<Entry<String>>> {
        let found = self.bucket.get(&key(name)).await;
        let found = found.map_err(|error| self.error(&format!("read '{name}'"), &error))?;
        let Some((version, object)) = found else { return Ok(None) };
        let record = codec::decode(name, object.get(UNIQUE_LINE_BYTES..).unwrap_or_default())?;
        // The bucket does not know how much time is left.
        Ok(Some(Entry::Document(Document { record, version, left: Duration::ZERO })))
    }

    async fn swap_one(&self, swap: &Swap<String>) -> Result<Swapped<String>> {
        let object = object(swap)?;
        match self.bucket.put(&key(&swap.name), object, swap.expected.as_deref()).await {
            Ok(version) => Ok(Swapped::Done { version, counts_from: None }),
            Err(BucketError::PreconditionFailed) => Ok(Swapped::Conflict),
            Err(error) => Err(self.error(&format!("write '{}'", swap.name), &error)),
        }
    }

    /// Says what was tried, on what, and what to do. The kind says it to the program.
    fn error(&self, what: &str, error: &BucketError) -> Error {
        let url = self.url();
        match error {
            BucketError::Unreachable => Error::unavailable(format!(
                "cannot {what} in {url}: the service does not answer; check the network"
            )),
            BucketError::Forbidden => Error::denied(format!(
                "cannot {what} in {url}: the service refuses it; check the key and its permissions to get, put and list"
            )),
            // `swap_one` and `check_conditions` handle it; no other call has a condition.
            BucketError::PreconditionFailed => {
                Error::unavailable(format!("cannot {what} in {url}: unexpected answer"))
            }
        }
    }
}

fn key(name: &Name) -> String {
    format!("{LEASES}{name}")
}

/// The object to write: a line that no other write has, and the record.
///
/// The ETag is a hash of the content, and a renewal writes the same record again. Without the line the ETag would stay the
/// same: a challenger would not notice the renewal, and would replace a live leader.
fn object(swap: &Swap<String>) -> Result<Vec<u8>> {
    let mut object = format!("{}\n", Nonce::random()).into_bytes();
    debug_assert_eq!(object.len(), UNIQUE_LINE_BYTES);
    object.extend(codec::encode(&swap.name, &swap.record)?);
    Ok(object)
}

/// Makes a limited number of calls at a time. The answers are in the order of the calls.
async fn in_order<T>(calls: Vec<impl Future<Output = T>>) -> Vec<T> {
    stream::iter(calls).buffered(MAX_IN_FLIGHT).collect().await
}

#[async_trait]
impl Backend for BucketBackend {
    /// The ETag.
    type Version = String;

    const EXPIRY: Expiry = Expiry::Observation;

    fn limits(&self) -> Limits {
        // The stand-in is visible in this process only, and its objects end with the process. A service that is linearizable,
        // durable and visible to the network has `Limits::new(Grade::A)`.
        let mut limits = Limits::new(Grade::B).this_process_only();
        limits.min_ttl = Duration::from_secs(1); // A round trip to such a service can take 100 ms.
        limits.max_batch = MAX_IN_FLIGHT;
        limits.notification = Notification::Poll(self.poll_interval);
        limits
    }

    fn url(&self) -> String {
        "bucket://this-process".to_owned()
    }

    fn detached(&self) -> Self {
        // With a real service: a client with its own connections.
        self.clone()
    }

    async fn read(&self, names: &[Name]) -> Result<Reading<String>> {
        let calls = names.iter().map(|name| self.read_one(name)).collect();
        Ok(Reading { store_time: None, entries: in_order(calls).await })
    }

    async fn swap(&self, swaps: &[Swap<String>]) -> Result<Vec<Result<Swapped<String>>>> {
        let calls = swaps.iter().map(|swap| self.swap_one(swap)).collect();
        Ok(in_order(calls).await)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Name>> {
        let keys = self.bucket.list(&format!("{LEASES}{prefix}")).await;
        let keys = keys.map_err(|error| self.error("list leases", &error))?;
        // A key that is no valid name was not written by this store.
        Ok(keys.iter().filter_map(|key| Name::stored(key.strip_prefix(LEASES)?).ok()).collect())
    }

    fn changes(&self, scope: &Scope) -> BoxStream<'static, Change> {
        // A store of its own: it observes for the watch how long each lease does not change.
        let store = Arc::new(CasStore::new(self.detached(), self.clock.clone()));
        let scope = scope.clone();
        poll::watch(self.clock.clone(), self.poll_interval, move || {
            let (store, scope) = (Arc::clone(&store), scope.clone());
            async move { Ok(store.observe(&scope).await?.iter().flatten().map(Mark::from).collect()) }
        })
    }

    async fn examine(&self) -> Result<Report> {
        self.check_conditions().await?;
        let sent = self.clock.now();
        let found = self.bucket.get(PROBE).await;
        let round_trip = self.clock.now().since(sent);
        found.map_err(|error| self.error("read the probe", &error))?;
        let check = |what, verdict, found: &str| Check { what, verdict, found: found.to_owned() };
        Ok(Report {
            what: "bucket in this process".to_owned(),
            grade: self.limits().grade,
            round_trip,
            checks: vec![
                check("conditions", Verdict::Good, "a write whose condition is not met is refused"),
                check("durability", Verdict::Weak, "the leases end with this process"),
            ],
        })
    }
}

// ---- The bucket: a stand-in for the client of a real service ----

/// Objects by key. Each call is atomic.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    pub(crate) objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// See [`Bucket::set_fault`].
    pub(crate) faults: Mutex<BTreeMap<String, BucketError>>,
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) enum BucketError {
    /// HTTP 412, and the answers to a conditional write that mean the same: 404, and 409 for two writes at once.
    PreconditionFailed,
    /// HTTP 401 and 403: a wrong key, or a missing permission.
    Forbidden,
    /// No connection, a timeout, HTTP 5xx.
    Unreachable,
}

impl Bucket {
    /// The ETag and the content of an object.
    async fn get(&self, key: &str) -> Result<Option<(String, Vec<u8>)>, BucketError> {
        self.check(key)?;
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(objects.get(key).map(|bytes| (etag(bytes), bytes.clone())))
    }

    /// Writes an object if its ETag is `if_match`, or if there is no object (`None`). Returns the new ETag.
    async fn put(
        &self,
        key: &str,
        bytes: Vec<u8>,
        if_match: Option<&str>,
    ) -> Result<String, BucketError> {
        self.check(key)?;
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let found = objects.get(key).map(|bytes| etag(bytes));
        if found.as_deref() != if_match {
            return Err(BucketError::PreconditionFailed);
        }
        let etag = etag(&bytes);
        objects.insert(key.to_owned(), bytes);
        Ok(etag)
    }

    /// The keys that begin with `prefix`. A real service returns them in pages: read all pages.
    async fn list(&self, prefix: &str) -> Result<Vec<String>, BucketError> {
        self.check("")?;
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(objects.keys().filter(|key| key.starts_with(prefix)).cloned().collect())
    }

    /// Makes every call for a key fail; for `""`, every call.
    pub(crate) fn set_fault(&self, key: &str, fault: BucketError) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.insert(key.to_owned(), fault);
    }

    fn check(&self, key: &str) -> Result<(), BucketError> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.get("").or_else(|| faults.get(key)).cloned().map_or(Ok(()), Err)
    }
}

/// A hash of the content, as in S3.
fn etag(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

// ---- The election ----

#[tokio::main]
async fn main() -> Result<()> {
    let bucket = Arc::new(Bucket::default());
    let poll_interval = Duration::from_millis(500);
    let backend = BucketBackend::open(Arc::clone(&bucket), Clock::boot(), poll_interval).await?;
    let store = Arc::new(CasStore::new(backend, Clock::boot()));

    let election = Election::builder("demo:bucket").id("candidate-1").start(store.clone()).await?;
    if let Some(leadership) = election.leadership().await {
        println!("{} leads, token {}", election.candidate_id(), leadership.token());
    }
    election.stop().await;
    println!("{} has released the lease", election.candidate_id());

    let report = store.examine().await?;
    println!("{}: grade {}, round trip {:?}", report.what, report.grade, report.round_trip);
    for fault in [BucketError::Unreachable, BucketError::Forbidden] {
        bucket.set_fault("", fault);
        if let Err(error) = store.examine().await {
            println!("{}: {error}", error.kind().as_str());
        }
    }
    Ok(())
}
