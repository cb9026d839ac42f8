//! I5: while a candidate considers itself the leader, the store keeps its lease at least as long.

use super::Invariant;
use crate::fact::Fact;
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct DeadlineBeforeExpiry;

impl Invariant for DeadlineBeforeExpiry {
    fn name(&self) -> &'static str {
        "I5 DEADLINE_BEFORE_EXPIRY"
    }

    fn check(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Believes { until, expiry: Some(expiry) } if at < until && until > expiry => {
                Err(format!("believed until {until}, but the store frees it at {expiry}"))
            }
            _ => Ok(()),
        }
    }
}
