//! What both demos do at their end, for people and for programs.

use serde::Serialize;
use tenure::Result;

use super::scenario::ScenarioStop;
use crate::args::Args;
use crate::output;

/// Tells the result. `next`: where to go from here, for whoever saw it go well.
pub(super) fn tell(
    args: &Args,
    played: &Result<(), ScenarioStop>,
    answer: &impl Serialize,
    table: Vec<String>,
    next: Option<&[&str]>,
) -> Result<()> {
    if args.json {
        return output::json(answer);
    }
    let mut lines = Vec::new();
    match played {
        Err(ScenarioStop::OutputGone) => return Ok(()),
        Err(ScenarioStop::Interrupted) => {
            lines.extend(["", "Interrupted. Up to here:"].map(String::from))
        }
        _ if args.quiet => {}
        _ => lines.push(String::new()),
    }
    lines.extend(table);
    if let Some(next) = next
        && played.is_ok()
        && !args.quiet
    {
        lines.extend(["", "Next:"].map(String::from));
        lines.extend(next.iter().map(|step| format!("  {step}")));
    }
    output::line(lines.join("\n"))
}

/// Why it did not run to its end.
#[derive(Serialize)]
pub(super) struct ErrorAnswer {
    kind: &'static str,
    message: String,
}

impl ErrorAnswer {
    pub(super) fn of(played: &Result<(), ScenarioStop>) -> Option<ErrorAnswer> {
        match played {
            Err(ScenarioStop::Failed(error)) => {
                Some(ErrorAnswer { kind: error.kind().as_str(), message: error.to_string() })
            }
            _ => None,
        }
    }
}
