//! I4, for checkpoints: the next leader finds the last acknowledged checkpoint, or a later one.

use super::Invariant;
use crate::fact::Fact;
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct NoLostCheckpoint(u64);

impl Invariant for NoLostCheckpoint {
    fn name(&self) -> &'static str {
        "I4 NO_LOST_UPDATE"
    }

    fn check(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Saved { value } => self.0 = self.0.max(value),
            Fact::Found { value } if value < self.0 => {
                return Err(format!("checkpoint {value} was found after {} was saved", self.0));
            }
            _ => {}
        }
        Ok(())
    }
}
