//! Five members and many shards; joins, leaves, kills, freezes and outages at random, several at a time.
//!
//! Sixty-four shards, each with its own process; two hundred and fifty-six with TENURE_LONG, which keeps two cores busy for a
//! while. The random generator starts at TENURE_SEED if that is set. The seed and each fault are written to `storm` beside the
//! histories, which are kept if the trial fails.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tenure::{CandidateId, Moment};

use crate::fleet::is_long;
use crate::storm::Dice;
use crate::trial;
use tenure_rig::stderr_faults::Stderr;
use tenure_rig::system::fleet_trial::FleetStage;
use tenure_rig::system::processes::signal;
use tenure_rig::system::time::{now, pause};
use tenure_rig::system::trial_store::StoreKind;

const STORM_DURATION: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(2);
const MEMBERS: usize = 5;
/// How long it takes until the shares are even again: every process is restarted, one after the other.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How many shards there are, and how often each is worked on.
fn size() -> (usize, Duration) {
    match is_long() {
        true => (256, Duration::from_millis(100)),
        false => (64, Duration::from_millis(20)),
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let storms = [
        (StoreKind::File, None),
        (StoreKind::Redis, None),
        (StoreKind::File, Some(Stderr::Full)),
        (StoreKind::Redis, Some(Stderr::Closed)),
    ];
    let one = |(place, stderr): (StoreKind, Option<Stderr>)| {
        let name = format!("fleet::storm::{}{}", Stderr::suffix(stderr), place.name());
        trial(name, place, move || storm(place, stderr))
    };
    storms.into_iter().map(one).collect()
}

/// The fault of a member, which decides how it recovers.
enum ActiveFault {
    /// Killed or asked to end: it is restarted.
    Ended,
    Stopped,
}

struct Storm {
    stage: FleetStage,
    place: StoreKind,
    shards: usize,
    dice: Dice,
    active_faults: [Option<(Moment, ActiveFault)>; MEMBERS],
    /// The server is unavailable: until when, and whether it was killed.
    outage: Option<(Moment, bool)>,
    log: File,
}

fn storm(place: StoreKind, stderr: Option<Stderr>) {
    let (shards, each) = size();
    let stage = FleetStage::new(place, TTL, shards, each).with_stderr(stderr).with(MEMBERS);
    let log = File::create_new(stage.directory().join("storm")).unwrap();
    let given = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seed = given.unwrap_or_else(|| now().as_nanos()) | 1;
    let mut storm = Storm {
        stage,
        place,
        shards,
        dice: Dice(seed),
        active_faults: [const { None }; MEMBERS],
        outage: None,
        log,
    };
    storm.note(&format!("seed {seed}"));
    let end = now() + STORM_DURATION;
    let (mut next, mut struck) = (now() + Duration::from_secs(1), 0);
    while now() < end {
        storm.end_faults(false);
        if now() >= next {
            struck += usize::from(storm.strike());
            next = now() + storm.dice.millis(100, 900);
        }
        pause(Duration::from_millis(5));
    }
    storm.end_faults(true);
    storm.stage.change_overrides(|control| {
        control.paused.clear();
        control.drained.clear();
    });
    let mut stage = storm.stage;
    // The greater shares come last.
    let shares: Vec<usize> = (0..MEMBERS).map(|who| (shards + who) / MEMBERS).collect();
    stage.settled(&shares, SETTLE_TIMEOUT);
    let terms = stage.finish();
    assert!(struck > 10 && terms > 2 * shards, "{struck} faults, {terms} terms");
}

impl Storm {
    fn note(&mut self, what: &str) {
        writeln!(self.log, "{} {what}", now().as_nanos()).unwrap();
    }

    /// Injects a fault into a member or the store, or changes the overrides. A member that has a fault already is spared.
    fn strike(&mut self) -> bool {
        if self.outage.is_none() && self.dice.roll(8) == 0 {
            return self.change_overrides();
        }
        if self.place.is_server() && self.outage.is_none() && self.dice.roll(10) == 0 {
            return self.strike_store();
        }
        let who = self.dice.roll(MEMBERS);
        if self.active_faults[who].is_some() {
            return false;
        }
        let kind = self.dice.roll(6);
        self.note(&format!("m{who} suffers {kind}"));
        let guard = self.stage.members[who].guard();
        let fault = match kind {
            0 => {
                self.stage.members[who].signal(Signal::KILL);
                ActiveFault::Ended
            }
            1 => {
                self.stage.members[who].signal(Signal::TERM);
                ActiveFault::Ended
            }
            2 => {
                self.stage.members[who].kill_tree();
                ActiveFault::Ended
            }
            3 => {
                // The member and the guard, and not the commands.
                guard.into_iter().for_each(|guard| signal(guard, Signal::KILL));
                self.stage.members[who].signal(Signal::KILL);
                ActiveFault::Ended
            }
            4 => {
                guard.into_iter().for_each(|guard| signal(guard, Signal::KILL));
                return guard.is_some();
            }
            _ => {
                self.stage.members[who].signal(Signal::STOP);
                ActiveFault::Stopped
            }
        };
        let most = if matches!(fault, ActiveFault::Ended) { 1_000 } else { 3_500 };
        self.active_faults[who] = Some((now() + self.dice.millis(20, most), fault));
        true
    }

    /// Pauses a shard and drains a member, and undoes the previous change.
    fn change_overrides(&mut self) -> bool {
        let (shard, who) = (self.dice.roll(self.shards), self.dice.roll(MEMBERS));
        let shard = self.stage.shard(&format!("s{shard}"));
        let member = CandidateId::new(&format!("m{who}")).unwrap();
        self.note(&format!("{shard} is paused, {member} drained, and nobody else"));
        self.stage.change_overrides(|control| {
            control.paused = [shard.clone()].into();
            control.drained = [member.clone()].into();
        });
        true
    }

    fn strike_store(&mut self) -> bool {
        let killed = self.dice.roll(2) == 0;
        match killed {
            true => self.stage.place.kill_server(),
            false => self.stage.place.signal_server(Signal::STOP),
        }
        self.note("the store is gone");
        self.outage = Some((now() + self.dice.millis(20, 3_000), killed));
        true
    }

    /// Ends the faults that have lasted long enough, or all of them.
    fn end_faults(&mut self, everything: bool) {
        if let Some((_, killed)) = self.outage.take_if(|(at, _)| everything || now() >= *at) {
            match killed {
                true => self.stage.place.start_server_again(),
                false => self.stage.place.signal_server(Signal::CONT),
            }
            self.note("the store is back");
        }
        for who in 0..MEMBERS {
            let due = self.active_faults[who].take_if(|(at, _)| everything || now() >= *at);
            let Some((_, fault)) = due else { continue };
            match fault {
                ActiveFault::Ended => {
                    self.stage.ended(who);
                    self.stage.restart(who);
                }
                ActiveFault::Stopped => self.stage.members[who].signal(Signal::CONT),
            }
            self.note(&format!("m{who} is well again"));
        }
    }
}
