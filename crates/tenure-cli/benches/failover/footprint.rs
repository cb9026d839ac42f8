//! The cost without faults: memory, the round trip to the store, and the time to the first acquire.

use std::time::Duration;

use rustix::process::Signal;
use tenure::Clock;

use crate::rows::TTL;
use tenure_rig::figures::Figures;
use tenure_rig::system::election_trial::ElectionTrial;
use tenure_rig::system::processes::memory;
use tenure_rig::system::time::{millis, now, pause};
use tenure_rig::system::trial_store::{StoreKind, asked};
use tenure_rig::system::worker::Mode;

pub(crate) fn measure(place: StoreKind, repeats: usize) -> String {
    let mut stage = ElectionTrial::empty(place, TTL, Mode::Plain);
    let (attempts, effects) = starts(&mut stage, repeats);
    stage.restart(0);
    let term = stage.settled();
    // Long enough for a few renewals.
    pause(Duration::from_secs(4));
    let of = |pid, what| memory(pid, what).unwrap_or_default();
    let together = of(term.leader, "VmRSS") + of(term.guard, "VmRSS");
    let (anonymous, child) = (of(term.guard, "RssAnon"), of(term.leader, "RssAnon"));
    let mut lines = vec![
        format!(
            "leader and guard together {:.1} MiB resident (wanted ≤ 20); anonymous: leader {:.2} MiB, guard {:.2} MiB (wanted ≤ 4)",
            mebi(together),
            mebi(child),
            mebi(anonymous)
        ),
        shown(
            "from the start of the command to the acquire, on the store's clock (wanted ≤ 20)",
            &attempts,
        ),
        shown("from the start of the command to the first effect of its child", &effects),
        shown("one look at the store", &round_trips(&stage)),
    ];
    lines.extend(pings(&stage).map(|pings| shown("one PING to the bare server", &pings)));
    stage.close();
    lines.join("\n")
}

#[allow(clippy::cast_precision_loss)] // Far below 2^52.
fn mebi(kibibytes: u64) -> f64 {
    kibibytes as f64 / 1024.0
}

fn shown(what: &str, figures: &Figures) -> String {
    let (median, p99, most) = (figures.median(), figures.percent(99), figures.most());
    format!(
        "{what}: median {median:.2} ms, p99 {p99:.2}, max {most:.2} ({} times)",
        figures.count()
    )
}

/// Starts of one candidate on a free lease, without other candidates. The store mints a token from the wall clock in
/// microseconds when it grants the lease: on one machine the token is the time of the grant.
#[allow(clippy::cast_precision_loss)] // Differences of a few milliseconds.
fn starts(stage: &mut ElectionTrial, repeats: usize) -> (Figures, Figures) {
    let (mut attempts, mut effects) = (Figures::default(), Figures::default());
    let mut last = 0;
    for round in 0..repeats {
        let (wall, started) = (Clock::boot().minting_micros(), now());
        match round {
            0 => stage.add(),
            _ => stage.restart(0),
        }
        let first = stage.next_after(last, TTL);
        effects.add(millis(started, first.at));
        attempts.add(first.token.saturating_sub(wall) as f64 / 1_000.0);
        last = first.token;
        stage.contenders[0].signal(Signal::TERM);
        stage.ended(0);
    }
    (attempts, effects)
}

fn round_trips(stage: &ElectionTrial) -> Figures {
    let mut figures = Figures::default();
    (0..200).for_each(|_| figures.add(stage.round_trip().as_secs_f64() * 1_000.0));
    figures
}

fn pings(stage: &ElectionTrial) -> Option<Figures> {
    let mut server = stage.place.ping()?;
    let mut figures = Figures::default();
    for _ in 0..200 {
        let started = now();
        assert!(asked(&mut server), "it answers");
        figures.add(millis(started, now()));
    }
    Some(figures)
}
