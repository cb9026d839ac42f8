//! A member with nothing but its keeper: it holds what it is told to, renews it, says what the guard reports, and does what
//! it reads on stdin.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::store::Store;
use tenure::{CandidateId, Claim, Clock, Hold, Moment, Name, Nonce};
use tokio::sync::mpsc;

use crate::guard::{
    self, GuardClient, GuardClientConfig, GuardReport, Log, adopt_orphans, deaths, reap_orphans,
};

pub(crate) const PART: &str = "member";
pub(crate) const FLEET: &str = "f";
pub(crate) const MEMBERSHIP: &str = "f:node:m";

/// What it is to do: the first line on its stdin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) url: String,
    pub(crate) ttl_ms: u64,
    pub(crate) stop_within_ms: u64,
    /// The shard, and its command if it has one.
    pub(crate) shards: Vec<(String, Vec<String>)>,
    pub(crate) guarded: bool,
    /// Whether it holds its leases in the store at all.
    pub(crate) renews: bool,
    /// The deadlines of its shards, in milliseconds from now, where those are not all the same.
    pub(crate) deadlines_ms: Vec<u64>,
}

/// What it does later, by the numbers of its shards.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Deed {
    Stop(u32, u64),
    Run(u32, Vec<String>),
    Refused(u32),
    Forget(u32),
    Dismiss,
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum News {
    /// Everything is held, and was passed on.
    Ready,
    Gone {
        id: u32,
        ended: String,
        told: bool,
    },
    Failed {
        id: u32,
        why: String,
    },
    /// A process could not be killed.
    CannotKill {
        id: Option<u32>,
        why: String,
    },
    /// The guard does not answer, and is killed.
    Unresponsive,
    /// No guard any more, and nothing left.
    End,
    Dismissed,
}

pub(crate) fn play() -> ExitCode {
    let part = std::io::stdin().lines().next().unwrap().unwrap();
    let part: Part = serde_json::from_str(&part).unwrap();
    let runtime = crate::runtime().unwrap();
    runtime.block_on(stand(part));
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

fn say(news: &News) {
    println!("{}", serde_json::to_string(news).unwrap());
}

async fn stand(part: Part) {
    adopt_orphans().unwrap();
    let mut deaths = deaths().unwrap();
    tokio::spawn(async move {
        while deaths.recv().await.is_some() {
            reap_orphans();
        }
    });
    let store = tenure::open(&part.url).await.unwrap();
    let ttl = Duration::from_millis(part.ttl_ms);
    let duty = GuardClientConfig {
        store_url: part.url.clone(),
        fleet: Name::new(FLEET).unwrap(),
        member: CandidateId::new("m").unwrap(),
        stop_within: Duration::from_millis(part.stop_within_ms),
        log: Log::TEXT,
        guarded: part.guarded,
    };
    let clock = Clock::boot();
    let (keeper, mut reports) = GuardClient::start(&duty, store.clone()).unwrap();
    let names = std::iter::once(MEMBERSHIP.to_owned())
        .chain((0..part.shards.len()).map(|number| format!("f:lease:{number}")));
    let claims = names.map(|name| {
        let mut claim =
            Claim::new(Name::new(&name).unwrap(), duty.member.clone(), Nonce::random(), ttl);
        claim.ends_with_process = part.guarded;
        claim
    });
    let claims: Vec<Claim> = claims.collect();
    let mut holds = Vec::new();
    for claims in claims.chunks(1_000) {
        let deadline = deadline(ttl);
        for answer in store.acquire(claims).await.unwrap() {
            let hold = answer.unwrap().held().unwrap().hold;
            let number = u32::try_from(holds.len()).unwrap();
            let place = holds.len().checked_sub(1);
            let shard = place.map(|place| part.shards[place].0.as_str());
            let own = place.and_then(|place| part.deadlines_ms.get(place));
            let own = own.map(|ms| clock.now() + Duration::from_millis(*ms));
            keeper.hold(number, &hold, shard, own.unwrap_or(deadline));
            holds.push(hold);
        }
    }
    for (id, (_, command)) in (1..).zip(&part.shards) {
        if !command.is_empty() {
            keeper.run(id, command.iter().map(OsString::from).collect());
        }
    }
    say(&News::Ready);
    let mut deeds = deeds();
    let mut renewal = clock.now() + ttl / 3;
    let mut refused: BTreeSet<u32> = BTreeSet::new();
    let mut guarded = true;
    loop {
        tokio::select! {
            report = reports.next(), if guarded => match report {
                Some(guard::GuardEvent::Report(id, report)) => match report {
                    GuardReport::Gone { ended, told } => {
                        say(&News::Gone { id, ended: format!("{ended:?}"), told });
                    }
                    GuardReport::Failed(why) => say(&News::Failed { id, why }),
                    GuardReport::CannotKill(why) => say(&News::CannotKill { id: Some(id), why }),
                    GuardReport::Acknowledged(_) => panic!("it is the keeper's"),
                },
                Some(guard::GuardEvent::Unresponsive) => say(&News::Unresponsive),
                Some(guard::GuardEvent::CannotKill(why)) => say(&News::CannotKill { id: None, why }),
                None => {
                    say(&News::End);
                    guarded = false;
                }
            },
            deed = deeds.recv() => {
                let Some(deed) = deed else { return };
                let now = clock.now();
                match deed {
                    Deed::Stop(id, ms) => keeper.stop(id, now + Duration::from_millis(ms)),
                    Deed::Run(id, argv) => {
                        keeper.run(id, argv.iter().map(OsString::from).collect());
                    }
                    Deed::Refused(id) => {
                        refused.insert(id);
                        keeper.extend(&[(id, Moment::NEVER)]);
                    }
                    Deed::Forget(id) => {
                        refused.insert(id);
                        keeper.forget(id);
                    }
                    Deed::Dismiss => {
                        keeper.dismiss().await;
                        say(&News::Dismissed);
                        return;
                    }
                }
            }
            () = clock.sleep_until(renewal), if part.renews => {
                renewal = clock.now() + ttl / 3;
                renew(&store, &holds, &keeper, ttl, &refused).await;
            }
        }
    }
}

/// What is read on stdin, by a thread of its own.
fn deeds() -> mpsc::UnboundedReceiver<Deed> {
    let (told, deeds) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = told.send(serde_json::from_str(&line).unwrap());
        }
    });
    deeds
}

async fn renew(
    store: &Arc<dyn Store>,
    holds: &[Hold],
    keeper: &GuardClient,
    ttl: Duration,
    refused: &BTreeSet<u32>,
) {
    for (chunk, some) in (0..).zip(holds.chunks(1_000)) {
        let deadline = deadline(ttl);
        let answers = store.renew(some, ttl).await.unwrap();
        let numbers = chunk * 1_000..;
        let extended = numbers.zip(answers).filter(|(id, answer)| {
            !refused.contains(id) && answer.as_ref().is_ok_and(|answer| answer.is_held())
        });
        let extended: Vec<(u32, Moment)> = extended.map(|(id, _)| (id, deadline)).collect();
        keeper.extend(&extended);
    }
}

/// As a member counts it: from before the request.
fn deadline(ttl: Duration) -> Moment {
    Clock::boot().now() + ttl * 9 / 10
}
