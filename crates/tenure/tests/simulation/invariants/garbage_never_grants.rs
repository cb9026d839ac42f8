//! I10: nothing that is not a record of ours leads to a grant.

use super::Invariant;
use crate::clock::Time;
use crate::fact::Fact;

#[derive(Default)]
pub(super) struct GarbageNeverGrants;

impl Invariant for GarbageNeverGrants {
    fn name(&self) -> &'static str {
        "I10 GARBAGE_NEVER_GRANTS"
    }

    fn see(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Granted { garbage: true } => Err("garbage was granted".to_owned()),
            _ => Ok(()),
        }
    }
}
