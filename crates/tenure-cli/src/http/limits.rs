//! The resources that HTTP clients may use.

use std::time::Duration;

use crate::{open_files, store_access};

/// The limits on everything that a client can make this process keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpLimits {
    /// The most connections. Beyond this a new connection replaces the connection that has waited longest for a request, or is
    /// closed at once.
    pub(crate) connections: usize,
    /// The most subscribers of `/events`; more are refused.
    pub(crate) subscribers: usize,
    /// The time in which the head of a request must arrive, and the longest idle time between two requests.
    pub(crate) header_timeout: Duration,
    /// A connection is replaced only after it has waited this long for a request.
    pub(crate) replace_after: Duration,
    /// The time in which the body of a request must arrive.
    pub(crate) body_timeout: Duration,
    /// A connection whose client has not read for this long is closed.
    pub(crate) stall_timeout: Duration,
    /// How often subscribers of `/events` get a keepalive.
    pub(crate) keepalive_interval: Duration,
    /// How long `/leases` waits for the store.
    pub(crate) store_timeout: Duration,
    /// How long `/fleet`, which reads more, waits for the store.
    pub(crate) fleet_timeout: Duration,
    /// The most large responses in flight: each stays in memory until its client has read it.
    pub(crate) large: usize,
}

/// The longest request body in bytes; the longest content is a candidate's id.
pub(crate) const BODY: usize = 4 * 1024;
/// The longest request head in bytes.
pub(crate) const HEAD: usize = 16 * 1024;
/// The most header lines of a request.
pub(crate) const HEADERS: usize = 64;
/// A response with more bytes counts as large.
pub(crate) const LARGE: usize = 64 * 1024;

impl HttpLimits {
    /// The limits of a member that polls over HTTP and needs as many connections for that.
    pub(crate) fn beside_polls() -> HttpLimits {
        let limit = open_files::limit();
        HttpLimits::of(connections(limit).min(open_files::for_polls(limit)))
    }

    fn of(connections: usize) -> HttpLimits {
        HttpLimits {
            connections,
            // Subscribers stay connected, so half of the connections is left for requests.
            subscribers: (connections / 2).clamp(1, 1024),
            header_timeout: Duration::from_secs(5),
            replace_after: Duration::from_millis(100),
            body_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(15),
            store_timeout: Duration::from_secs(2),
            fleet_timeout: store_access::STORE_TIMEOUT,
            large: 32,
        }
    }
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits::of(connections(open_files::limit()))
    }
}

/// How many connections leave enough open files for this process: the store's next connection needs one.
fn connections(files: Option<u64>) -> usize {
    open_files::for_connections(files, 2048)
}

#[cfg(test)]
mod tests {
    use super::connections;

    #[test]
    fn open_files_are_left_for_the_store() {
        for (files, left) in
            [(None, 2048), (Some(1 << 20), 2048), (Some(1024), 768), (Some(256), 64), (Some(0), 1)]
        {
            assert_eq!(connections(files), left);
        }
    }
}
