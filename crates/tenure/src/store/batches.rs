//! Cuts a call of any length into batches that a service takes at once.
//!
//! For stores whose service limits the size of a request. The largest batch of a store is [`Limits::max_batch`]: the driver reads
//! it there and sends at most that many items per call, so each of its calls is one batch here. Other callers send any number.
//!
//! [`Limits::max_batch`]: super::Limits::max_batch

use futures_util::stream::{FuturesOrdered, StreamExt};

use crate::error::Result;

/// Calls `call` for each batch of `items`, with up to `max_in_flight` calls at once, and returns the answers in the order of
/// `items`.
///
/// If a call fails, each of its items gets the error; if all calls fail, the error is the outer one.
pub(super) async fn in_batches<'a, I, T, F>(
    items: &'a [I],
    max_batch: usize,
    max_in_flight: usize,
    call: impl Fn(&'a [I]) -> F,
) -> Result<Vec<Result<T>>>
where
    F: Future<Output = Result<Vec<Result<T>>>>,
{
    let mut batches = items.chunks(max_batch);
    let mut in_flight = FuturesOrdered::new();
    let mut answers = Vec::with_capacity(items.len());
    let (mut answered, mut failure) = (false, None);
    loop {
        while in_flight.len() < max_in_flight
            && let Some(batch) = batches.next()
        {
            let answers = call(batch);
            in_flight.push_back(async move { (batch.len(), answers.await) });
        }
        match in_flight.next().await {
            Some((_, Ok(batch))) => {
                answered = true;
                answers.extend(batch);
            }
            Some((size, Err(error))) => {
                answers.extend((0..size).map(|_| Err(error.clone())));
                failure.get_or_insert(error);
            }
            None => break,
        }
    }
    match failure {
        Some(error) if !answered => Err(error),
        _ => Ok(answers),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::error::Error;

    #[tokio::test]
    async fn answers_keep_the_order_and_a_failed_batch_fails_only_its_items() {
        let sizes = RefCell::new(Vec::new());
        let items: Vec<u32> = (0..25).collect();
        let call = |batch: &[u32]| {
            sizes.borrow_mut().push(batch.len());
            let answers: Vec<Result<u32>> = batch.iter().map(|item| Ok(*item)).collect();
            let failed = batch.contains(&12);
            async move { if failed { Err(Error::unavailable("lost")) } else { Ok(answers) } }
        };
        let answers = in_batches(&items, 10, 2, call).await.unwrap();
        assert_eq!(*sizes.borrow(), [10, 10, 5]);
        for (item, answer) in (0..).zip(answers) {
            assert_eq!(answer.ok(), (!(10..20).contains(&item)).then_some(item));
        }
        let all_failed = in_batches(&items, 10, 2, |_: &[u32]| async {
            Err::<Vec<Result<()>>, _>(Error::denied("no"))
        });
        assert_eq!(all_failed.await.unwrap_err(), Error::denied("no"));
    }
}
