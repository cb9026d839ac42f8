//! What people see of the demo, line by line: the same on a terminal and in a pipe.

use std::io::{self, Write};
use std::time::Duration;

use super::checker::{CheckResult, Faults};
use super::protocol::NodeMessage;
use super::scenario::{FaultResult, ScenarioStop};
use super::{DemoConfig, DemoOutcome, Fault};

/// Tells the story, or keeps quiet for `--json` and `-q`.
#[derive(Clone, Copy)]
pub(super) struct DemoOutput {
    pub(super) tells: bool,
}

impl DemoOutput {
    /// One line. A reader that has gone away ends the demo.
    pub(super) fn say(&self, text: impl AsRef<str>) -> Result<(), ScenarioStop> {
        if !self.tells {
            return Ok(());
        }
        writeln!(io::stdout().lock(), "{}", text.as_ref()).map_err(|_| ScenarioStop::OutputGone)
    }

    /// What one of the processes said. It was given the port `wanted`.
    pub(super) fn word(
        &self,
        id: &str,
        pid: Option<u32>,
        wanted: u16,
        word: &NodeMessage,
    ) -> Result<(), ScenarioStop> {
        match word {
            NodeMessage::Started { http } => {
                let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
                let http = place(wanted, http);
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

/// Where a process answers.
fn place(wanted: u16, http: &Result<u16, String>) -> String {
    match http {
        Ok(port) if *port == wanted => format!("http://localhost:{port}"),
        Ok(port) => format!("http://localhost:{port} (port {wanted} is taken)"),
        Err(why) => format!("no HTTP: {why}"),
    }
}

/// What a fault is, for somebody who sees it for the first time.
pub(super) fn explained(fault: Fault) -> &'static str {
    match fault {
        Fault::Kill => "the leader dies without a word",
        Fault::Term => "the leader is asked to stop: it ends its work, then gives the lease back",
        Fault::Freeze => {
            "the leader is frozen. Nobody can tell that from being slow, so its lease has to run out"
        }
        Fault::None => "nothing",
    }
}

/// Milliseconds with one decimal.
pub(super) fn millis(gap: Duration) -> f64 {
    (gap.as_secs_f64() * 10_000.0).round() / 10.0
}

/// The result for people: the table, and what it comes to.
pub(super) fn table(outcome: &DemoOutcome) -> Vec<String> {
    let mut lines = Vec::new();
    if !outcome.scenes.is_empty() {
        // A gap is from the fault to the first line the next leader writes.
        lines.push("fault     gap (ms)   two leaders at once   counter lost or doubled".to_owned());
    }
    for (scene, faults) in &outcome.scenes {
        let gap = scene.gap.map_or_else(|| "none".to_owned(), |gap| format!("{:.1}", millis(gap)));
        let Faults { two_leaders, lost, doubled, .. } = faults;
        let wrong = lost + doubled;
        let name = scene.fault.as_str();
        lines.push(format!("{name:<8}{gap:>10}   {two_leaders:>19}   {wrong:>23}"));
    }
    if !outcome.scenes.is_empty() {
        lines.push(String::new());
    }
    lines.push(sum(&outcome.verdict));
    lines.extend(outcome.scenes.iter().filter_map(|(scene, _)| complaint(scene)));
    lines.extend(outcome.trouble.clone());
    if !outcome.setting.private {
        let DemoConfig { store, name, .. } = &outcome.setting;
        let url = store.url();
        lines.push(format!(
            "On {url} stays the record of '{name}', so that no token ever comes again."
        ));
    }
    lines
}

fn sum(verdict: &CheckResult) -> String {
    let Faults { two_leaders, lost, doubled, interrupted } = verdict.total();
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

fn complaint(scene: &FaultResult) -> Option<String> {
    let fault = scene.fault.as_str();
    match (scene.gap, &scene.trouble) {
        (None, _) => Some(format!("❌ {fault}: nobody came to lead")),
        (_, Some(trouble)) => Some(format!("❌ {fault}: {trouble}")),
        _ => None,
    }
}

/// Where to go from here.
pub(super) const NEXT: [&str; 3] = [
    "tenure run backup -- /opt/backup.sh   a command of yours, only where it leads; start it twice",
    "tenure status, tenure doctor          who leads what, and what your store promises",
    "docs/GUIDE.md                         choosing the numbers, recipes, from other tools",
];

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn where_a_process_answers_is_said_and_why_it_does_not() {
        assert_eq!(place(3000, &Ok(3000)), "http://localhost:3000");
        assert_eq!(place(3000, &Ok(3004)), "http://localhost:3004 (port 3000 is taken)");
        assert_eq!(place(3000, &Err("no port".to_owned())), "no HTTP: no port");
    }
}
