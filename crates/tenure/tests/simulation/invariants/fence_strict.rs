//! I2: the tokens of successive terms strictly increase, and no token is used for two terms.

use tenure::Token;

use super::Invariant;
use crate::fact::Fact;
use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct FenceStrict(Option<Token>);

impl Invariant for FenceStrict {
    fn name(&self) -> &'static str {
        "I2 FENCE_STRICT"
    }

    fn check(&mut self, _at: Time, fact: &Fact) -> Result<(), String> {
        let Fact::Led { token, .. } = *fact else {
            return Ok(());
        };
        match self.0.replace(token) {
            Some(last) if token <= last => Err(format!("token {token} is led after {last}")),
            _ => Ok(()),
        }
    }
}
