//! Random operations of two processes under random faults. In every history at most one process may believe that it holds a
//! lease, tokens grow, only the latest term is ever renewed, and the names are free again when the faults are over and the terms
//! have expired.

use tenure::{Moment, Token};

use super::*;

const SEEDS: u64 = 300;
const STEPS: usize = 80;
const NAMES: [&str; 3] = ["one", "two", "three"];
const IDS: [&str; 2] = ["a", "b"];

/// A candidate's claim for one name, and its hold once it has one.
struct Campaign {
    claim: Claim,
    hold: Option<Hold>,
    /// Until when the candidate may believe that it holds the lease.
    until: Moment,
}

impl Campaign {
    fn new(who: usize, which: usize) -> Self {
        Campaign { claim: claim(NAMES[which], IDS[who]), hold: None, until: Moment::PAST }
    }
}

/// The candidates of one history, and what they know.
struct History {
    seed: u64,
    clock: Clock,
    campaigns: [[Campaign; NAMES.len()]; IDS.len()],
    greatest: [Option<Token>; NAMES.len()],
}

impl History {
    fn new(seed: u64, clock: Clock) -> Self {
        let campaigns = [0, 1].map(|who| [0, 1, 2].map(|which| Campaign::new(who, which)));
        History { seed, clock, campaigns, greatest: [None; NAMES.len()] }
    }

    async fn acquire(&mut self, store: &dyn Store, who: usize, which: usize, gives_up: bool) {
        let (seed, sent) = (self.seed, self.clock.now());
        match acquire(store, &self.campaigns[who][which].claim).await {
            Ok(Answer::Held(grant)) => {
                let other = &self.campaigns[1 - who][which];
                let believes = other.hold.is_some() && sent < other.until;
                assert!(!believes, "seed {seed}: two candidates hold '{}'", NAMES[which]);
                let token = Some(grant.hold.token);
                let greatest = self.greatest[which];
                assert!(token >= greatest, "seed {seed}: {token:?} after {greatest:?}");
                self.greatest[which] = token;
                let campaign = &mut self.campaigns[who][which];
                campaign.until = grant.counts_from.unwrap_or(sent).min(sent) + TTL;
                campaign.hold = Some(grant.hold);
            }
            Ok(Answer::Taken(_)) | Err(_) if gives_up => {
                self.campaigns[who][which] = Campaign::new(who, which);
            }
            Ok(Answer::Taken(_)) | Err(_) => {}
        }
    }

    async fn renew(&mut self, store: &dyn Store, who: usize, which: usize, hold: &Hold) {
        let sent = self.clock.now();
        match store.renew_one(hold, TTL).await {
            Ok(Answer::Held(())) => {
                let latest = self.greatest[which];
                assert_eq!(Some(hold.token), latest, "seed {}: an old term is renewed", self.seed);
                self.campaigns[who][which].until = sent + TTL;
            }
            Ok(Answer::Taken(_)) => self.campaigns[who][which] = Campaign::new(who, which),
            Err(_) => {}
        }
    }

    async fn release(&mut self, store: &dyn Store, who: usize, which: usize, hold: &Hold) {
        // The candidate does not rely on the lease from before the release is sent.
        self.campaigns[who][which] = Campaign::new(who, which);
        let _ = release(store, hold).await;
    }
}

fn random_fault(random: &mut fastrand::Rng) -> Option<SwapFault> {
    match random.u8(..8) {
        0 => Some(SwapFault::Conflict),
        1 => Some(SwapFault::LoseReply),
        2 => Some(SwapFault::LoseRequest),
        3 => Some(SwapFault::ArriveLate),
        _ => None,
    }
}

async fn run<K: ExpiryKind>(seed: u64, touches: bool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let setup = Setup::<K>::new(touches);
    let stores = [&setup.a, &setup.b];
    let mut history = History::new(seed, setup.clock.clone());
    for _ in 0..STEPS {
        let (who, which) = (random.usize(..IDS.len()), random.usize(..NAMES.len()));
        let store = stores[who];
        if let Some(fault) = random_fault(&mut random) {
            store.backend().fail_next(fault);
        }
        match (random.u8(..10), history.campaigns[who][which].hold.clone()) {
            (0, _) => drop(setup.service.deliver_late()),
            (1, _) => setup.clock.advance(Duration::from_millis(random.u64(..3_000))),
            (2, Some(hold)) => history.release(store, who, which, &hold).await,
            (_, Some(hold)) => history.renew(store, who, which, &hold).await,
            (_, None) => history.acquire(store, who, which, random.bool()).await,
        }
        // Sometimes the next operation comes before the tasks in the background.
        if random.bool() {
            settle().await;
        }
    }
    settle().await;
    every_name_is_free_again(seed, &setup).await;
}

async fn every_name_is_free_again<K: ExpiryKind>(seed: u64, setup: &Setup<K>) {
    let Setup { service, clock, .. } = setup;
    service.deliver_late();
    // A third process has observed every lease, and no other process renews any.
    let third = CasStore::new(DocumentBackend::<K>::new(service, false), clock.clone());
    for lease in NAMES {
        let _ = is_held(&third, &claim(lease, "c")).await;
    }
    clock.advance(EXPIRED);
    for lease in NAMES {
        let observed = third.observe(&tenure::store::Scope::name(&name(lease))).await.unwrap();
        for lease in observed {
            assert_eq!(lease.unwrap().holder, None, "seed {seed}");
        }
    }
}

#[tokio::test]
async fn with_a_store_clock() {
    for seed in 0..SEEDS {
        run::<StoreClock>(seed, seed % 2 == 0).await;
    }
}

#[tokio::test]
async fn with_a_server_lease() {
    for seed in 0..SEEDS {
        run::<ServerLease>(seed, seed % 2 == 0).await;
    }
}

#[tokio::test]
async fn with_observation() {
    for seed in 0..SEEDS {
        run::<Observation>(seed, false).await;
    }
}
