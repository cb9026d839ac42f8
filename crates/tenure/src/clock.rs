//! [`Clock`] and [`Moment`]: the only module that reads a clock.
//!
//! Deadlines are counted on `CLOCK_BOOTTIME`. Unlike Rust's `Instant`, it continues while the machine is suspended: a laptop
//! that wakes up after an hour knows that its lease is over.

#![allow(clippy::disallowed_methods)]

use std::fmt;
use std::ops::Add;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// A point in time on this machine's boot clock. Meaningless on any other machine.
///
/// ```
/// use std::time::Duration;
/// use tenure::Clock;
///
/// let clock = Clock::manual();
/// let start = clock.now();
/// clock.advance(Duration::from_secs(2));
/// assert_eq!(clock.now().since(start), Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// Before every moment that a clock shows: a deadline that has passed, or an action that is due at once.
    pub const PAST: Moment = Moment(0);

    /// Creates a moment from nanoseconds since boot, as the kernel counts them.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The duration since `earlier`; zero if this moment is not after it.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment minus `duration`, but never before [`Moment::PAST`].
    #[must_use]
    pub fn before(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos(duration)))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, duration: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(duration)))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Whole nanoseconds. More than five centuries count as forever.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A source of time: the machine's clock, or a manual clock for tests.
#[derive(Clone, Debug, Default)]
pub struct Clock(ClockSource);

#[derive(Clone, Default)]
enum ClockSource {
    #[default]
    Boot,
    Manual(Arc<Manual>),
}

impl fmt::Debug for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockSource::Boot => f.write_str("boot"),
            ClockSource::Manual(manual) => write!(f, "manual at {:?}", manual.now()),
        }
    }
}

struct Manual {
    nanos: AtomicU64,
    advanced: watch::Sender<()>,
    // Two concurrent calls of `advance` must not overtake each other between the store and the notification.
    advancing: Mutex<()>,
}

impl Manual {
    fn now(&self) -> Moment {
        Moment(self.nanos.load(Ordering::SeqCst))
    }
}

impl Clock {
    /// The machine's boot clock.
    pub fn boot() -> Self {
        Clock(ClockSource::Boot)
    }

    /// A clock that does not move until [`Clock::advance`] is called: for tests of your own code.
    pub fn manual() -> Self {
        // Not zero, so that a moment before the start differs from `Moment::PAST`.
        let nanos = AtomicU64::new(1_000_000_000_000);
        Clock(ClockSource::Manual(Arc::new(Manual {
            nanos,
            advanced: watch::channel(()).0,
            advancing: Mutex::new(()),
        })))
    }

    /// Whether this is the machine's boot clock.
    pub(crate) fn is_boot(&self) -> bool {
        matches!(self.0, ClockSource::Boot)
    }

    /// The current time on this clock.
    pub fn now(&self) -> Moment {
        match &self.0 {
            ClockSource::Boot => boot_now(),
            ClockSource::Manual(manual) => manual.now(),
        }
    }

    /// Advances a manual clock and wakes all tasks that sleep on it.
    ///
    /// # Panics
    /// On the machine's clock, which moves by itself.
    pub fn advance(&self, by: Duration) {
        let ClockSource::Manual(manual) = &self.0 else {
            panic!("Clock::advance is for Clock::manual(); the boot clock moves by itself");
        };
        let _advancing = manual.advancing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        manual.nanos.store((manual.now() + by).0, Ordering::SeqCst);
        manual.advanced.send_replace(());
    }

    /// The time in whole microseconds for minting tokens: the wall clock, or the time of a manual clock.
    ///
    /// It is only a lower bound for a counter, and is never compared with the clock of another machine.
    pub fn minting_micros(&self) -> u64 {
        match &self.0 {
            ClockSource::Boot => {
                let wall = clock_gettime(rustix::time::ClockId::Realtime);
                moment(wall).0 / 1_000
            }
            ClockSource::Manual(manual) => manual.now().0 / 1_000,
        }
    }

    /// Returns when this clock shows `at` or later. On the boot clock this holds through suspend.
    ///
    /// Must be called inside a tokio runtime with I/O enabled.
    pub async fn sleep_until(&self, at: Moment) {
        match &self.0 {
            ClockSource::Boot => boot_sleep_until(at).await,
            ClockSource::Manual(manual) => {
                let mut advanced = manual.advanced.subscribe();
                while manual.now() < at {
                    if advanced.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Sleeps for `duration`, like [`Clock::sleep_until`].
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }
}

fn boot_now() -> Moment {
    moment(clock_gettime(rustix::time::ClockId::Boottime))
}

fn moment(time: Timespec) -> Moment {
    // Both clocks are positive on a running machine; a negative time would be before boot or 1970.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Sleeps with a timer descriptor on the boot clock: tokio's own timers stop in suspend and round to milliseconds.
async fn boot_sleep_until(at: Moment) {
    if boot_now() >= at {
        // Lets other tasks run, even without a wait.
        tokio::task::yield_now().await;
        return;
    }
    if boot_timer(at).await.is_err() {
        // Out of descriptors: tokio's timer is coarser, and late only after a suspend. There every answer is computed from the
        // boot clock anyway.
        while boot_now() < at {
            tokio::time::sleep(at.since(boot_now()).min(Duration::from_secs(1))).await;
        }
    }
}

async fn boot_timer(at: Moment) -> std::io::Result<()> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = async_fd(timerfd_create(TimerfdClockId::Boottime, flags)?)?;
    let spec = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec {
            tv_sec: (at.0 / 1_000_000_000).cast_signed(),
            tv_nsec: (at.0 % 1_000_000_000).cast_signed(),
        },
    };
    timerfd_settime(timer.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
    while boot_now() < at {
        timer.readable().await?.retain_ready();
    }
    Ok(())
}

/// Registers a descriptor with the runtime.
///
/// `AsyncFd::new` is deprecated because a type could return another descriptor than it owns. An `OwnedFd` cannot. The
/// replacement is an `unsafe fn`, and only one module of this crate should contain unsafe code.
#[allow(deprecated)]
pub(crate) fn async_fd(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        let late = Moment(u64::MAX - 1);
        assert_eq!(late + Duration::from_secs(9), Moment(u64::MAX));
        assert_eq!(Moment(5).before(Duration::from_secs(1)), Moment::PAST);
        assert_eq!(Moment(5).since(Moment(9)), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_sleep_on_the_boot_clock_does_not_end_early() {
        let clock = Clock::boot();
        let at = clock.now() + Duration::from_millis(20);
        clock.sleep_until(at).await;
        assert!(clock.now() >= at);
    }

    #[tokio::test]
    async fn a_sleep_on_a_manual_clock_ends_when_the_clock_is_advanced() {
        let clock = Clock::manual();
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(Duration::from_secs(3)).await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(2));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.expect("the sleeper ends");
    }
}
