//! Sentences about a start-up wait, in which a candidate holds a lease but does not lead yet.

use std::time::Duration;

use tenure::{Lease, StartupWait, WaitReason};

use crate::{duration, output};

/// `q1 has the lease and starts in 6s: the store started recently …`, if the holder of this lease does not lead yet.
pub(crate) fn of(lease: &Lease) -> Option<String> {
    let (holder, wait) = (lease.holder.as_ref()?, lease.wait.as_ref()?);
    Some(sentence(&output::printable(&holder.id), wait))
}

/// The sentence of [`of`], for a given holder.
pub(crate) fn sentence(holder: &str, wait: &StartupWait) -> String {
    format!("{holder} has the lease and starts in {}: {}", left(wait), wait.reason)
}

/// The remaining time of a wait: in whole seconds, or in milliseconds below one second.
pub(crate) fn left(wait: &StartupWait) -> String {
    let seconds =
        Duration::from_secs(wait.left.as_secs() + u64::from(wait.left.subsec_nanos() > 0));
    duration::shown(if wait.left < Duration::from_secs(1) { millis(wait.left) } else { seconds })
}

/// Whole milliseconds, rounded up: a wait that is not over is never shown as zero.
fn millis(time: Duration) -> Duration {
    Duration::from_millis(in_millis(time))
}

/// Whole milliseconds, rounded up, as a number for JSON.
pub(crate) fn in_millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What the user can do about the wait, if there is anything.
pub(crate) fn hint(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Restarted | WaitReason::Promoted | WaitReason::Unreleased => {
            " (?startup_wait=0s in the store URL skips this)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_is_shown_in_seconds_and_never_as_zero() {
        let shown = |millis: u64| {
            let left = Duration::from_millis(millis);
            super::left(&StartupWait::new(left, WaitReason::Restarted))
        };
        assert_eq!(shown(5_200), "6s");
        assert_eq!(shown(1_000), "1s");
        assert_eq!(shown(400), "400ms");
        assert_eq!(in_millis(Duration::from_nanos(1)), 1);
    }
}
