//! The guard client: a fleet member's handle to its guard.
//!
//! No caller waits: messages are queued, and a task packs them into packets and sends them in order. A guard that accepts no
//! packet for [`SEND_TIMEOUT`] counts as dead, and so does a guard that does not acknowledge deadlines or has not ended a
//! command in time ([`watchdog`](super::watchdog)). Whenever the guard ends, for any reason, the member ends every process that
//! it has left, and then the [`Reports`] end. After that the member may start another guard, and sends it all its holds again.

use std::ffi::OsString;
use std::fmt;
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
use super::super::protocol::{GuardReport, GuardSocket, HoldProof, socket_pair};
use super::super::{MANY, OWN_EXECUTABLE, Orphans, SparedProcess, deaths, spawn_with_cleanup};
use super::messages::{Argument, GuardMessage, ManySetup, pack};
use super::watchdog::MemberWatchdog;
use super::{GuardConfig, GuardState, until};
use crate::child_env;

/// How long a guard may take to receive a packet.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a guard may take to end after it was dismissed.
const DISMISS_TIMEOUT: Duration = Duration::from_secs(5);
/// The most messages that are packed at once, and the most deadlines in one message.
const MAX_BATCH: usize = 1_000;

/// The configuration of a member's guard.
#[derive(Clone)]
pub struct GuardClientConfig {
    /// The store's URL, with its password if it has one.
    pub store_url: String,
    pub fleet: Name,
    pub member: CandidateId,
    pub stop_within: Duration,
    pub log: Log,
    /// `false`: the commands are the member's own children. If the member is killed or frozen, they keep running.
    pub guarded: bool,
}

impl fmt::Debug for GuardClientConfig {
    /// Without the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut config = f.debug_struct("GuardClientConfig");
        config.field("fleet", &self.fleet).field("member", &self.member).finish_non_exhaustive()
    }
}

/// A message, and the file that is sent with it.
type OutgoingMessage = (GuardMessage, Option<OwnedFd>);

/// The handle. Every message that has an `id` concerns one hold of this member, and messages arrive in the order they were
/// sent.
#[derive(Clone, Debug)]
pub struct GuardClient {
    messages: mpsc::UnboundedSender<OutgoingMessage>,
    watchdog: Arc<MemberWatchdog>,
    store: Arc<dyn Store>,
    liveness_sent: Arc<AtomicBool>,
}

/// An event of a member's commands or of its guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardEvent {
    /// A report on the command of the hold with this number.
    Report(u32, GuardReport),
    /// The guard does not acknowledge, or is late with an action: the member kills it.
    Unresponsive,
    /// The guard is gone, and the member itself cannot kill a process that it has left: which one, and the reason.
    CannotKill(String),
}

/// The stream of the guard's events.
#[derive(Debug)]
pub struct Reports(mpsc::UnboundedReceiver<GuardEvent>);

impl Reports {
    /// The next event. `None` when the guard is gone and no process of any command is left.
    pub async fn next(&mut self) -> Option<GuardEvent> {
        self.0.recv().await
    }
}

impl GuardClient {
    /// Starts the guard. The caller must have called [`adopt_orphans`](crate::guard::adopt_orphans).
    pub fn start(
        config: &GuardClientConfig,
        store: Arc<dyn Store>,
    ) -> io::Result<(GuardClient, Reports)> {
        let (messages, queue) = mpsc::unbounded_channel();
        let (events, reports) = mpsc::unbounded_channel();
        let watchdog = Arc::new(MemberWatchdog::new(config.stop_within, Clock::boot()));
        // The events end with the last sender: not before every process is killed that a panicking task has left.
        let cannot_kill = {
            let events = events.clone();
            move |failure| _ = events.send(GuardEvent::CannotKill(failure))
        };
        if config.guarded {
            let guard = GuardProcess::start(config)?;
            spawn_with_cleanup(guard.run(queue, events, watchdog.clone()), cannot_kill);
        } else {
            spawn_with_cleanup(
                run_in_member(config, queue, events, watchdog.clone())?,
                cannot_kill,
            );
        }
        let client = GuardClient { messages, watchdog, store, liveness_sent: Arc::default() };
        Ok((client, Reports(reports)))
    }

