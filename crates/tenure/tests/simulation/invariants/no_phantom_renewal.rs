//! I8: after a release was sent, no renewal is sent under the same nonce.

use std::collections::BTreeSet;

use tenure::Nonce;

use super::Invariant;
use crate::fact::Fact;
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct NoPhantomRenewal(BTreeSet<Nonce>);

impl Invariant for NoPhantomRenewal {
    fn name(&self) -> &'static str {
        "I8 NO_PHANTOM_RENEWAL"
    }

    fn check(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::SentRelease { hold, .. } => {
                self.0.insert(hold.nonce);
                Ok(())
            }
            Fact::SentRenew { hold } if self.0.contains(&hold.nonce) => {
                Err(format!("{hold:?} is renewed after it was released"))
            }
            _ => Ok(()),
        }
    }
}
