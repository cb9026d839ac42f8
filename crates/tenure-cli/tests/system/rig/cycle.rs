//! One fault and what follows: the leader is struck, another leads, and the first is well again.

use std::time::Duration;

use rustix::process::Signal;
use tenure::Moment;

use super::fault::Fault;
use super::judge::Thaw;
use super::stage::{PATIENCE, Stage, Term};
use super::time::{now, pause};

/// How long a tree may work on after a thaw, until it is killed.
pub(crate) const AFTER_THAW: Duration = Duration::from_millis(100);

/// When what happened.
pub(crate) struct Outcome {
    pub(crate) term: Term,
    pub(crate) struck: Moment,
    /// Just after it was struck: nothing that it renews leaves later than this.
    pub(crate) hit: Moment,
    /// When the lease would have run out, where nobody could give it back.
    pub(crate) expiry: Option<Moment>,
    /// The last effect of the term that was struck, before any thaw.
    pub(crate) last: Moment,
    /// The first effect of the next.
    pub(crate) first: Moment,
    /// How the struck contender ended, if it did.
    pub(crate) code: Option<i32>,
    /// From the thaw until the work had its SIGKILL.
    pub(crate) thawed: Option<Duration>,
}

impl Outcome {
    pub(crate) fn gap(&self) -> Duration {
        self.first.since(self.struck)
    }
}

pub(crate) fn cycle(stage: &mut Stage, fault: Fault) -> Outcome {
    let term = stage.settled();
    let (struck, frozen) = fault.strike(stage, &term);
    let hit = now();
    let lingers = !matches!(fault, Fault::Kill | Fault::Term | Fault::Guard);
    let expiry = if lingers { stage.expiry(term.token) } else { None };
    let first = stage.next_after(term.token, stage.ttl + PATIENCE).at;
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
            // The next one works a while, and the frozen one's message waits as long.
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
