//! Batches: answers are in order, and every item is independent.

use std::time::Duration;

use super::harness::{Harness, LONG, PropertyResult, claim, new_campaign};
use crate::error::{Kind, Result};
use crate::lease::{Answer, Claim, Hold, Name, Nonce};
use crate::store::Scope;

pub(super) async fn batch_of_1_keeps_order(harness: Harness<'_>) -> PropertyResult {
    keeps_order(&harness, 1).await;
    Ok(())
}

pub(super) async fn batch_of_1_000_keeps_order(harness: Harness<'_>) -> PropertyResult {
    keeps_order(&harness, 1_000).await;
    Ok(())
}

pub(super) async fn batch_of_10_000_keeps_order(harness: Harness<'_>) -> PropertyResult {
    keeps_order(&harness, 10_000).await;
    Ok(())
}

/// `count` names, in an order that is not sorted.
fn shuffled(harness: &Harness<'_>, count: usize) -> Vec<Name> {
    // A prime that divides none of the counts, so that each number occurs once.
    let numbers = (0..count).map(|index| index * 7919 % count);
    numbers.map(|number| harness.name(&number.to_string())).collect()
}

/// Another candidate holds every third name, so that an answer in the wrong position is a different answer.
async fn keeps_order(harness: &Harness<'_>, count: usize) {
    let (a, b) = (harness.open().await, harness.open().await);
    let names = shuffled(harness, count);
    let held_by_other = |index: usize| index % 3 == 2;
    let claims: Vec<Claim> = names.iter().skip(2).step_by(3).map(|n| claim(n, "a")).collect();
    let mut their_holds = a.hold_all(&claims).await.into_iter();

    let claims: Vec<Claim> = names.iter().map(|name| claim(name, "b")).collect();
    let mut holds = Vec::new();
    for (index, answer) in b.acquire_all(&claims).await.into_iter().enumerate() {
        let (name, nonce) = (&names[index], claims[index].nonce);
        match answer {
            Ok(Answer::Held(grant)) if !held_by_other(index) => {
                assert_eq!((&grant.hold.name, grant.hold.nonce), (name, nonce), "at {index}");
                holds.push(grant.hold);
            }
            Ok(Answer::Taken(lease)) if held_by_other(index) => {
                assert_eq!(&lease.name, name, "at {index}");
                let hold = their_holds.next().expect("as many as they hold");
                // The hold with a different nonce: it must be refused, in its position.
                holds.push(Hold { nonce, ..hold });
            }
            other => panic!("{name}, at {index}: not as expected: {other:?}"),
        }
    }
    for (index, answer) in b.renew_all(&holds, LONG).await.into_iter().enumerate() {
        let held = answer.unwrap_or_else(|error| panic!("renew at {index}: {error:?}"));
        assert_eq!(held.is_held(), !held_by_other(index), "renew at {index}: {held:?}");
    }
    for (index, answer) in b.release_all(&holds).await.into_iter().enumerate() {
        answer.unwrap_or_else(|error| panic!("release at {index}: {error:?}"));
    }
    // The result must contain all pages of the answer.
    let scope = Scope::Prefix(harness.prefix().to_owned());
    let mut observed = b.observe_leases(&scope).await;
    observed.sort_unstable_by(|x, y| x.name.cmp(&y.name));
    let mut expected: Vec<_> =
        names.iter().enumerate().map(|(i, n)| (n, held_by_other(i))).collect();
    expected.sort_unstable();
    let observed: Vec<_> =
        observed.iter().map(|lease| (&lease.name, lease.holder.is_some())).collect();
    assert!(observed == expected, "observed {} of {}, or not as released", observed.len(), count);
}

pub(super) async fn empty_batches_get_empty_answers(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    assert_eq!(store.acquire_all(&[]).await.len(), 0);
    assert_eq!(store.renew_all(&[], LONG).await.len(), 0);
    assert_eq!(store.release_all(&[]).await.len(), 0);
    assert_eq!(store.observe_leases(&Scope::Names(Vec::new())).await, []);
    Ok(())
}

