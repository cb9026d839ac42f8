//! Every fault of a leader, on a directory and on every server.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::Moment;

use crate::trial;
use tenure_rig::stderr_faults::{Stderr, turns};
use tenure_rig::system::checker::Thaw;
use tenure_rig::system::election_trial::{ElectionTrial, TIMEOUT};
use tenure_rig::system::fault::Fault;
use tenure_rig::system::fault_cycle::{AFTER_THAW, cycle};
use tenure_rig::system::processes::{is_there, signal};
use tenure_rig::system::time::{now, pause, poll_until};
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

const CYCLES: usize = 5;
/// The TTL of trials in which the lease has to expire.
pub(crate) const TTL: Duration = Duration::from_secs(1);
/// The TTL of trials in which it must not: a candidate that waits for its expiry exceeds every limit.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// The limit of a hand-over that takes milliseconds, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(5);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for fault in Fault::ALL {
        let places: &[StoreKind] = match fault {
            Fault::Cut => &[StoreKind::Cabled, StoreKind::EtcdCabled],
            _ => &[StoreKind::File, StoreKind::Redis, StoreKind::Etcd],
        };
        for &place in places {
            let name = format!("fault::{}::{}", fault.name(), place.name());
            trials.push(trial(name, place, move || match fault {
                Fault::Guard => guard_alone(place, Mode::Plain, CYCLES),
                _ => suffer(place, fault, None),
            }));
        }
    }
    let name = "fault::freeze_with_a_renewal_under_way::redis".to_owned();
    trials.push(trial(name, StoreKind::Cabled, || frozen_while_renewing(Thawed::Late)));
    let name = "fault::freeze_with_a_renewal_under_way_briefly::redis".to_owned();
    trials.push(trial(name, StoreKind::Cabled, || frozen_while_renewing(Thawed::InTime)));
    let name = "control::an_unfenced_counter_breaks_after_a_thaw".to_owned();
    trials.push(trial(name, StoreKind::File, unfenced_counter_breaks));
    trials
}

/// The latest deadline of the leader, if it renewed last just before `at`: the TTL less its margin of a tenth.
pub(crate) fn deadline(at: Moment, ttl: Duration) -> Moment {
    at + ttl.mul_f64(0.9)
}

pub(crate) fn suffer(place: StoreKind, fault: Fault, stderr: Option<Stderr>) {
    let cycles = turns(CYCLES);
    let quick = matches!(fault, Fault::Kill | Fault::Term)
        || matches!(fault, Fault::KillTree | Fault::KillPair) && place == StoreKind::File;
    let ttl = if quick { LONG } else { place.short_ttl() };
    let mut stage = ElectionTrial::with_stderr(place, ttl, Mode::Plain, stderr);
    for _ in 0..cycles {
        let outcome = cycle(&mut stage, fault);
        let gap = outcome.gap();
        if quick && gap > SOON {
            stage.fail(&format!("nobody led for {gap:?}"));
        }
        if gap > ttl + place.expiry_delay() + SOON {
            stage.fail(&format!("nobody led for {gap:?}, with a TTL of {ttl:?}"));
        }
        match fault {
            Fault::Term => {
                assert_eq!(outcome.code, Some(128 + 15), "its work died of the SIGTERM passed on");
            }
            Fault::Freeze | Fault::Cut => {
                let late = outcome.last.since(deadline(outcome.hit, ttl));
                if late > Duration::ZERO {
                    stage.fail(&format!("it worked {late:?} past its deadline"));
                }
            }
            Fault::FreezeTree => {
                let thawed = outcome.thawed.expect("it was thawed");
                if thawed > AFTER_THAW {
                    stage.fail(&format!("it was killed only {thawed:?} after the thaw"));
                }
            }
            Fault::Kill | Fault::KillTree | Fault::KillPair | Fault::Guard => {}
        }
    }
    let (verdict, books) = stage.finish();
    assert!(verdict.terms > cycles, "{} terms", verdict.terms);
    assert!(books.accepted() > 0, "the register was written to");
}

/// When a leader resumes whose guard has ended its work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thawed {
    /// It still holds its lease.
    InTime,
    /// Another candidate leads.
    Late,
}

