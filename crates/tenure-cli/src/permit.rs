//! Permits: the clock is read immediately before every effect that this process starts itself.
//!
//! A frozen process may resume after its deadline and before its renewal thread has declared the loss. So no effect relies on
//! the notification of a loss alone: a synchronous effect starts inside [`TermPermits::permit`], an asynchronous one is polled
//! by [`while_valid`].

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tenure::supervise::SupervisedTerm;
use tenure::{Hold, Moment};

/// The permits of a term: the leadership of an election, or the ownership of a shard.
pub(crate) trait TermPermits: SupervisedTerm {
    /// Calls `start` if the term is valid for longer than `at_least`, counted from this moment. `None` if it is not.
    ///
    /// `start` is synchronous and cannot keep the permit, so there is no await between the clock and the effect.
    fn permit<T>(&self, at_least: Duration, start: impl FnOnce(Permit<'_>) -> T) -> Option<T> {
        let valid = self.valid_for() > at_least;
        valid.then(|| start(Permit { hold: self.hold(), deadline: self.deadline() }))
    }
}

impl<T: SupervisedTerm> TermPermits for T {}

/// Proof that the term was valid just now. Functions that start an effect take one.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    hold: &'a Hold,
    deadline: Moment,
}

impl Permit<'_> {
    pub(crate) fn hold(&self) -> &Hold {
        self.hold
    }

    /// The deadline of the term when the permit was issued; a later renewal moves it.
    pub(crate) fn deadline(&self) -> Moment {
        self.deadline
    }
}

/// Polls `effect` only while the term is valid, and drops it when the term is over: then the result is `None`.
///
/// The clock is read before every poll. For anything that `effect` waited for (a name server, a connection, a TLS handshake),
/// the check comes after that wait and immediately before the step that follows it.
pub(crate) async fn while_valid<F: Future>(
    term: &impl SupervisedTerm,
    effect: F,
) -> Option<F::Output> {
    let mut effect = pin!(effect);
    poll_fn(|context| match term.permit(Duration::ZERO, |_permit| effect.as_mut().poll(context)) {
        Some(polled) => polled.map(Some),
        None => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::Cell;
    use tenure::{CandidateId, Clock, Name, Nonce, Token};

    /// A term of 10 s on a clock that the test advances.
    pub(crate) struct TestTerm {
        hold: Hold,
        pub(crate) clock: Clock,
        deadline: Moment,
    }

    pub(crate) const LENGTH: Duration = Duration::from_secs(10);

    impl TestTerm {
        pub(crate) fn new() -> TestTerm {
            let clock = Clock::manual();
            let (name, id) = (Name::new("job").unwrap(), CandidateId::new("a").unwrap());
            let hold = Hold::new(name, id, Nonce::random(), Token::new(7).unwrap());
            TestTerm { hold, deadline: clock.now() + LENGTH, clock }
        }
    }

    impl SupervisedTerm for TestTerm {
        fn hold(&self) -> &Hold {
            &self.hold
        }

        fn deadline(&self) -> Moment {
            self.deadline
        }

        fn valid_for(&self) -> Duration {
            self.deadline.since(self.clock.now())
        }
    }

    #[test]
    fn a_permit_is_issued_only_while_enough_time_is_left() {
        let term = TestTerm::new();
        let start = |at_least| term.permit(at_least, |permit| permit.hold().token.get());
        assert_eq!(start(Duration::ZERO), Some(7));
        assert_eq!(start(LENGTH), None, "not longer than that");
        term.clock.advance(LENGTH);
        assert_eq!(start(Duration::ZERO), None, "the deadline itself is too late");
    }

    /// The seeded bug is a check before the wait only: then the second poll would send.
    #[tokio::test]
    async fn an_effect_that_waited_past_the_deadline_does_not_go_on() {
        let term = TestTerm::new();
        let (polls, sent) = (Cell::new(0), Cell::new(false));
        let effect = poll_fn(|context| {
            polls.set(polls.get() + 1);
            if polls.get() == 1 {
                // The effect waits for a connection, and the process is frozen meanwhile.
                term.clock.advance(LENGTH);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            sent.set(true);
            Poll::Ready(())
        });
        assert_eq!(while_valid(&term, effect).await, None);
        assert_eq!((polls.get(), sent.get()), (1, false));
    }

    #[tokio::test]
    async fn an_effect_ends_by_itself_in_a_valid_term() {
        let term = TestTerm::new();
        assert_eq!(while_valid(&term, async { 42 }).await, Some(42));
        term.clock.advance(LENGTH);
        assert_eq!(while_valid(&term, async { 42 }).await, None);
    }
}
