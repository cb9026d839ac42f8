//! L1: in the calm, a leader whose process died is replaced when its lease has run out, and a little.

use super::Invariant;
use crate::clock::Time;
use crate::fact::Fact;

/// By when the next one must lead.
#[derive(Default)]
pub(super) struct CrashFailover(Option<Time>);

impl Invariant for CrashFailover {
    fn name(&self) -> &'static str {
        "L1 CRASH_FAILOVER"
    }

    fn see(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::LeaderDied { bound } => self.0 = Some(at + bound),
            Fact::Led { .. } | Fact::Over => {
                let late = self.0.take().and_then(|by| at.checked_sub(by)).filter(|late| *late > 0);
                if let Some(late) = late {
                    return Err(format!("the next leader is {late} ns late"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
