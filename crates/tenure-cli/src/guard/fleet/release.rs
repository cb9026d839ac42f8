//! Releases a dead member's leases in a background task, because a store may be slow.

use tenure::{Error, Hold, Kind};
use tokio::sync::mpsc;

use super::super::release::{NotReleased, Releaser};

/// The largest batch of one store call.
const BATCH: usize = 1_000;

/// Leases to release.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FreedLeases {
    /// The membership is released first: the other members then plan without this member before its shards are free.
    pub(super) membership: Vec<Hold>,
    pub(super) shards: Vec<Hold>,
    /// The holds were never granted: releasing them changes nothing, and only tests whether the store's lock is held.
    pub(super) probe: bool,
}

impl FreedLeases {
    pub(super) fn is_empty(&self) -> bool {
        self.membership.is_empty() && self.shards.is_empty()
    }

    /// The batches, in the order in which they are released.
    fn batches(self) -> impl Iterator<Item = Vec<Hold>> {
        let chunks = |holds: Vec<Hold>| {
            let chunks: Vec<_> = holds.chunks(BATCH).map(<[Hold]>::to_vec).collect();
            chunks.into_iter()
        };
        chunks(self.membership).chain(chunks(self.shards))
    }
}

/// The result of one [`FreedLeases`].
#[derive(Debug)]
pub(super) struct ReleaseResult {
    pub(super) released: usize,
    pub(super) not_released: Option<NotReleased>,
    pub(super) probe: bool,
}

/// The handle of the background task.
pub(super) struct PendingReleases {
    requests: mpsc::UnboundedSender<FreedLeases>,
    done: mpsc::UnboundedReceiver<ReleaseResult>,
    in_flight: usize,
}

impl PendingReleases {
    pub(super) fn start(releaser: Releaser) -> PendingReleases {
        let (requests, queue) = mpsc::unbounded_channel();
        let (results, done) = mpsc::unbounded_channel();
        tokio::spawn(work(releaser, queue, results));
        PendingReleases { requests, done, in_flight: 0 }
    }

    pub(super) fn release(&mut self, freed: FreedLeases) {
        if !freed.is_empty() && self.requests.send(freed).is_ok() {
            self.in_flight += 1;
        }
    }

    /// Whether every requested release is complete, successful or not.
    pub(super) fn is_done(&self) -> bool {
        self.in_flight == 0
    }

    /// The next result.
    pub(super) async fn next(&mut self) -> ReleaseResult {
        match self.done.recv().await {
            Some(result) => {
                self.in_flight = self.in_flight.saturating_sub(1);
                result
            }
            // The task has panicked: its releases are not waited for.
            None if self.in_flight > 0 => {
                self.in_flight = 0;
                ReleaseResult { released: 0, not_released: None, probe: true }
            }
            None => std::future::pending().await,
        }
    }
}

async fn work(
    mut releaser: Releaser,
    mut queue: mpsc::UnboundedReceiver<FreedLeases>,
    results: mpsc::UnboundedSender<ReleaseResult>,
) {
    while let Some(freed) = queue.recv().await {
        let (mut released, mut kept, probe) = (0, Vec::new(), freed.probe);
        let mut last_error: Option<Error> = None;
        for batch in freed.batches() {
            // An unavailable store is unavailable for all of them.
            if last_error.as_ref().is_some_and(|last_error| last_error.kind() == Kind::Unavailable)
            {
                kept.extend(batch);
                continue;
            }
            let length = batch.len();
            let failed = releaser.release(batch).await.err();
            released += length - failed.as_ref().map_or(0, |failed| failed.holds.len());
            if let Some(failed) = failed {
                kept.extend(failed.holds);
                last_error = Some(failed.error);
            }
        }
        let not_released = last_error.map(|error| NotReleased { holds: kept, error });
        if results.send(ReleaseResult { released, not_released, probe }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::{CandidateId, Name, Nonce, Token};

    use super::*;

    fn hold(number: u64) -> Hold {
        let name = Name::new(&format!("f:{number}")).unwrap();
        let (id, token) = (CandidateId::new("m").unwrap(), Token::new(number + 1).unwrap());
        Hold::new(name, id, Nonce::random(), token)
    }

    #[test]
    fn the_membership_goes_first_and_the_shards_by_the_thousand() {
        let membership = hold(0);
        let shards: Vec<Hold> = (1..=2_500).map(hold).collect();
        let freed = FreedLeases {
            membership: vec![membership.clone()],
            shards: shards.clone(),
            ..FreedLeases::default()
        };
        let batches: Vec<Vec<Hold>> = freed.batches().collect();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1_000, 1_000, 500]);
        assert_eq!(batches[0], [membership]);
        assert_eq!(batches[1..].concat(), shards);
        assert_eq!(FreedLeases::default().batches().count(), 0);
    }
}
