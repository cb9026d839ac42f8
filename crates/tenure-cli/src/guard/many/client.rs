//! A member's hand on its guard.
//!
//! Nobody who uses it waits: words are queued, and a task of its own puts them into packets and passes them on in order. A
//! guard that takes none for [`PATIENCE`] is as good as dead, and so is one that does not acknowledge deadlines or has not
//! ended a command which it should have ended ([`overdue`]). Whenever the guard goes, in whatever way, everything it has left is ended here, and then the
//! [`Reports`] end. After that another may be started, and told of everything again.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Pid;
use tenure::{CandidateId, Clock, Hold, Moment, Name, Store};
use tokio::process::Child;
use tokio::sync::mpsc;

use super::super::log::Log;
use super::super::protocol::{GuardReport, GuardSocket, HoldProof, line};
use super::super::{MANY, OURSELVES, Orphans, SparedProcess, deaths, spawn_overseer};
use super::messages::{Argument, GuardMessage, ManySetup, pack};
use super::watchdog::MemberWatchdog;
use super::{GuardConfig, GuardState, until};
use crate::child_env;

/// How long a guard may take to read what it is told.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a guard may take to go when it is dismissed.
const GOING: Duration = Duration::from_secs(5);
/// So many words are put into packets in one go, and so many deadlines into one word.
const AT_ONCE: usize = 1_000;

/// What the guard of a member is for.
#[derive(Clone)]
pub(crate) struct GuardClientConfig {
    /// The store's URL, with its password if it has one.
    pub(crate) store_url: String,
    pub(crate) fleet: Name,
    pub(crate) member: CandidateId,
    pub(crate) stop_within: Duration,
    pub(crate) log: Log,
    /// Without a guard the commands are the member's own children: if it is killed or frozen, they run on.
    pub(crate) guarded: bool,
}

/// A word, and the file that goes with it.
type OutgoingMessage = (GuardMessage, Option<OwnedFd>);

/// The handle. Whatever is said of a number is said of one hold of this member, and arrives in the order it was said.
#[derive(Clone, Debug)]
pub(crate) struct GuardClient {
    words: mpsc::UnboundedSender<OutgoingMessage>,
    overdue: Arc<MemberWatchdog>,
    store: Arc<dyn Store>,
    told_of_life: Arc<AtomicBool>,
}

/// What a member learns of its commands and its guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GuardEvent {
    /// A report on the command of the hold with this number.
    Report(u32, GuardReport),
    /// The guard does not acknowledge, or has not done what it should have done by now: the member kills it.
    Unresponsive,
    /// The guard is gone, and the member itself cannot kill what it has left; which process and why.
    CannotKill(String),
}

/// What the guard has to say.
#[derive(Debug)]
pub(crate) struct Reports(mpsc::UnboundedReceiver<GuardEvent>);

impl Reports {
    /// The next. `None` when there is no guard any more, and nothing left of any command.
    pub(crate) async fn next(&mut self) -> Option<GuardEvent> {
        self.0.recv().await
    }
}

impl GuardClient {
    /// Starts the guard. To be called where [`adopt_orphans`](crate::guard::adopt_orphans) was.
    pub(crate) fn start(
        duty: &GuardClientConfig,
        store: Arc<dyn Store>,
    ) -> io::Result<(GuardClient, Reports)> {
        let (words, queue) = mpsc::unbounded_channel();
        let (news, reports) = mpsc::unbounded_channel();
        let overdue = Arc::new(MemberWatchdog::new(duty.stop_within, Clock::boot()));
        // The reports end with the last sender: not before everything is ended that a task which panics has left.
        let cannot_kill = {
            let news = news.clone();
            move |failure| _ = news.send(GuardEvent::CannotKill(failure))
        };
        if duty.guarded {
            let guard = Guard::start(duty)?;
            spawn_overseer(guard.attend(queue, news, overdue.clone()), cannot_kill);
        } else {
            spawn_overseer(alone(duty, queue, news, overdue.clone())?, cannot_kill);
        }
        let keeper = GuardClient { words, overdue, store, told_of_life: Arc::default() };
        Ok((keeper, Reports(reports)))
    }

    /// The member holds this lease until `deadline`. Without a shard it is its membership.
    pub(crate) fn hold(&self, id: u32, hold: &Hold, shard: Option<&str>, deadline: Moment) {
        if !self.say_that_we_live() {
            // Then nothing is started under it, and nobody else gives it back.
            return;
        }
        self.overdue.hold(id, deadline);
        let (hold, shard) = (HoldProof::from(hold), shard.map(str::to_owned));
        self.say(GuardMessage::Hold { id, hold, shard, deadline: deadline.as_nanos() });
    }

    /// Starts the command of a shard. [`Report::Gone`] or [`Report::Failed`] follows, and only then it may be called again.
    pub(crate) fn run(&self, id: u32, argv: Vec<OsString>) {
        let number = self.overdue.run(id);
        self.say(GuardMessage::Run { id, argv: argv.into_iter().map(Argument::from).collect() });
        number.into_iter().for_each(|number| self.say(GuardMessage::Acknowledge(number)));
    }

