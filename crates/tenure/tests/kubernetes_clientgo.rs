//! Candidates of Tenure and of client-go on one Lease of a real API server. The client-go side is written by hand: the fields
//! of its LeaseLock, updated in the object that it has read.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::store::{Store, StoreExt};
use tenure::{Answer, CandidateId, Claim, Clock, Ended, Kind, Lease, Name, Nonce};
use tenure_rig::kubernetes_rig::{self, Admin, KubernetesRig, LEASES, tests};

const TTL: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    kubernetes_rig::main(tests![
        the_fields_are_those_that_client_go_reads,
        a_client_go_candidate_that_read_before_a_renewal_is_refused,
        a_client_go_holder_excludes_us_for_its_own_duration,
        a_client_go_holder_that_renews_is_never_replaced,
        a_client_go_holder_with_the_same_identity_is_another_holder,
        a_lease_that_client_go_released_is_free_at_once,
        after_a_takeover_by_client_go_our_renewal_is_taken,
        client_go_holds_in_between_and_the_token_survives,
        a_deleted_lease_is_lost_and_not_created_again_by_a_renewal,
        a_lease_that_was_deleted_and_created_again_is_another_one,
        labels_and_annotations_of_others_survive,
        a_name_that_is_no_dns_name_is_hashed_and_compared,
        a_lease_without_a_spec_is_free,
    ])
}

fn claim(name: &str, id: &str, ttl: Duration) -> Claim {
    let (name, id) = (Name::new(name).unwrap(), CandidateId::new(id).unwrap());
    Claim::new(name, id, Nonce::random(), ttl)
}

async fn open(rig: &KubernetesRig) -> Arc<dyn Store> {
    tenure::open(&rig.url()).await.unwrap()
}

async fn hold(store: &dyn Store, claim: &Claim) -> tenure::Hold {
    store.acquire_one(claim).await.unwrap().held().expect("it is free").hold
}

async fn refused(store: &dyn Store, claim: &Claim) -> Lease {
    match store.acquire_one(claim).await.unwrap() {
        Answer::Taken(lease) => *lease,
        Answer::Held(grant) => panic!("expected Taken, got {grant:?}"),
    }
}

async fn pause(time: Duration) {
    Clock::boot().sleep(time).await;
}

/// A `spec` as client-go's LeaseLock writes it.
fn spec(identity: &str, seconds: u64, renewed: &str, transitions: u64) -> Value {
    json!({
        "holderIdentity": identity,
        "leaseDurationSeconds": seconds,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": format!("2026-01-01T00:00:{renewed}Z"),
        "leaseTransitions": transitions,
    })
}

/// An Update of client-go: the object as it was read, with another `spec`.
async fn update(admin: &Admin, name: &str, spec: Value) -> Value {
    let mut lease = admin.lease(name).await.expect("it exists");
    lease["spec"] = spec;
    admin.replace(&format!("{LEASES}/{name}"), &lease).await.unwrap()
}

async fn create(admin: &Admin, name: &str, spec: Value) {
    admin.create(LEASES, &json!({"metadata": {"name": name}, "spec": spec})).await.unwrap();
}

async fn the_fields_are_those_that_client_go_reads(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    let ours = claim("fields", "me", Duration::from_millis(4_200));
    let held = hold(&*store, &ours).await;
    let first = admin.lease("fields").await.unwrap()["spec"].clone();
    assert_eq!(first["holderIdentity"], format!("me_{}", ours.nonce));
    assert_eq!(first["leaseDurationSeconds"], 5, "rounded up");
    assert_eq!(first["leaseTransitions"], 0);
    assert!(first["acquireTime"].as_str().unwrap().ends_with('Z'), "{first}");
    assert!(store.renew_one(&held, ours.ttl).await.unwrap().is_held());
    let renewed = admin.lease("fields").await.unwrap()["spec"].clone();
    assert_eq!(renewed["acquireTime"], first["acquireTime"]);
    assert_ne!(renewed["renewTime"], first["renewTime"]);
    assert_eq!(renewed["leaseTransitions"], 0);
    // A save is no renewal: client-go compares the `spec` alone.
    let checkpoint = tenure::Checkpoint::new("page 7").unwrap();
    assert!(store.save(&held, 1, &checkpoint).await.unwrap().is_held());
    assert_eq!(admin.lease("fields").await.unwrap()["spec"], renewed);
    assert!(store.renew_one(&held, ours.ttl).await.unwrap().is_held());
    store.release_one(held).await.unwrap();
    let released = admin.lease("fields").await.unwrap()["spec"].clone();
    assert_eq!(released["holderIdentity"], "");
    assert_eq!(released["leaseDurationSeconds"], 1);
    assert_eq!(released["leaseTransitions"], 0);
    hold(&*store, &claim("fields", "you", TTL)).await;
    let again = admin.lease("fields").await.unwrap()["spec"].clone();
    assert_eq!(again["leaseTransitions"], 1);
    assert_eq!(again["leaseDurationSeconds"], 60);
}

