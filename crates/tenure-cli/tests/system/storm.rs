//! Faults at random, several at a time, on leaders and on those who wait.
//!
//! What befell whom and when is written to `storm` beside the history, and kept if the trial fails.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::Moment;

use crate::faults::{TTL, called};
use crate::rig::cycle::AFTER_THAW;
use crate::rig::freezer::Frozen;
use crate::rig::judge::Thaw;
use crate::rig::output::Stderr;
use crate::rig::place::Kind;
use crate::rig::processes::{children, has_open, signal};
use crate::rig::stage::Stage;
use crate::rig::time::{now, pause};
use crate::rig::worker::Mode;
use crate::trial;

const LASTS: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for place in [Kind::File, Kind::Cabled] {
        for stderr in [None, Some(Stderr::Full), Some(Stderr::Closed)] {
            let name = format!("storm::{}{}", Stderr::suffix(stderr), called(place));
            trials.push(trial(name, place, move || storm(place, stderr)));
        }
    }
    trials
}

/// What has befallen one of them, and what makes it well again.
enum Plight {
    /// Killed or asked to end: started anew.
    Ended,
    Stopped,
    Frozen(Frozen),
    CutOff,
}

/// The store is gone for all.
enum Outage {
    Carried,
    Paused,
    Killed,
}

struct Storm {
    // Before the stage: what is still frozen when a trial fails is thawed before it is ended.
    plights: [Option<(Moment, Plight)>; 3],
    stage: Stage,
    place: Kind,
    dice: Dice,
    outage: Option<(Moment, Outage)>,
    log: File,
}

fn storm(place: Kind, stderr: Option<Stderr>) {
    let stage = Stage::with_stderr(place, TTL, Mode::Plain, stderr);
    let log = File::create_new(stage.directory().join("storm")).unwrap();
    let dice = Dice(now().as_nanos() | 1);
    let plights = [None, None, None];
    let mut storm = Storm { stage, place, dice, plights, outage: None, log };
    let end = now() + LASTS;
    let mut next = now();
    let mut struck = 0;
    while now() < end {
        storm.mend(false);
        if now() >= next {
            struck += usize::from(storm.strike());
            next = now() + storm.dice.millis(30, 500);
        }
        pause(Duration::from_millis(2));
    }
    storm.mend(true);
    storm.stage.steady();
    let (verdict, books) = storm.stage.finish();
    assert!(struck > 20 && verdict.terms > 3, "{struck} faults, {verdict}");
    assert!(books.accepted() > 0, "the register was written to");
}

impl Storm {
    fn note(&mut self, what: &str) {
        writeln!(self.log, "{} {what}", now().as_nanos()).unwrap();
    }

    /// Strikes one of them, more often the one who leads, or the store. Whoever suffers already is spared.
    fn strike(&mut self) -> bool {
        if self.dice.roll(8) == 0 {
            return self.strike_store();
        }
        let newest = (0..3).max_by_key(|who| self.stage.term_of(*who)).unwrap_or(0);
        let who = if self.dice.roll(3) > 0 { newest } else { self.dice.roll(3) };
        if self.plights[who].is_some() || self.is_young(who) {
            return false;
        }
        let pid = self.stage.contenders[who].pid();
        let freezing = self.plights.iter().flatten().any(|(_, p)| matches!(p, Plight::Frozen(_)));
        let kind = self.dice.roll(7);
        self.note(&format!("{who} suffers {kind}"));
        let plight = match kind {
            0 => {
                self.stage.contenders[who].signal(Signal::KILL);
                Plight::Ended
            }
            1 => {
                self.stage.contenders[who].signal(Signal::TERM);
                Plight::Ended
            }
            2 => {
                // Leader and guard, and not the child.
                children(pid).into_iter().for_each(|guard| signal(guard, Signal::KILL));
                self.stage.contenders[who].signal(Signal::KILL);
                Plight::Ended
            }
            3 => {
                children(pid).into_iter().for_each(|guard| signal(guard, Signal::KILL));
                return true;
            }
            // One group in the freezer for each trial.
            4 if !freezing => Plight::Frozen(Frozen::new(pid, self.stage.mark()).0),
            5 if self.place == Kind::Cabled => {
                self.stage.place.cable(who).cut();
                Plight::CutOff
            }
            _ => {
                self.stage.contenders[who].signal(Signal::STOP);
                Plight::Stopped
            }
        };
        let most = if matches!(plight, Plight::Ended) { 300 } else { 2_500 };
        self.plights[who] = Some((now() + self.dice.millis(20, most), plight));
        true
    }

    /// Whether it has not opened its directory yet. Whoever does that where there is none makes one, and leads in it beside
    /// those who use the old one.
    fn is_young(&self, who: usize) -> bool {
        let pid = self.stage.contenders[who].pid();
        self.stage.place.paths().is_some_and(|paths| !paths.iter().any(|path| has_open(pid, path)))
    }

    fn strike_store(&mut self) -> bool {
        if self.outage.is_some() || (0..3).any(|who| self.is_young(who)) {
            return false;
        }
        let outage = match (self.place.is_server(), self.dice.roll(2)) {
            (false, _) => Outage::Carried,
            (true, 0) => Outage::Paused,
            (true, _) => Outage::Killed,
        };
        match outage {
            Outage::Carried => self.stage.place.carry(true),
            Outage::Paused => self.stage.place.signal_server(Signal::STOP),
            Outage::Killed => self.stage.place.kill_server(),
        }
        self.note("the store is gone");
        self.outage = Some((now() + self.dice.millis(20, 1_500), outage));
        true
    }

    /// Makes well what has suffered long enough, or everything.
    fn mend(&mut self, everything: bool) {
        if let Some((_, outage)) = self.outage.take_if(|(at, _)| everything || now() >= *at) {
            match outage {
                Outage::Carried => self.stage.place.carry(false),
                Outage::Paused => self.stage.place.signal_server(Signal::CONT),
                Outage::Killed => self.stage.place.start_server_again(),
            }
            self.note("the store is back");
        }
        // Whoever starts where there is no directory makes one.
        let carried = matches!(self.outage, Some((_, Outage::Carried)));
        for who in 0..3 {
            let due = self.plights[who].take_if(|(at, plight)| {
                everything || now() >= *at && !(carried && matches!(plight, Plight::Ended))
            });
            let Some((_, plight)) = due else { continue };
            match plight {
                Plight::Ended => {
                    self.stage.ended(who);
                    self.stage.restart(who);
                }
                Plight::Stopped => self.stage.contenders[who].signal(Signal::CONT),
                Plight::CutOff => self.stage.place.cable(who).mend(),
                Plight::Frozen(frozen) => {
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

/// Good enough to be surprised by.
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