    /// Leases were renewed; [`Moment::NEVER`] for one that was refused.
    pub(crate) fn extend(&self, deadlines: &[(u32, Moment)]) {
        let number = self.overdue.extend(deadlines);
        for some in deadlines.chunks(AT_ONCE) {
            let nanos = some.iter().map(|(id, deadline)| (*id, deadline.as_nanos()));
            self.say(GuardMessage::Deadlines(nanos.collect()));
        }
        number.into_iter().for_each(|number| self.say(GuardMessage::Acknowledge(number)));
    }

    /// The command is to stop, and is killed at `kill_at`.
    pub(crate) fn stop(&self, id: u32, kill_at: Moment) {
        self.overdue.stop(id, kill_at);
        self.say(GuardMessage::Stop { id, kill_at: kill_at.as_nanos() });
    }

    /// Passes a signal on to all commands.
    pub(crate) fn signal_all(&self, number: i32) {
        self.say(GuardMessage::Signal(number));
    }

    /// The hold is over: it was released, or refused. What still runs under it is killed.
    pub(crate) fn forget(&self, id: u32) {
        self.overdue.forget(id);
        self.say(GuardMessage::Forget { id });
    }

    /// Does without the guard from now on: it is killed, and everything below it.
    pub(crate) fn abandon(&self) {
        self.overdue.abandon();
    }

    /// Everything has been given back, or is left to its time: the guard has nothing more to do. Returns when it is gone, and everything below it.
    pub(crate) async fn dismiss(self) {
        self.say(GuardMessage::Dismissed);
        let clock = Clock::boot();
        tokio::select! {
            () = self.words.closed() => {}
            () = clock.sleep(GOING) => {
                self.abandon();
                self.words.closed().await;
            }
        }
    }

    fn say(&self, word: GuardMessage) {
        // With nobody left to hear it there is nothing left to say it about.
        let _ = self.words.send((word, None));
    }

    /// Where our death frees a lease, it must not do so before our commands are gone. Whether that is taken care of.
    fn say_that_we_live(&self) -> bool {
        if self.told_of_life.load(Ordering::Relaxed) {
            return true;
        }
        let Some(file) = self.store.liveness() else { return true };
        let Ok(file) = file.try_clone_to_owned() else { return false };
        self.told_of_life.store(true, Ordering::Relaxed);
        let _ = self.words.send((GuardMessage::Live, Some(file)));
        true
    }
}

/// The guard's process.
struct Guard {
    line: GuardSocket,
    process: Child,
    spared: SparedProcess,
}

impl Guard {
    fn start(duty: &GuardClientConfig) -> io::Result<Guard> {
        let (line, theirs) = line()?;
        let mut command = Command::new(OURSELVES);
        command.arg0("tenure").arg(MANY).stdin(Stdio::from(theirs));
        child_env::cleared(&mut command);
        let process = tokio::process::Command::from(command).spawn()?;
        let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the guard has no process number"))?;
        let spared = SparedProcess::new(pid);
        let setup = ManySetup {
            store: duty.store_url.clone(),
            name: duty.fleet.to_string(),
            candidate: duty.member.to_string(),
            stop_within_ms: u64::try_from(duty.stop_within.as_millis()).unwrap_or(u64::MAX),
            leader: rustix::process::getpid().as_raw_nonzero().get(),
            log: duty.log,
        };
        line.send(&setup, &[])?;
        Ok(Guard { line, process, spared })
    }

    /// Passes words and reports on until the guard has gone, and ends what it has left.
    async fn attend(
        mut self,
        mut queue: mpsc::UnboundedReceiver<OutgoingMessage>,
        news: mpsc::UnboundedSender<GuardEvent>,
        overdue: Arc<MemberWatchdog>,
    ) {
        let mut dismissed = false;
        let tell = |told| _ = news.send(told);
        {
            let refused = |id| {
                overdue.gone(id);
                let why = "its command line is too long: a guard takes 64 KiB".to_owned();
                tell(GuardEvent::Report(id, GuardReport::Failed(why)));
            };
            let handle = |reports: Vec<(u32, GuardReport)>| {
                for (id, report) in reports {
                    if let GuardReport::Acknowledged(number) = report {
                        overdue.acknowledged(number);
                        continue;
                    }
                    overdue.gone(id);
                    tell(GuardEvent::Report(id, report));
                }
            };
            let passing = pass_on(&self.line, &mut queue, refused, &mut dismissed);
            let mut passing = std::pin::pin!(passing);
            loop {
                tokio::select! {
                    // Reports first: what has been done is not overdue.
                    biased;
                    reports = self.line.receive() => {
                        let Some(reports) = reports else { break };
                        handle(reports);
                    }
                    () = &mut passing => break,
                    // After a freeze of this process a report may be in the socket before the runtime knows of it.
                    () = overdue.come() => match self.line.take() {
                        Some(Some((reports, _))) => handle(reports),
                        Some(None) => break,
                        None => {
                            tell(GuardEvent::Unresponsive);
                            break;
                        }
                    },
                }
            }
        }
        // One that has ended already needs no signal.
        let _ = self.process.start_kill();
        let ended = self.process.wait().await;
        if !(dismissed && ended.is_ok_and(|status| status.success())) {
            let mut orphans = Orphans::new();
            while let Some(failure) = orphans.end().await {
                tell(GuardEvent::CannotKill(failure));
            }
        }
        drop((self.spared, news, queue));
    }
}

