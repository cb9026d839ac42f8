//! How much of us anybody may have.

use std::time::Duration;

use crate::{open_files, store_access};

/// Limits on everything a client can make us keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpLimits {
    /// At this number a new connection replaces the one that has waited longest for a request, or is closed at once.
    pub(crate) connections: usize,
    /// More listeners to `/events` are refused.
    pub(crate) listeners: usize,
    /// A request must have arrived within this; so long may a connection say nothing between two.
    pub(crate) header_time: Duration,
    /// A connection is replaced only after it has waited this long for a request.
    pub(crate) replace_after: Duration,
    /// And its body within this.
    pub(crate) body_time: Duration,
    /// Who has not read for so long is gone.
    pub(crate) stall: Duration,
    /// How often those who listen hear that we are there.
    pub(crate) beat: Duration,
    /// How long `/leases` waits for the store.
    pub(crate) store_time: Duration,
    /// How long `/fleet` does, which reads more.
    pub(crate) fleet_time: Duration,
    /// As many large answers are being sent at most: each is kept until its client has read it.
    pub(crate) large: usize,
}

/// The longest body we read; the longest wish is a candidate's id.
pub(crate) const BODY: usize = 4 * 1024;
/// The longest head of a request.
pub(crate) const HEAD: usize = 16 * 1024;
/// The most lines in it.
pub(crate) const HEADERS: usize = 64;
/// A longer answer is a large one.
pub(crate) const LARGE: usize = 64 * 1024;

impl HttpLimits {
    /// The limits of a member that polls over HTTP, which needs as many connections itself.
    pub(crate) fn beside_polls() -> HttpLimits {
        let limit = open_files::limit();
        HttpLimits::of(connections(limit).min(open_files::for_polls(limit)))
    }

    fn of(connections: usize) -> HttpLimits {
        HttpLimits {
            connections,
            // They stay, so they leave as many places for requests.
            listeners: (connections / 2).clamp(1, 1024),
            header_time: Duration::from_secs(5),
            replace_after: Duration::from_millis(100),
            body_time: Duration::from_secs(5),
            stall: Duration::from_secs(10),
            beat: Duration::from_secs(15),
            store_time: Duration::from_secs(2),
            fleet_time: store_access::PATIENCE,
            large: 32,
        }
    }
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits::of(connections(open_files::limit()))
    }
}

/// A client must not be able to use up the open files of this process: the store's next connection needs one.
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
