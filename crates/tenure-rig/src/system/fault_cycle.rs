//! One fault cycle: a fault hits the leader, another candidate leads, and the first recovers.

use std::time::Duration;

use rustix::process::Signal;
use tenure::Moment;

use super::checker::Thaw;
use super::election_trial::{ElectionTrial, ObservedTerm, TIMEOUT};
use super::fault::Fault;
use super::time::{now, pause};

/// How long a process tree may keep working after a thaw, until it is killed.
pub const AFTER_THAW: Duration = Duration::from_millis(100);

/// The times of one cycle.
pub struct Outcome {
    pub term: ObservedTerm,
    pub struck: Moment,
    /// Just after the fault: no renewal is sent later than this.
    pub hit: Moment,
    /// When the lease would have expired, if no process could release it.
    pub expiry: Option<Moment>,
    /// The last effect of the term that was hit, before any thaw.
    pub last: Moment,
    /// The first effect of the next term.
    pub first: Moment,
    /// The exit code of the candidate that was hit, if it ended.
    pub code: Option<i32>,
    /// The time from the thaw until the worker had received SIGKILL.
    pub thawed: Option<Duration>,
}

impl Outcome {
    pub fn gap(&self) -> Duration {
        self.first.since(self.struck)
    }
}

pub fn cycle(stage: &mut ElectionTrial, fault: Fault) -> Outcome {
    let term = stage.settled();
    let (struck, frozen) = fault.strike(stage, &term);
    let hit = now();
    let lingers = !matches!(fault, Fault::Kill | Fault::Term | Fault::Guard);
    let expiry = if lingers { stage.expiry(term.token) } else { None };
    let first = stage.next_after(term.token, stage.ttl + TIMEOUT).at;
    let mut outcome = Outcome {
        last: stage.last_of(term.token).at,
        code: None,
        thawed: None,
        struck,
        hit,
        expiry,
        first,
        term,
    };
    let who = outcome.term.who;
    match fault {
        Fault::Kill | Fault::KillTree | Fault::KillPair | Fault::Term => {
            outcome.code = stage.ended(who).code();
            stage.gone(&outcome.term.work);
            stage.restart(who);
        }
        Fault::Freeze => {
            stage.gone(&outcome.term.work);
            stage.contenders[who].signal(Signal::CONT);
            stage.waits(who);
        }
        Fault::FreezeTree => {
            // The next leader works a while, and the frozen leader's message is delayed as long.
            pause(Duration::from_millis(100));
            let at = frozen.expect("it was frozen").thaw();
            stage.thaws.push(Thaw { token: outcome.term.token, from: at, within: AFTER_THAW });
            outcome.thawed = Some(stage.killed(&outcome.term.work).since(at));
            stage.gone(&outcome.term.work);
            stage.waits(who);
        }
        Fault::Cut => {
            stage.gone(&outcome.term.work);
            stage.place.cable(who).mend();
            stage.waits(who);
        }
        Fault::Guard => {}
    }
    outcome
}
