//! What happens in the demo, act by act.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{Clock, Error, Moment};

use super::Fault;
use super::display::{DemoOutput, explained, millis};
use super::hints;
use super::processes::DemoProcesses;
use super::protocol::NodeMessage;

/// How long the first leader may take: a server that has just started is not believed for some
/// seconds.
const BEGINNING: Duration = Duration::from_secs(15);
/// How long anything may take that should happen, on top of two leases.
const PATIENCE: Duration = Duration::from_secs(4);

/// How long things stay as they are.
#[derive(Clone, Copy)]
struct DemoTiming {
    /// A leader counts; after a fault, while its victim is still dead or frozen.
    look: Duration,
    /// The victim is back.
    rest: Duration,
    /// Nothing is going to happen to anybody.
    stay: Duration,
}

impl DemoTiming {
    /// Who reads wants to look, and to type a command in another terminal.
    const FOR_READERS: DemoTiming = DemoTiming {
        look: Duration::from_secs(3),
        rest: Duration::from_secs(2),
        stay: Duration::from_secs(10),
    };
    const FOR_NOBODY: DemoTiming = DemoTiming {
        look: Duration::from_millis(700),
        rest: Duration::from_millis(1_500),
        stay: Duration::from_millis(1_500),
    };
}

/// Why the demo ends early.
pub(super) enum ScenarioStop {
    /// By SIGINT, SIGTERM or SIGHUP.
    Interrupted,
    /// Nobody reads what we say.
    OutputGone,
    /// The store does not answer, or not as it should; nothing was tried yet.
    NoStore(Error),
    /// It cannot go on.
    Failed(Error),
}

impl From<Error> for ScenarioStop {
    fn from(error: Error) -> ScenarioStop {
        ScenarioStop::Failed(error)
    }
}

/// Who leads.
#[derive(Clone, Copy)]
struct DemoLeader {
    which: usize,
    token: u64,
    /// Since when.
    at: Moment,
}

/// One fault, and what came of it.
#[derive(Clone)]
pub(super) struct FaultResult {
    pub(super) fault: Fault,
    /// Whom it befell, and in which term.
    pub(super) node: String,
    pub(super) pid: Option<u32>,
    pub(super) token: u64,
    pub(super) new_leader: Option<String>,
    /// From the fault to the first effect of the next leader.
    pub(super) gap: Option<Duration>,
    /// What else went wrong.
    pub(super) trouble: Option<String>,
}

pub(super) struct Scenario {
    pub(super) cast: DemoProcesses,
    pub(super) scenes: Vec<FaultResult>,
    show: DemoOutput,
    pace: DemoTiming,
    patience: Duration,
    clock: Clock,
    leader: Option<DemoLeader>,
    /// How many campaign.
    started: usize,
    /// The last count that was told.
    counted: u64,
    /// The terms whose work was said to have ended.
    ended: Vec<u64>,
    /// Whose end we have asked for.
    doomed: Vec<usize>,
    /// Whose end has been seen.
    gone: Vec<usize>,
}

