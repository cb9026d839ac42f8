//! The cost of a member that owns a hundred thousand shards: `cargo bench -p tenure --all-features --bench fleet`.
//!
//! Redis on loopback, a TTL of 30 s, renewals every 10 s. `SHARDS=10000` sets the number of shards, `REST=30` the seconds for
//! which the member is measured at rest. The application of this bench only keeps the handles of its shards.

#![allow(clippy::unwrap_used)] // A bench fails like a test.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tenure::fleet::{Fleet, FleetEvent, ShardWork, source};
use tenure::{Clock, Store};
use tenure_rig::servers::{Scratch, Server};

const RENEW_INTERVAL: Duration = Duration::from_secs(10);

fn number(variable: &str, default: u32) -> u32 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let Some(program) = tenure_rig::servers::find("redis-7", "redis-server") else {
            println!("{}", tenure_rig::servers::install_hint("redis-7"));
            return;
        };
        let port = tenure_rig::servers::free_port();
        let arguments = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""];
        let url = format!("redis://127.0.0.1:{port}");
        let client = redis::Client::open(url.as_str()).unwrap();
        let probe = async || client.get_multiplexed_async_connection().await.is_ok();
        let _server = Server::start(Scratch::new(), program, arguments, probe).await.unwrap();
        let store = tenure::open(&format!("{url}?startup_wait=0s")).await.unwrap();
        let report = store.examine().await.unwrap();
        println!("{}, round trip {:?}", report.what, report.round_trip);
        let mut admin = client.get_multiplexed_async_connection().await.unwrap();
        let shards = number("SHARDS", 100_000);
        let before = memory();
        let names: Vec<String> = (0..shards).map(|number| format!("tenant-{number}")).collect();
        let list = source::list(&names);
        drop(names);
        let bare = memory();
        println!("the list of {shards} shards: {:.1} MiB", mib(bare.saturating_sub(before)));
        member(store, &mut admin, list, shards).await;
    });
}

async fn member(
    store: std::sync::Arc<dyn Store>,
    admin: &mut MultiplexedConnection,
    list: std::sync::Arc<dyn source::Source>,
    shards: u32,
) {
    let clock = Clock::boot();
    let begun = clock.now();
    let (own, server) = (own_time(), server_time(admin).await);
    let fleet = Fleet::builder("bench").member("one").shards(list).join(store).await.unwrap();
    let mut works: Vec<ShardWork> = Vec::new();
    while works.len() < shards as usize {
        match fleet.next().await {
            Some(FleetEvent::Assigned { work, .. }) => works.push(work),
            Some(FleetEvent::Unowned(count, _)) => println!("{count} unowned"),
            Some(_) => {}
            None => panic!("the fleet has ended"),
        }
    }
    let took = clock.now().since(begun);
    let (own, server) = (own_time() - own, server_time(admin).await - server);
    println!(
        "all {shards} acquired after {took:.2?}; member {own:.2?}, Redis {server:.2?} of processor time"
    );
    println!("resident {:.1} MiB, at most {:.1} MiB", mib(memory()), mib(peak()));
    // Wait until all leases have been renewed once.
    clock.sleep(RENEW_INTERVAL).await;
    let rest = Duration::from_secs(u64::from(number("REST", 30)));
    let (own, server, calls) = (own_time(), server_time(admin).await, calls(admin).await);
    let begun = clock.now();
    let mut events = 0;
    while clock.now().since(begun) < rest {
        tokio::select! {
            event = fleet.next() => events += usize::from(event.is_some()),
            () = clock.sleep(Duration::from_millis(500)) => {}
        }
    }
    let time = clock.now().since(begun).as_secs_f64();
    let (own, server) = (own_time() - own, server_time(admin).await - server);
    let calls = self::calls(admin).await - calls;
    let intervals = time / RENEW_INTERVAL.as_secs_f64();
    println!(
        "at rest for {time:.0} s: member {:.2} % of a core, Redis {:.2} %, {:.0} round trips per {RENEW_INTERVAL:?}, {events} events",
        100.0 * own.as_secs_f64() / time,
        100.0 * server.as_secs_f64() / time,
        calls as f64 / intervals,
    );
    println!("resident {:.1} MiB, at most {:.1} MiB", mib(memory()), mib(peak()));
    let begun = clock.now();
    works.clear();
    fleet.leave().await;
    println!("all given back after {:.2?}", clock.now().since(begun));
}

#[allow(clippy::cast_precision_loss)]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

fn memory() -> u64 {
    status("VmRSS:")
}

fn peak() -> u64 {
    status("VmHWM:")
}

/// Processor time of this whole process.
#[allow(clippy::disallowed_methods, reason = "no clock that tells the time")]
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

async fn info(admin: &mut MultiplexedConnection, section: &str) -> String {
    redis::cmd("INFO").arg(section).query_async(admin).await.unwrap()
}

async fn server_time(admin: &mut MultiplexedConnection) -> Duration {
    let info = info(admin, "cpu").await;
    let used = |key: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().parse().unwrap()
    };
    Duration::from_secs_f64(used("used_cpu_sys:") + used("used_cpu_user:"))
}

/// The number of script calls: each is a round trip.
async fn calls(admin: &mut MultiplexedConnection) -> u64 {
    let info = info(admin, "commandstats").await;
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}
