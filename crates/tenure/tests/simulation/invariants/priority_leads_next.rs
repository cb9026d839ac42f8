//! In the calm, the next leader has the lowest rank of the campaigning candidates. This is a preference, not a safety property.

use super::Invariant;
use crate::fact::{Fact, NodeIndex};
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct PriorityLeadsNext {
    /// The candidates that may lead next; `None` if any may.
    preferred: Option<Vec<NodeIndex>>,
}

impl Invariant for PriorityLeadsNext {
    fn name(&self) -> &'static str {
        "PRIORITY_LEADS_NEXT"
    }

    fn check(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Preferred { nodes } => self.preferred = Some(nodes.clone()),
            Fact::Led { node, .. } => match self.preferred.take() {
                Some(nodes) if !nodes.contains(node) => {
                    return Err(format!("node {node} leads next, and {nodes:?} have priority"));
                }
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }
}