/// Returns when the guard does not take what it is told, or nobody has anything more to tell it.
async fn pass_on(
    line: &GuardSocket,
    queue: &mut mpsc::UnboundedReceiver<OutgoingMessage>,
    too_long: impl Fn(u32),
    dismissed: &mut bool,
) {
    let clock = Clock::boot();
    let mut items = Vec::new();
    while queue.recv_many(&mut items, AT_ONCE).await > 0 {
        let (words, files): (Vec<GuardMessage>, Vec<Option<OwnedFd>>) = items.drain(..).unzip();
        let mut files = files.into_iter().flatten();
        let (packets, left_out) = pack(&words);
        for place in left_out {
            if let Some(GuardMessage::Run { id, .. }) = words.get(place) {
                too_long(*id);
            }
        }
        *dismissed |= words.contains(&GuardMessage::Dismissed);
        // There is one file ever; it may come before its word, and must not come behind it.
        let mut file = files.next();
        for packet in packets {
            let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            let passed = tokio::select! {
                passed = line.pass(&packet, &files) => passed,
                () = clock.sleep(PATIENCE) => Err(io::Error::from(io::ErrorKind::TimedOut)),
            };
            if passed.is_err() {
                return;
            }
            file = None;
        }
        if *dismissed {
            // Its end is the answer.
            std::future::pending::<()>().await;
        }
    }
}

/// The guard's work, done by the member itself.
fn alone(
    duty: &GuardClientConfig,
    mut queue: mpsc::UnboundedReceiver<OutgoingMessage>,
    news: mpsc::UnboundedSender<GuardEvent>,
    overdue: Arc<MemberWatchdog>,
) -> io::Result<impl Future<Output = ()> + use<>> {
    let mut deaths = deaths()?;
    let GuardClientConfig { fleet, member, stop_within, .. } = duty.clone();
    let mut many = GuardState::new(GuardConfig { fleet, member, stop_within }, None);
    Ok(async move {
        let clock = Clock::boot();
        let (mut over, mut items) = (false, Vec::new());
        loop {
            let wake_at = many.step();
            // They are among the reports too.
            many.take_failures();
            for (id, report) in many.reports() {
                let _ = news.send(GuardEvent::Report(id, report));
            }
            many.take_received().into_iter().for_each(|number| overdue.acknowledged(number));
            if over && many.is_idle() {
                return;
            }
            tokio::select! {
                biased;
                number = queue.recv_many(&mut items, AT_ONCE), if !over => {
                    over = number == 0 || items.iter().any(|(word, _)| *word == GuardMessage::Dismissed);
                    items.drain(..).for_each(|(word, _)| many.heed(word));
                    if over {
                        many.cut();
                    }
                }
                _ = deaths.recv() => many.stir(),
                () = until(&clock, wake_at) => {}
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_runtime(test: impl Future<Output = ()>) {
        crate::runtime().unwrap().block_on(test);
    }

    /// Many at once, each a packet's tenth.
    fn queued(number: u32) -> mpsc::UnboundedReceiver<OutgoingMessage> {
        let (words, queue) = mpsc::unbounded_channel();
        for id in 0..number {
            let argv = vec![Argument::Text("x".repeat(6_000))];
            words.send((GuardMessage::Run { id, argv }, None)).unwrap();
        }
        queue
    }

    #[test]
    fn more_than_the_line_holds_arrives_in_order_where_somebody_reads() {
        in_runtime(async {
            let (ours, theirs) = line().unwrap();
            let theirs = GuardSocket::over(theirs).unwrap();
            let reader = tokio::spawn(async move {
                let (mut next, mut packets) = (0, 0);
                while next < 2_000 {
                    // Slower than the writer.
                    Clock::boot().sleep(Duration::from_millis(1)).await;
                    for word in theirs.receive::<Vec<GuardMessage>>().await.unwrap() {
                        assert!(matches!(word, GuardMessage::Run { id, .. } if id == next));
                        next += 1;
                    }
                    packets += 1;
                }
                packets
            });
            pass_on(&ours, &mut queued(2_000), |_| panic!("none is too long"), &mut false).await;
            let packets = reader.await.unwrap();
            assert!(packets < 250, "{packets} packets");
        });
    }

    #[test]
    fn a_guard_that_does_not_read_is_waited_for_so_long_and_no_longer() {
        in_runtime(async {
            let (ours, theirs) = line().unwrap();
            let begun = Clock::boot().now();
            pass_on(&ours, &mut queued(2_000), |_| {}, &mut false).await;
            let took = Clock::boot().now().since(begun);
            // Generous: a busy machine needs seconds to fill the socket.
            assert!(took >= PATIENCE && took < PATIENCE * 15, "{took:?}");
            drop(theirs);
        });
    }
}
