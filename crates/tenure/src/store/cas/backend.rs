//! [`Backend`]: the calls of one service that keeps documents, and the values that go in and out.

use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::{Condition, TermTime};
use crate::clock::Moment;
use crate::error::Result;
use crate::lease::{Hold, Name, StoreTime};
use crate::store::record::Record;
use crate::store::{Change, Limits, Report, Scope};

/// Who judges that a term is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The service's own clock: [`Document::left`] is what is left on it.
    StoreClock,
    /// The service ends leases or sessions that are not kept alive: [`Document::left`] is zero once that has happened.
    ServerLease,
    /// The challenger: the document must not change for the term's TTL. [`Document::left`] is not used.
    Observation,
}

/// The calls of one service that keeps documents.
///
/// # Contract
/// - Answers are in the order of the requests. An outer error means that nothing is known about any item; an inner error
///   concerns that item only.
/// - A read returns the latest document. Content that is not a valid record is [`Corrupt`](crate::Kind::Corrupt):
///   [`codec::decode`](crate::store::codec::decode) says so for stores that keep a record as bytes.
/// - A swap compares and writes in one atomic step. With [`Expiry::StoreClock`] and [`Expiry::Observation`] every write gives
///   the document a version that it never had.
/// - A call has at most [`Limits::max_batch`] items.
/// - No method retries, and none keeps a lease alive by itself.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Identifies one state of a document.
    type Version: Clone + fmt::Debug + Eq + Hash + Send + Sync;

    /// Who judges that a term is over.
    const EXPIRY: Expiry;

    /// The limits of the service.
    fn limits(&self) -> Limits;

    /// The URL of the service, without passwords.
    fn url(&self) -> String;

    /// The same service over its own connections.
    fn detached(&self) -> Self
    where
        Self: Sized;

    /// Reads what is stored under these names.
    async fn read(&self, names: &[Name]) -> Result<Reading<Self::Version>>;

    /// Writes documents, each only if what it replaces is unchanged.
    async fn swap(
        &self,
        swaps: &[Swap<Self::Version>],
    ) -> Result<Vec<Result<Swapped<Self::Version>>>>;

    /// Renews holds in one round trip, if the service can: `None` if it cannot. A hold for which the answer is
    /// [`Touched::Unknown`] is then read and swapped like any other.
    ///
    /// Not called with [`Expiry::Observation`]: whether a term is over depends on what this process has observed, so every
    /// renewal is judged and swapped.
    async fn touch(&self, holds: &[Hold], ttl: Duration) -> Option<Result<Vec<Result<Touched>>>> {
        let _ = (holds, ttl);
        None
    }

    /// The names that begin with `prefix`.
    async fn list(&self, prefix: &str) -> Result<Vec<Name>>;

    /// Reads everything whose name begins with `prefix`, if the service returns content with a list: `None` if it does not.
    /// Then the names are listed, and read like any other.
    async fn read_prefix(
        &self,
        prefix: &str,
    ) -> Option<Result<(Vec<Name>, Reading<Self::Version>)>> {
        let _ = prefix;
        None
    }

    /// Subscribes to changes: see [`Store::watch`](crate::store::Store::watch).
    fn changes(&self, scope: &Scope) -> BoxStream<'static, Change>;

    /// Inspects the service: see [`Store::examine`](crate::store::Store::examine).
    async fn examine(&self) -> Result<Report>;
}

/// The result of [`Backend::read`].
#[derive(Clone, Debug)]
pub struct Reading<V> {
    /// The service's clock when it answered; `None` if it has none. Required with [`Expiry::StoreClock`].
    pub store_time: Option<StoreTime>,
    /// What is stored under each name; `None` if nothing is.
    pub entries: Vec<Result<Option<Entry<V>>>>,
}

/// What is stored under a name.
#[derive(Clone, Debug)]
pub enum Entry<V> {
    /// A document of Tenure.
    Document(Document<V>),
    /// Another program holds the name. It excludes every candidate until the service shows otherwise.
    Foreign {
        /// The holder as that program wrote it.
        id: String,
        /// The time that it has left, as far as the service knows.
        left: Duration,
    },
    /// Another program holds the name, and the service does not say how long. Its document may be replaced when its holder's
    /// time has passed by observation, or if it has no holder.
    ForeignDocument(ForeignDocument<V>),
}

/// A document that another program wrote, possibly over a record.
#[derive(Clone, Debug)]
pub struct ForeignDocument<V> {
    /// The state of the document, which a swap compares.
    pub version: V,
    /// The holder; `None` if the other program has released the name.
    pub holder: Option<ForeignHolder>,
    /// The last record under this name, if there was one. Its token survives the other program's term.
    pub record: Option<Record>,
}

/// The holder of a [`ForeignDocument`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignHolder {
    /// The holder as that program wrote it.
    pub id: String,
    /// The time for which the document must not change before another candidate may replace it.
    pub ttl: Duration,
}

/// A record as it is stored.
#[derive(Clone, Debug)]
pub struct Document<V> {
    /// The record.
    pub record: Record,
    /// The state of the document, which a swap compares.
    pub version: V,
    /// The time that the record's term has left; zero if the term is over, or if there is none.
    pub left: Duration,
}

/// A document to write.
#[derive(Clone, Debug)]
pub struct Swap<V> {
    /// The name of the lease.
    pub name: Name,
    /// The version that must still be the current one; `None`: there must be no document.
    pub expected: Option<V>,
    /// What else must be true when the service writes. [`Condition::TermIsLive`]: the term's time has not passed on the
    /// service's clock, or its session lives; not compared with [`Expiry::Observation`]. [`Condition::TermIsOver`]: no session
    /// holds the document; only [`Expiry::ServerLease`] has to compare it, because elsewhere a term that is over stays over as
    /// long as the version is the same.
    pub condition: Condition,
    /// The record to write. A backend may remove the document instead if the record [is
    /// forgettable](Record::is_forgettable).
    pub record: Record,
    /// When the record's term ends. [`TermTime::Begins`] and [`TermTime::Extended`]: its TTL after the service writes. With
    /// [`Expiry::ServerLease`] the document then belongs to the session of the term's candidate and TTL.
    pub time: TermTime,
}

/// The result of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped<V> {
    /// The document was written.
    Done {
        /// Its version now.
        version: V,
        /// From when the term's TTL counts, if that is before the swap was sent: the last keepalive of the session.
        counts_from: Option<Moment>,
    },
    /// The document, or what the condition says about it, is not as expected. Nothing was written.
    Conflict,
}

/// The result of [`Backend::touch`] for one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// The hold is the live term, and its TTL counts from now.
    Renewed,
    /// The hold is not the live term, or the service cannot renew it in one step (another TTL). Nothing was written.
    Unknown,
}
