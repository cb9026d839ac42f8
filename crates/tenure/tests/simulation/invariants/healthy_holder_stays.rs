//! L4: in the calm, no candidate loses a term unless the end was requested.

use super::Invariant;
use crate::fact::Fact;
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct HealthyHolderStays {
    calm: bool,
}

impl Invariant for HealthyHolderStays {
    fn name(&self) -> &'static str {
        "L4 HEALTHY_HOLDER_STAYS"
    }

    fn check(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Calm => self.calm = true,
            Fact::StopRequested { wanted: false, node, .. } if self.calm => {
                return Err(format!("node {node} lost its term"));
            }
            _ => {}
        }
        Ok(())
    }
}
