//! I9: a release is sent to the store only after the work has ended.

use std::collections::BTreeSet;

use super::Invariant;
use crate::fact::{Fact, NodeIndex};
use tenure_rig::simulation::clock::Time;

/// The nodes whose work is running.
#[derive(Default)]
pub(super) struct StopBeforeRelease(BTreeSet<NodeIndex>);

impl Invariant for StopBeforeRelease {
    fn name(&self) -> &'static str {
        "I9 STOP_BEFORE_RELEASE"
    }

    fn check(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Led { node, .. } if self.0.contains(node) => {
                return Err(format!("node {node} has two works at a time"));
            }
            Fact::Led { node, .. } => {
                self.0.insert(*node);
            }
            Fact::WorkEnded { node } | Fact::Crashed { node } => {
                self.0.remove(node);
            }
            Fact::SentRelease { node, hold } if self.0.contains(node) => {
                return Err(format!("{hold:?} is released while its work runs"));
            }
            _ => {}
        }
        Ok(())
    }
}
