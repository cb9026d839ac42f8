//! The main loop of `tenure guard-many`, which a fleet member starts: runs until the member has dismissed it, is dead or has
//! closed the socket.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use futures_util::FutureExt;
use tenure::{CandidateId, Clock, Error, Hold, Moment, Name, Result};

use super::super::log::{self, Log};
use super::super::protocol::{GuardReport, GuardSocket};
use super::super::release::Releaser;
use super::super::starter::Starter;
use super::super::{
    DEATH_TIMEOUT, LeaderProcess, cannot, deaths, hold_with_new_nonce, lock_holder, run_guard,
    set_up_guard,
};
use super::messages::{GuardMessage, ManySetup, pack};
use super::release::{FreedLeases, PendingReleases, ReleaseResult};
use super::{GuardConfig, GuardState, until};
use crate::exit::Exit;

/// How long the guard waits for the member's last messages after the member's death. Its end of the socket is closed then, and
/// everything it sent has been read. If another process has that end open, the guard does not wait for it.
const LAST_MESSAGES_TIMEOUT: Duration = Duration::from_millis(100);

/// The most packets that are received before other work gets its turn.
const MAX_PACKETS_PER_ROUND: usize = 16;

pub fn run() -> Exit {
    run_guard(guard_member())
}

async fn guard_member() -> Result<()> {
    let socket = set_up_guard("tenure fleet run")?;
    let mut deaths = deaths().map_err(|error| cannot("watch over children", &error))?;
    let Some(setup) = socket.receive::<ManySetup>().await else {
        // The member died before it could send the configuration.
        return Ok(());
    };
    let leader = LeaderProcess::of(setup.leader)?;
    let (fleet, member) = (Name::new(&setup.name)?, CandidateId::new(&setup.candidate)?);
    let releaser = Releaser::prepare(setup.store.clone(), fleet.clone());
    let stop_within = Duration::from_millis(setup.stop_within_ms);
    let starter = Starter::launch()
        .map_err(|error| cannot("start the thread that starts commands", &error))?;
    let state =
        GuardState::new(GuardConfig { fleet, member: member.clone(), stop_within }, Some(starter));
    let mut main_loop = MainLoop {
        socket,
        leader,
        pid: setup.leader,
        state,
        releases: PendingReleases::start(releaser),
        outbox: VecDeque::new(),
        log: setup.log,
        member,
        died_at: None,
        closed_at: None,
        dismissed: false,
        received_all_at: Moment::PAST,
        released: 0,
    };
    let clock = Clock::boot();
    loop {
        // Orders first: an order that extends a deadline has been valid since it was sent.
        main_loop.receive_all(&clock);
        let Some(wake_at) = main_loop.step(&clock) else { break };
        // Checked on every round, however much other work there is.
        if deaths.recv().now_or_never().is_some() {
            main_loop.state.child_died();
        }
        tokio::select! {
            biased;
            packet = main_loop.socket.receive_with_files::<Vec<GuardMessage>>(), if main_loop.closed_at.is_none() => {
                main_loop.handle_packet(packet, clock.now());
            }
            () = main_loop.leader.death(), if main_loop.died_at.is_none() => {
                main_loop.died_at = Some(clock.now());
                main_loop.state.end_all();
            }
            _ = deaths.recv() => main_loop.state.child_died(),
            release_done = main_loop.releases.next() => main_loop.release_done(release_done),
            sent = main_loop.socket.send_when_writable(main_loop.outbox.front().map_or(&[], Vec::as_slice), &[]),
                if !main_loop.outbox.is_empty() =>
            {
                main_loop.outbox.pop_front();
                if sent.is_err() {
                    // The member has closed its end.
                    main_loop.outbox.clear();
                }
            }
            () = until(&clock, wake_at) => {}
        }
    }
    main_loop.log_summary();
    Ok(())
}

/// The guard of one member, with its connection to the member.
struct MainLoop {
    socket: GuardSocket,
    leader: LeaderProcess,
    pid: i32,
    state: GuardState,
    releases: PendingReleases,
    outbox: VecDeque<Vec<u8>>,
    log: Log,
    member: CandidateId,
    /// When the member died.
    died_at: Option<Moment>,
    /// When the member closed the socket.
    closed_at: Option<Moment>,
    dismissed: bool,
    /// When every message of the member had been received.
    received_all_at: Moment,
    /// How many leases were released in place of a dead member.
    released: usize,
}

