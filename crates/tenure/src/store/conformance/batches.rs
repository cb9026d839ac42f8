//! Many at once: in order, each by itself.

use std::time::Duration;

use super::harness::{Harness, LONG, PropertyResult, anew, claim};
use crate::error::{Kind, Result};
use crate::lease::{Answer, Claim, Hold, Name, Nonce};
use crate::store::Scope;

pub(super) async fn batch_of_1_keeps_order(scene: Harness<'_>) -> PropertyResult {
    keeps_order(&scene, 1).await;
    Ok(())
}

pub(super) async fn batch_of_1_000_keeps_order(scene: Harness<'_>) -> PropertyResult {
    keeps_order(&scene, 1_000).await;
    Ok(())
}

pub(super) async fn batch_of_10_000_keeps_order(scene: Harness<'_>) -> PropertyResult {
    keeps_order(&scene, 10_000).await;
    Ok(())
}

/// So many names, in an order that is not theirs.
fn shuffled(scene: &Harness<'_>, count: usize) -> Vec<Name> {
    // A prime that divides none of the counts, so that each number comes once.
    let numbers = (0..count).map(|index| index * 7919 % count);
    numbers.map(|number| scene.name(&number.to_string())).collect()
}

/// Every third name is somebody else's, so that an answer in the wrong place is another answer.
async fn keeps_order(scene: &Harness<'_>, count: usize) {
    let (a, b) = (scene.open().await, scene.open().await);
    let names = shuffled(scene, count);
    let theirs = |index: usize| index % 3 == 2;
    let claims: Vec<Claim> = names.iter().skip(2).step_by(3).map(|n| claim(n, "a")).collect();
    let mut their_holds = a.hold_all(&claims).await.into_iter();

    let claims: Vec<Claim> = names.iter().map(|name| claim(name, "b")).collect();
    let mut holds = Vec::new();
    for (index, answer) in b.acquire_all(&claims).await.into_iter().enumerate() {
        let (name, nonce) = (&names[index], claims[index].nonce);
        match answer {
            Ok(Answer::Held(grant)) if !theirs(index) => {
                assert_eq!((&grant.hold.name, grant.hold.nonce), (name, nonce), "at {index}");
                holds.push(grant.hold);
            }
            Ok(Answer::Taken(lease)) if theirs(index) => {
                assert_eq!(&lease.name, name, "at {index}");
                let hold = their_holds.next().expect("as many as they hold");
                // Ours but for the nonce: refused, in its place.
                holds.push(Hold { nonce, ..hold });
            }
            other => panic!("{name}, at {index}: not as expected: {other:?}"),
        }
    }
    for (index, answer) in b.renew_all(&holds, LONG).await.into_iter().enumerate() {
        let held = answer.unwrap_or_else(|error| panic!("renew at {index}: {error:?}"));
        assert_eq!(held.is_held(), !theirs(index), "renew at {index}: {held:?}");
    }
    for (index, answer) in b.release_all(&holds).await.into_iter().enumerate() {
        answer.unwrap_or_else(|error| panic!("release at {index}: {error:?}"));
    }
    // A page of answers is not all of them.
    let scope = Scope::Prefix(scene.prefix().to_owned());
    let mut seen = b.look_at(&scope).await;
    seen.sort_unstable_by(|x, y| x.name.cmp(&y.name));
    let mut expected: Vec<_> = names.iter().enumerate().map(|(i, n)| (n, theirs(i))).collect();
    expected.sort_unstable();
    let seen: Vec<_> = seen.iter().map(|lease| (&lease.name, lease.holder.is_some())).collect();
    assert!(seen == expected, "observed {} of {}, or not as released", seen.len(), count);
}

pub(super) async fn empty_batches_get_empty_answers(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    assert_eq!(store.acquire_all(&[]).await.len(), 0);
    assert_eq!(store.renew_all(&[], LONG).await.len(), 0);
    assert_eq!(store.release_all(&[]).await.len(), 0);
    assert_eq!(store.look_at(&Scope::Names(Vec::new())).await, []);
    Ok(())
}

pub(super) async fn same_name_twice_in_a_batch_is_held_once(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let first = scene.claim("job", "a");
    let second = anew(&first);
    // The first of them again at the end: a repeat, if it holds.
    let claims = [scene.claim("before", "a"), first.clone(), second, first];
    let answers = store.acquire_all(&claims).await;
    let answers = answers.into_iter().collect::<Result<Vec<_>>>().expect("no errors");
    let held: Vec<bool> = answers.iter().map(Answer::is_held).collect();
    assert!(
        held == [true, true, false, true] || held == [true, false, true, false],
        "one campaign must hold it, and only one: {held:?}"
    );
    if let [_, Answer::Held(once), _, Answer::Held(again)] = &answers[..] {
        assert_eq!(once.hold, again.hold);
    }
    Ok(())
}

