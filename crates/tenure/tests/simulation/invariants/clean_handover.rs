//! L2: in the calm, a leader that resigns is replaced at once when its work has ended.

use super::Invariant;
use crate::clock::Time;
use crate::fact::Fact;

/// By when the next one must lead.
#[derive(Default)]
pub(super) struct CleanHandover(Option<Time>);

impl Invariant for CleanHandover {
    fn name(&self) -> &'static str {
        "L2 CLEAN_HANDOVER"
    }

    fn see(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Resigned { bound } => self.0 = Some(at + bound),
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
