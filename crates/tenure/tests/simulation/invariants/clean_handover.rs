//! L2: in the calm, a leader that resigns is replaced as soon as its work has ended.

use super::Invariant;
use super::in_time::InTime;
use crate::fact::Fact;
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct CleanHandover(InTime);

impl Invariant for CleanHandover {
    fn name(&self) -> &'static str {
        "L2 CLEAN_HANDOVER"
    }

    fn check(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Resigned { bound } => self.0.by(at + bound),
            Fact::Led { .. } | Fact::Over => return self.0.check(at),
            _ => {}
        }
        Ok(())
    }
}
