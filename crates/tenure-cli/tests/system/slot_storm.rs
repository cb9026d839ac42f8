//! I14: no slot of a schedule starts twice, and no two terms work at once, under random faults.
//!
//! Leaders are killed, frozen, frozen between the save of a slot and its effect, and asked to end; Redis is killed and
//! restarted. `TENURE_LONG=1` lasts longer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::Moment;

use crate::storm::Dice;
use crate::trial;
use tenure_rig::system::resume::resume_first_thread_first;
use tenure_rig::system::schedule_trial::{Scheduled, Work};
use tenure_rig::system::slots::Started;
use tenure_rig::system::time::{now, pause, poll_until};
use tenure_rig::system::trial_store::StoreKind;

const TTL: Duration = Duration::from_secs(1);
const STORM_DURATION: Duration = Duration::from_secs(10);
const LONG_STORM_DURATION: Duration = Duration::from_secs(120);
/// The next slot is due and saved within this.
const SAVED_WITHIN: Duration = Duration::from_millis(1_500);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for place in [StoreKind::File, StoreKind::Cabled] {
        for work in [Work::Every(200), Work::Cron, Work::Get(200)] {
            let name = format!("slots::storm::{}::{}", work.name(), place.name());
            trials.push(trial(name, place, move || storm(place, work)));
        }
    }
    let name = "control::an_interrupted_slot_that_is_run_again_starts_twice".to_owned();
    trials.push(trial(name, StoreKind::File, rerun_starts_twice));
    trials
}

struct Storm {
    stage: Scheduled,
    place: StoreKind,
    work: Work,
    dice: Dice,
    /// Until when each candidate stays frozen, and whether its work is to resume before its renewals.
    frozen: [Option<(Moment, bool)>; 3],
    log: File,
}

fn storm(place: StoreKind, work: Work) {
    let long = std::env::var_os("TENURE_LONG").is_some();
    let stage = Scheduled::new(place, TTL, work, &[]);
    let log = File::create_new(stage.directory().join("storm")).unwrap();
    let dice = Dice(now().as_nanos() | 1);
    let mut storm = Storm { stage, place, work, dice, frozen: [None; 3], log };
    storm.stage.at_work();
    let end = now() + if long { LONG_STORM_DURATION } else { STORM_DURATION };
    let mut faults = 0;
    while now() < end {
        faults += usize::from(storm.inject());
        let calm_until = now() + storm.dice.millis(50, 500);
        while now() < calm_until {
            storm.resume(false);
            pause(Duration::from_millis(2));
        }
    }
    storm.resume(true);
    // The schedule goes on, without a restart by hand.
    let last = storm.stage.observer.observe().and_then(|saved| saved.slot);
    storm.stage.until("a run after the storm", |saved| {
        (saved.slot > last && !saved.running).then_some(())
    });
    let starts = starts(&storm.stage.effects(), work);
    let (verdict, slots) = storm.stage.finish();
    let name = format!("{} on {}", work.name(), place.name());
    println!("I14 {name}: {faults} faults, {starts} starts; {verdict}; {slots}");
    assert!(faults > 3 && verdict.terms > 3, "{faults} faults, {verdict}");
    // Otherwise the checker would have too little to check.
    assert!(2 * slots.started > starts, "{slots} of {starts} starts");
}

/// How many runs were started, whether their slots are known or not.
fn starts(effects: &[tenure_rig::system::history::Line], work: Work) -> usize {
    match work {
        Work::Get(_) => effects.len(),
        Work::Every(_) | Work::Cron => {
            effects.iter().map(|line| line.pid).collect::<BTreeSet<_>>().len()
        }
    }
}

impl Storm {
    fn note(&mut self, what: &str) {
        writeln!(self.log, "{} {what}", now().as_nanos()).unwrap();
    }

