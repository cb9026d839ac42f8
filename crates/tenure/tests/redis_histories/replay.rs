//! Runs a history against a real server and against the model, and compares every answer.

use std::fmt::Debug;
use std::time::Duration;

use redis::Value;
use tenure::store::{Revoke, Scope};
use tenure::{
    Answer, CandidateId, Checkpoint, Claim, ClaimedWait, Error, Hold, Kind, Lease, Name, Nonce,
    Note, Release, Result, StartupWait, Token, WaitReason,
};

use super::history::{
    Boundary, CANDIDATES, ClaimStep, HoldChange, HoldChoice, MEMBER, NAMES, NameIndex, Operation,
    Pause, Step, WaitChoice,
};
use super::model::{DAY, Model};
use super::test_server::TestServer;

/// What happens in a history, for people. Most histories agree and have no readers: writing them down would take as long as
/// running them.
#[derive(Default)]
pub(crate) struct Trace(Option<String>);

impl Trace {
    pub(crate) fn written() -> Self {
        Trace(Some(String::new()))
    }

    fn line(&mut self, line: impl FnOnce() -> String) {
        if let Some(text) = &mut self.0 {
            text.push_str(&line());
            text.push('\n');
        }
    }

    pub(crate) fn text(self) -> String {
        self.0.unwrap_or_default()
    }
}

impl TestServer {
    /// Runs a history under names of its own. What happened is written to `trace`.
    ///
    /// # Errors
    /// If the two disagree, with both answers.
    pub(crate) fn replay(&mut self, history: &[Step], trace: &mut Trace) -> Result<(), String> {
        // It begins with a day, so that full hours are where they were when it is replayed. Everything in the days before has
        // ended, and the server has run for longer than any TTL.
        self.set_time((self.now / DAY + 3) * DAY);
        self.histories += 1;
        let prefix = format!("h{}:", self.histories);
        let names = NAMES.map(|name| Name::new(&format!("{prefix}{name}")).unwrap());
        let model = Model::new(self.now, &names);
        let (holds, dumps) = Default::default();
        let mut replay =
            Replay { begin: self.now, server: self, prefix, names, model, holds, dumps };
        for (number, step) in history.iter().enumerate() {
            let result = replay.step(step, trace);
            replay.server.counts.steps += 1;
            result.map_err(|difference| format!("step {}: {difference}", number + 1))?;
        }
        replay.compare_keys()
    }
}

/// One history while it runs.
pub(crate) struct Replay<'a> {
    pub(crate) server: &'a mut TestServer,
    /// When it began.
    begin: u64,
    prefix: String,
    pub(crate) names: [Name; NAMES.len()],
    pub(crate) model: Model,
    /// What was granted on each name.
    holds: [Vec<Hold>; NAMES.len()],
    /// Each companion that is garbage: it has to stay as it is.
    pub(crate) dumps: [Option<Value>; NAMES.len()],
}