async fn a_client_go_candidate_that_read_before_a_renewal_is_refused(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    let held = hold(&*store, &claim("stale-reader", "me", TTL)).await;
    let mut stale = admin.lease("stale-reader").await.unwrap();
    assert!(store.renew_one(&held, TTL).await.unwrap().is_held());
    stale["spec"] = spec("pod-1_uuid", 15, "01.000000", 1);
    let path = format!("{LEASES}/stale-reader");
    assert_eq!(admin.request("PUT", &path, Some(&stale)).await.0, 409);
    assert!(store.renew_one(&held, TTL).await.unwrap().is_held());
}

async fn a_client_go_holder_excludes_us_for_its_own_duration(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    create(&admin, "their-duration", spec("pod-1_uuid", 3, "01.000000", 4)).await;
    // Our own TTL is shorter, and does not count.
    let ours = claim("their-duration", "me", Duration::from_secs(1));
    let clock = Clock::boot();
    let begin = clock.now();
    let lease = refused(&*store, &ours).await;
    assert_eq!(lease.holder.as_ref().unwrap().id, "pod-1_uuid");
    assert_eq!((lease.holder.unwrap().nonce, lease.token), (None, None));
    assert_eq!(lease.ttl, Duration::from_secs(3));
    while !store.acquire_one(&ours).await.unwrap().is_held() {
        assert!(clock.now().since(begin) < Duration::from_secs(10), "it never frees");
        pause(Duration::from_millis(50)).await;
    }
    assert!(clock.now().since(begin) >= Duration::from_secs(3));
    let lease = admin.lease("their-duration").await.unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 5);
    assert_eq!(lease["spec"]["holderIdentity"], format!("me_{}", ours.nonce));
}

async fn a_client_go_holder_that_renews_is_never_replaced(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    create(&admin, "they-renew", spec("pod-1_uuid", 1, "01.000000", 0)).await;
    let ours = claim("they-renew", "me", Duration::from_secs(1));
    for turn in 2..12 {
        let lease = refused(&*store, &ours).await;
        assert_eq!(lease.holder.unwrap().id, "pod-1_uuid");
        pause(Duration::from_millis(400)).await;
        let renewed = format!("{turn:02}.000000");
        update(&admin, "they-renew", spec("pod-1_uuid", 1, &renewed, 0)).await;
    }
}

async fn a_client_go_holder_with_the_same_identity_is_another_holder(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    let ours = claim("same-identity", "me", TTL);
    let held = hold(&*store, &ours).await;
    // Even the whole identity: only the renewTime differs from what we wrote.
    let identity = format!("me_{}", ours.nonce);
    let theirs = update(&admin, "same-identity", spec(&identity, 60, "01.000000", 0)).await;
    assert!(!store.renew_one(&held, TTL).await.unwrap().is_held());
    assert_eq!(refused(&*store, &ours).await.holder.unwrap().nonce, None);
    store.release_one(held).await.unwrap();
    assert_eq!(admin.lease("same-identity").await.unwrap(), theirs, "unchanged");
    create(&admin, "same-id", spec("me", 60, "01.000000", 0)).await;
    assert_eq!(refused(&*store, &claim("same-id", "me", TTL)).await.holder.unwrap().id, "me");
}

async fn a_lease_that_client_go_released_is_free_at_once(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    // It never was ours.
    create(&admin, "they-released", spec("", 1, "01.000000", 2)).await;
    assert_eq!(store.observe_one(&Name::new("they-released").unwrap()).await.unwrap(), None);
    hold(&*store, &claim("they-released", "me", TTL)).await;
    assert_eq!(admin.lease("they-released").await.unwrap()["spec"]["leaseTransitions"], 3);
    // It was ours before.
    let old = hold(&*store, &claim("ours-then-theirs", "me", TTL)).await;
    store.release_one(old.clone()).await.unwrap();
    update(&admin, "ours-then-theirs", spec("pod-1_uuid", 60, "01.000000", 1)).await;
    refused(&*store, &claim("ours-then-theirs", "me", TTL)).await;
    update(&admin, "ours-then-theirs", spec("", 1, "02.000000", 1)).await;
    let new = hold(&*store, &claim("ours-then-theirs", "me", TTL)).await;
    assert!(new.token > old.token);
}

async fn after_a_takeover_by_client_go_our_renewal_is_taken(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    let ours = claim("takeover", "me", Duration::from_secs(1));
    let held = hold(&*store, &ours).await;
    pause(Duration::from_millis(1_100)).await;
    let theirs = update(&admin, "takeover", spec("pod-1_uuid", 60, "01.000000", 1)).await;
    let Answer::Taken(lease) = store.renew_one(&held, ours.ttl).await.unwrap() else {
        panic!("client-go holds it");
    };
    assert_eq!(lease.holder.unwrap().id, "pod-1_uuid");
    store.release_one(held).await.unwrap();
    assert_eq!(admin.lease("takeover").await.unwrap(), theirs, "unchanged");
}

