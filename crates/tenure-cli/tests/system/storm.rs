//! Random faults, several at a time, on leaders and on waiting candidates.
//!
//! Each fault, its time and its target are written to `storm` beside the history, and kept if the trial fails.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::Moment;

use crate::faults::TTL;
use crate::trial;
use tenure_rig::stderr_faults::Stderr;
use tenure_rig::system::checker::Thaw;
use tenure_rig::system::election_trial::ElectionTrial;
use tenure_rig::system::fault_cycle::AFTER_THAW;
use tenure_rig::system::freezer::Frozen;
use tenure_rig::system::processes::{children, has_open, signal};
use tenure_rig::system::time::{now, pause};
use tenure_rig::system::trial_store::StoreKind;
use tenure_rig::system::worker::Mode;

const STORM_DURATION: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for place in [StoreKind::File, StoreKind::Cabled] {
        for stderr in [None, Some(Stderr::Full), Some(Stderr::Closed)] {
            let name = format!("storm::{}{}", Stderr::suffix(stderr), place.name());
            trials.push(trial(name, place, move || storm(place, stderr)));
        }
    }
    trials
}

/// The fault of a candidate, which decides how it recovers.
enum ActiveFault {
    /// Killed or asked to end: it is restarted.
    Ended,
    Stopped,
    Frozen(Frozen),
    CutOff,
}

/// The store is unavailable for all candidates.
enum Outage {
    MovedAway,
    Paused,
    Killed,
}

struct Storm {
    // Dropped before the stage: candidates that are still frozen when a trial fails are thawed before they are ended.
    active_faults: [Option<(Moment, ActiveFault)>; 3],
    stage: ElectionTrial,
    place: StoreKind,
    dice: Dice,
    outage: Option<(Moment, Outage)>,
    log: File,
}

fn storm(place: StoreKind, stderr: Option<Stderr>) {
    let stage = ElectionTrial::with_stderr(place, TTL, Mode::Plain, stderr);
    let log = File::create_new(stage.directory().join("storm")).unwrap();
    let dice = Dice(now().as_nanos() | 1);
    let active_faults = [None, None, None];
    let mut storm = Storm { stage, place, dice, active_faults, outage: None, log };
    let end = now() + STORM_DURATION;
    let mut next = now();
    let mut struck = 0;
    while now() < end {
        storm.end_faults(false);
        if now() >= next {
            struck += usize::from(storm.strike());
            next = now() + storm.dice.millis(30, 500);
        }
        pause(Duration::from_millis(2));
    }
    storm.end_faults(true);
    storm.stage.steady();
    let (verdict, books) = storm.stage.finish();
    assert!(struck > 20 && verdict.terms > 3, "{struck} faults, {verdict}");
    assert!(books.accepted() > 0, "the register was written to");
}

impl Storm {
    fn note(&mut self, what: &str) {
        writeln!(self.log, "{} {what}", now().as_nanos()).unwrap();
    }

    /// Injects a fault into a candidate, more often the leader, or into the store. A candidate that has a fault already is
    /// spared.
    fn strike(&mut self) -> bool {
        if self.dice.roll(8) == 0 {
            return self.strike_store();
        }
        let newest = (0..3).max_by_key(|who| self.stage.term_of(*who)).unwrap_or(0);
        let who = if self.dice.roll(3) > 0 { newest } else { self.dice.roll(3) };
        if self.active_faults[who].is_some() || self.is_young(who) {
            return false;
        }
        let pid = self.stage.contenders[who].pid();
        let freezing =
            self.active_faults.iter().flatten().any(|(_, p)| matches!(p, ActiveFault::Frozen(_)));
        let kind = self.dice.roll(7);
        self.note(&format!("{who} suffers {kind}"));
        let fault = match kind {
            0 => {
                self.stage.contenders[who].signal(Signal::KILL);
                ActiveFault::Ended
            }
            1 => {
                self.stage.contenders[who].signal(Signal::TERM);
                ActiveFault::Ended
            }
            2 => {
                // The leader and the guard, and not the command.
                children(pid).into_iter().for_each(|guard| signal(guard, Signal::KILL));
                self.stage.contenders[who].signal(Signal::KILL);
                ActiveFault::Ended
            }
            3 => {
                children(pid).into_iter().for_each(|guard| signal(guard, Signal::KILL));
                return true;
            }
            // There is one freezer group for each trial.
            4 if !freezing => ActiveFault::Frozen(Frozen::new(pid, self.stage.mark()).0),
            5 if self.place == StoreKind::Cabled => {
                self.stage.place.cable(who).cut();
                ActiveFault::CutOff
            }
            _ => {
                self.stage.contenders[who].signal(Signal::STOP);
                ActiveFault::Stopped
            }
        };
        let most = if matches!(fault, ActiveFault::Ended) { 300 } else { 2_500 };
        self.active_faults[who] = Some((now() + self.dice.millis(20, most), fault));
        true
    }

    /// Whether a candidate has not opened its directory yet. A candidate that opens it while it is moved away makes another
    /// one, and leads in it beside those that use the first.
    fn is_young(&self, who: usize) -> bool {
        let pid = self.stage.contenders[who].pid();
        self.stage.place.paths().is_some_and(|paths| !paths.iter().any(|path| has_open(pid, path)))
    }

    fn strike_store(&mut self) -> bool {
        if self.outage.is_some() || (0..3).any(|who| self.is_young(who)) {
            return false;
        }
        let outage = match (self.place.is_server(), self.dice.roll(2)) {
            (false, _) => Outage::MovedAway,
            (true, 0) => Outage::Paused,
            (true, _) => Outage::Killed,
        };
        match outage {
            Outage::MovedAway => self.stage.place.move_directory(true),
            Outage::Paused => self.stage.place.signal_server(Signal::STOP),
            Outage::Killed => self.stage.place.kill_server(),
        }
        self.note("the store is gone");
        self.outage = Some((now() + self.dice.millis(20, 1_500), outage));
        true
    }

    /// Ends the faults that have lasted long enough, or all of them.
    fn end_faults(&mut self, everything: bool) {
        if let Some((_, outage)) = self.outage.take_if(|(at, _)| everything || now() >= *at) {
            match outage {
                Outage::MovedAway => self.stage.place.move_directory(false),
                Outage::Paused => self.stage.place.signal_server(Signal::CONT),
                Outage::Killed => self.stage.place.start_server_again(),
            }
            self.note("the store is back");
        }
        // A candidate that starts while there is no directory makes one.
        let moved_away = matches!(self.outage, Some((_, Outage::MovedAway)));
        for who in 0..3 {
            let due = self.active_faults[who].take_if(|(at, fault)| {
                everything || now() >= *at && !(moved_away && matches!(fault, ActiveFault::Ended))
            });
            let Some((_, fault)) = due else { continue };
            match fault {
                ActiveFault::Ended => {
                    self.stage.ended(who);
                    self.stage.restart(who);
                }
                ActiveFault::Stopped => self.stage.contenders[who].signal(Signal::CONT),
                ActiveFault::CutOff => self.stage.place.cable(who).mend(),
                ActiveFault::Frozen(frozen) => {
                    let token = self.stage.term_of(who);
                    let from = frozen.thaw();
                    let thaw = token.map(|token| Thaw { token, from, within: AFTER_THAW });
                    self.stage.thaws.extend(thaw);
                }
            }
            self.note(&format!("{who} is well again"));
        }
    }
}

/// A small pseudo-random generator.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        usize::try_from(self.next()).unwrap_or_default() % sides
    }

    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.next() % (most - least))
    }
}