    /// The member holds this lease until `deadline`. Without a shard it is the membership lease.
    pub fn hold(&self, id: u32, hold: &Hold, shard: Option<&str>, deadline: Moment) {
        if !self.send_liveness_file() {
            // Then no command is started under it, and the guard does not release it.
            return;
        }
        self.watchdog.hold(id, deadline);
        let (hold, shard) = (HoldProof::from(hold), shard.map(str::to_owned));
        self.send(GuardMessage::Hold { id, hold, shard, deadline: deadline.as_nanos() });
    }

    /// Starts the command of a shard. [`GuardReport::Gone`] or [`GuardReport::Failed`] follows; only then may it be called
    /// again.
    pub fn run(&self, id: u32, argv: Vec<OsString>) {
        let number = self.watchdog.run(id);
        self.send(GuardMessage::Run { id, argv: argv.into_iter().map(Argument::from).collect() });
        number.into_iter().for_each(|number| self.send(GuardMessage::Acknowledge(number)));
    }

    /// Leases were renewed; the deadline is [`Moment::PAST`] where the renewal was refused.
    pub fn extend(&self, deadlines: &[(u32, Moment)]) {
        let number = self.watchdog.extend(deadlines);
        for some in deadlines.chunks(MAX_BATCH) {
            let nanos = some.iter().map(|(id, deadline)| (*id, deadline.as_nanos()));
            self.send(GuardMessage::Deadlines(nanos.collect()));
        }
        number.into_iter().for_each(|number| self.send(GuardMessage::Acknowledge(number)));
    }

    /// Stops the command, and kills it at `kill_at`.
    pub fn stop(&self, id: u32, kill_at: Moment) {
        self.watchdog.stop(id, kill_at);
        self.send(GuardMessage::Stop { id, kill_at: kill_at.as_nanos() });
    }

    /// Forwards a signal to all commands.
    pub fn signal_all(&self, number: i32) {
        self.send(GuardMessage::Signal(number));
    }

    /// The hold is over: it was released, or its renewal was refused. A command that still runs under it is killed.
    pub fn forget(&self, id: u32) {
        self.watchdog.forget(id);
        self.send(GuardMessage::Forget { id });
    }

    /// Kills the guard and every process below it.
    pub fn abandon(&self) {
        self.watchdog.abandon();
    }

    /// Every lease was released, or is left to expire: the guard has nothing more to do. Returns when the guard and every
    /// process below it are gone.
    pub async fn dismiss(self) {
        self.send(GuardMessage::Dismissed);
        let clock = Clock::boot();
        tokio::select! {
            () = self.messages.closed() => {}
            () = clock.sleep(DISMISS_TIMEOUT) => {
                self.abandon();
                self.messages.closed().await;
            }
        }
    }

    fn send(&self, message: GuardMessage) {
        // If the task has ended, no command is left that the message could concern.
        let _ = self.messages.send((message, None));
    }

    /// Sends the store's liveness file, once. Where this process's death frees a lease, its commands must be gone before that:
    /// they inherit the file. Returns whether that is ensured.
    fn send_liveness_file(&self) -> bool {
        if self.liveness_sent.load(Ordering::Relaxed) {
            return true;
        }
        let Some(file) = self.store.liveness() else { return true };
        let Ok(file) = file.try_clone_to_owned() else { return false };
        self.liveness_sent.store(true, Ordering::Relaxed);
        let _ = self.messages.send((GuardMessage::Live, Some(file)));
        true
    }
}

/// The guard's process.
struct GuardProcess {
    socket: GuardSocket,
    process: Child,
    spared: SparedProcess,
}

