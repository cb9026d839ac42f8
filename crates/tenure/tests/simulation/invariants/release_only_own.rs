//! I7: a renewal or a release never changes a record with another nonce or token.

use super::Invariant;
use crate::fact::Fact;
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct ReleaseOnlyOwn;

impl Invariant for ReleaseOnlyOwn {
    fn name(&self) -> &'static str {
        "I7 RELEASE_ONLY_OWN"
    }

    fn check(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::ChangedBy { hold, was } if *was != Some((Some(hold.nonce), hold.token)) => {
                Err(format!("{hold:?} changed a record of {was:?}"))
            }
            _ => Ok(()),
        }
    }
}
