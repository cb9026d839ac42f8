//! The scenario of the election demo: injects each fault, waits for the next leader and prints what happens.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{Clock, Error, Moment};

use super::DemoFault;
use super::display::{DemoOutput, explained, millis};
use super::hints;
use super::processes::DemoProcesses;
use super::protocol::NodeMessage;

/// The timeout for the first leader: a store server that has just started causes a start-up wait of some seconds.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// The timeout for any expected event, in addition to two TTLs.
const EVENT_TIMEOUT: Duration = Duration::from_secs(4);

/// How long the scenario pauses, so that users can follow it.
#[derive(Clone, Copy)]
struct DemoTiming {
    /// While a leader counts; after a fault, while its victim is still dead or frozen.
    observe: Duration,
    /// After the victim is back.
    recover: Duration,
    /// When there are no faults.
    idle: Duration,
}

impl DemoTiming {
    /// For people: time to read, and to type a command in another terminal.
    const FOR_READERS: DemoTiming = DemoTiming {
        observe: Duration::from_secs(3),
        recover: Duration::from_secs(2),
        idle: Duration::from_secs(10),
    };
    const FOR_PROGRAMS: DemoTiming = DemoTiming {
        observe: Duration::from_millis(700),
        recover: Duration::from_millis(1_500),
        idle: Duration::from_millis(1_500),
    };
}

/// Why the demo ends early.
pub(super) enum ScenarioStop {
    /// By SIGINT, SIGTERM or SIGHUP.
    Interrupted,
    /// The reader of stdout is gone.
    OutputGone,
    /// The store cannot be used; nothing was started yet.
    NoStore(Error),
    /// The scenario cannot continue.
    Failed(Error),
}

impl From<Error> for ScenarioStop {
    fn from(error: Error) -> ScenarioStop {
        ScenarioStop::Failed(error)
    }
}

/// The current leader.
#[derive(Clone, Copy)]
struct DemoLeader {
    which: usize,
    token: u64,
    /// The start of its term.
    at: Moment,
}

/// One fault and its result.
#[derive(Clone)]
pub(super) struct FaultResult {
    pub(super) fault: DemoFault,
    /// The victim; `token` is its term.
    pub(super) node: String,
    pub(super) pid: Option<u32>,
    pub(super) token: u64,
    pub(super) new_leader: Option<String>,
    /// From the fault to the first effect of the next leader.
    pub(super) gap: Option<Duration>,
    /// Any other problem.
    pub(super) problem: Option<String>,
}

pub(super) struct Scenario {
    pub(super) processes: DemoProcesses,
    pub(super) fault_results: Vec<FaultResult>,
    output: DemoOutput,
    timing: DemoTiming,
    timeout: Duration,
    clock: Clock,
    leader: Option<DemoLeader>,
    /// The number of processes that campaign.
    started: usize,
    /// The terms whose work has ended, as reported.
    ended: Vec<u64>,
    /// The processes that the scenario has told to stop.
    stopping: Vec<usize>,
    /// The processes whose end was observed.
    gone: Vec<usize>,
}

