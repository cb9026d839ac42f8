//! Watches: at least one hint after a change, and one after the last change.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::harness::{Harness, HarnessStore, PropertyResult, claim, id, within_timeout};
use crate::lease::{Claim, Lease, Name, Note};
use crate::store::{Change, Revoke, Scope};

/// If no item arrives for this long, the earlier changes count as delivered.
const QUIET_PERIOD: Duration = Duration::from_millis(100);

/// An active watch.
struct TestWatcher {
    scope: Scope,
    changes: BoxStream<'static, Change>,
}

impl TestWatcher {
    /// Returns when the store confirms that the watch is active.
    async fn new(store: &HarnessStore, scope: Scope) -> Self {
        let changes = store.0.watch(&scope);
        let mut watcher = TestWatcher { scope, changes };
        watcher.next().await;
        watcher
    }

    async fn of(store: &HarnessStore, name: &Name) -> Self {
        Self::new(store, Scope::name(name)).await
    }

    /// The next item, which must arrive and must concern the scope.
    async fn next(&mut self) -> Change {
        let item = within_timeout("a change", self.changes.next()).await;
        let change = item.unwrap_or_else(|| panic!("the watch of {:?} must not end", self.scope));
        let scope = &self.scope;
        assert!(change.concerns(scope), "{change:?} is not in {scope:?}");
        change
    }

    /// Discards items about earlier changes, so that the next item is a new one.
    async fn drain(&mut self) {
        // A store may send more items than it must, but not ten thousand about nothing.
        for _ in 0..10_000 {
            if tokio::time::timeout(QUIET_PERIOD, self.next()).await.is_err() {
                return;
            }
        }
    }

    /// Observes after every item, as a waiter does, until the expected lease is observed.
    async fn follow(
        &mut self,
        store: &HarnessStore,
        name: &Name,
        observed: impl Fn(&Lease) -> bool,
    ) {
        loop {
            self.next().await;
            let leases = store.observe_leases(&Scope::name(name)).await;
            if leases.iter().any(&observed) {
                return;
            }
        }
    }
}

pub(super) async fn watch_begins_without_a_change(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let name = harness.name("job");
    TestWatcher::of(&store, &name).await;
    TestWatcher::new(&store, Scope::Prefix(name.to_string())).await;
    Ok(())
}

pub(super) async fn release_wakes_a_waiter(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let name = harness.name("job");
    let hold = a.hold(&claim(&name, "a")).await;
    let mut waiter = TestWatcher::of(&b, &name).await;
    waiter.drain().await;
    a.release_to(&hold, Some(id("b"))).await;
    let change = waiter.next().await;
    // It may be no more than [`Change::Look`]; if it says more, that must be true.
    if let Change::Freed { next, .. } = &change {
        assert_eq!(next, &Some(id("b")), "{change:?}");
    }
    assert_eq!(b.observe_one(&name).await.next, Some(id("b")));
    b.hold(&claim(&name, "b")).await;
    Ok(())
}

pub(super) async fn watch_reports_a_grant(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let name = harness.name("job");
    let mut by_name = TestWatcher::of(&b, &name).await;
    let mut by_prefix = TestWatcher::new(&b, Scope::Prefix(harness.prefix().to_owned())).await;
    by_name.drain().await;
    by_prefix.drain().await;
    let hold = a.hold(&claim(&name, "a")).await;
    for watcher in [&mut by_name, &mut by_prefix] {
        let change = watcher.next().await;
        if let Change::Granted { token, holder, .. } = change {
            assert_eq!(token, hold.token);
            assert!(holder.is_none_or(|holder| holder == hold.candidate));
        }
    }
    Ok(())
}

pub(super) async fn watch_reports_a_revocation(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    for when in [Revoke::InTime, Revoke::Now] {
        let name = harness.name(&format!("{when:?}"));
        a.hold(&claim(&name, "a")).await;
        let mut watcher = TestWatcher::of(&b, &name).await;
        watcher.drain().await;
        a.revoked(&name, when).await;
        watcher.next().await;
    }
    Ok(())
}

pub(super) async fn watch_reports_the_last_change(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let name = harness.name("job");
    let mut watcher = TestWatcher::of(&b, &name).await;
    for round in 0..20 {
        let note = Note::new(&format!("end of {round}")).expect("a valid note");
        let burst = async {
            // Of a different length each time, so that the two tasks meet at different points.
            for _ in 0..round {
                let hold = a.hold(&claim(&name, "a")).await;
                a.release(&hold).await;
                // So that the watcher can finish with this change before the next one.
                tokio::task::yield_now().await;
            }
            let last = Claim { note: note.clone(), ..claim(&name, "a") };
            a.hold(&last).await
        };
        // Read concurrently: the item after which the last state is observed was sent for it.
        let observed = watcher.follow(&b, &name, |lease| lease.note == note);
        let (hold, ()) = tokio::join!(burst, observed);
        a.release(&hold).await;
    }
    Ok(())
}

pub(super) async fn slow_watcher_receives_the_last_change(harness: Harness<'_>) -> PropertyResult {
    let (a, b) = (harness.open().await, harness.open().await);
    let scope = Scope::Prefix(harness.prefix().to_owned());
    let mut watcher = TestWatcher::new(&b, scope).await;
    // More changes than any buffer on the way should hold, and no task reads them.
    let many: Vec<Claim> =
        (0..1500).map(|number| harness.claim(&number.to_string(), "a")).collect();
    let holds = a.hold_all(&many).await;
    for answer in a.release_all(&holds).await {
        answer.expect("a release is no error");
    }
    let last = a.hold(&harness.claim("last", "a")).await;
    watcher.follow(&b, &last.name, |lease| lease.holder.is_some()).await;
    // The watch must still work after that.
    watcher.drain().await;
    a.release(&last).await;
    watcher.follow(&b, &last.name, |lease| lease.holder.is_none()).await;
    Ok(())
}

pub(super) async fn every_watcher_is_notified(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let name = harness.name("job");
    let hold = store.hold(&claim(&name, "a")).await;
    let mut watchers = Vec::new();
    for _ in 0..5 {
        watchers.push(TestWatcher::of(&store, &name).await);
        watchers.push(TestWatcher::of(&harness.open().await, &name).await);
    }
    // A dropped watcher takes nothing from the others.
    drop(watchers.swap_remove(3));
    for watcher in &mut watchers {
        watcher.drain().await;
    }
    store.release(&hold).await;
    for watcher in &mut watchers {
        watcher.next().await;
    }
    Ok(())
}

pub(super) async fn watch_outlives_a_restart(harness: Harness<'_>) -> PropertyResult {
    let name = harness.name("job");
    let before = harness.open().await;
    let mut watcher = TestWatcher::of(&before, &name).await;
    harness.restart().await?;
    let after = harness.open().await;
    // Its first items may be about the interruption; it must learn of later changes.
    let hold = after.hold(&claim(&name, "a")).await;
    watcher.follow(&after, &name, |lease| lease.holder.is_some()).await;
    watcher.drain().await;
    after.release(&hold).await;
    watcher.follow(&after, &name, |lease| lease.holder.is_none()).await;
    Ok(())
}