async fn client_go_holds_in_between_and_the_token_survives(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    let ours = claim("in-between", "me", Duration::from_secs(1));
    let old = hold(&*store, &ours).await;
    let checkpoint = tenure::Checkpoint::new("page 7").unwrap();
    assert!(store.save(&old, 1, &checkpoint).await.unwrap().is_held());
    pause(Duration::from_millis(1_100)).await;
    update(&admin, "in-between", spec("pod-1_uuid", 1, "01.000000", 1)).await;
    let next = claim("in-between", "you", TTL);
    refused(&*store, &next).await;
    pause(Duration::from_millis(1_100)).await;
    let grant = store.acquire_one(&next).await.unwrap().held().expect("their time has passed");
    assert!(grant.hold.token > old.token);
    assert_eq!(grant.checkpoint, Some(checkpoint));
    assert_eq!(grant.lineage.before, Ended::Expired(old.token));
    assert_eq!(admin.lease("in-between").await.unwrap()["spec"]["leaseTransitions"], 2);
}

async fn a_deleted_lease_is_lost_and_not_created_again_by_a_renewal(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    let held = hold(&*store, &claim("deleted", "me", TTL)).await;
    admin.delete(&format!("{LEASES}/deleted")).await.unwrap();
    assert!(!store.renew_one(&held, TTL).await.unwrap().is_held());
    assert_eq!(admin.lease("deleted").await, None, "a renewal creates nothing");
    let new = hold(&*store, &claim("deleted", "me", TTL)).await;
    assert!(new.token > held.token, "minted from the clock");
}

async fn a_lease_that_was_deleted_and_created_again_is_another_one(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    let held = hold(&*store, &claim("recreated", "me", TTL)).await;
    let mut copy = admin.lease("recreated").await.unwrap();
    admin.delete(&format!("{LEASES}/recreated")).await.unwrap();
    // The same content under another uid: a restored backup. It still is our term.
    let metadata = json!({"name": "recreated", "annotations": copy["metadata"]["annotations"]});
    copy["metadata"] = metadata;
    admin.create(LEASES, &copy).await.unwrap();
    assert!(store.renew_one(&held, TTL).await.unwrap().is_held());
    // A new Lease of client-go is not.
    admin.delete(&format!("{LEASES}/recreated")).await.unwrap();
    create(&admin, "recreated", spec("pod-1_uuid", 60, "01.000000", 0)).await;
    assert!(!store.renew_one(&held, TTL).await.unwrap().is_held());
    let lease = admin.lease("recreated").await.unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "pod-1_uuid");
}

async fn labels_and_annotations_of_others_survive(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    let lease = json!({
        "metadata": {"name": "labelled", "labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": spec("", 1, "01.000000", 0),
    });
    admin.create(LEASES, &lease).await.unwrap();
    let held = hold(&*store, &claim("labelled", "me", TTL)).await;
    assert!(store.renew_one(&held, TTL).await.unwrap().is_held());
    store.release_one(held).await.unwrap();
    let metadata = admin.lease("labelled").await.unwrap()["metadata"].clone();
    assert_eq!(metadata["labels"]["team"], "a");
    assert_eq!(metadata["labels"]["tenure/lease"], "election");
    assert_eq!(metadata["annotations"]["note"], "b");
}

async fn a_name_that_is_no_dns_name_is_hashed_and_compared(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    let ours = claim("Billing:nightly", "me", TTL);
    let held = hold(&*store, &ours).await;
    let digest = hmac_sha256::Hash::hash(b"Billing:nightly");
    let digits: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let object = format!("t-{}", digits.concat());
    let mut lease = admin.lease(&object).await.expect("under its hash");
    assert_eq!(lease["metadata"]["annotations"]["tenure/name"], "Billing:nightly");
    lease["metadata"]["annotations"]["tenure/name"] = json!("Billing:daily");
    let changed = admin.replace(&format!("{LEASES}/{object}"), &lease).await.unwrap();
    assert_eq!(store.renew_one(&held, TTL).await.unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(store.acquire_one(&ours).await.unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(admin.lease(&object).await.unwrap(), changed, "unchanged");
}

async fn a_lease_without_a_spec_is_free(rig: Arc<KubernetesRig>) {
    let (store, admin) = (open(&rig).await, rig.admin().await);
    admin.create(LEASES, &json!({"metadata": {"name": "empty"}})).await.unwrap();
    hold(&*store, &claim("empty", "me", TTL)).await;
    assert_eq!(admin.lease("empty").await.unwrap()["spec"]["leaseTransitions"], 1);
}
