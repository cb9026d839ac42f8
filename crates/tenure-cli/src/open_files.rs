//! Limits on connections, so that file descriptors are left for the store, the work and its timers.

use rustix::process::{Resource, getrlimit};

/// The number of descriptors that connections leave free.
const RESERVED_DESCRIPTORS: u64 = 256;

/// The limit on open files of this process; `None` if there is none.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// How many connections a process with this limit may open: at least one, and at most `max`.
pub(crate) fn for_connections(limit: Option<u64>, max: usize) -> usize {
    limit.map_or(max, |limit| {
        let spare = limit.saturating_sub(RESERVED_DESCRIPTORS).max(limit / 4);
        usize::try_from(spare).map_or(max, |spare| spare.clamp(1, max))
    })
}

/// How many polls a member may have in flight: half of the connections. The HTTP server may use the other half, and a poll
/// that finds an idle connection abandons the connection that it has started to open.
pub(crate) fn for_polls(limit: Option<u64>) -> usize {
    (for_connections(limit, usize::MAX) / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_and_connections_together_leave_the_reserve() {
        for (limit, polls) in [(1024, 384), (512, 128), (300, 37), (256, 32), (4, 1), (0, 1)] {
            assert_eq!(for_polls(Some(limit)), polls, "{limit}");
        }
        assert_eq!(for_polls(None), usize::MAX / 2);
    }
}
