//! Being asked to end: by a signal, or because nobody reads any more.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tenure::{Clock, Error, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Often enough for whoever waits for the end of `tenure watch | head -1`.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Ends when somebody wants us to.
pub(crate) fn caught() -> Result<impl Future<Output = ()>> {
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

/// Ends when nobody is left to read what goes to stdout. A pipe tells that to those who write, and
/// whoever waits for news may have nothing to write for days.
pub(crate) async fn nobody_reads() {
    let clock = Clock::boot();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let stdout = io::stdout();
        let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
        // What cannot be asked is found out when writing.
        let told = poll(&mut asked, Some(&at_once)).is_ok();
        if told && asked[0].revents().contains(PollFlags::ERR) {
            return;
        }
        clock.sleep(LOOK_EVERY).await;
    }
}
