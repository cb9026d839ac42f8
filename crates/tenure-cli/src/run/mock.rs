//! `--mock`: work that is nothing but a count in the log, kept over every change of leader.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::{Clock, Leadership, Saved};

use super::lines::Lines;

/// How often it counts.
const EVERY: Duration = Duration::from_secs(5);

/// What the next leader goes on from.
#[derive(Default, Serialize, Deserialize)]
struct Left {
    count: u64,
}

/// Counts until it is dropped, or the term is over.
pub(super) async fn poll(leadership: &Leadership, lines: &Lines) {
    let clock = Clock::boot();
    let left =
        leadership.checkpoint().and_then(|left| serde_json::from_slice(left.as_bytes()).ok());
    let Left { mut count } = left.unwrap_or_default();
    loop {
        let next = clock.now() + EVERY;
        let number = count + 1;
        // Noted down before it is said: a number is said once at most, whoever says it.
        match leadership.save(format!("{{\"count\":{number}}}")).await {
            Ok(Saved::Kept) => {
                count = number;
                lines.poll(count);
            }
            Ok(Saved::Lost) => return,
            // Whether it was kept is not known; the same number again changes nothing.
            Err(error) => lines.trouble(&format!("cannot note down poll {number}: {error}")),
        }
        clock.sleep_until(next).await;
    }
}
