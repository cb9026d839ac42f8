//! The threads and connections of a process with many elections. The only test of its program: the threads of another test would
//! be counted too.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;

use tenure::Election;
use tenure::store::Scope;
use tenure_rig::redis_rig::{DURABLE, Rig, TTL, tests};

fn main() -> ExitCode {
    tenure_rig::redis_rig::main(tests![twenty_elections_share_a_thread_and_its_connections])
}

/// Reproduces defect E12.
async fn twenty_elections_share_a_thread_and_its_connections() {
    let rig = Rig::new(DURABLE);
    let store = rig.open().await;
    let mut elections = Vec::new();
    for number in 0..20 {
        let builder = Election::builder(&format!("job-{number}")).ttl(TTL);
        elections.push(builder.start(store.clone()).await.unwrap());
    }
    let mut leaderships = Vec::new();
    for election in &elections {
        let leadership = election.leadership().await.unwrap();
        assert_eq!(leadership.save("here").await.unwrap(), tenure::Saved::Kept);
        leaderships.push(leadership);
    }
    store.observe(&Scope::Prefix(String::new())).await.unwrap();
    // The administrator's connection of this test is not one of the store's.
    let clients: String = rig.run("CLIENT LIST").await;
    let connections = clients.lines().count() - 1;
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let threads = threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok())
        .filter(|name| name.starts_with("tenure"))
        .count();
    eprintln!("{connections} connections, {threads} threads");
    assert!(connections <= 4, "{connections} connections: {clients}");
    assert!(threads <= 3, "{threads} threads");
}
