//! The specification of the start-up wait: what a server requires of a new term because it may have lost an earlier one.

use tenure::WaitReason;

/// What is known of the server. It outlives the histories that run on it. Times are milliseconds on its clock.
pub(crate) struct ServerModel {
    /// The URL says `startup_wait=0s`.
    pub(crate) never_waits: bool,
    /// Every write is on disk before it is acknowledged.
    pub(crate) durable: bool,
    /// When it started.
    pub(crate) started: u64,
    /// Since when it has lost nothing, as the first grant of this run found.
    since: Option<u64>,
}

impl ServerModel {
    pub(crate) fn new(never_waits: bool, durable: bool, started: u64) -> Self {
        ServerModel { never_waits, durable, started, since: None }
    }

    pub(crate) fn restarted(&mut self, now: u64) {
        (self.started, self.since) = (now, None);
    }

    /// When a term granted now may lead, and why not before. `last_ttl` is the TTL of the last term if it was not released.
    pub(crate) fn required_wait(
        &mut self,
        now: u64,
        ttl: u64,
        last_ttl: Option<u64>,
    ) -> Option<(u64, WaitReason)> {
        if self.never_waits {
            return None;
        }
        let since = *self.since.get_or_insert_with(|| {
            // A server reports its age in whole seconds of which both ends are rounded down: up to a second is missing.
            let age_seconds = now / 1_000 - self.started / 1_000;
            now.min(now - age_seconds * 1_000 + 1_000)
        });
        match (self.durable, last_ttl) {
            // It has lost nothing that was acknowledged, and no earlier holder is at work.
            (true, None) => None,
            // Its holder may have renewed while durability was off.
            (true, Some(last_ttl)) => Some((since + last_ttl, WaitReason::Unreleased)),
            // It may have lost a lease with the claimer's TTL, or with the recorded one.
            (false, _) => Some((since + ttl.max(last_ttl.unwrap_or(0)), WaitReason::Restarted)),
        }
    }
}
