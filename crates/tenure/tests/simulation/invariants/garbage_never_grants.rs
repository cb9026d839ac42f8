//! I10: a record that is not Tenure's never leads to a grant.

use super::Invariant;
use crate::fact::Fact;
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct GarbageNeverGrants;

impl Invariant for GarbageNeverGrants {
    fn name(&self) -> &'static str {
        "I10 GARBAGE_NEVER_GRANTS"
    }

    fn check(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Granted { garbage: true } => Err("garbage was granted".to_owned()),
            _ => Ok(()),
        }
    }
}
