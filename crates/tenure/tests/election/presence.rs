//! Tests of presence: which candidates are visible, and in which state.

use std::sync::atomic::{AtomicBool, Ordering};

use tenure::presence::{Presence, present};
use tenure::{CandidateState, Clock, HealthGate};

use crate::*;

#[tokio::test]
async fn a_candidate_is_present_under_its_own_name_only() {
    let store = Flaky::new(&Clock::boot());
    let (short, long) = (Name::new("a").unwrap(), Name::new("a:b").unwrap());
    let announce = async |name: &Name, id: &str, url: &str| {
        let id = CandidateId::new(id).unwrap();
        Presence::new(name, &id, TTL).url(url).announce(arc(&store)).await.unwrap()
    };
    let ids = async |name: &Name| {
        let nodes = present(store.memory(), name).await.unwrap();
        nodes
            .into_iter()
            .map(|node| (node.id.to_string(), node.url.unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    let first = announce(&short, "x", "http://x").await;
    let other = announce(&long, "y", "").await;
    assert_eq!(ids(&short).await, [("x".to_owned(), "http://x".to_owned())]);
    assert_eq!(ids(&long).await, [("y".to_owned(), String::new())]);
    // A second candidate with the same id is hidden. When the first one leaves, the second becomes visible.
    let again = announce(&short, "x", "http://again").await;
    assert!(first.is_visible() && !again.is_visible());
    assert_eq!(ids(&short).await.len(), 1);
    first.leave().await;
    until("the second is seen", || again.is_visible()).await;
    assert_eq!(ids(&short).await, [("x".to_owned(), "http://again".to_owned())]);
    again.leave().await;
    assert!(ids(&short).await.is_empty());
    drop(other);
}

#[tokio::test]
async fn a_presence_shows_each_state_of_its_candidate() {
    let store = Flaky::new(&Clock::boot());
    let (name, id) = (Name::new("job").unwrap(), CandidateId::new("a").unwrap());
    let gate = HealthGate::new(Duration::from_millis(5), 1, 1);
    let broken = Arc::new(AtomicBool::new(true));
    let check = broken.clone();
    let builder = Election::builder("job").id("a").ttl(TTL).priority(3).health(gate, move || {
        let broken = check.load(Ordering::Relaxed);
        async move { if broken { Err("exit 7".to_owned()) } else { Ok(()) } }
    });
    let election = builder.start(arc(&store)).await.unwrap();
    let presence = Presence::new(&name, &id, TTL).priority(3).announce(arc(&store)).await.unwrap();
    let shows = async |wanted: CandidateState| {
        loop {
            let nodes = present(store.memory(), &name).await.unwrap();
            let [node] = &nodes[..] else { panic!("one candidate is present: {nodes:?}") };
            assert_eq!(node.priority, 3);
            if node.state == Some(wanted.clone()) {
                return;
            }
            Clock::boot().sleep(Duration::from_millis(2)).await;
        }
    };
    let steps = async {
        shows(CandidateState::Unhealthy("exit 7".to_owned())).await;
        broken.store(false, Ordering::Relaxed);
        shows(CandidateState::Leading).await;
        election.drain();
        shows(CandidateState::Drained).await;
        assert_eq!(election.status().state, CandidateState::Drained);
        election.undrain();
        shows(CandidateState::Leading).await;
        presence.leave().await;
    };
    let clock = Clock::boot();
    tokio::select! {
        () = presence.follow(&election) => unreachable!("it follows for ever"),
        () = steps => {}
        () = clock.sleep(Duration::from_secs(30)) => panic!("a state was never shown"),
    }
    assert!(present(store.memory(), &name).await.unwrap().is_empty());
    election.stop().await;
}
