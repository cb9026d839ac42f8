//! What the batch executor needs to know about an operation beyond the rules of a lease.

use std::time::Duration;

use crate::lease::{Claim, Release};
use crate::store::record::{Operation, Renewal, Revocation, Save};

/// How long an operation without a TTL waits for a lock that another process holds.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// The least time that an operation with a TTL waits for such a lock.
const MIN_LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// An operation on a directory.
pub(super) trait FileOperation: Operation {
    /// It changes only the holder's time, which needs no fsync.
    const RENEWS: bool = false;

    /// It may create a record where there was none.
    const CLAIMS: bool = false;

    /// How long it waits while another process holds the lock.
    fn lock_timeout(&self) -> Duration {
        LOCK_TIMEOUT
    }

    /// Whether the term that it begins ends with this process.
    fn ends_with_process(&self) -> bool {
        false
    }
}

impl FileOperation for Claim {
    const CLAIMS: bool = true;

    fn lock_timeout(&self) -> Duration {
        (self.ttl / 10).max(MIN_LOCK_TIMEOUT)
    }

    fn ends_with_process(&self) -> bool {
        self.ends_with_process
    }
}

impl FileOperation for Renewal {
    const RENEWS: bool = true;

    fn lock_timeout(&self) -> Duration {
        (self.ttl / 10).max(MIN_LOCK_TIMEOUT)
    }
}

impl FileOperation for Release {}

impl FileOperation for Save {}

impl FileOperation for Revocation {}
