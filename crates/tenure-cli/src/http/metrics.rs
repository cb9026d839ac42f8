//! `/metrics`: the text that Prometheus reads. Names are fixed in `docs/CLI.md`.
//!
//! Written by hand: almost everything is counted elsewhere already, and a registry would be a second place for it. Only the
//! times with and without a leader are added up here.

use std::fmt::{Display, Write};
use std::time::Duration;

use tenure::{Event, Histogram, Moment, RenewalStats};

use super::participant::{HttpCandidate, HttpMember};
use super::status::RunStatsData;

pub(super) const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of a candidate.
pub(super) fn of_candidate(instance: &HttpCandidate) -> String {
    let (election, now) = (&instance.election, instance.clock.now());
    // No client acts on this status, so it commits to nothing.
    let status = election.status();
    let (renewals, run_stats, leadership_time) =
        (election.renewals(), instance.work().read(), instance.leadership_time());
    let led = if status.is_leader { leadership_time.led(now) } else { Duration::ZERO };
    let mut page = MetricsText::default();
    page.gauge("tenure_is_leader", "Whether this candidate leads.", u8::from(status.is_leader));
    let token = status.token.map_or(0, |token| token.get());
    page.gauge("tenure_token", "The token of the term it leads, 0 if none.", token);
    let left = status.valid_for.as_secs_f64();
    page.gauge("tenure_deadline_seconds", "Until it stops believing that it leads.", left);
    page.renewals(&renewals);
    let help = "How often the leader changed while this candidate looked.";
    page.counter("tenure_transitions_total", help, status.transitions);
    let leaderless = leadership_time.leaderless(now).as_secs_f64();
    let help = "How long this candidate knew of no leader.";
    page.counter("tenure_leaderless_seconds_total", help, leaderless);
    let help = "How long it has led in this term, 0 if it does not.";
    page.gauge("tenure_leadership_seconds", help, led.as_secs_f64());
    page.runs(&run_stats);
    if let Some(candidates) = instance.candidates() {
        page.gauge("tenure_candidates", "Candidates that show themselves.", candidates);
    }
    page.build(status.name.as_str(), status.candidate_id.as_str());
    page.0
}

/// All metrics of a member. There is no line for each shard, because there may be a hundred thousand.
pub(super) fn of_member(member: &HttpMember) -> String {
    let (fleet, status) = (&member.fleet, member.status());
    let mut page = MetricsText::default();
    page.gauge("tenure_is_leader", "Whether this member takes part.", u8::from(status.is_leader));
    let help = "The token of the lease on itself, 0 if it does not.";
    page.gauge("tenure_token", help, status.token.unwrap_or(0));
    let left = Duration::from_millis(status.valid_for_ms).as_secs_f64();
    page.gauge("tenure_deadline_seconds", "Until it stops believing that it does.", left);
    page.gauge("tenure_shards_owned", "Shards of this member.", status.shards);
    let help = "Shards without an owner for longer than a TTL.";
    page.gauge("tenure_shards_unowned", help, status.unowned);
    page.gauge("tenure_members", "Members that take part, as last seen.", status.members);
    page.renewals(&fleet.renewals());
    page.runs(&member.work());
    page.build(fleet.name().as_str(), fleet.member_id().as_str());
    page.0
}

#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let quoted = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
        let quoted: Vec<String> = quoted.collect();
        let labels =
            if quoted.is_empty() { String::new() } else { format!("{{{}}}", quoted.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.line(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.line(name, &[], value);
    }

    /// In the Prometheus format each bucket also counts all smaller values.
    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let (bucket, mut up_to) = (format!("{name}_bucket"), 0);
        for (bound, within) in histogram.buckets() {
            up_to += within;
            self.line(&bucket, &[("le", &bound.as_secs_f64().to_string())], up_to);
        }
        self.line(&bucket, &[("le", "+Inf")], histogram.count);
        self.line(&format!("{name}_sum"), &[], histogram.sum.as_secs_f64());
        self.line(&format!("{name}_count"), &[], histogram.count);
    }

    fn runs(&mut self, run_stats: &RunStatsData) {
        self.head("tenure_runs_total", "counter", "Runs of the work on this instance.");
        for (outcome, count) in &run_stats.runs {
            self.line("tenure_runs_total", &[("outcome", outcome)], count);
        }
        self.histogram("tenure_run_seconds", "How long those runs took.", &run_stats.durations);
    }

    fn build(&mut self, name: &str, id: &str) {
        self.head("tenure_build_info", "gauge", "What this is; always 1.");
        let version = env!("CARGO_PKG_VERSION");
        let labels = [("version", version), ("name", name), ("candidate", id)];
        self.line("tenure_build_info", &labels, 1);
    }

    fn renewals(&mut self, renewals: &RenewalStats) {
        let help = "How long renewals took that the store granted.";
        self.histogram("tenure_renew_seconds", help, &renewals.durations);
        let name = "tenure_renew_failures_total";
        self.head(name, "counter", "Renewals that the store did not grant.");
        // Causes that never happened are listed too: a series that begins at its first failure hides that failure.
        for (cause, count) in [
            ("unavailable", renewals.unavailable),
            ("refused", renewals.refused),
            ("denied", renewals.denied),
            ("corrupt", renewals.corrupt),
            ("other", renewals.other),
        ] {
            self.line(name, &[("cause", cause)], count);
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// How long no candidate led, and how long this candidate has led.
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
    fn buckets_add_up_and_labels_are_escaped() {
        let mut page = MetricsText::default();
        let mut histogram = Histogram::new(std::array::from_fn(|n| Duration::from_secs(n as u64)));
        for millis in [500, 1_000, 1_500, 20_000] {
            histogram.record(Duration::from_millis(millis));
        }
        page.histogram("x", "X.", &histogram);
        page.line("y", &[("a", "\"\\\n")], 1);
        let begins = "# HELP x X.\n# TYPE x histogram\n\
                      x_bucket{le=\"0\"} 0\nx_bucket{le=\"1\"} 2\nx_bucket{le=\"2\"} 3\nx_bucket{le=\"3\"} 3\n";
        let ends = "x_bucket{le=\"11\"} 3\nx_bucket{le=\"+Inf\"} 4\nx_sum 23\nx_count 4\n\
                    y{a=\"\\\"\\\\\\n\"} 1\n";
        assert!(page.0.starts_with(begins) && page.0.ends_with(ends), "{}", page.0);
    }

    #[test]
    fn time_without_a_leader_adds_up() {
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let to = |id: Option<&str>| Event::leader_changed(None, id);
        let token = Token::new(1).unwrap();
        let mut leadership_time = LeadershipTime::new(at(10));
        assert_eq!(leadership_time.leaderless(at(12)), Duration::from_secs(2));
        leadership_time.record(&to(Some("a")), at(13));
        leadership_time.record(&Event::became_leader(token, None), at(13));
        assert_eq!(leadership_time.leaderless(at(20)), Duration::from_secs(3));
        assert_eq!(leadership_time.led(at(20)), Duration::from_secs(7));
        leadership_time.record(&Event::lost_leadership(token, EndReason::Resigned), at(20));
        leadership_time.record(&to(None), at(20));
        leadership_time.record(&to(None), at(21));
        assert_eq!(leadership_time.leaderless(at(22)), Duration::from_secs(5));
        assert_eq!(leadership_time.led(at(22)), Duration::ZERO);
        leadership_time.record(&to(Some("b")), at(24));
        assert_eq!(leadership_time.leaderless(at(99)), Duration::from_secs(7));
    }
}
