//! The two reasons why a command that only reads ends early: a signal, or a closed stdout.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tenure::{Clock, Error, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Short enough for a user who waits for `tenure watch | head -1` to end.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Completes at SIGINT, SIGTERM or SIGHUP.
pub(crate) fn stop_signal() -> Result<impl Future<Output = ()>> {
    let on = |kind| {
        signal(kind).map_err(|error| Error::denied(format!("cannot catch signals: {error}")))
    };
    let mut int = on(SignalKind::interrupt())?;
    let mut term = on(SignalKind::terminate())?;
    let mut hangup = on(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// Completes when the reader of stdout has closed it. A pipe reports that only to a writer, and a watch may have nothing to
/// write for days.
pub(crate) async fn stdout_closed() {
    let clock = Clock::boot();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let stdout = io::stdout();
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        // If `poll` fails, the next write finds out.
        let is_known = poll(&mut polled, Some(&at_once)).is_ok();
        if is_known && polled[0].revents().contains(PollFlags::ERR) {
            return;
        }
        clock.sleep(POLL_INTERVAL).await;
    }
}
