//! The simulated store: the reference implementation with its own clock, or with expiry judged by observation.

use std::time::Duration;

use tenure::machine::Input;
use tenure::observation::Observations;
use tenure::store::memory::{Corruption, Leases};
use tenure::store::{Change, Revoke, Scope};
use tenure::{
    Answer, Checkpoint, Claim, ClaimedWait, Ended, Grant, Hold, Lease, Moment, Name, Nonce,
    Release, StartupWait, Token, WaitReason,
};

use super::config::Judge;
use super::fact::Fact;
use super::mutant::Mutant;
use tenure_rig::simulation::clock::{SimulatedClock, Time};

/// A request to the store.
#[derive(Clone, Debug)]
pub(crate) enum SimCall {
    Acquire(u64, Claim),
    Renew(u64, Hold, Duration),
    Release(u64, Release),
    Observe(u64),
    Save(Hold, u64, u64),
}

/// A reply of the store.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // It is boxed where it is queued.
pub(crate) enum SimReply {
    Event(Input),
    Saved(u64),
}

pub(crate) struct SimStore {
    pub(crate) name: Name,
    ledger: Leases,
    judge: Judge,
    clock: SimulatedClock,
    /// How far the clock was set forward.
    step: Duration,
    /// When the store restarted empty, on its own clock.
    restarted: Option<Moment>,
    corrupted: bool,
    /// Grows with every write, so that observers detect a change.
    version: u128,
    mutant: Mutant,
    pub(crate) facts: Vec<Fact>,
    pub(crate) hints: Vec<Change>,
}

