//! PURE: whether a candidate is fit to lead, with hysteresis, so that one bad answer moves nothing.

use std::sync::Arc;
use std::time::Duration;

/// How health is asked for, and how often it must be bad or good in a row before anything follows.
///
/// ```
/// let gate = tenure::HealthGate { fails: 5, ..tenure::HealthGate::default() };
/// assert_eq!(gate.every, std::time::Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthGate {
    /// How often to ask, and how long an answer may take; 2 s.
    pub every: Duration,
    /// So many bad answers in a row make it unfit; 3.
    pub fails: u32,
    /// So many good answers in a row make it fit again; 2.
    pub passes: u32,
}

impl Default for HealthGate {
    fn default() -> Self {
        HealthGate { every: Duration::from_secs(2), fails: 3, passes: 2 }
    }
}

/// The result of one health check; a failure can say why.
///
/// ```
/// use tenure::Health;
///
/// assert_eq!(Health::from(true), Health::Good);
/// assert_eq!(Health::from(Err("exit 1".to_owned())), Health::Bad("exit 1".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The check succeeded.
    Good,
    /// The check failed; why.
    Bad(String),
}

impl From<bool> for Health {
    fn from(good: bool) -> Health {
        if good { Health::Good } else { Health::Bad("it failed".to_owned()) }
    }
}

impl From<Result<(), String>> for Health {
    fn from(result: Result<(), String>) -> Health {
        match result {
            Ok(()) => Health::Good,
            Err(reason) => Health::Bad(reason),
        }
    }
}

/// What a machine is told of a health check; why it failed.
pub(crate) type HealthResult = std::result::Result<(), Arc<str>>;

/// Counts the answers. A candidate begins unfit, and the first answer counts at once: nobody leads before it was asked.
#[derive(Debug)]
pub(crate) struct Hysteresis {
    gate: HealthGate,
    asked: bool,
    fit: bool,
    /// Answers in a row against what it is now.
    against: u32,
}

impl Hysteresis {
    pub(crate) fn new(gate: HealthGate) -> Self {
        Hysteresis { gate, asked: false, fit: false, against: 0 }
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.fit
    }

    /// Takes one answer; returns what it has become if that changed.
    pub(crate) fn take(&mut self, good: bool) -> Option<bool> {
        if good == self.fit {
            self.asked = true;
            self.against = 0;
            return None;
        }
        self.against += 1;
        if !std::mem::replace(&mut self.asked, true) {
            (self.fit, self.against) = (good, 0);
            return Some(good);
        }
        let needed = if self.fit { self.gate.fails } else { self.gate.passes };
        if self.against < needed.max(1) {
            return None;
        }
        self.fit = good;
        self.against = 0;
        Some(good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answer_counts_at_once_and_a_bad_one_like_any_other() {
        let mut gate = Hysteresis::new(HealthGate::default());
        let answers = [false, true, false, true, true];
        let changes: Vec<_> = answers.iter().map(|good| gate.take(*good)).collect();
        assert_eq!(changes, [None, None, None, None, Some(true)]);
    }

    #[test]
    fn it_takes_three_in_a_row_to_fall_and_two_to_rise() {
        let mut gate = Hysteresis::new(HealthGate::default());
        let answers =
            [true, false, false, true, false, false, false, false, true, false, true, true];
        let changes: Vec<_> = answers.iter().map(|good| gate.take(*good)).collect();
        let mut expected = [None; 12];
        expected[0] = Some(true);
        expected[6] = Some(false);
        expected[11] = Some(true);
        assert_eq!(changes, expected);
    }
}