pub(super) async fn renew_of_many_loses_only_what_was_lost(scene: Harness<'_>) -> PropertyResult {
    let store = scene.open().await;
    let claims: Vec<Claim> = (0..100).map(|number| scene.claim(&number.to_string(), "a")).collect();
    let holds = store.hold_all(&claims).await;
    store.release(&holds[41]).await;
    let theirs = store.hold(&claim(&holds[41].name, "b")).await;
    store.release(&holds[73]).await;
    for (index, answer) in store.renew_all(&holds, LONG).await.into_iter().enumerate() {
        match answer {
            Ok(Answer::Held(())) if index != 41 && index != 73 => {}
            Ok(Answer::Taken(lease)) if index == 41 => {
                assert_eq!(lease.token, Some(theirs.token));
                assert_eq!(lease.holder.expect("held").id, "b");
            }
            Ok(Answer::Taken(lease)) if index == 73 => assert_eq!(lease.holder, None),
            other => panic!("renew at {index}: not as expected: {other:?}"),
        }
    }
    Ok(())
}

pub(super) async fn one_corrupt_name_among_1_000_spoils_no_other(
    scene: Harness<'_>,
) -> PropertyResult {
    let names = shuffled(&scene, 1_000);
    scene.garbage(&names[137]).await?;
    spoil_no_other(&scene, &names, &[(137, Kind::Corrupt)]).await;
    Ok(())
}

pub(super) async fn one_corrupt_and_one_locked_name_leave_998_held_in_time(
    scene: Harness<'_>,
) -> PropertyResult {
    let names = shuffled(&scene, 1_000);
    scene.garbage(&names[137]).await?;
    scene.lock(&names[512]).await?;
    let spoilt = [(137, Kind::Corrupt), (512, Kind::Unavailable)];
    spoil_no_other(&scene, &names, &spoilt).await;
    Ok(())
}

async fn spoil_no_other(scene: &Harness<'_>, names: &[Name], spoilt: &[(usize, Kind)]) {
    let store = scene.open().await;
    // A fleet's. If waiting for the locked one used it up, the renewals below are refused.
    let ttl = Duration::from_secs(30);
    let claim = |name| Claim { ttl, ..claim(name, "a") };
    let claims: Vec<Claim> = names.iter().map(claim).collect();
    let answers = store.acquire_all(&claims).await;
    let sound = others_are_held("acquire", &answers, spoilt);
    let token = sound.hold.token;
    let holds: Vec<Hold> = answers
        .into_iter()
        .zip(&claims)
        .map(|(answer, claim)| match answer {
            Ok(Answer::Held(grant)) => grant.hold,
            // One such as we might have had before it was spoilt.
            _ => Hold {
                name: claim.name.clone(),
                candidate: claim.candidate.clone(),
                nonce: claim.nonce,
                token,
            },
        })
        .collect();
    others_are_held("renew", &store.renew_all(&holds, ttl).await, spoilt);
    let released = store.release_all(&holds).await;
    let released: Vec<_> = released.into_iter().map(|r| r.map(Answer::Held)).collect();
    others_are_held("release", &released, spoilt);
    for (index, _) in spoilt {
        assert!(scene.fixture.is_untouched(&names[*index]).await, "{}", names[*index]);
    }
}

/// Each spoilt one has its error and all others are Held; gives one of those.
fn others_are_held<'a, T: std::fmt::Debug>(
    verb: &str,
    answers: &'a [Result<Answer<T>>],
    spoilt: &[(usize, Kind)],
) -> &'a T {
    let mut sound = None;
    for (index, answer) in answers.iter().enumerate() {
        let expected = spoilt.iter().find(|(at, _)| *at == index).map(|(_, kind)| *kind);
        match (answer, expected) {
            (Ok(Answer::Held(value)), None) => sound = Some(value),
            (Err(error), Some(kind)) if error.kind() == kind => {}
            _ => panic!("{verb} at {index}: expected {expected:?} or Held, got {answer:?}"),
        }
    }
    sound.expect("there are others")
}

pub(super) async fn overlapping_batches_do_not_block_each_other(
    scene: Harness<'_>,
) -> PropertyResult {
    let names = shuffled(&scene, 200);
    let mut tasks = Vec::new();
    for number in 0..4 {
        let store = scene.open().await;
        let nonce = Nonce::random();
        let mut claims: Vec<Claim> = names
            .iter()
            .map(|name| Claim { nonce, ..claim(name, &format!("c-{number}")) })
            .collect();
        // Every other one goes the other way: whoever locks in the order of asking ends here.
        if number % 2 == 1 {
            claims.reverse();
        }
        tasks.push(tokio::spawn(async move { store.acquire_all(&claims).await }));
    }
    let mut held = Vec::new();
    for task in tasks {
        for answer in task.await.expect("a batch of claims is answered") {
            let answer = answer.expect("waiting for each other is no reason to fail");
            held.extend(answer.held().map(|grant| grant.hold.name));
        }
    }
    held.sort_unstable();
    let mut names = names;
    names.sort_unstable();
    assert_eq!(held, names, "each name is held, and once");
    Ok(())
}
