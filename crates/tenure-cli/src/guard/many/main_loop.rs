//! `tenure guard-many`, started by a member: stands by until the member is done, dead or out of time.

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
    DEATH_FOLLOWS, LeaderProcess, cannot, deaths, nobodys, stand_by, stuck_in_the_way, take_post,
};
use super::messages::{GuardMessage, ManySetup, pack};
use super::release::{Free, PendingReleases, ReleaseResult};
use super::{GuardConfig, GuardState, until};
use crate::exit::Exit;

/// When the member is dead its end of the line is closed, and what it said last has been read. Should anything else have it
/// open, that is not waited for.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// So many packets are heard in one go.
const AT_ONCE: usize = 16;

pub(crate) fn run() -> Exit {
    stand_by(stand())
}

async fn stand() -> Result<()> {
    let line = take_post("tenure fleet run")?;
    let mut deaths = deaths().map_err(|error| cannot("watch over children", &error))?;
    let Some(setup) = line.receive::<ManySetup>().await else {
        // The member died before it could say what there is to guard.
        return Ok(());
    };
    let leader = LeaderProcess::of(setup.leader)?;
    let (fleet, member) = (Name::new(&setup.name)?, CandidateId::new(&setup.candidate)?);
    let giving_back = Releaser::prepare(setup.store.clone(), fleet.clone());
    let stop_within = Duration::from_millis(setup.stop_within_ms);
    let starter = Starter::launch()
        .map_err(|error| cannot("start the thread that starts commands", &error))?;
    let many =
        GuardState::new(GuardConfig { fleet, member: member.clone(), stop_within }, Some(starter));
    let mut watch = MainLoop {
        line,
        leader,
        pid: setup.leader,
        many,
        returns: PendingReleases::start(giving_back),
        outbox: VecDeque::new(),
        log: setup.log,
        member,
        dead: None,
        deaf: None,
        dismissed: false,
        heard_at: Moment::NEVER,
        given: 0,
    };
    let clock = Clock::boot();
    loop {
        // Orders first: one that extends a deadline has been true since it was sent.
        watch.hear_all(&clock);
        let Some(wake_at) = watch.step(&clock) else { break };
        // Whatever else there is to do, and however often.
        if deaths.recv().now_or_never().is_some() {
            watch.many.stir();
        }
        tokio::select! {
            biased;
            packet = watch.line.receive_with_files::<Vec<GuardMessage>>(), if watch.deaf.is_none() => {
                watch.hear(packet, clock.now());
            }
            () = watch.leader.death(), if watch.dead.is_none() => {
                watch.dead = Some(clock.now());
                watch.many.cut();
            }
            _ = deaths.recv() => watch.many.stir(),
            returned = watch.returns.next() => watch.returned(returned),
            sent = watch.line.pass(watch.outbox.front().map_or(&[], Vec::as_slice), &[]),
                if !watch.outbox.is_empty() =>
            {
                watch.outbox.pop_front();
                if sent.is_err() {
                    // Nobody is there to be told.
                    watch.outbox.clear();
                }
            }
            () = until(&clock, wake_at) => {}
        }
    }
    watch.last_line();
    Ok(())
}

struct MainLoop {
    line: GuardSocket,
    leader: LeaderProcess,
    pid: i32,
    many: GuardState,
    returns: PendingReleases,
    outbox: VecDeque<Vec<u8>>,
    log: Log,
    member: CandidateId,
    /// Since when.
    dead: Option<Moment>,
    /// The line has ended.
    deaf: Option<Moment>,
    dismissed: bool,
    /// When everything the member has said was heard.
    heard_at: Moment,
    /// How many leases were given back in place of a member that is dead.
    given: usize,
}

