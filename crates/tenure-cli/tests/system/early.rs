//! A term struck at its very beginning: before there is a guard, before it knows of the lease, before there is a child.

use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::faults::{TTL, called};
use crate::rig::place::Kind;
use crate::rig::stage::Stage;
use crate::rig::time::pause;
use crate::rig::worker::Mode;
use crate::trial;

/// From the grant to well after the child's first effect.
const STEPS: u32 = 24;
const STEP: Duration = Duration::from_micros(750);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for place in [Kind::File, Kind::Redis] {
        for (name, signal) in
            [("kill", Signal::KILL), ("term", Signal::TERM), ("freeze", Signal::STOP)]
        {
            let name = format!("early::{name}::{}", called(place));
            trials.push(trial(name, place, move || sweep(place, signal)));
        }
    }
    trials
}

fn sweep(place: Kind, signal: Signal) {
    let mut stage = Stage::new(place, TTL, Mode::Plain);
    let mut last = 0;
    for step in 0..STEPS {
        let (who, token) = stage.granted_after(last);
        pause(STEP * step);
        stage.contenders[who].signal(signal);
        if signal == Signal::STOP {
            // Until somebody else has it, who is the next to be struck.
            stage.granted_after(token);
            stage.contenders[who].signal(Signal::CONT);
        } else {
            stage.ended(who);
            stage.restart(who);
        }
        last = token;
    }
    stage.steady();
    stage.finish();
}
