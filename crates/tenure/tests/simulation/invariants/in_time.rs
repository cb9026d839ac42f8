//! A bound shared by several invariants: a candidate must lead by a certain time.

use tenure_rig::simulation::clock::Time;

#[derive(Default)]
pub(super) struct InTime(Option<Time>);

impl InTime {
    pub(super) fn by(&mut self, time: Time) {
        self.0 = Some(time);
    }

    /// A candidate leads now, or the world is over.
    pub(super) fn check(&mut self, at: Time) -> Result<(), String> {
        match self.0.take() {
            Some(by) if at > by => Err(format!("the next leader is {} ns late", at - by)),
            _ => Ok(()),
        }
    }
}
