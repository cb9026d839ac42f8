//! Waiting and polling, on the clock that the judge reads.

use std::time::Duration;

use tenure::{Clock, Moment};
use tokio::runtime::Runtime;

/// How often a condition is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub fn now() -> Moment {
    Clock::boot().now()
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub fn pause(time: Duration) {
    thread_local!(static RUNTIME: Runtime = runtime());
    RUNTIME.with(|runtime| runtime.block_on(Clock::boot().sleep(time)));
}

pub fn pause_until(at: Moment) {
    pause(at.since(now()));
}

/// Polls a condition until it returns a value or `limit` has passed.
pub fn poll_until<T>(limit: Duration, mut found: impl FnMut() -> Option<T>) -> Option<T> {
    let end = now() + limit;
    loop {
        if let Some(found) = found() {
            return Some(found);
        }
        if now() >= end {
            return None;
        }
        pause(POLL_INTERVAL);
    }
}

/// Waits until a condition holds, without blocking the runtime.
///
/// # Panics
/// If it does not hold after half a minute.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = now() + Duration::from_secs(30);
    while !holds() {
        assert!(now() < limit, "timed out: {what}");
        Clock::boot().sleep(Duration::from_millis(1)).await;
    }
}

/// Signed milliseconds from `from` to `to`.
pub fn millis(from: Moment, to: Moment) -> f64 {
    (to.since(from).as_secs_f64() - from.since(to).as_secs_f64()) * 1_000.0
}
