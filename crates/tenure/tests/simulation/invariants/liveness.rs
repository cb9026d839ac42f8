//! L1, L2, L4, L5: in the calm after the faults, a dead leader is replaced in its lease's time, a resigning one at once, a
//! healthy one stays, and a free lease is taken.

use super::Invariant;
use crate::clock::Time;
use crate::fact::{Fact, NodeIndex};

#[derive(Default)]
pub(super) struct Liveness {
    leader: Option<NodeIndex>,
    waited_for: Option<(Time, &'static str)>,
    calm: bool,
}

impl Invariant for Liveness {
    fn name(&self) -> &'static str {
        "L1 L2 L4 L5 LIVENESS"
    }

    fn see(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Calm => self.calm = true,
            Fact::Told { wanted: false, node, .. } if self.calm => {
                return Err(format!("L4: node {node} lost its term in the calm"));
            }
            Fact::LeaderDied { bound } => self.waited_for = Some((at + bound, "L1 crash")),
            Fact::Resigned { bound } => self.waited_for = Some((at + bound, "L2 resignation")),
            Fact::Led { node, .. } => {
                self.leader = Some(node);
                if let Some((by, why)) = self.waited_for.take()
                    && at > by
                {
                    return Err(format!("{why}: the next leader came {} ns late", at - by));
                }
            }
            Fact::Told { node, .. } | Fact::Crashed { node } if self.leader == Some(node) => {
                self.leader = None;
            }
            Fact::Over { bound } => {
                let overdue = self.waited_for.is_some_and(|(by, _)| at > by);
                if overdue || (self.leader.is_none() && self.waited_for.is_none()) {
                    return Err(format!(
                        "L5: nobody leads at the end, {bound} ns after the faults"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