/// The leader is frozen when its renewal is granted and it has neither read the reply nor informed the guard: when it resumes,
/// its deadline may be later than the one the guard knows. So no other candidate may lead at the deadline that the guard knows.
fn frozen_while_renewing(thawed: Thawed) {
    let ttl = 2 * TTL;
    let mut stage = ElectionTrial::new(StoreKind::Cabled, ttl, Mode::Plain);
    for _ in 0..CYCLES {
        let term = stage.settled();
        let renewed = poll_until(TIMEOUT, || {
            // Just before the renewal, or this waits for the next one.
            let before = stage.expiry(term.token)?;
            stage.place.cable(term.who).hold_answers();
            let renewed = poll_until(ttl / 4, || {
                stage.expiry(term.token).filter(|at| *at > before + ttl / 8)
            });
            if renewed.is_none() {
                stage.place.cable(term.who).mend();
            }
            renewed
        });
        signal(term.leader, Signal::STOP);
        stage.place.cable(term.who).mend();
        let Some(expiry) = renewed else { stage.fail("it does not renew") };
        if thawed == Thawed::Late {
            let next = stage.next_after(term.token, ttl + TIMEOUT).at;
            if next < expiry.before(Duration::from_millis(20)) {
                let early = expiry.since(next);
                stage.fail(&format!("another led {early:?} before the lease ran out"));
            }
        }
        stage.gone(&term.work);
        signal(term.leader, Signal::CONT);
        // Its guard has ended the term: a worker that works now works in another.
        stage.next_after(term.token, ttl + TIMEOUT);
        if thawed == Thawed::Late {
            stage.waits(term.who);
        }
        stage.steady();
    }
    stage.finish();
}

/// The leader kills the processes that the guard has left and starts both again, in the same term or in the next.
pub(crate) fn guard_alone(place: StoreKind, mode: Mode, cycles: usize) {
    for _ in 0..cycles {
        // A new stage each time: a guard that dies repeatedly is restarted with a growing delay.
        let mut stage = ElectionTrial::new(place, LONG, mode);
        let term = stage.settled();
        let (at, _) = Fault::Guard.strike(&stage, &term);
        stage.gone(&term.work);
        let next = stage.next_since(now());
        assert!(!term.work.contains(&next.pid), "a new process works");
        let gap = next.at.since(at);
        if gap > SOON {
            stage.fail(&format!("nobody worked for {gap:?}"));
        }
        assert!(is_there(term.leader), "the leader lives on");
        let new = stage.steady();
        assert_ne!(new.guard, term.guard);
        stage.finish();
    }
}

/// Proves that the fault has an effect: a worker that trusts its lease and writes the value that it had read before it was
/// frozen undoes what the next leader wrote.
fn unfenced_counter_breaks() {
    let mut stage = ElectionTrial::new(StoreKind::File, TTL, Mode::Plain);
    for _ in 0..4 * CYCLES {
        let term = stage.settled();
        let all = || [term.leader, term.guard].into_iter().chain(term.work.iter().copied());
        all().for_each(|pid| signal(pid, Signal::STOP));
        stage.next_after(term.token, TTL + TIMEOUT);
        pause(Duration::from_millis(150));
        // The worker resumes first: a thaw is not always at one instant.
        let from = now();
        stage.thaws.push(Thaw { token: term.token, from, within: Duration::from_secs(1) });
        term.work.iter().for_each(|pid| signal(*pid, Signal::CONT));
        let broken = poll_until(Duration::from_millis(100), || {
            let books = stage.books();
            (books.lost_updates() > 0 && books.refused > 0).then_some(())
        });
        all().for_each(|pid| signal(pid, Signal::CONT));
        stage.gone(&term.work);
        stage.waits(term.who);
        if broken.is_some() {
            let (verdict, books) = stage.finish();
            assert!(verdict.excused > 0, "the judge has seen it too");
            assert!(books.lost_updates() > 0 && books.stale_accepted() == 0, "{books:?}");
            return;
        }
    }
    stage.fail("the counter that nothing fences was never broken: this fault does not bite");
}
