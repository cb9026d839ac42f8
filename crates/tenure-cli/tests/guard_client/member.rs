//! A test member that has nothing but its guard client: it holds the configured leases, renews them, prints the guard's
//! reports, and carries out the orders that it reads on stdin.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::store::Store;
use tenure::{CandidateId, Claim, Clock, Hold, Moment, Name, Nonce};
use tokio::sync::mpsc;

use tenure_cli::guard::{
    self, GuardClient, GuardClientConfig, GuardReport, Log, adopt_orphans, deaths, reap_orphans,
};

pub(crate) const ROLE: &str = "member";
pub(crate) const FLEET: &str = "f";
pub(crate) const MEMBERSHIP: &str = "f:node:m";

/// The member's config: the first line on its stdin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemberConfig {
    pub(crate) url: String,
    pub(crate) ttl_ms: u64,
    pub(crate) stop_within_ms: u64,
    /// The shard, and its command if it has one.
    pub(crate) shards: Vec<(String, Vec<String>)>,
    pub(crate) guarded: bool,
    /// Whether the member renews its leases.
    pub(crate) renews: bool,
    /// The deadlines of its shards, in milliseconds from now, if they are not all the same.
    pub(crate) deadlines_ms: Vec<u64>,
}

/// An order to the member: a later line on its stdin. Shards are named by their numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum MemberOrder {
    Stop(u32, u64),
    Run(u32, Vec<String>),
    Refused(u32),
    Forget(u32),
    Dismiss,
}

/// An event of the member: a line on its stdout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum MemberEvent {
    /// All leases are held, and the guard was informed.
    Ready,
    Gone {
        id: u32,
        ended: String,
        asked_to_stop: bool,
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
    /// The guard does not acknowledge, and is killed.
    Unresponsive,
    /// The guard is gone, and no process is left.
    End,
    Dismissed,
}

pub(crate) fn run() -> ExitCode {
    let config = std::io::stdin().lines().next().unwrap().unwrap();
    let config: MemberConfig = serde_json::from_str(&config).unwrap();
    let runtime = crate::runtime().unwrap();
    runtime.block_on(run_member(config));
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

fn print(event: &MemberEvent) {
    println!("{}", serde_json::to_string(event).unwrap());
}

async fn run_member(config: MemberConfig) {
    adopt_orphans().unwrap();
    let mut deaths = deaths().unwrap();
    tokio::spawn(async move {
        while deaths.recv().await.is_some() {
            reap_orphans();
        }
    });
    let store = tenure::open(&config.url).await.unwrap();
    let ttl = Duration::from_millis(config.ttl_ms);
    let guard_config = GuardClientConfig {
        store_url: config.url.clone(),
        fleet: Name::new(FLEET).unwrap(),
        member: CandidateId::new("m").unwrap(),
        stop_within: Duration::from_millis(config.stop_within_ms),
        log: Log::TEXT,
        guarded: config.guarded,
    };
    let clock = Clock::boot();
    let (client, mut reports) = GuardClient::start(&guard_config, store.clone()).unwrap();
    let names = std::iter::once(MEMBERSHIP.to_owned())
        .chain((0..config.shards.len()).map(|number| format!("f:lease:{number}")));
    let claims = names.map(|name| {
        let mut claim = Claim::new(
            Name::new(&name).unwrap(),
            guard_config.member.clone(),
            Nonce::random(),
            ttl,
        );
        claim.ends_with_process = config.guarded;
        claim
    });
    let claims: Vec<Claim> = claims.collect();
    let mut holds = Vec::new();
    for claims in claims.chunks(1_000) {
        let deadline = deadline(ttl);
        for answer in store.acquire(claims).await.unwrap() {
            let hold = answer.unwrap().held().unwrap().hold;
            let number = u32::try_from(holds.len()).unwrap();
            let index = holds.len().checked_sub(1);
            let shard = index.map(|index| config.shards[index].0.as_str());
            let own = index.and_then(|index| config.deadlines_ms.get(index));
            let own = own.map(|ms| clock.now() + Duration::from_millis(*ms));
            client.hold(number, &hold, shard, own.unwrap_or(deadline));
            holds.push(hold);
        }
    }
    for (id, (_, command)) in (1..).zip(&config.shards) {
        if !command.is_empty() {
            client.run(id, command.iter().map(OsString::from).collect());
        }
    }
    print(&MemberEvent::Ready);
    let mut orders = orders();
    let mut renewal = clock.now() + ttl / 3;
    let mut refused: BTreeSet<u32> = BTreeSet::new();
    let mut guarded = true;
    loop {
        tokio::select! {
            report = reports.next(), if guarded => match report {
                Some(guard::GuardEvent::Report(id, report)) => match report {
                    GuardReport::Gone { ended, asked_to_stop } => {
                        print(&MemberEvent::Gone { id, ended: format!("{ended:?}"), asked_to_stop });
                    }
                    GuardReport::Failed(why) => print(&MemberEvent::Failed { id, why }),
                    GuardReport::CannotKill(why) => print(&MemberEvent::CannotKill { id: Some(id), why }),
                    GuardReport::Acknowledged(_) => panic!("it is for the client only"),
                },
                Some(guard::GuardEvent::Unresponsive) => print(&MemberEvent::Unresponsive),
                Some(guard::GuardEvent::CannotKill(why)) => print(&MemberEvent::CannotKill { id: None, why }),
                None => {
                    print(&MemberEvent::End);
                    guarded = false;
                }
            },
            order = orders.recv() => {
                let Some(order) = order else { return };
                let now = clock.now();
                match order {
                    MemberOrder::Stop(id, ms) => client.stop(id, now + Duration::from_millis(ms)),
                    MemberOrder::Run(id, argv) => {
                        client.run(id, argv.iter().map(OsString::from).collect());
                    }
                    MemberOrder::Refused(id) => {
                        refused.insert(id);
                        client.extend(&[(id, Moment::PAST)]);
                    }
                    MemberOrder::Forget(id) => {
                        refused.insert(id);
                        client.forget(id);
                    }
                    MemberOrder::Dismiss => {
                        client.dismiss().await;
                        print(&MemberEvent::Dismissed);
                        return;
                    }
                }
            }
            () = clock.sleep_until(renewal), if config.renews => {
                renewal = clock.now() + ttl / 3;
                renew(&store, &holds, &client, ttl, &refused).await;
            }
        }
    }
}

/// The orders read from stdin, by a separate thread.
fn orders() -> mpsc::UnboundedReceiver<MemberOrder> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(serde_json::from_str(&line).unwrap());
        }
    });
    orders
}

async fn renew(
    store: &Arc<dyn Store>,
    holds: &[Hold],
    client: &GuardClient,
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
        client.extend(&extended);
    }
}

/// The deadline as a member computes it: from the time before the request.
fn deadline(ttl: Duration) -> Moment {
    Clock::boot().now() + ttl * 9 / 10
}
