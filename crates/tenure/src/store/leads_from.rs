//! PURE: the end of a start-up wait, as stored in a record.
//!
//! The record stores it so that every reader can tell that the holder does not lead yet. It survives release and re-grant: a
//! holder that released during its wait never led, so the next holder waits for the remaining time.

use std::time::Duration;

use crate::lease::{ClaimedWait, StartupWait, WaitReason};

/// The time from which the holder of a lease may lead, on the store's clock in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadsFrom {
    /// When the wait ends.
    pub at_micros: u64,
    /// The length of the wait when it was recorded. It bounds the remaining time, so a store clock that was set back cannot
    /// make the wait longer.
    pub length_micros: u64,
    /// The reason for the wait.
    pub reason: WaitReason,
}

impl LeadsFrom {
    /// The value to record after a claim: the later of the recorded end and the end that the claimer requests.
    pub(crate) fn claimed(
        known: Option<LeadsFrom>,
        wait: ClaimedWait,
        now_micros: u64,
    ) -> Option<LeadsFrom> {
        let known = known.filter(|known| known.at_micros > now_micros);
        let requested = match wait {
            ClaimedWait::Never => return None,
            ClaimedWait::AsRequired => return known,
            ClaimedWait::AtLeast(wait) => LeadsFrom::after(wait, now_micros),
        };
        match known {
            Some(known) if known.at_micros >= requested.at_micros => Some(known),
            _ => Some(requested),
        }
    }

    /// The remaining wait; `None` when it is over.
    pub(crate) fn wait(known: Option<LeadsFrom>, now_micros: u64) -> Option<StartupWait> {
        let LeadsFrom { at_micros, length_micros, reason } = known?;
        let left = at_micros.checked_sub(now_micros).filter(|left| *left > 0)?;
        Some(StartupWait { left: Duration::from_micros(left.min(length_micros)), reason })
    }

    fn after(wait: StartupWait, now_micros: u64) -> LeadsFrom {
        let length_micros = u64::try_from(wait.left.as_micros()).unwrap_or(u64::MAX);
        let at_micros = now_micros.saturating_add(length_micros);
        LeadsFrom { at_micros, length_micros, reason: wait.reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_least(millis: u64) -> ClaimedWait {
        let left = Duration::from_millis(millis);
        ClaimedWait::AtLeast(StartupWait { left, reason: WaitReason::Observed })
    }

    fn left(known: Option<LeadsFrom>, now_millis: u64) -> Option<u64> {
        let wait = LeadsFrom::wait(known, now_millis * 1_000)?;
        u64::try_from(wait.left.as_millis()).ok()
    }

    #[test]
    fn the_later_end_counts_and_survives_a_claim_without_a_wait() {
        let first = LeadsFrom::claimed(None, at_least(4_000), 1_000_000);
        assert_eq!(left(first, 1_000), Some(4_000));
        let shorter = LeadsFrom::claimed(first, at_least(1_000), 2_000_000);
        assert_eq!(left(shorter, 2_000), Some(3_000));
        let longer = LeadsFrom::claimed(first, at_least(9_000), 2_000_000);
        assert_eq!(left(longer, 2_000), Some(9_000));
        let plain = LeadsFrom::claimed(first, ClaimedWait::AsRequired, 2_000_000);
        assert_eq!(left(plain, 2_000), Some(3_000));
        assert_eq!(left(plain, 5_000), None, "over");
        assert_eq!(LeadsFrom::claimed(first, ClaimedWait::AsRequired, 5_000_000), None);
        assert_eq!(LeadsFrom::claimed(first, ClaimedWait::Never, 2_000_000), None);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_lengthen_a_wait() {
        let wait = LeadsFrom::claimed(None, at_least(4_000), 3_600_000_000);
        assert_eq!(left(wait, 1_000), Some(4_000));
    }
}