impl Replay<'_> {
    fn step(&mut self, step: &Step, trace: &mut Trace) -> Result<(), String> {
        self.pause(step.pause);
        let seconds = Duration::from_millis(self.server.now - self.begin).as_secs_f64();
        let Step { pause, operation } = step;
        trace.line(|| format!("at {seconds:.3}s ({pause:?}): {operation:?}"));
        self.operate(operation, trace)?;
        let scope = Scope::Names(self.names.to_vec());
        let found = self.observe(&scope);
        compare("the names are then", found, Ok(self.model.observe()), trace)
    }

    fn pause(&mut self, pause: Pause) {
        let until = match pause {
            Pause::None => return,
            Pause::Millis(time) => Some(self.server.now + time),
            Pause::Until(name, boundary, offset) => {
                let (name, model) = (&self.names[name], &self.model);
                let keys = model.keys(name);
                let at = match boundary {
                    Boundary::Term => keys.term.as_ref().map(|term| term.ends),
                    Boundary::Key => keys.visible.as_ref().and_then(|visible| visible.expires_at),
                    Boundary::Wait => model.wait_ends(name),
                    Boundary::Companion => keys.forgotten_at,
                };
                at.map(|at| at.saturating_add_signed(offset))
            }
        };
        if let Some(until) = until.filter(|&until| until > self.server.now) {
            self.server.set_time(until);
            self.model.advance(until);
        }
    }

    fn observe(&self, scope: &Scope) -> Result<Vec<Result<Lease>>> {
        self.server.runtime.block_on(self.server.store.observe(scope))
    }

    fn operate(&mut self, operation: &Operation, trace: &mut Trace) -> Result<(), String> {
        match operation {
            Operation::Acquire(claims) => self.acquire(claims, trace),
            Operation::Renew { holds, ttl_micros } => {
                let ttl = Duration::from_micros(*ttl_micros);
                let holds: Vec<Hold> = holds.iter().map(|hold| self.hold(*hold)).collect();
                let found = self.server.runtime.block_on(self.server.store.renew(&holds, ttl));
                let wanted = holds.iter().map(|hold| self.model.renew(hold, ttl));
                let wanted: Vec<Result<Answer>> = wanted.collect();
                self.server.counts.renewals += held(&wanted);
                compare("renew", found, Ok(wanted), trace)
            }
            Operation::Release(releases) => {
                let next = |next: usize| CandidateId::new(CANDIDATES[next]).unwrap();
                let releases = releases
                    .iter()
                    .map(|release| Release::new(self.hold(release.hold), release.next.map(next)));
                let releases: Vec<Release> = releases.collect();
                let found = self.server.runtime.block_on(self.server.store.release(&releases));
                let wanted = releases.iter().map(|release| self.release(release)).collect();
                compare("release", found, Ok(wanted), trace)
            }
            Operation::Save { hold, number, checkpoint } => {
                let hold = self.hold(*hold);
                let checkpoint = Checkpoint::new(checkpoint).unwrap();
                let save = self.server.store.save(&hold, *number, &checkpoint);
                let found = self.server.runtime.block_on(save);
                let wanted = vec![self.model.save(&hold, *number, &checkpoint)];
                self.server.counts.saves += held(&wanted);
                self.server.counts.errors += errors(&wanted);
                compare("save", Ok(vec![found]), Ok(wanted), trace)
            }
            Operation::Revoke { name, now } => {
                let when = if *now { Revoke::Now } else { Revoke::InTime };
                let name = &self.names[*name];
                let found = self.server.runtime.block_on(self.server.store.revoke(name, when));
                let wanted = vec![self.model.revoke(name, when)];
                self.server.counts.revocations += 1 - errors(&wanted);
                compare("revoke", Ok(vec![found]), Ok(wanted), trace)
            }
            Operation::ObservePrefix => {
                let found = self.observe(&Scope::Prefix(self.prefix.clone()));
                compare("observe", found, Ok(self.model.observe_prefix()), trace)
            }
            Operation::Restart => {
                self.server.restart();
                if !self.server.setup.keeps_data {
                    self.model.lose_all();
                    self.dumps = Default::default();
                }
                Ok(())
            }
            foreign => self.foreign_operation(foreign),
        }
    }

    fn acquire(&mut self, claims: &[ClaimStep], trace: &mut Trace) -> Result<(), String> {
        let claims: Vec<(NameIndex, Claim)> =
            claims.iter().map(|claim| (claim.name, self.claim(claim))).collect();
        let asked: Vec<Claim> = claims.iter().map(|(_, claim)| claim.clone()).collect();
        let found = self.server.runtime.block_on(self.server.store.acquire(&asked));
        let mut wanted = Vec::new();
        let counts = &mut self.server.counts;
        for (name, claim) in &claims {
            let deleted = self.model.is_deleted(&claim.name);
            let answer = self.model.acquire(claim, &mut self.server.startup);
            match &answer {
                Ok(Answer::Held(grant)) => {
                    counts.grants += 1;
                    counts.waits += u64::from(grant.wait.is_some());
                    counts.deletions += u64::from(deleted);
                    self.holds[*name].push(grant.hold.clone());
                }
                Ok(Answer::Taken(lease)) => {
                    let nonce = lease.holder.as_ref().and_then(|holder| holder.nonce);
                    counts.foreign += u64::from(lease.lineage.is_none() && nonce.is_none());
                }
                Err(_) => counts.errors += 1,
            }
            wanted.push(answer);
        }
        compare("acquire", found, Ok(wanted), trace)
    }

    fn release(&mut self, release: &Release) -> Result<()> {
        let name = &release.hold.name;
        let had_term = self.model.keys(name).term.is_some();
        let starting = self.model.wait_ends(name).is_some();
        let answer = self.model.release(release);
        let released = had_term && self.model.keys(name).term.is_none();
        self.server.counts.releases += u64::from(released);
        self.server.counts.releases_while_starting += u64::from(released && starting);
        answer
    }

    fn claim(&self, claim: &ClaimStep) -> Claim {
        let waits = match claim.wait {
            WaitChoice::Usual => claim.name != MEMBER,
            WaitChoice::Unusual => claim.name == MEMBER,
            WaitChoice::AtLeast(_) => true,
        };
        let wait = match claim.wait {
            WaitChoice::AtLeast(micros) => {
                let left = Duration::from_micros(micros);
                ClaimedWait::AtLeast(StartupWait::new(left, WaitReason::Observed))
            }
            _ if waits => ClaimedWait::AsRequired,
            _ => ClaimedWait::Never,
        };
        let candidate = CandidateId::new(CANDIDATES[claim.candidate]).unwrap();
        let ttl = Duration::from_micros(claim.ttl_micros);
        let nonce = Nonce::from_bits(claim.nonce);
        let mut new = Claim::new(self.names[claim.name].clone(), candidate, nonce, ttl);
        new.note = Note::new(claim.note).unwrap();
        new.wait = wait;
        new.keeps_history = claim.keeps_history;
        new
    }

    /// A hold that was granted, changed as the step says; one that was never granted if there is none.
    fn hold(&self, choice: HoldChoice) -> Hold {
        let granted = &self.holds[choice.name];
        let last = granted.len().checked_sub(1 + choice.age).map(|at| granted[at].clone());
        let mut hold = last.unwrap_or_else(|| {
            let (name, first) = (&self.names[choice.name], CandidateId::new(CANDIDATES[0]));
            let token = Token::new(1).unwrap();
            Hold::new(name.clone(), first.unwrap(), Nonce::from_bits(1), token)
        });
        let token = hold.token.get();
        match choice.change {
            HoldChange::Nothing => {}
            HoldChange::Candidate => hold.candidate = CandidateId::new("c9").unwrap(),
            HoldChange::Nonce => hold.nonce = Nonce::from_bits(hold.nonce.to_bits() + 1),
            HoldChange::LowerToken => hold.token = Token::new(token - 1).unwrap_or(hold.token),
            HoldChange::HigherToken => hold.token = Token::new(token + 1).unwrap_or(hold.token),
        }
        hold
    }
}

