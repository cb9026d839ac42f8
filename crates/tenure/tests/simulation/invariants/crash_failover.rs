//! L1: in the calm, a leader whose process died is replaced shortly after its lease has expired.

use super::Invariant;
use super::in_time::InTime;
use crate::fact::Fact;
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct CrashFailover(InTime);

impl Invariant for CrashFailover {
    fn name(&self) -> &'static str {
        "L1 CRASH_FAILOVER"
    }

    fn check(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::LeaderDied { bound } => self.0.by(at + bound),
            Fact::Led { .. } | Fact::Over => return self.0.check(at),
            _ => {}
        }
        Ok(())
    }
}
