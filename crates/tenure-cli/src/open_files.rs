//! How many file descriptors connections may take, so that some are left for the store, the work and its timers.

use rustix::process::{Resource, getrlimit};

/// Descriptors that connections leave free.
const RESERVE: u64 = 256;

/// The limit on open files of this process; `None` if there is none.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// How many connections a process with this limit may have open: at least one, and at most `most`.
pub(crate) fn for_connections(limit: Option<u64>, most: usize) -> usize {
    limit.map_or(most, |limit| {
        let spare = limit.saturating_sub(RESERVE).max(limit / 4);
        usize::try_from(spare).map_or(most, |spare| spare.clamp(1, most))
    })
}

/// How many polls a member may have in flight. It is half of the connections: the HTTP server may take the other half, and a
/// poll that finds an idle connection leaves the one that it has begun to open.
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
