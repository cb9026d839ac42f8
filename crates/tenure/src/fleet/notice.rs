//! [`FleetNotice`]: what observers of a member receive, and the channel from the member to all of them.

use std::sync::Mutex;

use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::broadcast;

use super::event::FleetEvent;
use super::member::locked;
use super::{Reason, Shard};
use crate::error::Error;
use crate::lease::{CandidateId, Token};

/// How many notices an observer may lag behind before it misses some.
const NOTICE_BUFFER: usize = 4_096;

/// A notice about one member of the fleet, for observers: logs, metrics, a dashboard.
///
/// It carries no right and no [`ShardWork`](super::ShardWork), so any number of observers may receive it. See
/// [`Fleet::events`](crate::Fleet::events).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FleetNotice {
    /// This member has acquired its membership lease.
    Joined {
        /// The token of the term.
        token: Token,
    },
    /// This member has lost its membership lease; its shards are being revoked.
    Left {
        /// The reason of the loss.
        why: Reason,
    },
    /// This member owns a shard.
    Assigned {
        /// The shard that it owns.
        shard: Shard,
        /// The token of the term.
        token: Token,
    },
    /// The work on a shard must end.
    Revoked {
        /// The shard whose work must end.
        shard: Shard,
        /// The token of the term that ends.
        token: Token,
        /// The reason of the revocation.
        why: Reason,
    },
    /// The store has confirmed the release of the lease, or this member does not hold it any more.
    Released {
        /// The shard that was released.
        shard: Shard,
        /// The token of the term that ended.
        token: Token,
        /// Why the term has ended.
        why: Reason,
    },
    /// The work on a shard panicked in [`Fleet::run`](crate::Fleet::run). The shard is being released.
    Panicked {
        /// The shard whose work panicked.
        shard: Shard,
        /// The token of the term.
        token: Token,
        /// The message of the panic.
        message: String,
    },
    /// The store does not answer. Work continues until its deadline.
    StoreUnreachable(Error),
    /// The store answers again.
    StoreBack,
    /// A message about the source of shards, for example that it cannot be read and the last good list is kept.
    Source(String),
    /// The members list different shards: the number of shards for each member that has announced its list. Empty: the lists
    /// are equal again.
    Lists(Vec<(CandidateId, usize)>),
    /// The number of shards that have had no owner for longer than a TTL, and some of these shards.
    Unowned(usize, Vec<Shard>),
    /// This observer was too slow and has missed this many notices. [`Fleet::owned`](crate::Fleet::owned),
    /// [`Fleet::members`](crate::Fleet::members) and [`Fleet::coverage`](crate::Fleet::coverage) have the current state.
    Missed(u64),
}

impl From<&FleetEvent> for FleetNotice {
    fn from(event: &FleetEvent) -> FleetNotice {
        match event {
            FleetEvent::Joined { token, .. } => FleetNotice::Joined { token: *token },
            FleetEvent::Left { why, .. } => FleetNotice::Left { why: *why },
            FleetEvent::Assigned { shard, token, .. } => {
                FleetNotice::Assigned { shard: shard.clone(), token: *token }
            }
            FleetEvent::Revoked { shard, token, why, .. } => {
                FleetNotice::Revoked { shard: shard.clone(), token: *token, why: *why }
            }
            FleetEvent::Released { shard, token, why, .. } => {
                FleetNotice::Released { shard: shard.clone(), token: *token, why: *why }
            }
            FleetEvent::StoreUnreachable(error) => FleetNotice::StoreUnreachable(error.clone()),
            FleetEvent::StoreBack => FleetNotice::StoreBack,
            FleetEvent::Source(text) => FleetNotice::Source(text.clone()),
            FleetEvent::Lists(lists) => FleetNotice::Lists(lists.clone()),
            FleetEvent::Unowned(count, some) => FleetNotice::Unowned(*count, some.clone()),
        }
    }
}

/// The channel from one member to all of its observers. It needs no memory before the first observer subscribes.
#[derive(Default)]
pub(super) struct NoticeChannel(Mutex<ChannelState>);

#[derive(Default)]
enum ChannelState {
    #[default]
    Unused,
    Open(broadcast::Sender<FleetNotice>),
    /// The fleet has ended.
    Closed,
}

impl NoticeChannel {
    /// Sends a notice to all observers, if there are any.
    pub(super) fn send(&self, notice: impl FnOnce() -> FleetNotice) {
        if let ChannelState::Open(sender) = &*locked(&self.0)
            && sender.receiver_count() > 0
        {
            // No observer is fine.
            let _ = sender.send(notice());
        }
    }

    /// No notice follows: the streams end after the last one.
    pub(super) fn close(&self) {
        *locked(&self.0) = ChannelState::Closed;
    }

    /// All notices from now on.
    pub(super) fn subscribe(&self) -> impl Stream<Item = FleetNotice> + Send + Unpin + 'static {
        let mut state = locked(&self.0);
        if matches!(*state, ChannelState::Unused) {
            *state = ChannelState::Open(broadcast::channel(NOTICE_BUFFER).0);
        }
        let receiver = match &*state {
            ChannelState::Open(sender) => Some(sender.subscribe()),
            ChannelState::Unused | ChannelState::Closed => None,
        };
        drop(state);
        stream::unfold(receiver, async |receiver| {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Ok(notice) => Some((notice, Some(receiver))),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    Some((FleetNotice::Missed(missed), Some(receiver)))
                }
                Err(broadcast::error::RecvError::Closed) => None,
            }
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: usize) -> FleetNotice {
        FleetNotice::Source(number.to_string())
    }

    #[tokio::test]
    async fn a_slow_observer_learns_how_many_notices_it_has_missed() {
        let channel = NoticeChannel::default();
        let mut slow = channel.subscribe();
        for number in 0..NOTICE_BUFFER + 7 {
            channel.send(|| text(number));
        }
        channel.close();
        assert!(matches!(slow.next().await, Some(FleetNotice::Missed(7))));
        let rest: Vec<FleetNotice> = slow.collect().await;
        assert_eq!(rest.len(), NOTICE_BUFFER);
        assert!(matches!(&rest[0], FleetNotice::Source(text) if text == "7"));
    }

    #[tokio::test]
    async fn each_observer_receives_each_notice_and_its_stream_ends_after_the_last() {
        let channel = NoticeChannel::default();
        channel.send(|| unreachable!("there is no observer"));
        let first = channel.subscribe();
        channel.send(|| text(0));
        let second = channel.subscribe();
        channel.send(|| text(1));
        channel.close();
        channel.send(|| unreachable!("the channel is closed"));
        assert_eq!(first.count().await, 2);
        assert_eq!(second.count().await, 1);
        assert_eq!(channel.subscribe().count().await, 0, "the fleet has ended");
    }
}