    /// Injects one fault into the leader or the store; whether it could.
    fn inject(&mut self) -> bool {
        let Some(saved) = self.stage.observer.observe() else { return false };
        let Some(leader) = saved.holder.map(|id| self.stage.who(&id)) else { return false };
        if self.frozen[leader].is_some() {
            return false;
        }
        let fault = self.dice.roll(6);
        self.note(&format!("fault {fault} for {leader}"));
        match fault {
            0 | 1 => {
                let signal = if fault == 0 { Signal::KILL } else { Signal::TERM };
                self.stage.candidates[leader].signal(signal);
                let down = self.dice.millis(20, 300);
                pause(down);
                self.stage.restart(leader);
            }
            2 => self.freeze(leader, false),
            3 | 4 => return self.freeze_after_save(leader, saved.token, saved.slot),
            _ if self.place.is_server() => {
                self.stage.place.kill_server();
                let down = self.dice.millis(20, 800);
                pause(down);
                self.stage.place.start_server_again();
            }
            _ => {
                // The next candidates lead in turn while the first two are frozen.
                self.freeze(leader, false);
                let other = (leader + 1) % 3;
                if self.frozen[other].is_none() {
                    self.freeze(other, false);
                }
            }
        }
        true
    }

    fn freeze(&mut self, who: usize, work_first: bool) {
        self.stage.freeze(who);
        self.frozen[who] = Some((now() + self.dice.millis(100, 2_500), work_first));
    }

    /// Freezes the leader when the store shows that its next slot is saved. Behind a proxy the leader has not read the reply
    /// by then; without one it may have started the run.
    fn freeze_after_save(&mut self, leader: usize, token: u64, slot: Option<u64>) -> bool {
        if self.place == StoreKind::Cabled {
            // Held for a moment only, so that requests do not time out.
            tenure_rig::system::schedule_trial::pause_until_before_slot(self.work.period_ms(), 20);
            self.stage.place.cable(leader).hold_answers();
        }
        let within = if self.place == StoreKind::Cabled { TTL / 4 } else { SAVED_WITHIN };
        let saved = poll_until(within, || {
            let saved = self.stage.observer.observe()?;
            (saved.token == token && saved.running && saved.slot > slot).then_some(())
        });
        if saved.is_some() {
            self.freeze(leader, true);
        }
        if self.place == StoreKind::Cabled {
            self.stage.place.cable(leader).mend();
        }
        saved.is_some()
    }

    /// Resumes the candidates whose time has come, or all of them.
    fn resume(&mut self, all: bool) {
        for who in 0..self.frozen.len() {
            let due = self.frozen[who].take_if(|(at, _)| all || now() >= *at);
            let Some((_, work_first)) = due else { continue };
            if self.stage.candidates[who].ended().is_some() {
                // Its guard has killed it: it was frozen while it held the lock of the lease in the directory.
                self.stage.restart(who);
            } else if work_first {
                resume_first_thread_first(self.stage.candidates[who].pid());
            } else {
                self.stage.candidates[who].signal(Signal::CONT);
            }
            self.note(&format!("{who} goes on"));
        }
    }
}

/// Proves that the checker detects a real violation: `--interrupted rerun` starts a slot twice, on purpose.
fn rerun_starts_twice() {
    let again = ["--interrupted", "rerun"];
    let mut stage = Scheduled::new(StoreKind::File, 20 * TTL, Work::Every(300), &again);
    for _ in 0..20 {
        let before = Started::read(stage.directory()).len();
        let new = || Started::read(stage.directory()).get(before).cloned();
        let Some(start) = poll_until(10 * TTL, new) else { stage.fail("no slot is started") };
        let leader = stage.who(&start.candidate);
        stage.candidates[leader].signal(Signal::KILL);
        stage.restart(leader);
        let of_slot = |start: &Started, slot| start.slot == slot;
        let twice = poll_until(2 * TTL, || {
            let starts = Started::read(stage.directory());
            (starts.iter().filter(|other| of_slot(other, start.slot)).count() > 1).then_some(())
        });
        if twice.is_some() {
            let (verdict, slots) = stage.close();
            assert!(verdict.is_clean(), "one after the other: {verdict}");
            assert!(slots.twice.iter().any(|other| of_slot(other, start.slot)), "{slots}");
            return;
        }
    }
    stage.fail("no interrupted run was run again");
}
