//! E12: elections on one store share a driver.

use std::sync::Arc;
use std::time::Duration;

use tenure::presence::Presence;
use tenure::{CandidateId, Clock, Election, Name, Store};

use crate::flaky_store::Flaky;
use crate::{SHORT_TTL, TTL, arc, leads, until};

async fn start(store: &Arc<dyn Store>, name: &str, ttl: Duration) -> Election {
    Election::builder(name).id("a").ttl(ttl).start(store.clone()).await.unwrap()
}

#[tokio::test]
async fn elections_on_one_store_are_independent() {
    let flaky = Flaky::new(&Clock::boot());
    let store = arc(&flaky);
    let first = start(&store, "first", SHORT_TTL).await;
    let second = start(&store, "second", TTL).await;
    let presence = Presence::new(first.name(), &CandidateId::new("a").unwrap(), TTL);
    let presence = presence.announce(store.clone()).await.unwrap();
    let (one, two) = (first.leadership().await.unwrap(), second.leadership().await.unwrap());
    assert!(presence.is_visible());
    // A stop, a drop and a leave of one end nothing else.
    drop(one);
    first.stop().await;
    presence.leave().await;
    assert!(two.is_valid() && second.is_leader());
    let third = start(&store, "third", SHORT_TTL).await;
    leads(&third).await;
    drop(third);
    Clock::boot().sleep(2 * SHORT_TTL).await;
    assert!(two.is_valid() && second.is_leader());
    // The name of an election that was stopped can be used again.
    let again = start(&store, "first", SHORT_TTL).await;
    leads(&again).await;
    drop(two);
    second.stop().await;
    Clock::boot().sleep(2 * SHORT_TTL).await;
    assert!(again.is_leader());
}

#[tokio::test]
async fn each_election_renews_with_its_own_ttl() {
    let flaky = Flaky::new(&Clock::boot());
    let store = arc(&flaky);
    let short = start(&store, "short", SHORT_TTL).await;
    let long = start(&store, "long", Duration::from_secs(60)).await;
    leads(&short).await;
    leads(&long).await;
    until("it renews", || short.renewals().durations.count > 3).await;
    assert_eq!(long.renewals().durations.count, 0);
    let left = |name: &str| {
        let name = Name::new(name).unwrap();
        let memory = flaky.memory();
        async move { tenure::StoreExt::observe_one(memory, &name).await.unwrap().unwrap().left }
    };
    assert!(left("short").await <= SHORT_TTL);
    assert!(left("long").await > Duration::from_secs(50));
}

#[tokio::test]
async fn candidates_of_one_name_on_one_store_fail_over_to_each_other() {
    let flaky = Flaky::new(&Clock::boot());
    let store = arc(&flaky);
    let build = |id: &str| Election::builder("job").id(id).ttl(TTL).start(store.clone());
    let (a, b) = (build("a").await.unwrap(), build("b").await.unwrap());
    leads(&a).await;
    a.stop().await;
    leads(&b).await;
}

#[tokio::test]
async fn the_drivers_of_one_store_end_with_their_elections() {
    let flaky = Flaky::new(&Clock::boot());
    let store = arc(&flaky);
    for round in 0..20 {
        let name = format!("round-{round}");
        let election = start(&store, &name, TTL).await;
        leads(&election).await;
        if round % 2 == 0 {
            election.stop().await;
        }
    }
    // The two of this test.
    until("no driver has the store", || flaky.handles() == 2).await;
    drop(store);
}
