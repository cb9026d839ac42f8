//! L7: in the calm, every candidate calls the store only a few times per TTL, in any role.

use std::collections::{BTreeMap, VecDeque};

use super::Invariant;
use crate::fact::{Fact, NodeIndex};
use tenure_rig::simulation::clock::Time;

/// Three renewals, or one poll, and a few more around a change of leaders.
const MAX_CALLS_PER_TTL: usize = 11;

#[derive(Default)]
pub(super) struct FrugalWhenCalm {
    calm: bool,
    /// A waiting candidate polls when the *holder's* lease expires. If candidates have different TTLs, it may poll once per
    /// shortest TTL.
    shortest: Option<Time>,
    calls: BTreeMap<NodeIndex, VecDeque<Time>>,
}

impl Invariant for FrugalWhenCalm {
    fn name(&self) -> &'static str {
        "L7 FRUGAL_WHEN_CALM"
    }

    fn check(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Calm => self.calm = true,
            Fact::Called { node, ttl } if self.calm => {
                let shortest = *self.shortest.insert(self.shortest.map_or(ttl, |s| s.min(ttl)));
                let polls = usize::try_from(ttl.div_ceil(shortest)).unwrap_or(usize::MAX);
                let calls = self.calls.entry(node).or_default();
                calls.push_back(at);
                while calls.front().is_some_and(|first| at - first > ttl) {
                    calls.pop_front();
                }
                if calls.len() > MAX_CALLS_PER_TTL.saturating_add(polls) {
                    return Err(format!("node {node} made {} calls in one TTL", calls.len()));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