impl MainLoop {
    /// Does what is due, and says when something will be again, if ever. `None` when there is nothing more to do.
    fn step(&mut self, clock: &Clock) -> Option<Option<Moment>> {
        let mut wake_at = self.many.step();
        for failure in self.many.take_failures() {
            log::error(self.log, &self.member, &failure);
        }
        let mut reports = self.many.reports();
        let received = self.many.take_received().map(GuardReport::Acknowledged);
        // It is about all of them; its hold does not matter.
        reports.extend(received.map(|received| (0, received)));
        let (packets, _) = pack(&reports);
        self.outbox.extend(packets);
        if self.dismissed {
            return (!self.many.is_idle()).then_some(wake_at);
        }
        let now = clock.now();
        let mut later = |at: Moment| {
            wake_at = Some(wake_at.map_or(at, |wake_at| wake_at.min(at)));
            false
        };
        let passed = |since: Moment, after| now >= since + after;
        match (self.dead, self.deaf) {
            (Some(dead), deaf) => {
                // All it has said counts, up to its death.
                if deaf.is_some() || passed(dead, LAST_WORDS) || later(dead + LAST_WORDS) {
                    self.returns.give(self.many.take_free());
                    if self.many.is_idle() && self.returns.is_done() {
                        return None;
                    }
                }
            }
            // One that hung up and lives has its own reasons, and gives back itself what is to be given back.
            (None, Some(deaf)) => {
                let lives = passed(deaf, DEATH_FOLLOWS) || later(deaf + DEATH_FOLLOWS);
                if lives && self.many.is_idle() {
                    return None;
                }
            }
            (None, None) => {
                let run_out = self.many.run_out(self.heard_at);
                if let Some(at) = self.many.run_outs().min() {
                    later(at);
                }
                self.ask_after(&run_out);
            }
        }
        Some(wake_at)
    }

    fn hear_all(&mut self, clock: &Clock) {
        // However much it says, there are other things to do.
        for _ in 0..AT_ONCE {
            let now = clock.now();
            match self.line.take() {
                Some(packet) if self.deaf.is_none() => self.hear(packet, now),
                _ => {
                    self.heard_at = now;
                    return;
                }
            }
        }
    }

    fn hear(&mut self, packet: Option<(Vec<GuardMessage>, Vec<OwnedFd>)>, now: Moment) {
        let Some((words, files)) = packet else {
            self.deaf = Some(now);
            self.many.cut();
            return;
        };
        for file in files {
            self.many.live(file);
        }
        for word in words {
            self.dismissed |= word == GuardMessage::Dismissed;
            self.many.heed(word);
        }
    }

    /// Leases that run out while the member lives are not ours to give back: a renewal may be under way of which we know
    /// nothing. But it may stand in the middle of a change, and then nobody else could ever have them.
    fn ask_after(&mut self, run_out: &[Hold]) {
        if run_out.is_empty() {
            return;
        }
        let leases = leases(run_out.len());
        self.say(&format!(
            "the member's process is frozen or late: ended commands, and left {leases} to run out"
        ));
        let shards = run_out.iter().map(nobodys).collect();
        self.returns.give(Free { shards, only_asks: true, ..Free::default() });
    }

    fn returned(&mut self, returned: ReleaseResult) {
        let ReleaseResult { given, kept, only_asked } = returned;
        if !only_asked {
            self.given += given;
        }
        let Some(kept) = kept else { return };
        if !only_asked {
            self.could_not(kept.holds.len(), &kept.why);
        } else if stuck_in_the_way(&kept.why) == u32::try_from(self.pid).ok() {
            let what = "the member's process was frozen in the middle of a change";
            match self.leader.kill() {
                Ok(()) => self.say(&format!("{what}, and is killed")),
                Err(error) => self.say(&format!("{what}, and cannot be killed: {error}")),
            }
        }
    }

    fn could_not(&self, kept: usize, why: &Error) {
        self.say(&format!("could not release {}, left to run out: {why}", leases(kept)));
    }

    fn last_line(&self) {
        if self.dead.is_some() && self.given > 0 {
            let leases = leases(self.given);
            self.say(&format!(
                "the member's process died: ended its commands and released {leases}"
            ));
        }
    }

    fn say(&self, text: &str) {
        log::warn(self.log, &self.member, text);
    }
}

fn leases(number: usize) -> String {
    match number {
        1 => "1 lease".to_owned(),
        _ => format!("{number} leases"),
    }
}
