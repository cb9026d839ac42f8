//! I6: a term that has ended never resumes, even if replies are still in flight.

use std::collections::BTreeMap;

use tenure::Token;

use super::Invariant;
use crate::fact::{Fact, NodeIndex};
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct NoResurrection {
    current: BTreeMap<NodeIndex, Token>,
    ended: BTreeMap<NodeIndex, Token>,
}

impl NoResurrection {
    fn end(&mut self, node: NodeIndex) {
        if let Some(token) = self.current.remove(&node) {
            self.ended.insert(node, token);
        }
    }
}

impl Invariant for NoResurrection {
    fn name(&self) -> &'static str {
        "I6 NO_RESURRECTION"
    }

    fn check(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Led { node, token, .. } => {
                if self.ended.get(&node).is_some_and(|ended| token <= *ended) {
                    return Err(format!("node {node} leads its ended term {token} again"));
                }
                self.current.insert(node, token);
            }
            // A stopping term is still renewed, so its deadline may move; after the work has ended it may not.
            Fact::Extended { node, token, until }
                if at < until && self.current.get(&node) != Some(&token) =>
            {
                return Err(format!("node {node} extends term {token}, which has ended"));
            }
            Fact::WorkEnded { node } | Fact::Crashed { node } => self.end(node),
            _ => {}
        }
        Ok(())
    }
}
