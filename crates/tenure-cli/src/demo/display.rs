//! The text output of the demo, line by line: the same on a terminal and in a pipe.

use std::io::{self, Write};
use std::time::Duration;

use super::checker::{CheckResult, Violations};
use super::protocol::NodeMessage;
use super::scenario::{FaultResult, ScenarioStop};
use super::{DemoConfig, DemoFault, DemoOutcome};

/// Prints the progress of the demo; disabled for `--json` and `-q`.
#[derive(Clone, Copy)]
pub(super) struct DemoOutput {
    pub(super) enabled: bool,
}

impl DemoOutput {
    /// Prints one line. A closed stdout ends the demo.
    pub(super) fn say(&self, text: impl AsRef<str>) -> Result<(), ScenarioStop> {
        if !self.enabled {
            return Ok(());
        }
        writeln!(io::stdout().lock(), "{}", text.as_ref()).map_err(|_| ScenarioStop::OutputGone)
    }

    /// Prints a message of a process that was told to use the port `requested_port`.
    pub(super) fn message(
        &self,
        id: &str,
        pid: Option<u32>,
        requested_port: u16,
        message: &NodeMessage,
    ) -> Result<(), ScenarioStop> {
        match message {
            NodeMessage::Started { http } => {
                let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
                let http = url_or_reason(requested_port, http);
                self.say(format!("✅ [{id}] Leader election started, process {pid}, {http}"))
            }
            NodeMessage::Follows { leader } => {
                self.say(format!("👥 [{id}] Status: FOLLOWER - {leader} leads"))
            }
            NodeMessage::Leads { token, from, .. } => {
                let from = match from {
                    0 => String::new(),
                    from => format!(", counts on from {from}"),
                };
                self.say(format!(
                    "🎉 [{id}] BECAME LEADER - Starting leadership duties (token {token}){from}"
                ))
            }
            NodeMessage::Counted { count } if count % 10 == 0 => {
                self.say(format!("👑 [{id}] Status: LEADER - counted to {count}"))
            }
            NodeMessage::Counted { .. } | NodeMessage::Gone => Ok(()),
            NodeMessage::Ended { count, why, clean: true, .. } => self.say(format!(
                "[{id}] Stopped counting at {count}, releases leadership: reason={why}"
            )),
            NodeMessage::Ended { why, .. } => self.say(format!("[{id}] Lost leadership: {why}")),
        }
    }
}

/// The URL of a process, or why it has none.
fn url_or_reason(requested_port: u16, http: &Result<u16, String>) -> String {
    match http {
        Ok(port) if *port == requested_port => format!("http://localhost:{port}"),
        Ok(port) => format!("http://localhost:{port} (port {requested_port} is taken)"),
        Err(why) => format!("no HTTP: {why}"),
    }
}

/// An explanation of a fault, for new users.
pub(super) fn explained(fault: DemoFault) -> &'static str {
    match fault {
        DemoFault::Kill => "the leader dies without a word",
        DemoFault::Term => {
            "the leader is asked to stop: it ends its work, then gives the lease back"
        }
        DemoFault::Freeze => {
            "the leader is frozen. Nobody can tell that from being slow, so its lease has to run out"
        }
        DemoFault::None => "nothing",
    }
}

/// Milliseconds with one decimal.
pub(super) fn millis(gap: Duration) -> f64 {
    (gap.as_secs_f64() * 10_000.0).round() / 10.0
}

/// The result as text: a table and a summary.
pub(super) fn table(outcome: &DemoOutcome) -> Vec<String> {
    let mut lines = Vec::new();
    if !outcome.fault_results.is_empty() {
        // A gap is the time from the fault to the first journal line of the next leader.
        lines.push("fault     gap (ms)   two leaders at once   counter lost or doubled".to_owned());
    }
    for (fault_result, faults) in &outcome.fault_results {
        let gap =
            fault_result.gap.map_or_else(|| "none".to_owned(), |gap| format!("{:.1}", millis(gap)));
        let Violations { two_leaders, lost, doubled, .. } = faults;
        let wrong = lost + doubled;
        let name = fault_result.fault.as_str();
        lines.push(format!("{name:<8}{gap:>10}   {two_leaders:>19}   {wrong:>23}"));
    }
    if !outcome.fault_results.is_empty() {
        lines.push(String::new());
    }
    lines.push(summary(&outcome.verdict));
    lines.extend(
        outcome.fault_results.iter().filter_map(|(fault_result, _)| complaint(fault_result)),
    );
    lines.extend(outcome.error.clone());
    if !outcome.config.private {
        let DemoConfig { store, name, .. } = &outcome.config;
        let url = store.url();
        lines.push(format!(
            "On {url} stays the record of '{name}', so that no token ever comes again."
        ));
    }
    lines
}

fn summary(verdict: &CheckResult) -> String {
    let Violations { two_leaders, lost, doubled, interrupted } = verdict.total();
    let terms = match verdict.terms.len() {
        1 => "1 term".to_owned(),
        many => format!("{many} terms"),
    };
    let cut = match interrupted {
        0 => String::new(),
        many => format!("; {many} kept by the store, but cut off before it was written down"),
    };
    let counts = verdict.counts;
    format!(
        "{counts} counts in {terms}: {two_leaders} by a second leader, {lost} lost, {doubled} doubled{cut}."
    )
}

fn complaint(fault_result: &FaultResult) -> Option<String> {
    let fault = fault_result.fault.as_str();
    match (fault_result.gap, &fault_result.problem) {
        (None, _) => Some(format!("❌ {fault}: nobody came to lead")),
        (_, Some(problem)) => Some(format!("❌ {fault}: {problem}")),
        _ => None,
    }
}

/// Suggested next steps.
pub(super) const NEXT: [&str; 3] = [
    "tenure run backup -- /opt/backup.sh   a command of yours, only where it leads; start it twice",
    "tenure status, tenure doctor          who leads what, and what your store promises",
    "docs/GUIDE.md                         choosing the numbers, recipes, from other tools",
];

#[cfg(test)]
mod tests {
    use super::url_or_reason;

    #[test]
    fn the_url_of_a_process_or_the_reason_is_shown() {
        assert_eq!(url_or_reason(3000, &Ok(3000)), "http://localhost:3000");
        assert_eq!(url_or_reason(3000, &Ok(3004)), "http://localhost:3004 (port 3000 is taken)");
        assert_eq!(url_or_reason(3000, &Err("no port".to_owned())), "no HTTP: no port");
    }
}
