//! The log messages of `tenure fleet run`, as specified in `docs/CLI.md`.

use tenure::fleet::{Reason, Shard};
use tenure::{CandidateId, Clock};

use crate::logs::LINE_TARGET;
use crate::messages::{CommonMessages, say};

/// Logs the events of one member.
#[derive(Clone, Debug)]
pub(super) struct FleetMessages {
    id: CandidateId,
}

/// Logs one message about a shard, with the structured fields that log processors use.
macro_rules! log_shard {
    ($level:ident, $id:expr, $shard:expr, $event:literal, $($text:tt)+) => {
        tracing::$level!(target: LINE_TARGET, candidate = %$id, shard = %$shard, event = $event, $($text)+)
    };
}

impl FleetMessages {
    pub(super) fn new(id: &CandidateId) -> FleetMessages {
        FleetMessages { id: id.clone() }
    }

    pub(super) fn started(&self) {
        let id = &self.id;
        say!(info, id, "started", "✅ [{id}] Fleet member started. Press Ctrl+C to stop");
    }

    pub(super) fn joined(&self) {
        let id = &self.id;
        say!(info, id, "joined", "[{id}] Joined the fleet");
    }

    pub(super) fn left(&self, reason: Reason) {
        let id = &self.id;
        say!(info, id, "left", "[{id}] Left the fleet: reason={}", reason.as_str());
    }

    pub(super) fn duplicate_id(&self) {
        let id = &self.id;
        say!(
            warn,
            id,
            "namesake",
            "[{id}] Another running member has the same id: this one owns no shards until that member has left. Give \
             each its own --node-id"
        );
    }

    pub(super) fn acquired(&self, shard: &Shard) {
        let id = &self.id;
        log_shard!(info, id, shard, "acquired", "Lease acquired: instance={id} endpoint={shard}");
    }

    pub(super) fn renewed(&self, shard: &Shard) {
        let id = &self.id;
        log_shard!(debug, id, shard, "renewed", "Lease renewed: instance={id} endpoint={shard}");
    }

    pub(super) fn released(&self, shard: &Shard, reason: Reason) {
        let (id, reason) = (&self.id, reason.as_str());
        log_shard!(
            info,
            id,
            shard,
            "released",
            "Lease released: instance={id} endpoint={shard} reason={reason}"
        );
    }

    pub(super) fn poll(&self, shard: &Shard, count: u64) {
        let id = &self.id;
        log_shard!(info, id, shard, "poll", "[{id}] {shard}: poll {count}");
    }

    pub(super) fn polled(&self, shard: &Shard, count: u64, succeeded: bool, detail: &str) {
        let id = &self.id;
        match succeeded {
            true => log_shard!(info, id, shard, "poll", "[{id}] {shard}: poll {count}: {detail}"),
            false => {
                log_shard!(
                    warn,
                    id,
                    shard,
                    "poll",
                    "[{id}] {shard}: poll {count} failed: {detail}"
                );
            }
        }
    }

    pub(super) fn ended(&self, shard: &Shard, how: &str, again: &str) {
        let id = &self.id;
        log_shard!(warn, id, shard, "ended", "[{id}] {shard}: {how}; begun again in {again}");
    }

    pub(super) fn hung(&self, shard: &Shard, limit: &str) {
        let id = &self.id;
        log_shard!(
            warn,
            id,
            shard,
            "hung",
            "[{id}] {shard}: did not stop within {limit}, and was killed"
        );
    }

    /// A process of the shard's command could not be killed; `failure` names the process and the reason.
    pub(super) fn shard_not_stopped(&self, shard: &Shard, failure: &str) {
        let id = &self.id;
        log_shard!(
            error,
            id,
            shard,
            "not-stopped",
            "[{id}] {shard}: the command is not stopped: {failure}"
        );
    }

    pub(super) fn heartbeat(&self, shards: usize, member: bool) {
        let id = &self.id;
        let time = crate::time::local_time_of(Clock::boot().now());
        match member {
            true => say!(
                info,
                id,
                "beat",
                "👑 [{id}] Status: MEMBER with {shards} shards - Heartbeat at {time}"
            ),
            false => say!(info, id, "beat", "👥 [{id}] Status: NO MEMBER - Heartbeat at {time}"),
        }
    }

    /// How many shards each member lists; empty when all list the same again.
    pub(super) fn lists(&self, lists: &[(CandidateId, usize)]) {
        let id = &self.id;
        if lists.is_empty() {
            return say!(info, id, "lists", "[{id}] All members list the same shards again");
        }
        let lists: Vec<String> =
            lists.iter().map(|(member, shards)| format!("{member} {shards}")).collect();
        say!(
            warn,
            id,
            "lists",
            "[{id}] The members list different shards ({}): a shard is owned by a member that lists it",
            lists.join(", ")
        );
    }

    pub(super) fn unowned(&self, count: usize, some: &[Shard], ttl: &str) {
        let id = &self.id;
        if count == 0 {
            return say!(info, id, "unowned", "[{id}] Every shard has an owner again");
        }
        let some: Vec<String> = some.iter().map(Shard::to_string).collect();
        let more = if count > some.len() { ", …" } else { "" };
        let (some, these) = (some.join(", "), if count == 1 { "shard has" } else { "shards have" });
        say!(
            warn,
            id,
            "unowned",
            "[{id}] {count} {these} had no owner for longer than {ttl}: {some}{more}"
        );
    }
}

impl CommonMessages for FleetMessages {
    fn id(&self) -> &CandidateId {
        &self.id
    }
}
