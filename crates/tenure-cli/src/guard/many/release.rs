//! Giving back what a member held, in its place: beside everything else, because a store may take its time.

use tenure::{Error, Hold, Kind};
use tokio::sync::mpsc;

use super::super::release::{NotReleased, Releaser};

/// The store takes so many in one go.
const BATCH: usize = 1_000;

/// What is to be given back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    /// The membership first: then the others reckon without this member before its shards are free.
    pub(super) membership: Vec<Hold>,
    pub(super) shards: Vec<Hold>,
    /// They are nobody's, and it is asked only whether they could be.
    pub(super) only_asks: bool,
}

impl Free {
    pub(super) fn is_empty(&self) -> bool {
        self.membership.is_empty() && self.shards.is_empty()
    }

    /// In the order in which they go.
    fn batches(self) -> impl Iterator<Item = Vec<Hold>> {
        let chunks = |holds: Vec<Hold>| {
            let chunks: Vec<_> = holds.chunks(BATCH).map(<[Hold]>::to_vec).collect();
            chunks.into_iter()
        };
        chunks(self.membership).chain(chunks(self.shards))
    }
}

/// How it came out for some of them.
#[derive(Debug)]
pub(super) struct ReleaseResult {
    pub(super) given: usize,
    pub(super) kept: Option<NotReleased>,
    pub(super) only_asked: bool,
}

/// The one who gives back.
pub(super) struct PendingReleases {
    to: mpsc::UnboundedSender<Free>,
    done: mpsc::UnboundedReceiver<ReleaseResult>,
    under_way: usize,
}

impl PendingReleases {
    pub(super) fn start(giving_back: Releaser) -> PendingReleases {
        let (to, orders) = mpsc::unbounded_channel();
        let (told, done) = mpsc::unbounded_channel();
        tokio::spawn(work(giving_back, orders, told));
        PendingReleases { to, done, under_way: 0 }
    }

    pub(super) fn give(&mut self, free: Free) {
        if !free.is_empty() && self.to.send(free).is_ok() {
            self.under_way += 1;
        }
    }

    /// Whether everything that was to be given back has been, or could not be.
    pub(super) fn is_done(&self) -> bool {
        self.under_way == 0
    }

    /// How the next of them came out.
    pub(super) async fn next(&mut self) -> ReleaseResult {
        match self.done.recv().await {
            Some(returned) => {
                self.under_way = self.under_way.saturating_sub(1);
                returned
            }
            // The task has panicked: what it had to do is not waited for.
            None if self.under_way > 0 => {
                self.under_way = 0;
                ReleaseResult { given: 0, kept: None, only_asked: true }
            }
            None => std::future::pending().await,
        }
    }
}

async fn work(
    mut giving_back: Releaser,
    mut orders: mpsc::UnboundedReceiver<Free>,
    told: mpsc::UnboundedSender<ReleaseResult>,
) {
    while let Some(free) = orders.recv().await {
        let (mut given, mut kept, only_asked) = (0, Vec::new(), free.only_asks);
        let mut why: Option<Error> = None;
        for batch in free.batches() {
            // A store that is down is down for all of them.
            if why.as_ref().is_some_and(|why| why.kind() == Kind::Unavailable) {
                kept.extend(batch);
                continue;
            }
            let length = batch.len();
            let failed = giving_back.give(batch).await.err();
            given += length - failed.as_ref().map_or(0, |failed| failed.holds.len());
            if let Some(failed) = failed {
                kept.extend(failed.holds);
                why = Some(failed.why);
            }
        }
        let kept = why.map(|why| NotReleased { holds: kept, why });
        if told.send(ReleaseResult { given, kept, only_asked }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::{CandidateId, Name, Nonce, Token};

    use super::*;

    fn hold(number: u64) -> Hold {
        Hold {
            name: Name::new(&format!("f:{number}")).unwrap(),
            candidate: CandidateId::new("m").unwrap(),
            nonce: Nonce::random(),
            token: Token::new(number + 1).unwrap(),
        }
    }

    #[test]
    fn the_membership_goes_first_and_the_shards_by_the_thousand() {
        let membership = hold(0);
        let shards: Vec<Hold> = (1..=2_500).map(hold).collect();
        let free = Free {
            membership: vec![membership.clone()],
            shards: shards.clone(),
            ..Free::default()
        };
        let batches: Vec<Vec<Hold>> = free.batches().collect();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1_000, 1_000, 500]);
        assert_eq!(batches[0], [membership]);
        assert_eq!(batches[1..].concat(), shards);
        assert_eq!(Free::default().batches().count(), 0);
    }
}