impl SimStore {
    pub(crate) fn new(judge: Judge, clock: SimulatedClock, mutant: Mutant) -> Self {
        SimStore {
            name: Name::new("job").expect("a name"),
            ledger: Leases::default(),
            judge,
            clock,
            step: Duration::ZERO,
            restarted: None,
            corrupted: false,
            version: 0,
            mutant,
            facts: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// With expiry judged by observation, the store's clock stands still: nothing expires by itself.
    fn now(&self, time: Time) -> Moment {
        match self.judge {
            Judge::StoreClock => self.clock.at(time) + self.step,
            Judge::Observation => self.clock.at(0),
        }
    }

    fn micros(&self, time: Time) -> u64 {
        self.clock.at(time).as_nanos() / 1_000
    }

    pub(crate) fn forget(&mut self) {
        self.ledger.forget(&self.name);
    }

    /// Restarts the store empty: holders wait until it is as old as a claimed TTL.
    pub(crate) fn restart_empty(&mut self, time: Time) {
        self.ledger.forget(&self.name);
        self.corrupted = false;
        self.restarted = Some(self.now(time));
    }

    /// The start-up wait of a grant at `now`.
    fn startup_wait(&self, now: Moment, claim: &Claim) -> ClaimedWait {
        let restarted = self.restarted.filter(|_| self.mutant != Mutant::NoStartupWait);
        let left = restarted.map(|at| (at + claim.ttl).since(now)).filter(|left| !left.is_zero());
        match (left, claim.wait) {
            (None, wait) => wait,
            (Some(left), ClaimedWait::AtLeast(wait)) if wait.left >= left => claim.wait,
            (Some(left), _) => ClaimedWait::AtLeast(StartupWait::new(left, WaitReason::Restarted)),
        }
    }

    pub(crate) fn set_clock_forward(&mut self, by: Duration) {
        self.step += by;
    }

    /// Revokes the lease in time: no candidate may lead before the holder's time has expired.
    pub(crate) fn revoke(&mut self, time: Time) {
        let (now, micros) = (self.now(time), self.micros(time));
        if self.ledger.revoke(now, micros, &self.name, Revoke::InTime).is_ok() {
            self.version += 1;
            self.hints.push(Change::Look);
        }
    }

    pub(crate) fn set_garbage(&mut self, corrupted: bool) {
        if corrupted {
            self.ledger.corrupt(&self.name, Corruption::Garbage);
        } else if self.corrupted {
            self.ledger.forget(&self.name);
        }
        self.corrupted = corrupted;
    }

    pub(crate) fn lease(&self, time: Time) -> Option<Lease> {
        self.ledger.observe(self.now(time), &Scope::name(&self.name)).pop()?.ok()
    }

    /// When the lease of `token` expires by itself, in true time.
    pub(crate) fn expiry(&self, time: Time, token: Token) -> Option<Time> {
        if self.judge == Judge::Observation {
            return None;
        }
        let lease = self.lease(time)?;
        let until = self.clock.at(time) + lease.left;
        (lease.token == Some(token)).then(|| self.clock.when(until))
    }

    /// Carries out one request atomically at `time`. `observations` and `local` belong to the caller, for judging by
    /// observation.
    pub(crate) fn serve(
        &mut self,
        time: Time,
        call: &SimCall,
        observations: &mut Observations,
        local: Moment,
    ) -> SimReply {
        let now = self.now(time);
        match call {
            SimCall::Acquire(request, claim) => {
                let answer = self.acquire(time, claim, observations, local);
                SimReply::Event(Input::Acquired(*request, answer))
            }
            SimCall::Renew(request, hold, ttl) => {
                let was = self.holder(time);
                let answer = self.ledger.renew(now, hold, *ttl);
                if matches!(answer, Ok(Answer::Held(()))) {
                    self.changed_by(hold, was);
                }
                SimReply::Event(Input::Renewed(*request, answer))
            }
            SimCall::Release(request, release) => {
                let answer = self.release(time, release);
                SimReply::Event(Input::Released(*request, answer))
            }
            SimCall::Observe(request) => {
                let mut lease =
                    self.ledger.observe(now, &Scope::name(&self.name)).pop().transpose();
                if let Ok(Some(lease)) = &mut lease {
                    self.judge_observed(lease, observations, local);
                }
                SimReply::Event(Input::Observed(*request, lease))
            }
            SimCall::Save(hold, number, value) => self.save(now, hold, *number, *value),
        }
    }

    /// Judges an observed lease too: a holder whose time has expired is hidden.
    fn judge_observed(&self, lease: &mut Lease, observations: &mut Observations, local: Moment) {
        if self.judge == Judge::Observation && lease.holder.is_some() {
            lease.left = observations.left(&self.name, self.version, lease.ttl, 1_000, local);
            if lease.left.is_zero() {
                lease.holder = None;
            }
        }
    }

    fn acquire(
        &mut self,
        time: Time,
        claim: &Claim,
        observations: &mut Observations,
        local: Moment,
    ) -> tenure::Result<Answer<Grant>> {
        let now = self.now(time);
        let garbage = self.corrupted;
        if garbage && self.mutant == Mutant::GarbageIsFree {
            self.ledger.forget(&self.name);
        }
        let micros = self.micros(time);
        let mut claim = claim.clone();
        claim.wait = match self.judge {
            Judge::StoreClock => self.startup_wait(now, &claim),
            // On a clock that stands still, a recorded wait would never end.
            Judge::Observation => ClaimedWait::AsRequired,
        };
        let claim = &claim;
        let mut answer = self.ledger.acquire(now, micros, claim);
        if self.judge == Judge::Observation
            && let Ok(Answer::Taken(lease)) = &mut answer
        {
            let ttl = if self.mutant == Mutant::OwnTtl { claim.ttl } else { lease.ttl };
            lease.left = observations.left(&self.name, self.version, ttl, 1_000, local);
            if lease.left.is_zero() {
                let old = lease.token.expect("a term has a token");
                self.ledger.revoke(now, micros, &self.name, Revoke::Now)?;
                answer = self.ledger.acquire(now, micros, claim);
                if let Ok(Answer::Held(grant)) = &mut answer {
                    grant.lineage.before = Ended::Expired(old);
                }
            }
        }
        if let Ok(Answer::Held(grant)) = &answer {
            self.version += 1;
            observations.forget(&self.name);
            self.facts.push(Fact::Granted { garbage });
            let Hold { name, candidate, token, .. } = grant.hold.clone();
            self.hints.push(Change::Granted { name, token, holder: Some(candidate) });
        }
        answer
    }

    fn release(&mut self, time: Time, release: &Release) -> tenure::Result<()> {
        let now = self.now(time);
        let was = self.holder(time);
        let mut release = release.clone();
        if self.mutant == Mutant::ReleaseAnybody
            && let Some((Some(nonce), token)) = was
            && let Some(lease) = self.lease(time)
            && let Some(holder) = lease.holder
        {
            let hold = release.hold.clone();
            let candidate = tenure::CandidateId::new(&holder.id).expect("one of ours");
            release.hold = Hold::new(hold.name.clone(), candidate, nonce, token);
            if self.ledger.release(now, self.micros(time), &release)? {
                self.changed_by(&hold, was);
            }
            return Ok(());
        }
        if self.ledger.release(now, self.micros(time), &release)? {
            self.changed_by(&release.hold, was);
            let (name, next) = (release.hold.name.clone(), release.next);
            self.hints.push(Change::Freed { name, next });
        }
        Ok(())
    }

    fn save(&mut self, now: Moment, hold: &Hold, number: u64, value: u64) -> SimReply {
        // The mutant numbers saves by arrival: then the last one wins.
        let number = if self.mutant == Mutant::SaveWithoutNumber {
            self.version += 1;
            u64::try_from(self.version).expect("few beats")
        } else {
            number
        };
        let checkpoint = Checkpoint::new(value.to_string()).expect("a few digits");
        let saved =
            matches!(self.ledger.save(now, hold, number, &checkpoint), Ok(Answer::Held(())));
        SimReply::Saved(if saved { value } else { 0 })
    }

    fn holder(&self, time: Time) -> Option<(Option<Nonce>, Token)> {
        let lease = self.lease(time)?;
        Some((lease.holder?.nonce, lease.token?))
    }

    fn changed_by(&mut self, hold: &Hold, was: Option<(Option<Nonce>, Token)>) {
        self.version += 1;
        self.facts.push(Fact::ChangedBy { hold: hold.clone(), was });
    }
}
