//! PURE: time totals: how long no candidate led, and how long this candidate has led.

use std::time::Duration;

use tenure::{Event, Moment};

#[derive(Clone, Debug)]
pub(super) struct LeadershipTime {
    /// Since when this candidate leads.
    led_since: Option<Moment>,
    /// Since when no leader is known.
    leaderless_since: Option<Moment>,
    leaderless: Duration,
}

impl LeadershipTime {
    /// At first no leader is known.
    pub(super) fn new(now: Moment) -> LeadershipTime {
        LeadershipTime { led_since: None, leaderless_since: Some(now), leaderless: Duration::ZERO }
    }

    pub(super) fn record(&mut self, event: &Event, now: Moment) {
        match event {
            Event::BecameLeader { .. } => self.led_since = Some(now),
            Event::LostLeadership { .. } => self.led_since = None,
            Event::LeaderChanged { to: Some(_), .. } => {
                self.leaderless = self.leaderless(now);
                self.leaderless_since = None;
            }
            Event::LeaderChanged { to: None, .. } => {
                self.leaderless_since.get_or_insert(now);
            }
            _ => {}
        }
    }

    /// How long no candidate has led, as far as this instance knows.
    pub(super) fn leaderless(&self, now: Moment) -> Duration {
        let open = self.leaderless_since.map_or(Duration::ZERO, |since| now.since(since));
        self.leaderless.saturating_add(open)
    }

    /// How long this candidate has led in this term.
    pub(super) fn led(&self, now: Moment) -> Duration {
        self.led_since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

#[cfg(test)]
mod tests {
    use tenure::Token;
    use tenure::machine::EndReason;

    use super::*;

    #[test]
    fn time_without_a_leader_adds_up() {
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let to = |id: Option<&str>| Event::LeaderChanged { from: None, to: id.map(str::to_owned) };
        let token = Token::new(1).unwrap();
        let mut leadership_time = LeadershipTime::new(at(10));
        assert_eq!(leadership_time.leaderless(at(12)), Duration::from_secs(2));
        leadership_time.record(&to(Some("a")), at(13));
        leadership_time.record(&Event::BecameLeader { token, checkpoint: None }, at(13));
        assert_eq!(leadership_time.leaderless(at(20)), Duration::from_secs(3));
        assert_eq!(leadership_time.led(at(20)), Duration::from_secs(7));
        leadership_time.record(&Event::LostLeadership { token, why: EndReason::Resigned }, at(20));
        leadership_time.record(&to(None), at(20));
        leadership_time.record(&to(None), at(21));
        assert_eq!(leadership_time.leaderless(at(22)), Duration::from_secs(5));
        assert_eq!(leadership_time.led(at(22)), Duration::ZERO);
        leadership_time.record(&to(Some("b")), at(24));
        assert_eq!(leadership_time.leaderless(at(99)), Duration::from_secs(7));
    }
}
