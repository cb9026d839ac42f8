//! L7: in the calm, a candidate bothers the store a few times per TTL, whatever its part.

use std::collections::{BTreeMap, VecDeque};

use super::Invariant;
use crate::clock::Time;
use crate::fact::{Fact, NodeIndex};

/// Three renewals, or one or two looks, and a few more around a change of leaders.
const CALLS_PER_TTL: usize = 12;

#[derive(Default)]
pub(super) struct FrugalWhenCalm {
    calm: bool,
    calls: BTreeMap<NodeIndex, VecDeque<Time>>,
}

impl Invariant for FrugalWhenCalm {
    fn name(&self) -> &'static str {
        "L7 FRUGAL_WHEN_CALM"
    }

    fn see(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Calm => self.calm = true,
            Fact::Called { node, ttl } if self.calm => {
                let calls = self.calls.entry(node).or_default();
                calls.push_back(at);
                while calls.front().is_some_and(|first| at - first > ttl) {
                    calls.pop_front();
                }
                if calls.len() > CALLS_PER_TTL {
                    return Err(format!("node {node} made {} calls in one TTL", calls.len()));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