impl Scenario {
    pub(super) fn new(processes: DemoProcesses, output: DemoOutput, ttl: Duration) -> Scenario {
        Scenario {
            processes,
            fault_results: Vec::new(),
            output,
            timing: if output.enabled { DemoTiming::FOR_READERS } else { DemoTiming::FOR_PROGRAMS },
            timeout: EVENT_TIMEOUT + 2 * ttl,
            clock: Clock::boot(),
            leader: None,
            started: 0,
            ended: Vec::new(),
            stopping: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// The whole demo, from the first leader to the clean end.
    pub(super) async fn play(&mut self, faults: &[DemoFault]) -> Result<(), ScenarioStop> {
        let all = self.processes.len();
        let ready = |scenario: &Scenario| scenario.leader.is_some() && scenario.started >= all;
        if !self.wait_until(START_TIMEOUT, ready).await? {
            return Err(Error::unavailable("nobody came to lead; see the log above").into());
        }
        if let Some(lead) = self.leader {
            self.print_hint(lead.which, hints::leader)?;
            if faults.is_empty() {
                let pid = self.processes.pid(lead.which).unwrap_or_default();
                let stay = self.timing.idle.as_secs();
                self.output.say(format!("   By hand: kill -9 {pid}, or -TERM, or -STOP"))?;
                self.output
                    .say(format!("   Else nothing happens for {stay} s; Ctrl+C ends it."))?;
            }
        }
        self.idle(if faults.is_empty() { self.timing.idle } else { self.timing.observe }).await?;
        for (number, fault) in faults.iter().enumerate() {
            let found = self.inject_fault(number + 1, *fault).await?;
            if !found {
                break;
            }
        }
        self.finish().await
    }

    /// Injects one fault into the leader. Returns whether another process came to lead.
    async fn inject_fault(
        &mut self,
        number: usize,
        fault: DemoFault,
    ) -> Result<bool, ScenarioStop> {
        // On a busy machine the leader may have just lost its term.
        self.wait_until(self.timeout, |scenario| scenario.leader.is_some()).await?;
        let Some(victim) = self.leader else {
            return Err(Error::unavailable("nobody leads, without any fault").into());
        };
        let (id, pid) =
            (self.processes.id(victim.which).to_owned(), self.processes.pid(victim.which));
        let by_hand = format!("kill -{} {}", fault.signal_name(), pid.unwrap_or_default());
        self.output.say("")?;
        self.output.say(format!("{number}. {} {id}: {}.", fault.as_str(), explained(fault)))?;
        self.output.say(format!("   By hand: {by_hand}"))?;
        self.print_hint(victim.which, |port| hints::victim(fault, port))?;
        let mut at = self.clock.now();
        if fault == DemoFault::Freeze {
            self.processes.freeze(victim.which).await;
            at = self.clock.now();
        } else {
            self.stopping.push(victim.which);
            self.processes.signal(victim.which, fault.signal());
        }
        let newer =
            |scenario: &Scenario| scenario.leader.is_some_and(|lead| lead.token > victim.token);
        let found = self.wait_until(self.timeout, newer).await?;
        let next = self.leader.filter(|lead| lead.token > victim.token);
        self.fault_results.push(FaultResult {
            fault,
            node: id,
            pid,
            token: victim.token,
            new_leader: next.map(|lead| self.processes.id(lead.which).to_owned()),
            gap: next.map(|lead| lead.at.since(at)),
            problem: None,
        });
        if let Some(next) = next {
            let gap = millis(next.at.since(at));
            self.output.say(format!("   Without a leader for {gap:.1} ms."))?;
            self.print_hint(next.which, hints::successor)?;
            self.idle(self.timing.observe).await?;
        }
        let problem = self.recover_victim(fault, victim).await?;
        if let Some(fault_result) = self.fault_results.last_mut() {
            fault_result.problem = problem;
        }
        self.idle(self.timing.recover).await?;
        Ok(found)
    }

    /// Resumes or restarts the victim. Returns a description of what went wrong, if anything did.
    async fn recover_victim(
        &mut self,
        fault: DemoFault,
        victim: DemoLeader,
    ) -> Result<Option<String>, ScenarioStop> {
        let which = victim.which;
        if fault == DemoFault::Freeze {
            let (id, pid) =
                (self.processes.id(which), self.processes.pid(which).unwrap_or_default());
            self.output.say(format!("   {id} thaws. By hand: kill -CONT {pid}"))?;
            self.processes.signal(which, Signal::CONT);
            let reported = self
                .wait_until(self.timeout, |scenario| scenario.ended.contains(&victim.token))
                .await?;
            self.print_hint(which, hints::thawed)?;
            return Ok((!reported).then(|| "it never said that it had lost leadership".to_owned()));
        }
        if !self.wait_until(self.timeout, |scenario| scenario.gone.contains(&which)).await? {
            self.processes.signal(which, Signal::KILL);
            self.wait_until(self.timeout, |scenario| scenario.gone.contains(&which)).await?;
        }
        let status = self.processes.reap(which).await?;
        self.stopping.retain(|stopping| *stopping != which);
        self.gone.retain(|gone| *gone != which);
        let clean = fault != DemoFault::Term || status.success();
        let before = self.started;
        self.output.say(format!("   {} is started again.", self.processes.id(which)))?;
        self.processes.restart(which).await?;
        self.wait_until(self.timeout, |scenario| scenario.started > before).await?;
        Ok((!clean).then(|| format!("it did not end in good order: {status}")))
    }

    /// Stops all processes cleanly, the leader last, so that no other process takes over meanwhile.
    async fn finish(&mut self) -> Result<(), ScenarioStop> {
        let last = self.leader.map(|lead| lead.which);
        let mut order: Vec<usize> = (0..self.processes.len()).collect();
        order.sort_by_key(|which| Some(*which) == last);
        self.output.say("")?;
        self.output.say("That was all: every process is asked to stop.")?;
        for which in order {
            self.stopping.push(which);
            self.processes.signal(which, Signal::TERM);
            // The user may have frozen it by hand.
            self.processes.signal(which, Signal::CONT);
            if !self.wait_until(self.timeout, |scenario| scenario.gone.contains(&which)).await? {
                let id = self.processes.id(which);
                return Err(Error::unavailable(format!("{id} does not stop")).into());
            }
            let status = self.processes.reap(which).await?;
            if !status.success() {
                let id = self.processes.id(which);
                return Err(Error::unavailable(format!("{id} ended badly: {status}")).into());
            }
        }
        Ok(())
    }

    /// Prints a hint about a process, if it serves HTTP.
    fn print_hint(&self, which: usize, line: impl Fn(u16) -> String) -> Result<(), ScenarioStop> {
        self.processes.port(which).map_or(Ok(()), |port| self.output.say(line(port)))
    }

    /// Only handles messages for this time.
    async fn idle(&mut self, time: Duration) -> Result<(), ScenarioStop> {
        self.wait_until(time, |_| false).await?;
        Ok(())
    }

    /// Handles messages until `done`; returns whether that came in time.
    async fn wait_until(
        &mut self,
        time: Duration,
        done: impl Fn(&Scenario) -> bool,
    ) -> Result<bool, ScenarioStop> {
        let end = self.clock.now() + time;
        while !done(self) {
            let clock = self.clock.clone();
            let (which, message) = tokio::select! {
                message = self.processes.next_message() => message,
                () = clock.sleep_until(end) => return Ok(false),
            };
            self.handle(which, &message).await?;
        }
        Ok(true)
    }

    async fn handle(&mut self, which: usize, message: &NodeMessage) -> Result<(), ScenarioStop> {
        let processes = &self.processes;
        let (id, pid) = (processes.id(which), processes.pid(which));
        self.output.message(id, pid, processes.requested_port(which), message)?;
        match message {
            NodeMessage::Started { http } => {
                self.started += 1;
                if let Ok(port) = http {
                    self.processes.set_port(which, *port);
                }
            }
            // Messages from two pipes have no order between them; tokens do.
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
            NodeMessage::Gone if self.stopping.contains(&which) => self.gone.push(which),
            NodeMessage::Gone => self.restart_killed(which).await?,
            NodeMessage::Counted { .. }
            | NodeMessage::Leads { .. }
            | NodeMessage::Follows { .. } => {}
        }
        Ok(())
    }

    /// Restarts a process that the user killed by hand, as the demo suggests. A process that failed by itself would only
    /// fail again.
    async fn restart_killed(&mut self, which: usize) -> Result<(), ScenarioStop> {
        let status = self.processes.reap(which).await?;
        let id = self.processes.id(which);
        if !status.success() && status.signal().is_none() {
            return Err(Error::unavailable(format!("{id} ended by itself: {status}")).into());
        }
        self.output.say(format!("   {id} was ended by hand ({status}), and is started again."))?;
        self.leader = self.leader.filter(|lead| lead.which != which);
        Ok(self.processes.restart(which).await?)
    }
}
