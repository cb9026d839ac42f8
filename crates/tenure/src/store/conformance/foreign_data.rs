//! Foreign data: garbage under the names of leases, and holders that are other programs.

use super::harness::{Harness, LONG, PropertyResult, claim, expect_kind, new_campaign};
use crate::error::Kind;
use crate::lease::{CandidateId, Hold, Lease, Release, Token};
use crate::store::{Revoke, Scope};

pub(super) async fn garbage_is_corrupt_and_untouched(harness: Harness<'_>) -> PropertyResult {
    for number in 0..8 {
        let claim = harness.claim(&number.to_string(), "a");
        harness.garbage(&claim.name).await?;
        every_operation_is_refused(
            &harness,
            Hold {
                name: claim.name,
                candidate: claim.candidate,
                nonce: claim.nonce,
                token: Token::new(1).expect("a token"),
            },
        )
        .await;
    }
    Ok(())
}

pub(super) async fn garbage_in_place_of_a_record_is_corrupt(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    for number in 0..8 {
        // Over a live term, which must not continue, and over a free name, which must not be granted.
        let hold = store.hold(&harness.claim(&number.to_string(), "a")).await;
        if number % 2 == 1 {
            store.release(&hold).await;
        }
        harness.garbage(&hold.name).await?;
        every_operation_is_refused(&harness, hold).await;
    }
    Ok(())
}

async fn every_operation_is_refused(harness: &Harness<'_>, hold: Hold) {
    // One handle that has read the garbage and one that has not.
    let (first_store, store) = (harness.open().await, harness.open().await);
    let name = &hold.name;
    let untouched = async |operation: &str| {
        assert!(
            harness.fixture.is_untouched(name).await,
            "{operation} must leave '{name}' as it was"
        );
    };
    let ours = claim(name, hold.candidate.as_str());
    expect_kind("acquire", first_store.acquire(&ours).await, Kind::Corrupt);
    untouched("acquire").await;
    expect_kind("acquire", store.acquire(&new_campaign(&ours)).await, Kind::Corrupt);
    expect_kind("renew", store.renew(&hold, LONG).await, Kind::Corrupt);
    untouched("renew").await;
    let release = Release::from(hold.clone());
    expect_kind("release", store.try_release(&release).await, Kind::Corrupt);
    untouched("release").await;
    expect_kind("save", store.save(&hold, 1, b"mine").await, Kind::Corrupt);
    untouched("save").await;
    for when in [Revoke::InTime, Revoke::Now] {
        expect_kind("revoke", store.0.revoke(name, when).await, Kind::Corrupt);
        untouched("revoke").await;
    }
    let mut found = store.observe(&Scope::name(name)).await;
    assert_eq!(found.len(), 1, "garbage is not nothing: {found:?}");
    expect_kind("observe", found.remove(0), Kind::Corrupt);
    untouched("observe").await;
}

pub(super) async fn prefix_with_garbage_still_shows_the_others(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let claims: Vec<_> = ["a", "b", "c"].map(|part| harness.claim(part, "me")).into();
    store.hold_all(&claims).await;
    let corrupt = &claims[1].name;
    harness.garbage(corrupt).await?;
    let found = store.observe(&Scope::Prefix(harness.prefix().to_owned())).await;
    let mut valid: Vec<&Lease> = found.iter().flatten().collect();
    valid.sort_unstable_by(|x, y| x.name.cmp(&y.name));
    let names: Vec<_> = valid.iter().map(|lease| &lease.name).collect();
    assert_eq!(names, [&claims[0].name, &claims[2].name]);
    for error in found.iter().filter_map(|item| item.as_ref().err()) {
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
    Ok(())
}

pub(super) async fn foreign_holder_is_taken(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    // Another program may use any id.
    for (number, id) in ["other-host", "two words", "naïve", "{\"id\":1}", "1"].iter().enumerate()
    {
        let claim = harness.claim(&number.to_string(), "a");
        harness.foreign_holder(&claim.name, id, LONG).await?;
        for lease in [store.refused(&claim).await, store.observe_one(&claim.name).await] {
            let holder = lease.holder.clone().expect("a stranger holds it");
            assert_eq!((holder.id.as_str(), holder.nonce), (*id, None));
            let max_left = harness.fixture.max_left(LONG);
            assert!(!lease.left.is_zero() && lease.left <= max_left, "{lease:?}");
        }
    }
    Ok(())
}

pub(super) async fn foreign_holder_with_the_same_id_is_another_holder(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let ours = harness.claim("job", "a");
    let old = store.hold(&ours).await;
    store.release(&old).await;
    harness.foreign_holder(&ours.name, "a", LONG).await?;
    // With exactly the nonce and token of the candidate's last term.
    let lease = store.refused(&ours).await;
    assert_eq!(lease.holder.expect("a stranger holds it").nonce, None);
    store.lost(&old).await;
    store.unsaved(&old, 1).await;
    store.release(&old).await;
    let lease = store.refused(&new_campaign(&ours)).await;
    assert_eq!(lease.holder.expect("the stranger still holds it").nonce, None);
    store.refused(&claim(&ours.name, "b")).await;
    Ok(())
}

pub(super) async fn foreign_holder_after_expiry_is_another_holder(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let ours = harness.short_claim("job", "a");
    let old = store.hold(&ours).await;
    harness.wait_for_expiry().await;
    // Between the expiry and the candidate's next call: the key has the candidate's id, but the candidate does not hold it.
    harness.foreign_holder(&ours.name, "a", LONG).await?;
    store.lost(&old).await;
    store.unsaved(&old, 1).await;
    store.release(&old).await;
    store.refused(&ours).await;
    Ok(())
}

pub(super) async fn foreign_holder_frees_when_its_time_has_passed(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let ours = harness.claim("job", "a");
    let old = store.hold(&ours).await;
    store.release(&old).await;
    harness.foreign_holder(&ours.name, "a", harness.fixture.short_ttl()).await?;
    // A store that judges by observation counts from here.
    store.observe_one(&ours.name).await;
    harness.wait_for_expiry().await;
    let new = store.hold(&new_campaign(&ours)).await;
    assert!(new.token > old.token, "{new:?} after {old:?}");
    let other = harness.name("never-ours");
    harness.foreign_holder(&other, "other-program", harness.fixture.short_ttl()).await?;
    store.observe_one(&other).await;
    harness.wait_for_expiry().await;
    let id: CandidateId = store.hold(&claim(&other, "b")).await.candidate;
    assert_eq!(store.observe_one(&other).await.holder.expect("held").id, id.as_str());
    Ok(())
}