pub(super) async fn same_name_twice_in_a_batch_is_held_once(
    harness: Harness<'_>,
) -> PropertyResult {
    let store = harness.open().await;
    let first = harness.claim("job", "a");
    let second = new_campaign(&first);
    // The first claim again at the end: a repeat, if it holds.
    let claims = [harness.claim("before", "a"), first.clone(), second, first];
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

pub(super) async fn renew_of_many_loses_only_what_was_lost(harness: Harness<'_>) -> PropertyResult {
    let store = harness.open().await;
    let claims: Vec<Claim> =
        (0..100).map(|number| harness.claim(&number.to_string(), "a")).collect();
    let holds = store.hold_all(&claims).await;
    store.release(&holds[41]).await;
    let held_by_other = store.hold(&claim(&holds[41].name, "b")).await;
    store.release(&holds[73]).await;
    for (index, answer) in store.renew_all(&holds, LONG).await.into_iter().enumerate() {
        match answer {
            Ok(Answer::Held(())) if index != 41 && index != 73 => {}
            Ok(Answer::Taken(lease)) if index == 41 => {
                assert_eq!(lease.token, Some(held_by_other.token));
                assert_eq!(lease.holder.expect("held").id, "b");
            }
            Ok(Answer::Taken(lease)) if index == 73 => assert_eq!(lease.holder, None),
            other => panic!("renew at {index}: not as expected: {other:?}"),
        }
    }
    Ok(())
}

pub(super) async fn one_corrupt_name_among_1_000_affects_no_other(
    harness: Harness<'_>,
) -> PropertyResult {
    let names = shuffled(&harness, 1_000);
    harness.garbage(&names[137]).await?;
    corrupt_names_affect_no_other(&harness, &names, &[(137, Kind::Corrupt)]).await;
    Ok(())
}

pub(super) async fn one_corrupt_and_one_locked_name_leave_998_held_in_time(
    harness: Harness<'_>,
) -> PropertyResult {
    let names = shuffled(&harness, 1_000);
    harness.garbage(&names[137]).await?;
    harness.lock(&names[512]).await?;
    let corrupt = [(137, Kind::Corrupt), (512, Kind::Unavailable)];
    corrupt_names_affect_no_other(&harness, &names, &corrupt).await;
    Ok(())
}

async fn corrupt_names_affect_no_other(
    harness: &Harness<'_>,
    names: &[Name],
    corrupt: &[(usize, Kind)],
) {
    let store = harness.open().await;
    // The TTL of a fleet. If waiting for the locked name used it up, the renewals below are refused.
    let ttl = Duration::from_secs(30);
    let claim = |name| Claim { ttl, ..claim(name, "a") };
    let claims: Vec<Claim> = names.iter().map(claim).collect();
    let answers = store.acquire_all(&claims).await;
    let valid = others_are_held("acquire", &answers, corrupt);
    let token = valid.hold.token;
    let holds: Vec<Hold> = answers
        .into_iter()
        .zip(&claims)
        .map(|(answer, claim)| match answer {
            Ok(Answer::Held(grant)) => grant.hold,
            // A hold such as the candidate may have had before the data was corrupted.
            _ => Hold {
                name: claim.name.clone(),
                candidate: claim.candidate.clone(),
                nonce: claim.nonce,
                token,
            },
        })
        .collect();
    others_are_held("renew", &store.renew_all(&holds, ttl).await, corrupt);
    let released = store.release_all(&holds).await;
    let released: Vec<_> = released.into_iter().map(|r| r.map(Answer::Held)).collect();
    others_are_held("release", &released, corrupt);
    for (index, _) in corrupt {
        assert!(harness.fixture.is_untouched(&names[*index]).await, "{}", names[*index]);
    }
}

/// Checks that each corrupt item has its error and that all others are Held; returns one of the others.
fn others_are_held<'a, T: std::fmt::Debug>(
    operation: &str,
    answers: &'a [Result<Answer<T>>],
    corrupt: &[(usize, Kind)],
) -> &'a T {
    let mut valid = None;
    for (index, answer) in answers.iter().enumerate() {
        let expected = corrupt.iter().find(|(at, _)| *at == index).map(|(_, kind)| *kind);
        match (answer, expected) {
            (Ok(Answer::Held(value)), None) => valid = Some(value),
            (Err(error), Some(kind)) if error.kind() == kind => {}
            _ => panic!("{operation} at {index}: expected {expected:?} or Held, got {answer:?}"),
        }
    }
    valid.expect("there are others")
}

pub(super) async fn overlapping_batches_do_not_block_each_other(
    harness: Harness<'_>,
) -> PropertyResult {
    let names = shuffled(&harness, 200);
    let mut tasks = Vec::new();
    for number in 0..4 {
        let store = harness.open().await;
        let nonce = Nonce::random();
        let mut claims: Vec<Claim> = names
            .iter()
            .map(|name| Claim { nonce, ..claim(name, &format!("c-{number}")) })
            .collect();
        // Every other batch has the reverse order: a store that takes locks in the order of the batch deadlocks here.
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