impl MainLoop {
    /// Does everything that is due. Returns when something is due again, if ever; the outer `None` when the guard has nothing
    /// more to do.
    fn step(&mut self, clock: &Clock) -> Option<Option<Moment>> {
        let mut wake_at = self.state.step();
        for failure in self.state.take_failures() {
            log::error(self.log, &self.member, &failure);
        }
        let mut reports = self.state.reports();
        let received = self.state.take_received().map(GuardReport::Acknowledged);
        // It concerns all holds; the number of the hold is not used.
        reports.extend(received.map(|received| (0, received)));
        let (packets, _) = pack(&reports);
        self.outbox.extend(packets);
        if self.dismissed {
            return (!self.state.is_idle()).then_some(wake_at);
        }
        let now = clock.now();
        let mut later = |at: Moment| {
            wake_at = Some(wake_at.map_or(at, |wake_at| wake_at.min(at)));
            false
        };
        let passed = |since: Moment, after| now >= since + after;
        match (self.died_at, self.closed_at) {
            (Some(died_at), closed_at) => {
                // Every message counts that the member sent before its death.
                if closed_at.is_some()
                    || passed(died_at, LAST_MESSAGES_TIMEOUT)
                    || later(died_at + LAST_MESSAGES_TIMEOUT)
                {
                    self.releases.release(self.state.take_freed());
                    if self.state.is_idle() && self.releases.is_done() {
                        return None;
                    }
                }
            }
            // A member that closed the socket and lives has its own reasons, and releases its leases itself.
            (None, Some(closed_at)) => {
                let lives = passed(closed_at, DEATH_TIMEOUT) || later(closed_at + DEATH_TIMEOUT);
                if lives && self.state.is_idle() {
                    return None;
                }
            }
            (None, None) => {
                let expired = self.state.take_expired(self.received_all_at);
                if let Some(at) = self.state.expiry_times().min() {
                    later(at);
                }
                self.probe_locks(&expired);
            }
        }
        Some(wake_at)
    }

    fn receive_all(&mut self, clock: &Clock) {
        // Bounded: the member's messages must not starve other work.
        for _ in 0..MAX_PACKETS_PER_ROUND {
            let now = clock.now();
            match self.socket.take() {
                Some(packet) if self.closed_at.is_none() => self.handle_packet(packet, now),
                _ => {
                    self.received_all_at = now;
                    return;
                }
            }
        }
    }

    fn handle_packet(&mut self, packet: Option<(Vec<GuardMessage>, Vec<OwnedFd>)>, now: Moment) {
        let Some((messages, files)) = packet else {
            self.closed_at = Some(now);
            self.state.end_all();
            return;
        };
        for file in files {
            self.state.live(file);
        }
        for message in messages {
            self.dismissed |= message == GuardMessage::Dismissed;
            self.state.handle(message);
        }
    }

    /// The guard does not release leases that expire while the member lives: a renewal that the guard knows nothing about may
    /// be in flight. But the member may be frozen in the middle of a change, and then no other member could ever acquire them.
    fn probe_locks(&mut self, expired: &[Hold]) {
        if expired.is_empty() {
            return;
        }
        let leases = leases(expired.len());
        self.warn(&format!(
            "the member's process is frozen or late: ended commands, and left {leases} to run out"
        ));
        let shards = expired.iter().map(hold_with_new_nonce).collect();
        self.releases.release(FreedLeases { shards, probe: true, ..FreedLeases::default() });
    }

    fn release_done(&mut self, release_done: ReleaseResult) {
        let ReleaseResult { released, not_released, probe } = release_done;
        if !probe {
            self.released += released;
        }
        let Some(not_released) = not_released else { return };
        if !probe {
            self.warn_not_released(not_released.holds.len(), &not_released.error);
        } else if lock_holder(&not_released.error) == u32::try_from(self.pid).ok() {
            let what = "the member's process was frozen in the middle of a change";
            match self.leader.kill() {
                Ok(()) => self.warn(&format!("{what}, and is killed")),
                Err(error) => self.warn(&format!("{what}, and cannot be killed: {error}")),
            }
        }
    }

    fn warn_not_released(&self, not_released: usize, error: &Error) {
        self.warn(&format!("could not release {}, left to run out: {error}", leases(not_released)));
    }

    fn log_summary(&self) {
        if self.died_at.is_some() && self.released > 0 {
            let leases = leases(self.released);
            self.warn(&format!(
                "the member's process died: ended its commands and released {leases}"
            ));
        }
    }

    fn warn(&self, text: &str) {
        log::warn(self.log, &self.member, text);
    }
}

fn leases(number: usize) -> String {
    match number {
        1 => "1 lease".to_owned(),
        _ => format!("{number} leases"),
    }
}
