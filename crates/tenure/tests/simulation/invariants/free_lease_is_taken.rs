//! L5: once the faults have stopped and everything had time to settle, a candidate leads.

use super::Invariant;
use crate::fact::{Fact, NodeIndex};
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct FreeLeaseIsTaken {
    leader: Option<NodeIndex>,
}

impl Invariant for FreeLeaseIsTaken {
    fn name(&self) -> &'static str {
        "L5 FREE_LEASE_IS_TAKEN"
    }

    fn check(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Led { node, .. } => self.leader = Some(node),
            Fact::StopRequested { node, .. } | Fact::Crashed { node }
                if self.leader == Some(node) =>
            {
                self.leader = None;
            }
            // Before each exercise of the calm, and at the end, there was enough time.
            Fact::Calm | Fact::Over if self.leader.is_none() => {
                return Err("nobody leads".to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}
