//! Observation: what a reader gets.

use std::time::Duration;

use super::harness::{Harness, LONG, PropertyResult, claim, id};
use crate::lease::{Claim, Lease, Name, Note};
use crate::store::Scope;

fn sorted(leases: &[Lease]) -> Vec<&str> {
    let mut names: Vec<_> = leases.iter().map(|lease| lease.name.as_str()).collect();
    names.sort_unstable();
    names
}

pub(super) async fn observe_by_names_omits_unused_names(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let names = ["held", "free", "unused", "other"].map(|part| harness.name(part));
    let [held, free, unused, other] = &names;
    store.hold(&claim(held, "a")).await;
    let hold = store.hold(&claim(free, "a")).await;
    store.release(&hold).await;
    store.hold(&claim(other, "a")).await;

    let requested = vec![unused.clone(), held.clone(), free.clone()];
    let observed = harness.open().await.observe_leases(&Scope::Names(requested)).await;
    assert_eq!(sorted(&observed), [free.as_str(), held.as_str()]);
    for lease in &observed {
        assert_eq!(lease.holder.is_some(), &lease.name == held, "{lease:?}");
    }
    assert_eq!(store.observe_leases(&Scope::name(unused)).await, []);
    Ok(())
}

pub(super) async fn observe_by_prefix_returns_only_matching_names(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    // Each is special in the patterns of some store: `_` in SQL, `.` in regular expressions, `/` in paths.
    let parts = ["a", "ab", "a/b", "a_b", "aXb", "a.b", "a-b", "a:b", "A", "b"];
    for part in parts {
        store.hold(&harness.claim(part, "me")).await;
    }
    for start in ["a", "ab", "a/", "a_", "a.", "a-", "a:", "A", "aX", "b", "c", ""] {
        let prefix = format!("{}:{start}", harness.prefix());
        let observed = store.observe_leases(&Scope::Prefix(prefix)).await;
        let expected = parts.iter().filter(|part| part.starts_with(start));
        let mut expected: Vec<_> =
            expected.map(|part| harness.name(part).as_str().to_owned()).collect();
        expected.sort_unstable();
        assert_eq!(sorted(&observed), expected, "prefix '{start}'");
    }
    Ok(())
}

pub(super) async fn prefix_is_text_and_not_a_pattern(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    store.hold(&harness.claim("a", "me")).await;
    for odd in ["*", "?", "%", "[a]", ".*", "\\", "'", "\"", " ", "\n", "é", "..", "../"] {
        for prefix in [format!("{}{odd}", harness.prefix()), format!("{odd}{}", harness.prefix())] {
            let observed = store.observe_leases(&Scope::Prefix(prefix.clone())).await;
            assert_eq!(observed, [], "prefix {prefix:?}");
        }
    }
    Ok(())
}

pub(super) async fn empty_prefix_observes_all_names(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let held = store.hold(&harness.claim("held", "a")).await.name;
    let free = store.hold(&harness.claim("free", "a")).await;
    store.release(&free).await;
    // Other properties may use the same store concurrently, also with garbage.
    let observed = store.observe(&Scope::Prefix(String::new())).await;
    let contains = |name: &Name| observed.iter().flatten().any(|lease| &lease.name == name);
    assert!(contains(&held) && contains(&free.name), "of {} names", observed.len());
    Ok(())
}

pub(super) async fn prefix_shows_what_the_name_shows(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let note = Note::new("http://a:8080").expect("a valid note");
    let held = Claim { note: note.clone(), ..harness.claim("job", "a") };
    let hold = store.hold(&held).await;
    store.saved(&hold, 1, b"here").await;
    let by_name = store.observe_one(&hold.name).await;
    assert_eq!(by_name.note, note);
    assert_eq!((by_name.token, by_name.ttl), (Some(hold.token), LONG));
    let by_prefix = store.observe_leases(&Scope::Prefix(hold.name.to_string())).await;
    let at_one_time =
        |lease: &Lease| Lease { left: Duration::ZERO, store_time: None, ..lease.clone() };
    assert_eq!(by_prefix.iter().map(at_one_time).collect::<Vec<_>>(), [at_one_time(&by_name)]);
    Ok(())
}

pub(super) async fn names_are_case_sensitive(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let small = store.hold(&harness.claim("job-a", "x")).await;
    let large = store.hold(&harness.claim("job-A", "X")).await;
    store.release(&small).await;
    store.kept(&large).await;
    assert_eq!(store.observe_one(&small.name).await.holder, None);
    let holder = store.observe_one(&large.name).await.holder.expect("held");
    assert_eq!(holder.id, "X", "ids keep their case too");
    let other = crate::lease::Hold { candidate: id("x"), ..large.clone() };
    store.lost(&other).await;
    Ok(())
}

pub(super) async fn remaining_time_is_at_most_the_ttl_and_decreases(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let hold = store.hold(&harness.claim("job", "a")).await;
    let first = store.observe_one(&hold.name).await;
    assert!(first.left <= harness.fixture.max_left(LONG) && first.ttl == LONG, "{first:?}");
    harness.fixture.pass(harness.fixture.time_step()).await;
    let second = store.observe_one(&hold.name).await;
    assert!(second.left < first.left, "{:?} after {:?}", second.left, first.left);
    // Observing does not extend the lease, and neither does a refusal.
    let third = store.refused(&harness.claim("job", "b")).await;
    assert!(third.left <= second.left, "{:?} after {:?}", third.left, second.left);
    assert_eq!(third.ttl, LONG);
    store.kept(&hold).await;
    let renewed = store.observe_one(&hold.name).await;
    assert!(
        renewed.left > Duration::ZERO && renewed.left <= harness.fixture.max_left(LONG),
        "{renewed:?}"
    );
    Ok(())
}

pub(super) async fn observing_changes_nothing(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let name = harness.name("job");
    assert_eq!(store.observe_leases(&Scope::name(&name)).await, []);
    assert_eq!(store.observe_leases(&Scope::Prefix(name.to_string())).await, []);
    assert_eq!(store.observe_leases(&Scope::name(&name)).await, [], "observing creates no record");
    Ok(())
}

pub(super) async fn limits_never_promise_more_than_examine_finds(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await.0;
    let limits = store.limits();
    let report = store.examine().await.expect("a store that answers can be examined");
    let (before, found, after) = (limits.grade, report.grade, store.limits().grade);
    assert!(before >= found, "the grade was {before} before the examination, and is {found}");
    assert_eq!(after, found, "the limits report the examined grade");
    assert!(!report.what.is_empty(), "a report says what the store is");
    assert!(limits.min_ttl <= limits.max_ttl, "{limits:?}");
    assert!(harness.fixture.short_ttl() >= limits.min_ttl, "the suite needs {limits:?}");
    Ok(())
}
