//! Commands that misbehave, under each way in which a term can end.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::faults::{LONG, SOON, TTL, deadline, guard_alone};
use crate::trial;
use tenure_rig::stderr_faults::turns;
use tenure_rig::system::election_trial::{ElectionTrial, TIMEOUT};
use tenure_rig::system::fault::Fault;
use tenure_rig::system::fault_cycle::cycle;
use tenure_rig::system::processes;
use tenure_rig::system::time::{now, pause_until, poll_until};
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::{CODE, Mode};

const CYCLES: usize = 3;

const MODES: [Mode; 7] = [
    Mode::Stubborn,
    Mode::Forks,
    Mode::Hops,
    Mode::Daemon,
    Mode::Closes,
    Mode::Session,
    Mode::Group,
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    // Modes innermost: the modes with many processes do not run concurrently, which would be one more fault.
    for place in [StoreKind::File, StoreKind::Cabled] {
        for end in [
            End::Fault(Fault::Kill),
            End::Fault(Fault::Term),
            End::Fault(Fault::Freeze),
            End::Fault(Fault::Guard),
            End::Loss,
        ] {
            for mode in MODES {
                let name = format!("child::{}::{}::{}", mode.name(), end.name(), place.name());
                trials.push(trial(name, place, move || end.run(place, mode)));
            }
        }
    }
    for place in [StoreKind::File, StoreKind::Redis] {
        for mode in [Mode::Exits, Mode::Orphan] {
            let name = format!("child::{}::{}", mode.name(), place.name());
            trials.push(trial(name, place, move || end_in_turn(place, mode)));
        }
    }
    trials
}

/// How a term ends.
#[derive(Clone, Copy)]
enum End {
    Fault(Fault),
    /// The leader cannot renew any more.
    Loss,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            End::Fault(fault) => fault.name(),
            End::Loss => "lost",
        }
    }

    fn run(self, place: StoreKind, mode: Mode) {
        match self {
            End::Loss => lose(place, mode),
            End::Fault(Fault::Guard) => guard_alone(place, mode, 1),
            End::Fault(Fault::Term) if !mode.handles_sigterm() => ignore(place, mode),
            End::Fault(fault) => suffer(place, mode, fault),
        }
    }
}

fn suffer(place: StoreKind, mode: Mode, fault: Fault) {
    // A command that ignores SIGTERM has until the deadline: a long TTL would only delay the trial.
    let ttl = if fault == Fault::Kill { LONG } else { TTL };
    let mut stage = ElectionTrial::new(place, ttl, mode);
    for _ in 0..turns(CYCLES) {
        let outcome = cycle(&mut stage, fault);
        let gap = outcome.gap();
        let limit = if fault == Fault::Kill { SOON } else { ttl + SOON };
        if gap > limit {
            stage.fail(&format!("nobody led for {gap:?}"));
        }
        let late = outcome.last.since(deadline(outcome.hit, ttl));
        if fault == Fault::Freeze && late > Duration::ZERO {
            stage.fail(&format!("it worked {late:?} past its deadline"));
        }
    }
    stage.finish();
}

/// A signal that the command ignores: it keeps working in its term, alone, until a second Ctrl-C.
fn ignore(place: StoreKind, mode: Mode) {
    let mut stage = ElectionTrial::new(place, TTL, mode);
    for _ in 0..CYCLES {
        let term = stage.settled();
        stage.contenders[term.who].signal(Signal::TERM);
        pause_until(now() + TTL.saturating_mul(2));
        assert_eq!(stage.steady().token, term.token, "its lease is renewed as long as it works");
        // Spaced as by a person: two signals that come together are one to a process that did not run between them.
        let ended = poll_until(TIMEOUT, || {
            stage.contenders[term.who].signal(Signal::INT);
            pause_until(now() + Duration::from_millis(200));
            stage.contenders[term.who].ended()
        });
        if ended.is_none() {
            stage.fail("it was interrupted again and again, and does not end");
        }
        assert_eq!(stage.ended(term.who).code(), Some(128 + 9), "it had to be killed");
        stage.next_after(term.token, SOON);
        stage.restart(term.who);
    }
    stage.finish();
}

/// The leader itself detects that it cannot renew any more, and stops its work in time.
fn lose(place: StoreKind, mode: Mode) {
    let mut stage = ElectionTrial::new(place, TTL, mode);
    for _ in 0..CYCLES {
        let term = stage.settled();
        if place.is_server() {
            stage.place.cable(term.who).cut();
        } else {
            stage.place.move_directory(true);
        }
        // Just after the fault: until then a renewal may have been sent.
        let begun = now();
        pause_until(begun + TTL);
        stage.gone(&term.work);
        let late = stage.last_of(term.token).at.since(deadline(begun, TTL));
        if late > Duration::ZERO {
            stage.fail(&format!("it worked {late:?} past its deadline"));
        }
        if place.is_server() {
            stage.next_after(term.token, TTL + SOON);
            stage.place.cable(term.who).mend();
        } else {
            stage.place.move_directory(false);
            stage.next_after(term.token, TTL + SOON);
        }
        stage.steady();
    }
    stage.finish();
}

/// A command that ends releases the lease: the next candidate leads, until all have led.
fn end_in_turn(place: StoreKind, mode: Mode) {
    let mut stage = ElectionTrial::new(place, LONG, mode);
    let begun = now();
    let code = if mode == Mode::Exits { i32::from(CODE) } else { 0 };
    for who in 0..stage.contenders.len() {
        assert_eq!(stage.ended(who).code(), Some(code), "it ends as its command did");
    }
    let took = now().since(begun);
    if took > LONG {
        stage.fail(&format!("three turns took {took:?}"));
    }
    let left = poll_until(SOON, || processes::marked(stage.mark()).is_empty().then_some(()));
    if left.is_none() {
        stage.fail(&processes::described(&processes::marked(stage.mark())));
    }
    let (verdict, _) = stage.finish();
    if mode == Mode::Exits {
        assert_eq!((verdict.stamps, verdict.terms), (3, 3), "one effect and one term each");
    }
}
