//! What is seen by those who only look.

use std::time::Duration;

use super::harness::{Harness, LONG, PropertyResult, claim, id};
use crate::lease::{Claim, Lease, Name, Note};
use crate::store::Scope;

fn sorted(leases: &[Lease]) -> Vec<&str> {
    let mut names: Vec<_> = leases.iter().map(|lease| lease.name.as_str()).collect();
    names.sort_unstable();
    names
}

pub(super) async fn observe_by_names_leaves_out_the_unused(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let names = ["held", "free", "unused", "other"].map(|part| scene.name(part));
    let [held, free, unused, other] = &names;
    store.hold(&claim(held, "a")).await;
    let hold = store.hold(&claim(free, "a")).await;
    store.release(&hold).await;
    store.hold(&claim(other, "a")).await;

    let asked = vec![unused.clone(), held.clone(), free.clone()];
    let seen = scene.open().await.look_at(&Scope::Names(asked)).await;
    assert_eq!(sorted(&seen), [free.as_str(), held.as_str()]);
    for lease in &seen {
        assert_eq!(lease.holder.is_some(), &lease.name == held, "{lease:?}");
    }
    assert_eq!(store.look_at(&Scope::name(unused)).await, []);
    Ok(())
}

pub(super) async fn observe_by_prefix_shows_that_and_no_more(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    // Each is special to some store's patterns: `_` to SQL, `.` to expressions, `/` to paths.
    let parts = ["a", "ab", "a/b", "a_b", "aXb", "a.b", "a-b", "a:b", "A", "b"];
    for part in parts {
        store.hold(&scene.claim(part, "me")).await;
    }
    for begin in ["a", "ab", "a/", "a_", "a.", "a-", "a:", "A", "aX", "b", "c", ""] {
        let prefix = format!("{}:{begin}", scene.prefix());
        let seen = store.look_at(&Scope::Prefix(prefix)).await;
        let expected = parts.iter().filter(|part| part.starts_with(begin));
        let mut expected: Vec<_> =
            expected.map(|part| scene.name(part).as_str().to_owned()).collect();
        expected.sort_unstable();
        assert_eq!(sorted(&seen), expected, "prefix '{begin}'");
    }
    Ok(())
}

pub(super) async fn prefix_is_text_and_not_a_pattern(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    store.hold(&scene.claim("a", "me")).await;
    for odd in ["*", "?", "%", "[a]", ".*", "\\", "'", "\"", " ", "\n", "é", "..", "../"] {
        for prefix in [format!("{}{odd}", scene.prefix()), format!("{odd}{}", scene.prefix())] {
            let seen = store.look_at(&Scope::Prefix(prefix.clone())).await;
            assert_eq!(seen, [], "prefix {prefix:?}");
        }
    }
    Ok(())
}

pub(super) async fn empty_prefix_is_everything(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let held = store.hold(&scene.claim("held", "a")).await.name;
    let free = store.hold(&scene.claim("free", "a")).await;
    store.release(&free).await;
    // Others may be at work on the same store, also with garbage.
    let seen = store.observe(&Scope::Prefix(String::new())).await;
    let ours = |name: &Name| seen.iter().flatten().any(|lease| &lease.name == name);
    assert!(ours(&held) && ours(&free.name), "of {} names", seen.len());
    Ok(())
}

pub(super) async fn prefix_shows_what_the_name_shows(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let note = Note::new("http://a:8080").expect("a valid note");
    let held = Claim { note: note.clone(), ..scene.claim("job", "a") };
    let hold = store.hold(&held).await;
    store.saved(&hold, 1, b"here").await;
    let by_name = store.look(&hold.name).await;
    assert_eq!(by_name.note, note);
    assert_eq!((by_name.token, by_name.ttl), (Some(hold.token), LONG));
    let by_prefix = store.look_at(&Scope::Prefix(hold.name.to_string())).await;
    let at_one_time =
        |lease: &Lease| Lease { left: Duration::ZERO, store_time: None, ..lease.clone() };
    assert_eq!(by_prefix.iter().map(at_one_time).collect::<Vec<_>>(), [at_one_time(&by_name)]);
    Ok(())
}

pub(super) async fn names_are_case_sensitive(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let small = store.hold(&scene.claim("job-a", "x")).await;
    let large = store.hold(&scene.claim("job-A", "X")).await;
    store.release(&small).await;
    store.kept(&large).await;
    assert_eq!(store.look(&small.name).await.holder, None);
    let holder = store.look(&large.name).await.holder.expect("held");
    assert_eq!(holder.id, "X", "ids keep their case too");
    let other = crate::lease::Hold { candidate: id("x"), ..large.clone() };
    store.lost(&other).await;
    Ok(())
}

pub(super) async fn left_is_at_most_the_ttl_and_falls(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let hold = store.hold(&scene.claim("job", "a")).await;
    let first = store.look(&hold.name).await;
    assert!(first.left <= first.ttl && first.ttl == LONG, "{first:?}");
    scene.fixture.pass(Duration::from_millis(100)).await;
    let second = store.look(&hold.name).await;
    assert!(second.left < first.left, "{:?} after {:?}", second.left, first.left);
    // Looking does not extend, being refused does not either.
    let third = store.refused(&scene.claim("job", "b")).await;
    assert!(third.left <= second.left, "{:?} after {:?}", third.left, second.left);
    assert_eq!(third.ttl, LONG);
    store.kept(&hold).await;
    let renewed = store.look(&hold.name).await;
    assert!(renewed.left > Duration::ZERO && renewed.left <= LONG, "{renewed:?}");
    Ok(())
}

pub(super) async fn observing_changes_nothing(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let name = scene.name("job");
    assert_eq!(store.look_at(&Scope::name(&name)).await, []);
    assert_eq!(store.look_at(&Scope::Prefix(name.to_string())).await, []);
    assert_eq!(store.look_at(&Scope::name(&name)).await, [], "looking makes no record");
    Ok(())
}

pub(super) async fn limits_promise_no_more_than_is_found(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await.0;
    let limits = store.limits();
    let report = store.examine().await.expect("a store that answers can be examined");
    let (before, found, after) = (limits.grade, report.grade, store.limits().grade);
    assert!(before >= found, "it said {before} before anybody looked, and is {found}");
    assert_eq!(after, found, "once it is known, it is said");
    assert!(!report.what.is_empty(), "a report says what the store is");
    assert!(limits.min_ttl <= limits.max_ttl, "{limits:?}");
    assert!(scene.fixture.short_ttl() >= limits.min_ttl, "the suite needs {limits:?}");
    Ok(())
}
