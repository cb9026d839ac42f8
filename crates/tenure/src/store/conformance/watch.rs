//! What a watch must tell: a hint at least, after a change, and one after the last of them.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::harness::{Harness, HarnessStore, PropertyResult, claim, id, soon};
use crate::lease::{Claim, Lease, Name, Note};
use crate::store::{Change, Revoke, Scope};

/// Nothing more comes, as far as one can tell.
const QUIET: Duration = Duration::from_millis(100);

/// A watch that listens.
struct TestWatcher {
    scope: Scope,
    changes: BoxStream<'static, Change>,
}

impl TestWatcher {
    /// Returns when the store says that it listens.
    async fn new(store: &HarnessStore, scope: Scope) -> Self {
        let changes = store.0.watch(&scope);
        let mut watcher = TestWatcher { scope, changes };
        watcher.next().await;
        watcher
    }

    async fn of(store: &HarnessStore, name: &Name) -> Self {
        Self::new(store, Scope::name(name)).await
    }

    /// The next item, which must come and must concern the scope.
    async fn next(&mut self) -> Change {
        let item = soon("a change", self.changes.next()).await;
        let change = item.unwrap_or_else(|| panic!("the watch of {:?} must not end", self.scope));
        let scope = &self.scope;
        assert!(change.concerns(scope), "{change:?} is not in {scope:?}");
        change
    }

    /// Takes what is left of earlier changes, so that the next item is a new one.
    async fn drain(&mut self) {
        // A store may say more than it must; it will not say ten thousand things about nothing.
        for _ in 0..10_000 {
            if tokio::time::timeout(QUIET, self.next()).await.is_err() {
                return;
            }
        }
    }

    /// Looks after every item, as a waiter does, until it has seen what it waits for.
    async fn follow(&mut self, store: &HarnessStore, name: &Name, seen: impl Fn(&Lease) -> bool) {
        loop {
            self.next().await;
            let leases = store.look_at(&Scope::name(name)).await;
            if leases.iter().any(&seen) {
                return;
            }
        }
    }
}

pub(super) async fn watch_begins_without_a_change(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let name = scene.name("job");
    TestWatcher::of(&store, &name).await;
    TestWatcher::new(&store, Scope::Prefix(name.to_string())).await;
    Ok(())
}

pub(super) async fn release_wakes_a_waiter(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let name = scene.name("job");
    let hold = a.hold(&claim(&name, "a")).await;
    let mut waiter = TestWatcher::of(&b, &name).await;
    waiter.drain().await;
    a.release_to(&hold, Some(id("b"))).await;
    let change = waiter.next().await;
    // It may say no more than "look"; if it says more, it must be true.
    if let Change::Freed { next, .. } = &change {
        assert_eq!(next, &Some(id("b")), "{change:?}");
    }
    assert_eq!(b.look(&name).await.next, Some(id("b")));
    b.hold(&claim(&name, "b")).await;
    Ok(())
}

pub(super) async fn watch_tells_of_a_grant(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let name = scene.name("job");
    let mut by_name = TestWatcher::of(&b, &name).await;
    let mut by_prefix = TestWatcher::new(&b, Scope::Prefix(scene.prefix().to_owned())).await;
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

pub(super) async fn watch_tells_of_a_revocation(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    for when in [Revoke::InTime, Revoke::Now] {
        let name = scene.name(&format!("{when:?}"));
        a.hold(&claim(&name, "a")).await;
        let mut watcher = TestWatcher::of(&b, &name).await;
        watcher.drain().await;
        a.revoked(&name, when).await;
        watcher.next().await;
    }
    Ok(())
}

pub(super) async fn watch_ends_on_the_latest(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let name = scene.name("job");
    let mut watcher = TestWatcher::of(&b, &name).await;
    for round in 0..20 {
        let note = Note::new(&format!("end of {round}")).expect("a valid note");
        let burst = async {
            // Of another length each time, so that the two meet at another point.
            for _ in 0..round {
                let hold = a.hold(&claim(&name, "a")).await;
                a.release(&hold).await;
                // So that the watcher can be done with this before the next comes.
                tokio::task::yield_now().await;
            }
            let last = Claim { note: note.clone(), ..claim(&name, "a") };
            a.hold(&last).await
        };
        // Read while it happens: the item after which the end is seen is one that came for it.
        let seen = watcher.follow(&b, &name, |lease| lease.note == note);
        let (hold, ()) = tokio::join!(burst, seen);
        a.release(&hold).await;
    }
    Ok(())
}

pub(super) async fn slow_watcher_ends_on_the_latest(scene: Harness<'_>) -> PropertyResult {
    let (a, b) = (scene.open().await, scene.open().await);
    let scope = Scope::Prefix(scene.prefix().to_owned());
    let mut watcher = TestWatcher::new(&b, scope).await;
    // More than any buffer between us should hold, and nobody reads.
    let many: Vec<Claim> = (0..1500).map(|number| scene.claim(&number.to_string(), "a")).collect();
    let holds = a.hold_all(&many).await;
    for answer in a.release_all(&holds).await {
        answer.expect("a release is no error");
    }
    let last = a.hold(&scene.claim("last", "a")).await;
    watcher.follow(&b, &last.name, |lease| lease.holder.is_some()).await;
    // It is still alive after that.
    watcher.drain().await;
    a.release(&last).await;
    watcher.follow(&b, &last.name, |lease| lease.holder.is_none()).await;
    Ok(())
}

pub(super) async fn every_watcher_is_told(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let name = scene.name("job");
    let hold = store.hold(&claim(&name, "a")).await;
    let mut watchers = Vec::new();
    for _ in 0..5 {
        watchers.push(TestWatcher::of(&store, &name).await);
        watchers.push(TestWatcher::of(&scene.open().await, &name).await);
    }
    // One that went away takes nothing from the others.
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

pub(super) async fn watch_outlives_a_restart(scene: Harness<'_>) -> PropertyResult {
    let name = scene.name("job");
    let before = scene.open().await;
    let mut watcher = TestWatcher::of(&before, &name).await;
    scene.restart().await?;
    let after = scene.open().await;
    // Its first items may be about the interruption; it must get to know of what came afterwards.
    let hold = after.hold(&claim(&name, "a")).await;
    watcher.follow(&after, &name, |lease| lease.holder.is_some()).await;
    watcher.drain().await;
    after.release(&hold).await;
    watcher.follow(&after, &name, |lease| lease.holder.is_none()).await;
    Ok(())
}
