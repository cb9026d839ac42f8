//! What is not ours: garbage under our names, and holders that do not know of us.

use super::harness::{Harness, LONG, PropertyResult, anew, claim, expect_kind};
use crate::error::Kind;
use crate::lease::{CandidateId, Hold, Lease, Release, Token};
use crate::store::{Revoke, Scope};

pub(super) async fn garbage_is_corrupt_and_untouched(scene: Harness<'_>) -> PropertyResult {
    for number in 0..8 {
        let claim = scene.claim(&number.to_string(), "a");
        scene.garbage(&claim.name).await?;
        every_verb_is_refused(
            &scene,
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

pub(super) async fn garbage_in_place_of_a_record_is_corrupt(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    for number in 0..8 {
        // Over a live term, which must not go on, and over a free one, which must not be granted.
        let hold = store.hold(&scene.claim(&number.to_string(), "a")).await;
        if number % 2 == 1 {
            store.release(&hold).await;
        }
        scene.garbage(&hold.name).await?;
        every_verb_is_refused(&scene, hold).await;
    }
    Ok(())
}

async fn every_verb_is_refused(scene: &Harness<'_>, hold: Hold) {
    // A handle that has seen it and one that has not.
    let (seen, store) = (scene.open().await, scene.open().await);
    let name = &hold.name;
    let untouched = async |verb: &str| {
        assert!(scene.fixture.is_untouched(name).await, "{verb} must leave '{name}' as it was");
    };
    let ours = claim(name, hold.candidate.as_str());
    expect_kind("acquire", seen.acquire(&ours).await, Kind::Corrupt);
    untouched("acquire").await;
    expect_kind("acquire", store.acquire(&anew(&ours)).await, Kind::Corrupt);
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
    scene: Harness<'_>,
) -> PropertyResult {
    let store = scene.open().await;
    let claims: Vec<_> = ["a", "b", "c"].map(|part| scene.claim(part, "me")).into();
    store.hold_all(&claims).await;
    let spoilt = &claims[1].name;
    scene.garbage(spoilt).await?;
    let found = store.observe(&Scope::Prefix(scene.prefix().to_owned())).await;
    let mut shown: Vec<&Lease> = found.iter().flatten().collect();
    shown.sort_unstable_by(|x, y| x.name.cmp(&y.name));
    let names: Vec<_> = shown.iter().map(|lease| &lease.name).collect();
    assert_eq!(names, [&claims[0].name, &claims[2].name]);
    for error in found.iter().filter_map(|item| item.as_ref().err()) {
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
    Ok(())
}

pub(super) async fn stranger_is_taken(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    // Whatever a stranger calls itself.
    for (number, id) in ["other-host", "two words", "naïve", "{\"id\":1}", "1"].iter().enumerate()
    {
        let claim = scene.claim(&number.to_string(), "a");
        scene.stranger(&claim.name, id, LONG).await?;
        for lease in [store.refused(&claim).await, store.look(&claim.name).await] {
            let holder = lease.holder.clone().expect("a stranger holds it");
            assert_eq!((holder.id.as_str(), holder.nonce), (*id, None));
            assert!(!lease.left.is_zero() && lease.left <= LONG, "{lease:?}");
        }
    }
    Ok(())
}

pub(super) async fn stranger_with_our_own_id_is_not_us(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let ours = scene.claim("job", "a");
    let old = store.hold(&ours).await;
    store.release(&old).await;
    scene.stranger(&ours.name, "a", LONG).await?;
    // With the very nonce and token of our last term.
    let lease = store.refused(&ours).await;
    assert_eq!(lease.holder.expect("a stranger holds it").nonce, None);
    store.lost(&old).await;
    store.unsaved(&old, 1).await;
    store.release(&old).await;
    let lease = store.refused(&anew(&ours)).await;
    assert_eq!(lease.holder.expect("the stranger still holds it").nonce, None);
    store.refused(&claim(&ours.name, "b")).await;
    Ok(())
}

pub(super) async fn stranger_after_our_expiry_is_not_us(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let ours = scene.short("job", "a");
    let old = store.hold(&ours).await;
    scene.wait_out().await;
    // Between our expiry and our next call: what we find there has our name, and is not ours.
    scene.stranger(&ours.name, "a", LONG).await?;
    store.lost(&old).await;
    store.unsaved(&old, 1).await;
    store.release(&old).await;
    store.refused(&ours).await;
    Ok(())
}

pub(super) async fn stranger_frees_when_its_time_ran_out(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let ours = scene.claim("job", "a");
    let old = store.hold(&ours).await;
    store.release(&old).await;
    scene.stranger(&ours.name, "a", scene.fixture.short_ttl()).await?;
    scene.wait_out().await;
    let new = store.hold(&anew(&ours)).await;
    assert!(new.token > old.token, "{new:?} after {old:?}");
    let other = scene.name("never-ours");
    scene.stranger(&other, "somebody", scene.fixture.short_ttl()).await?;
    scene.wait_out().await;
    let id: CandidateId = store.hold(&claim(&other, "b")).await.candidate;
    assert_eq!(store.look(&other).await.holder.expect("held").id, id.as_str());
    Ok(())
}