impl GuardProcess {
    fn start(config: &GuardClientConfig) -> io::Result<GuardProcess> {
        let (socket, guard_end) = socket_pair()?;
        let mut command = Command::new(OWN_EXECUTABLE);
        command.arg0("tenure").arg(MANY).stdin(Stdio::from(guard_end));
        child_env::clear(&mut command);
        let process = tokio::process::Command::from(command).spawn()?;
        let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the guard has no process number"))?;
        let spared = SparedProcess::new(pid);
        let setup = ManySetup {
            store: config.store_url.clone(),
            name: config.fleet.to_string(),
            candidate: config.member.to_string(),
            stop_within_ms: u64::try_from(config.stop_within.as_millis()).unwrap_or(u64::MAX),
            leader: rustix::process::getpid().as_raw_nonzero().get(),
            log: config.log,
        };
        socket.send(&setup, &[])?;
        Ok(GuardProcess { socket, process, spared })
    }

    /// Sends messages and receives reports until the guard has ended, and kills the processes that it has left.
    async fn run(
        mut self,
        mut queue: mpsc::UnboundedReceiver<OutgoingMessage>,
        events: mpsc::UnboundedSender<GuardEvent>,
        watchdog: Arc<MemberWatchdog>,
    ) {
        let mut dismissed = false;
        let notify = |event| _ = events.send(event);
        {
            let refused = |id| {
                watchdog.gone(id);
                let reason = "its command line is too long: a guard takes 64 KiB".to_owned();
                notify(GuardEvent::Report(id, GuardReport::Failed(reason)));
            };
            let handle = |reports: Vec<(u32, GuardReport)>| {
                for (id, report) in reports {
                    if let GuardReport::Acknowledged(number) = report {
                        watchdog.acknowledged(number);
                        continue;
                    }
                    watchdog.gone(id);
                    notify(GuardEvent::Report(id, report));
                }
            };
            let sending = send_messages(&self.socket, &mut queue, refused, &mut dismissed);
            let mut sending = std::pin::pin!(sending);
            loop {
                tokio::select! {
                    // Reports first: a reported action is not overdue.
                    biased;
                    reports = self.socket.receive() => {
                        let Some(reports) = reports else { break };
                        handle(reports);
                    }
                    () = &mut sending => break,
                    // After a freeze of this process a report may be in the socket before the runtime knows of it.
                    () = watchdog.expired() => match self.socket.take() {
                        Some(Some((reports, _))) => handle(reports),
                        Some(None) => break,
                        None => {
                            notify(GuardEvent::Unresponsive);
                            break;
                        }
                    },
                }
            }
        }
        // A guard that has ended already needs no signal.
        let _ = self.process.start_kill();
        let ended = self.process.wait().await;
        if !(dismissed && ended.is_ok_and(|status| status.success())) {
            let mut orphans = Orphans::new();
            while let Some(failure) = orphans.end().await {
                notify(GuardEvent::CannotKill(failure));
            }
        }
        drop((self.spared, events, queue));
    }
}

/// Returns when the guard does not receive, or when every client has been dropped.
async fn send_messages(
    socket: &GuardSocket,
    queue: &mut mpsc::UnboundedReceiver<OutgoingMessage>,
    too_long: impl Fn(u32),
    dismissed: &mut bool,
) {
    let clock = Clock::boot();
    let mut items = Vec::new();
    while queue.recv_many(&mut items, MAX_BATCH).await > 0 {
        let (messages, files): (Vec<GuardMessage>, Vec<Option<OwnedFd>>) = items.drain(..).unzip();
        let mut files = files.into_iter().flatten();
        let (packets, too_long_indexes) = pack(&messages);
        for index in too_long_indexes {
            if let Some(GuardMessage::Run { id, .. }) = messages.get(index) {
                too_long(*id);
            }
        }
        *dismissed |= messages.contains(&GuardMessage::Dismissed);
        // There is only one file in a client's life. It may arrive before its message, and must not arrive after it.
        let mut file = files.next();
        for packet in packets {
            let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
            let passed = tokio::select! {
                passed = socket.send_when_writable(&packet, &files) => passed,
                () = clock.sleep(SEND_TIMEOUT) => Err(io::Error::from(io::ErrorKind::TimedOut)),
            };
            if passed.is_err() {
                return;
            }
            file = None;
        }
        if *dismissed {
            // The guard answers a dismissal by ending.
            std::future::pending::<()>().await;
        }
    }
}

