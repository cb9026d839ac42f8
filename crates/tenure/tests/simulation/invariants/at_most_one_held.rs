//! I1: guarded sections of one name never overlap in true time.

use std::collections::BTreeMap;

use super::Invariant;
use crate::fact::{Fact, NodeIndex};
use tenure_rig::simulation::clock::Time;

/// The nodes that are in a guarded section, and until when at the latest.
#[derive(Default)]
pub(super) struct AtMostOneHeld(BTreeMap<NodeIndex, Time>);

impl AtMostOneHeld {
    fn alone(&self, at: Time, node: NodeIndex) -> Result<(), String> {
        match self.0.iter().find(|(other, until)| **other != node && at < **until) {
            Some((other, until)) => {
                Err(format!("node {node} is held at {at} while node {other} is held until {until}"))
            }
            None => Ok(()),
        }
    }
}

impl Invariant for AtMostOneHeld {
    fn name(&self) -> &'static str {
        "I1 AT_MOST_ONE_HELD"
    }

    fn check(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Led { node, until, .. } | Fact::Extended { node, until, .. } => {
                if at < until {
                    self.alone(at, node)?;
                }
                self.0.insert(node, until);
            }
            Fact::StopRequested { node, until, .. } => {
                self.0.insert(node, until);
            }
            Fact::WorkEnded { node } | Fact::Crashed { node } => {
                self.0.remove(&node);
            }
            _ => {}
        }
        Ok(())
    }
}