impl Scenario {
    pub(super) fn new(cast: DemoProcesses, show: DemoOutput, ttl: Duration) -> Scenario {
        Scenario {
            cast,
            scenes: Vec::new(),
            show,
            pace: if show.tells { DemoTiming::FOR_READERS } else { DemoTiming::FOR_NOBODY },
            patience: PATIENCE + 2 * ttl,
            clock: Clock::boot(),
            leader: None,
            started: 0,
            counted: 0,
            ended: Vec::new(),
            doomed: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// The whole demo, from the first leader to the clean end.
    pub(super) async fn play(&mut self, faults: &[Fault]) -> Result<(), ScenarioStop> {
        let all = self.cast.len();
        let ready = |stage: &Scenario| stage.leader.is_some() && stage.started >= all;
        if !self.until(BEGINNING, ready).await? {
            return Err(Error::unavailable("nobody came to lead; see the log above").into());
        }
        if let Some(lead) = self.leader {
            self.look(lead.which, hints::leader)?;
            if faults.is_empty() {
                let pid = self.cast.pid(lead.which).unwrap_or_default();
                let stay = self.pace.stay.as_secs();
                self.show.say(format!("   By hand: kill -9 {pid}, or -TERM, or -STOP"))?;
                self.show.say(format!("   Else nothing happens for {stay} s; Ctrl+C ends it."))?;
            }
        }
        self.peace(if faults.is_empty() { self.pace.stay } else { self.pace.look }).await?;
        for (number, fault) in faults.iter().enumerate() {
            let found = self.act(number + 1, *fault).await?;
            if !found {
                break;
            }
        }
        self.finish().await
    }

    /// Does one fault to the leader. Returns whether somebody else came to lead.
    async fn act(&mut self, number: usize, fault: Fault) -> Result<bool, ScenarioStop> {
        // A busy machine may have cost the leader its term a moment ago.
        self.until(self.patience, |stage| stage.leader.is_some()).await?;
        let Some(victim) = self.leader else {
            return Err(Error::unavailable("nobody leads, without any fault").into());
        };
        let (id, pid) = (self.cast.id(victim.which).to_owned(), self.cast.pid(victim.which));
        let by_hand = format!("kill -{} {}", fault.signal_name(), pid.unwrap_or_default());
        self.show.say("")?;
        self.show.say(format!("{number}. {} {id}: {}.", fault.as_str(), explained(fault)))?;
        self.show.say(format!("   By hand: {by_hand}"))?;
        self.look(victim.which, |port| hints::victim(fault, port))?;
        if fault == Fault::Freeze {
            // Between two counts: frozen in the middle of a checkpoint it would keep the lock of a
            // directory store, which the kernel takes only from the dead, and nobody could lead
            // until it thaws.
            let before = self.counted;
            self.until(self.patience, |stage| stage.counted > before).await?;
        } else {
            self.doomed.push(victim.which);
        }
        let at = self.clock.now();
        self.cast.signal(victim.which, fault.signal());
        let newer = |stage: &Scenario| stage.leader.is_some_and(|lead| lead.token > victim.token);
        let found = self.until(self.patience, newer).await?;
        let next = self.leader.filter(|lead| lead.token > victim.token);
        self.scenes.push(FaultResult {
            fault,
            node: id,
            pid,
            token: victim.token,
            new_leader: next.map(|lead| self.cast.id(lead.which).to_owned()),
            gap: next.map(|lead| lead.at.since(at)),
            trouble: None,
        });
        if let Some(next) = next {
            let gap = millis(next.at.since(at));
            self.show.say(format!("   Without a leader for {gap:.1} ms."))?;
            self.look(next.which, hints::successor)?;
            self.peace(self.pace.look).await?;
        }
        let trouble = self.aftermath(fault, victim).await?;
        if let Some(scene) = self.scenes.last_mut() {
            scene.trouble = trouble;
        }
        self.peace(self.pace.rest).await?;
        Ok(found)
    }

    /// Brings the victim back; says what should not have been.
    async fn aftermath(
        &mut self,
        fault: Fault,
        victim: DemoLeader,
    ) -> Result<Option<String>, ScenarioStop> {
        let which = victim.which;
        if fault == Fault::Freeze {
            let (id, pid) = (self.cast.id(which), self.cast.pid(which).unwrap_or_default());
            self.show.say(format!("   {id} thaws. By hand: kill -CONT {pid}"))?;
            self.cast.signal(which, Signal::CONT);
            let told =
                self.until(self.patience, |stage| stage.ended.contains(&victim.token)).await?;
            self.look(which, hints::thawed)?;
            return Ok((!told).then(|| "it never said that it had lost leadership".to_owned()));
        }
        if !self.until(self.patience, |stage| stage.gone.contains(&which)).await? {
            self.cast.signal(which, Signal::KILL);
            self.until(self.patience, |stage| stage.gone.contains(&which)).await?;
        }
        let status = self.cast.reap(which).await?;
        self.doomed.retain(|doomed| *doomed != which);
        self.gone.retain(|gone| *gone != which);
        let clean = fault != Fault::Term || status.success();
        let before = self.started;
        self.show.say(format!("   {} is started again.", self.cast.id(which)))?;
        self.cast.restart(which).await?;
        self.until(self.patience, |stage| stage.started > before).await?;
        Ok((!clean).then(|| format!("it did not end in good order: {status}")))
    }

    /// Ends all of them in good order, the leader last, so that nobody takes over on the way.
    async fn finish(&mut self) -> Result<(), ScenarioStop> {
        let last = self.leader.map(|lead| lead.which);
        let mut order: Vec<usize> = (0..self.cast.len()).collect();
        order.sort_by_key(|which| Some(*which) == last);
        self.show.say("")?;
        self.show.say("That was all: every process is asked to stop.")?;
        for which in order {
            self.doomed.push(which);
            self.cast.signal(which, Signal::TERM);
            // Somebody may have frozen it by hand.
            self.cast.signal(which, Signal::CONT);
            if !self.until(self.patience, |stage| stage.gone.contains(&which)).await? {
                let id = self.cast.id(which);
                return Err(Error::unavailable(format!("{id} does not stop")).into());
            }
            let status = self.cast.reap(which).await?;
            if !status.success() {
                let id = self.cast.id(which);
                return Err(Error::unavailable(format!("{id} ended badly: {status}")).into());
            }
        }
        Ok(())
    }

    /// Says what to look at, if there is anything.
    fn look(&self, which: usize, line: impl Fn(u16) -> String) -> Result<(), ScenarioStop> {
        self.cast.port(which).map_or(Ok(()), |port| self.show.say(line(port)))
    }

    /// Only listens.
    async fn peace(&mut self, time: Duration) -> Result<(), ScenarioStop> {
        self.until(time, |_| false).await?;
        Ok(())
    }

    /// Listens until something has come about; returns whether it has, in time.
    async fn until(
        &mut self,
        time: Duration,
        done: impl Fn(&Scenario) -> bool,
    ) -> Result<bool, ScenarioStop> {
        let end = self.clock.now() + time;
        while !done(self) {
            let clock = self.clock.clone();
            let (which, word) = tokio::select! {
                word = self.cast.word() => word,
                () = clock.sleep_until(end) => return Ok(false),
            };
            self.hear(which, &word).await?;
        }
        Ok(true)
    }

    async fn hear(&mut self, which: usize, word: &NodeMessage) -> Result<(), ScenarioStop> {
        let cast = &self.cast;
        self.show.word(cast.id(which), cast.pid(which), cast.wanted(which), word)?;
        match word {
            NodeMessage::Started { http } => {
                self.started += 1;
                if let Ok(port) = http {
                    self.cast.answers(which, *port);
                }
            }
            // Two pipes have no order between them; tokens have.
            NodeMessage::Leads { at, token, .. }
                if self.leader.is_none_or(|lead| lead.token < *token) =>
            {
                let at = Moment::from_nanos(*at);
                self.leader = Some(DemoLeader { which, token: *token, at });
            }
            NodeMessage::Ended { token, .. } => {
                self.ended.push(*token);
                self.leader = self.leader.filter(|lead| lead.token > *token);
            }
            NodeMessage::Gone if self.doomed.contains(&which) => self.gone.push(which),
            NodeMessage::Gone => self.revive(which).await?,
            NodeMessage::Counted { count } => self.counted = *count,
            NodeMessage::Leads { .. } | NodeMessage::Follows { .. } => {}
        }
        Ok(())
    }

    /// Starts one again that was ended, but not by us: we say how that is done by hand. What fails
    /// by itself would only fail again.
    async fn revive(&mut self, which: usize) -> Result<(), ScenarioStop> {
        let status = self.cast.reap(which).await?;
        let id = self.cast.id(which);
        if !status.success() && status.signal().is_none() {
            return Err(Error::unavailable(format!("{id} ended by itself: {status}")).into());
        }
        self.show.say(format!("   {id} was ended by hand ({status}), and is started again."))?;
        self.leader = self.leader.filter(|lead| lead.which != which);
        Ok(self.cast.restart(which).await?)
    }
}
