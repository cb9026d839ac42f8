//! The final output that both demos share, as text and as JSON.

use serde::Serialize;
use tenure::Result;

use super::scenario::ScenarioStop;
use crate::args::Args;
use crate::output;

/// Prints the result. `next`: suggested next steps after a successful demo.
pub(super) fn print(
    args: &Args,
    run_result: &Result<(), ScenarioStop>,
    answer: &impl Serialize,
    table: Vec<String>,
    next: Option<&[&str]>,
) -> Result<()> {
    if args.json {
        return output::json(answer);
    }
    let mut lines = Vec::new();
    match run_result {
        Err(ScenarioStop::OutputGone) => return Ok(()),
        Err(ScenarioStop::Interrupted) => {
            lines.extend(["", "Interrupted. Up to here:"].map(String::from))
        }
        _ if args.quiet => {}
        _ => lines.push(String::new()),
    }
    lines.extend(table);
    if let Some(next) = next
        && run_result.is_ok()
        && !args.quiet
    {
        lines.extend(["", "Next:"].map(String::from));
        lines.extend(next.iter().map(|step| format!("  {step}")));
    }
    output::line(lines.join("\n"))
}

/// The error that ended the demo early.
#[derive(Serialize)]
pub(super) struct DemoErrorJson {
    kind: &'static str,
    message: String,
}

impl DemoErrorJson {
    pub(super) fn of(run_result: &Result<(), ScenarioStop>) -> Option<DemoErrorJson> {
        match run_result {
            Err(ScenarioStop::Failed(error)) => {
                Some(DemoErrorJson { kind: error.kind().as_str(), message: error.to_string() })
            }
            _ => None,
        }
    }
}