/// Does the guard's work in the member itself.
fn run_in_member(
    config: &GuardClientConfig,
    mut queue: mpsc::UnboundedReceiver<OutgoingMessage>,
    events: mpsc::UnboundedSender<GuardEvent>,
    watchdog: Arc<MemberWatchdog>,
) -> io::Result<impl Future<Output = ()> + use<>> {
    let mut deaths = deaths()?;
    let GuardClientConfig { fleet, member, stop_within, .. } = config.clone();
    let mut state = GuardState::new(GuardConfig { fleet, member, stop_within }, None);
    Ok(async move {
        let clock = Clock::boot();
        let (mut over, mut items) = (false, Vec::new());
        loop {
            let wake_at = state.step();
            // The failures are among the reports too.
            state.take_failures();
            for (id, report) in state.reports() {
                let _ = events.send(GuardEvent::Report(id, report));
            }
            state.take_received().into_iter().for_each(|number| watchdog.acknowledged(number));
            if over && state.is_idle() {
                return;
            }
            tokio::select! {
                biased;
                number = queue.recv_many(&mut items, MAX_BATCH), if !over => {
                    over = number == 0 || items.iter().any(|(message, _)| *message == GuardMessage::Dismissed);
                    items.drain(..).for_each(|(message, _)| state.handle(message));
                    if over {
                        state.end_all();
                    }
                }
                _ = deaths.recv() => state.child_died(),
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

    /// A queue of many messages, each about a tenth of a packet.
    fn queued(number: u32) -> mpsc::UnboundedReceiver<OutgoingMessage> {
        let (messages, queue) = mpsc::unbounded_channel();
        for id in 0..number {
            let argv = vec![Argument::Text("x".repeat(6_000))];
            messages.send((GuardMessage::Run { id, argv }, None)).unwrap();
        }
        queue
    }

    #[test]
    fn messages_beyond_the_socket_buffer_arrive_in_order() {
        in_runtime(async {
            let (member_end, guard_end) = socket_pair().unwrap();
            let guard_end = GuardSocket::over(guard_end).unwrap();
            let reader = tokio::spawn(async move {
                let (mut next, mut packets) = (0, 0);
                while next < 2_000 {
                    // Slower than the writer.
                    Clock::boot().sleep(Duration::from_millis(1)).await;
                    for message in guard_end.receive::<Vec<GuardMessage>>().await.unwrap() {
                        assert!(matches!(message, GuardMessage::Run { id, .. } if id == next));
                        next += 1;
                    }
                    packets += 1;
                }
                packets
            });
            send_messages(
                &member_end,
                &mut queued(2_000),
                |_| panic!("none is too long"),
                &mut false,
            )
            .await;
            let packets = reader.await.unwrap();
            assert!(packets < 250, "{packets} packets");
        });
    }

    #[test]
    fn sending_to_a_guard_that_does_not_read_times_out() {
        in_runtime(async {
            let (member_end, guard_end) = socket_pair().unwrap();
            let begun = Clock::boot().now();
            send_messages(&member_end, &mut queued(2_000), |_| {}, &mut false).await;
            let took = Clock::boot().now().since(begun);
            // Generous: a busy machine needs seconds to fill the socket.
            assert!(took >= SEND_TIMEOUT && took < SEND_TIMEOUT * 15, "{took:?}");
            drop(guard_end);
        });
    }
}