fn held(answers: &[Result<Answer>]) -> u64 {
    answers.iter().flatten().filter(|answer| answer.is_held()).count() as u64
}

fn errors<T>(answers: &[Result<T>]) -> u64 {
    answers.iter().filter(|answer| answer.is_err()).count() as u64
}

/// Compares the answers to the items of one call. Errors agree if their kinds do; those that tell a caller what is wrong with its
/// request have to say the same.
fn compare<T: PartialEq + Debug>(
    what: &str,
    found: Result<Vec<Result<T>>>,
    wanted: Result<Vec<Result<T>>>,
    trace: &mut Trace,
) -> Result<(), String> {
    let same_error = |found: &Error, wanted: &Error| {
        found.kind() == wanted.kind() && (found.kind() != Kind::Invalid || found == wanted)
    };
    let same_item = |(found, wanted): (&Result<T>, &Result<T>)| match (found, wanted) {
        (Ok(found), Ok(wanted)) => found == wanted,
        (Err(found), Err(wanted)) => same_error(found, wanted),
        _ => false,
    };
    let same = match (&found, &wanted) {
        (Ok(found), Ok(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(same_item)
        }
        (Err(found), Err(wanted)) => same_error(found, wanted),
        _ => false,
    };
    if same {
        trace.line(|| format!("  {what}: {found:?}"));
        return Ok(());
    }
    trace.line(|| format!("  {what}, Redis: {found:?}\n  {what}, rules: {wanted:?}"));
    Err(format!("{what}\n  Redis: {found:?}\n  rules: {wanted:?}"))
}
