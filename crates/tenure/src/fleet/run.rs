//! [`Fleet::run`]: one task for each shard that this member owns.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::task::JoinHandle;

use super::event::FleetEvent;
use super::member::MemberContext;
use super::notice::FleetNotice;
use super::shard_work::ShardWork;
use super::{Fleet, Reason};

impl Fleet {
    /// Runs `work` for each shard that this member owns, until the fleet has ended.
    ///
    /// - When a shard is revoked, its work is dropped, and then the shard is released. If the work has cloned its [`ShardWork`]
    ///   for other tasks, the shard is released when these are dropped too.
    /// - When the work returns, the shard is [released](ShardWork::release). A member, also this one, claims it again after half a
    ///   second, so work that has nothing to do should wait instead of returning.
    /// - When the work panics, observers receive [`FleetNotice::Panicked`], the shard is released, and everything else continues.
    ///
    /// The works run concurrently within this one future, so one that blocks its thread delays the others: use
    /// [`Fleet::run_spawned`] for those. The fleet ends after [`Fleet::leave`]. This is the only consumer of the fleet's work: do
    /// not call [`Fleet::next`] beside it. [`Fleet::events`] has everything else.
    ///
    /// ```
    /// # async fn poll(shard: &tenure::fleet::Shard, token: tenure::Token) { tokio::task::yield_now().await }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// use tenure::fleet::ShardWork;
    /// # use tenure::fleet::{Fleet, source};
    /// # let store = tenure::open("memory:").await?;
    /// # let builder = Fleet::builder("run:example").shards(source::list(["tenant-1"]));
    /// let fleet = std::sync::Arc::new(builder.join(store).await?);
    /// let member = fleet.clone();
    /// let running = tokio::spawn(async move {
    ///     let work = |work: ShardWork| async move {
    ///         while !work.should_stop() {
    ///             poll(work.shard(), work.token()).await;
    ///         }
    ///     };
    ///     member.run(work).await;
    /// });
    /// fleet.leave().await;
    /// running.await.expect("the work does not panic");
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    /// Dropping this future drops all work, and then its shards are released. As long as this process stays a member, it claims
    /// its share again, for the next call of `run` or `next`.
    pub fn run<'a, F, Fut>(&'a self, work: F) -> impl Future<Output = ()> + Send + 'a
    where
        F: FnMut(ShardWork) -> Fut + Send + 'a,
        Fut: Future<Output = ()> + Send + 'a,
    {
        self.run_tasks(work)
    }

    /// As [`Fleet::run`], with one tokio task for each shard, so that the works use several cores and one that blocks its thread
    /// does not delay the others.
    ///
    /// Work that is revoked is aborted: it stops at its next `.await`, and then the shard is released. Must be called inside a
    /// tokio runtime.
    pub fn run_spawned<'a, F, Fut>(&'a self, mut work: F) -> impl Future<Output = ()> + Send + 'a
    where
        F: FnMut(ShardWork) -> Fut + Send + 'a,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.run(move |handle| {
            let task = work(handle.clone());
            let mut task = AbortOnDrop(tokio::spawn(async move {
                // Dropped after the work: the shard is not released before the aborted task has stopped.
                let _handle = handle;
                task.await;
            }));
            async move {
                if let Err(error) = (&mut task.0).await
                    && let Ok(panic) = error.try_into_panic()
                {
                    resume_unwind(panic);
                }
            }
        })
    }

    async fn run_tasks<F, Fut>(&self, mut work: F)
    where
        F: FnMut(ShardWork) -> Fut + Send,
        Fut: Future<Output = ()> + Send,
    {
        let mut tasks = FuturesUnordered::new();
        loop {
            tokio::select! {
                event = self.next() => match event {
                    Some(FleetEvent::Assigned { work: handle, .. }) => {
                        let started = catch_unwind(AssertUnwindSafe(|| work(handle.clone())));
                        tasks.push(run_task(&self.shared, handle, started));
                    }
                    Some(_) => {}
                    None => break,
                },
                Some(()) = tasks.next() => {}
            }
        }
        // Every term has ended, so every task stops.
        while tasks.next().await.is_some() {}
    }
}

/// Runs the work on one shard until it ends or must stop, then releases the shard. A panic, also one of `started`, ends only
/// this work.
async fn run_task<Fut>(
    context: &MemberContext,
    handle: ShardWork,
    started: Result<Fut, Box<dyn Any + Send>>,
) where
    Fut: Future<Output = ()> + Send,
{
    let task = async { started.unwrap_or_else(|panic| resume_unwind(panic)).await };
    let mut task = pin!(Some(AssertUnwindSafe(task).catch_unwind()));
    let ended = {
        let mut revoked = pin!(handle.revoked());
        poll_fn(|cx| {
            // The clock too: after a pause this may run before the driver has ended the term.
            if revoked.as_mut().poll(cx).is_ready() || !handle.is_valid() {
                return Poll::Ready(None);
            }
            match task.as_mut().as_pin_mut() {
                Some(task) => task.poll(cx).map(Some),
                None => Poll::Ready(None),
            }
        })
        .await
    };
    // The destructor of work that is cancelled may panic too.
    let dropped = catch_unwind(AssertUnwindSafe(|| task.set(None)));
    let reason = match (ended, dropped) {
        (Some(Err(panic)), _) | (_, Err(panic)) => {
            report_panic(context, &handle, &*panic);
            Reason::Panicked
        }
        (Some(Ok(())), Ok(())) => Reason::Released,
        // The deadline has passed. If the shard was revoked, that reason is already recorded.
        (None, Ok(())) => Reason::Expired,
    };
    handle.release_for(reason);
}

fn report_panic(context: &MemberContext, handle: &ShardWork, panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let message = text.unwrap_or("a value that is not text").to_owned();
    let (shard, token) = (handle.shard().clone(), handle.token());
    tracing::error!(fleet = %context.name, %shard, %token, "the work panicked: {message}");
    context.notices.send(|| FleetNotice::Panicked { shard, token, message });
}

/// Aborts a spawned task when its work is dropped.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
