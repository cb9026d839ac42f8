//! The lines people read while `tenure fleet run` runs: spelled in `docs/CLI.md`.

use tenure::fleet::{Reason, Shard};
use tenure::{CandidateId, Clock};

use crate::logs::LINE;
use crate::messages::{CommonMessages, say};

/// Says what happens, for one member.
#[derive(Clone, Debug)]
pub(super) struct FleetMessages {
    id: CandidateId,
}

macro_rules! say_of {
    ($level:ident, $id:expr, $shard:expr, $event:literal, $($text:tt)+) => {
        tracing::$level!(target: LINE, candidate = %$id, shard = %$shard, event = $event, $($text)+)
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

    pub(super) fn left(&self, why: Reason) {
        let id = &self.id;
        say!(info, id, "left", "[{id}] Left the fleet: reason={}", why.as_str());
    }

    pub(super) fn namesake(&self) {
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
        say_of!(info, id, shard, "acquired", "Lease acquired: instance={id} endpoint={shard}");
    }

    pub(super) fn renewed(&self, shard: &Shard) {
        let id = &self.id;
        say_of!(debug, id, shard, "renewed", "Lease renewed: instance={id} endpoint={shard}");
    }

    pub(super) fn released(&self, shard: &Shard, why: Reason) {
        let (id, why) = (&self.id, why.as_str());
        say_of!(
            info,
            id,
            shard,
            "released",
            "Lease released: instance={id} endpoint={shard} reason={why}"
        );
    }

    pub(super) fn poll(&self, shard: &Shard, count: u64) {
        let id = &self.id;
        say_of!(info, id, shard, "poll", "[{id}] {shard}: poll {count}");
    }

    pub(super) fn polled(&self, shard: &Shard, count: u64, well: bool, detail: &str) {
        let id = &self.id;
        match well {
            true => say_of!(info, id, shard, "poll", "[{id}] {shard}: poll {count}: {detail}"),
            false => {
                say_of!(warn, id, shard, "poll", "[{id}] {shard}: poll {count} failed: {detail}");
            }
        }
    }

    pub(super) fn ended(&self, shard: &Shard, how: &str, again: &str) {
        let id = &self.id;
        say_of!(warn, id, shard, "ended", "[{id}] {shard}: {how}; begun again in {again}");
    }

    pub(super) fn hung(&self, shard: &Shard, limit: &str) {
        let id = &self.id;
        say_of!(
            warn,
            id,
            shard,
            "hung",
            "[{id}] {shard}: did not stop within {limit}, and was killed"
        );
    }

    /// A process of the shard's command could not be killed; which and why.
    pub(super) fn shard_not_stopped(&self, shard: &Shard, failure: &str) {
        let id = &self.id;
        say_of!(
            error,
            id,
            shard,
            "not-stopped",
            "[{id}] {shard}: the command is not stopped: {failure}"
        );
    }

    pub(super) fn beat(&self, shards: usize, member: bool) {
        let id = &self.id;
        let time = crate::time::of_day(Clock::boot().now());
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
