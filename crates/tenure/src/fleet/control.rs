//! What people have said about a fleet: which shards are paused, which members drained.
//!
//! It outlives whoever said it and whoever it is about, so it lies in the store: in the checkpoint of the lease
//! `tenure:control:FLEET`, as JSON. Whoever changes it holds that lease for a moment, and so nobody's word is lost; giving it
//! back wakes the members, who watch it. A record that cannot be read is an error and never "nothing is paused".
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! use std::time::Duration;
//! use tenure::CandidateId;
//! use tenure::fleet::{Shard, control, fleet_name};
//!
//! let store = tenure::open("memory:").await?;
//! let (fleet, me) = (fleet_name("control:example")?, CandidateId::generate());
//! let shard = Shard::new("tenant 7")?;
//! let pause = |control: &mut control::Control| {
//!     control.paused.insert(shard.clone());
//! };
//! control::change(&*store, &fleet, &me, Duration::from_secs(10), pause).await?;
//! assert!(control::read(&*store, &fleet).await?.paused.contains("tenant 7"));
//! # Ok(()) }
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::Shard;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, ClaimedWait, Grant, Name, Nonce, OWN_PREFIX, Release,
};
use crate::store::{Scope, Store};

const VERSION: u64 = 1;
/// A change is one reading and one writing; whoever dies in it holds up others no longer than this.
const TTL: Duration = Duration::from_secs(5);
/// How often one who waits looks by itself: a hint may be lost.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What people have said about a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Shards that nobody shall own.
    pub paused: BTreeSet<Shard>,
    /// Members that shall own nothing.
    pub drained: BTreeSet<CandidateId>,
}

/// As it is stored. What it does not know it refuses: it would be lost with the next change.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    v: u64,
    paused: Vec<String>,
    drained: Vec<String>,
}

/// The lease it lies in, and which a member watches.
#[must_use]
pub fn name(fleet: &Name) -> Name {
    Name::own(format!("{OWN_PREFIX}control:{fleet}"))
}

/// Reads what was said; nothing, if nobody has ever said anything.
///
/// # Errors
/// [`Corrupt`](crate::Kind::Corrupt) if it cannot be understood: go on with what was known.
pub async fn read(store: &dyn Store, fleet: &Name) -> Result<Control> {
    let name = name(fleet);
    let lease = store.observe(&Scope::name(&name)).await?.pop().transpose()?;
    understood(&name, lease.and_then(|lease| lease.checkpoint).as_ref())
}

/// Changes what was said, waiting up to `wait` while others do; what was said afterwards.
///
/// `change` is called once, with what was said before, unless an error comes first. If it changes nothing, nothing is written.
///
/// # Errors
/// [`Unavailable`](crate::Kind::Unavailable) when others are changing it all the time, and when an answer is missing: then it
/// may or may not be changed, and saying the same again does no harm.
/// [`Invalid`](crate::Kind::Invalid) when it would be more than a checkpoint holds.
pub async fn change(
    store: &dyn Store,
    fleet: &Name,
    asker: &CandidateId,
    wait: Duration,
    change: impl FnOnce(&mut Control) + Send,
) -> Result<Control> {
    let (clock, name) = (Clock::boot(), name(fleet));
    let (grant, deadline) = take(store, &clock, &name, asker, wait).await?;
    let changed = edit(store, &clock, &grant, deadline, change).await;
    // What stays behind runs out by itself.
    let _ = store.release(&[Release::from(grant.hold)]).await;
    changed
}

/// Holds the lease, and until when.
async fn take(
    store: &dyn Store,
    clock: &Clock,
    name: &Name,
    asker: &CandidateId,
    wait: Duration,
) -> Result<(Grant, Moment)> {
    let give_up = clock.now() + wait;
    let limits = store.limits();
    let ttl = TTL.clamp(limits.min_ttl, limits.max_ttl);
    let mut changes = store.watch(&Scope::name(name));
    let mut claim = Claim::new(name.clone(), asker.clone(), Nonce::random(), ttl);
    claim.wait = ClaimedWait::Never;
    loop {
        let sent = clock.now();
        match store.acquire(std::slice::from_ref(&claim)).await?.pop().transpose()? {
            Some(Answer::Held(grant)) => return Ok((grant, sent + ttl)),
            Some(Answer::Taken(_)) | None if clock.now() >= give_up => {
                return Err(Error::unavailable(format!(
                    "somebody else is changing '{name}' all the time, so nothing was changed: try \
                     again in a moment"
                )));
            }
            Some(Answer::Taken(_)) | None => {}
        }
        tokio::select! {
            _ = changes.next() => {}
            () = clock.sleep_until(give_up.min(clock.now() + LOOK_EVERY)) => {}
        }
    }
}

async fn edit(
    store: &dyn Store,
    clock: &Clock,
    grant: &Grant,
    deadline: Moment,
    change: impl FnOnce(&mut Control) + Send,
) -> Result<Control> {
    let name = &grant.hold.name;
    let before = understood(name, grant.checkpoint.as_ref())?;
    let mut after = before.clone();
    change(&mut after);
    if after == before {
        return Ok(after);
    }
    let checkpoint = after.written()?;
    let late = || {
        Error::unavailable(format!(
            "changing '{name}' took so long that somebody else may have done so, and nothing was \
             changed: try again"
        ))
    };
    if clock.now() >= deadline {
        return Err(late());
    }
    match store.save(&grant.hold, 1, &checkpoint).await? {
        Answer::Held(()) => Ok(after),
        Answer::Taken(_) => Err(late()),
    }
}

impl Control {
    fn written(&self) -> Result<Checkpoint> {
        let record = Record {
            v: VERSION,
            paused: self.paused.iter().map(|shard| shard.as_str().to_owned()).collect(),
            drained: self.drained.iter().map(ToString::to_string).collect(),
        };
        let bytes = serde_json::to_vec(&record)
            .map_err(|error| Error::invalid("this cannot be written down").caused_by(error))?;
        Checkpoint::new(&bytes).map_err(|_| {
            Error::invalid(format!(
                "{} paused shards and {} drained members are more than is kept about a fleet (4 \
                 KiB), so nothing was changed: leave shards that are paused for long out of the \
                 source, or on Redis put them into the set FLEET:paused",
                self.paused.len(),
                self.drained.len()
            ))
        })
    }
}

fn understood(name: &Name, checkpoint: Option<&Checkpoint>) -> Result<Control> {
    let Some(checkpoint) = checkpoint else { return Ok(Control::default()) };
    let corrupt = |why: String| {
        Error::corrupt(format!(
            "what was said about the fleet, in the checkpoint of '{name}', cannot be read: {why}. \
             It is left as it is; 'tenure status {name}' shows who wrote it"
        ))
    };
    // Another version is told from garbage, whatever else it has.
    let value: serde_json::Value = serde_json::from_slice(checkpoint.as_bytes())
        .map_err(|error| corrupt(format!("it is not JSON ({error})")))?;
    match value.get("v").and_then(serde_json::Value::as_u64) {
        Some(VERSION) => {}
        Some(other) => {
            return Err(corrupt(format!(
                "it is of version {other}, and this program knows only 1"
            )));
        }
        None => return Err(corrupt("it has no version".to_owned())),
    }
    let record: Record =
        serde_json::from_value(value).map_err(|error| corrupt(error.to_string()))?;
    let wrong = |error: Error| corrupt(error.to_string());
    Ok(Control {
        paused: record
            .paused
            .iter()
            .map(|shard| Shard::new(shard))
            .collect::<Result<_>>()
            .map_err(wrong)?,
        drained: record
            .drained
            .iter()
            .map(|id| CandidateId::new(id))
            .collect::<Result<_>>()
            .map_err(wrong)?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use crate::error::Kind;
    use crate::fleet::fleet_name;
    use crate::store::memory::MemoryStore;

    const WAIT: Duration = Duration::from_secs(20);

    fn id(text: &str) -> CandidateId {
        CandidateId::new(text).unwrap()
    }

    fn shard(text: &str) -> Shard {
        Shard::new(text).unwrap()
    }

    fn fleet() -> Name {
        fleet_name("poll").unwrap()
    }

    /// A directory that goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(what: &str) -> Self {
            let path = std::env::temp_dir()
                .join(format!("tenure-control-{what}-{:x}", crate::entropy::random_u128()));
            std::fs::create_dir(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    async fn stores() -> (Vec<Arc<dyn Store>>, Scratch) {
        let scratch = Scratch::new("store");
        let mut stores: Vec<Arc<dyn Store>> = vec![Arc::new(MemoryStore::new(Clock::boot()))];
        if cfg!(feature = "file") {
            let url = format!("file:{}/leases", scratch.0.display());
            stores.push(crate::store::open(&url).await.unwrap());
        }
        (stores, scratch)
    }

    /// Leaves this in the place of what people have said.
    async fn plant(store: &dyn Store, bytes: &[u8]) {
        let claim = Claim::new(name(&fleet()), id("planter"), Nonce::random(), TTL);
        let grant = store.acquire(&[claim]).await.unwrap().remove(0).unwrap().held().unwrap();
        let checkpoint = Checkpoint::new(bytes).unwrap();
        assert!(store.save(&grant.hold, 1, &checkpoint).await.unwrap().is_held());
        store.release(&[grant.hold.into()]).await.unwrap().remove(0).unwrap();
    }

    #[tokio::test]
    async fn what_was_said_is_read_by_everybody_and_taken_back() {
        let (stores, _scratch) = stores().await;
        for store in stores {
            assert_eq!(read(&*store, &fleet()).await.unwrap(), Control::default());
            let odd = [shard("a b"), shard("\n\0"), shard("ä\""), shard(&"x".repeat(512))];
            let say = |control: &mut Control| {
                control.paused.extend(odd.clone());
                control.drained.insert(id("web-1"));
            };
            let said = change(&*store, &fleet(), &id("me"), WAIT, say).await.unwrap();
            assert_eq!(said.paused.len(), 4);
            assert_eq!(read(&*store, &fleet()).await.unwrap(), said);
            let take_back = |control: &mut Control| {
                assert!(control.paused.remove("a b"));
                control.drained.clear();
            };
            let said = change(&*store, &fleet(), &id("you"), WAIT, take_back).await.unwrap();
            assert!(said.paused.len() == 3 && said.drained.is_empty());
            assert_eq!(read(&*store, &fleet()).await.unwrap(), said);
            let other = fleet_name("poll2").unwrap();
            assert_eq!(read(&*store, &other).await.unwrap(), Control::default());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_what_many_say_at_once_nothing_is_lost() {
        let (stores, _scratch) = stores().await;
        for store in stores {
            let askers = (0..12).map(|asker| {
                let store = store.detached();
                tokio::spawn(async move {
                    for round in 0..3 {
                        let shard = shard(&format!("{asker}-{round}"));
                        let insert = |control: &mut Control| {
                            control.paused.insert(shard);
                        };
                        let asker = id(&format!("asker-{asker}"));
                        change(&*store, &fleet(), &asker, WAIT, insert).await.unwrap();
                    }
                })
            });
            for asker in askers.collect::<Vec<_>>() {
                asker.await.unwrap();
            }
            assert_eq!(read(&*store, &fleet()).await.unwrap().paused.len(), 36);
        }
    }

    #[tokio::test]
    async fn nothing_new_is_not_written_and_a_change_wakes_those_who_watch() {
        let (stores, _scratch) = stores().await;
        for store in stores {
            let pause = |control: &mut Control| {
                control.paused.insert(shard("a"));
            };
            let mut changes = store.watch(&Scope::name(&name(&fleet())));
            assert!(changes.next().await.is_some());
            change(&*store, &fleet(), &id("me"), WAIT, pause).await.unwrap();
            assert!(changes.next().await.is_some());
            plant(&*store, br#" { "v": 1, "paused": ["a"], "drained": [] } "#).await;
            change(&*store, &fleet(), &id("me"), WAIT, pause).await.unwrap();
            let lease = store.observe(&Scope::name(&name(&fleet()))).await.unwrap().remove(0);
            let lease = lease.unwrap();
            assert!(lease.holder.is_none(), "it was given back");
            assert!(lease.checkpoint.unwrap().as_bytes().starts_with(b" {"), "nobody wrote");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_never_nothing_and_stays() {
        let (stores, _scratch) = stores().await;
        for store in stores {
            for (text, says) in [
                (&b""[..], "not JSON"),
                (b"\xff\xfe", "not JSON"),
                (br#"{"v":1,"paused":["a"]"#, "not JSON"),
                (b"[]", "no version"),
                (b"{}", "no version"),
                (br#"{"v":"1","paused":[],"drained":[]}"#, "no version"),
                (br#"{"v":2,"paused":[],"moved":{}}"#, "of version 2"),
                (br#"{"v":1}"#, "missing field"),
                (br#"{"v":1,"paused":[],"drained":[],"also":1}"#, "unknown field"),
                (br#"{"v":1,"paused":[""],"drained":[]}"#, "must not be empty"),
                (br#"{"v":1,"paused":[],"drained":["a b"]}"#, "' '"),
                (br#"{"v":1,"paused":[7],"drained":[]}"#, "invalid type"),
            ] {
                plant(&*store, text).await;
                let error = read(&*store, &fleet()).await.unwrap_err();
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                assert!(error.to_string().contains(says), "{error}");
                let clear = |control: &mut Control| *control = Control::default();
                let error = change(&*store, &fleet(), &id("me"), WAIT, clear).await.unwrap_err();
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                let lease = store.observe(&Scope::name(&name(&fleet()))).await.unwrap().remove(0);
                let lease = lease.unwrap();
                assert_eq!(lease.checkpoint.unwrap().as_bytes(), text);
                assert!(lease.holder.is_none());
            }
        }
    }

    #[tokio::test]
    async fn more_than_there_is_room_for_is_refused_and_changes_nothing() {
        let (stores, _scratch) = stores().await;
        for store in stores {
            let few = |control: &mut Control| {
                control.paused.insert(shard("a"));
            };
            let before = change(&*store, &fleet(), &id("me"), WAIT, few).await.unwrap();
            let many = |control: &mut Control| {
                control.paused.extend((0..1_000).map(|n| shard(&format!("shard-{n}"))));
            };
            let error = change(&*store, &fleet(), &id("me"), WAIT, many).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains("the set FLEET:paused"), "{error}");
            assert_eq!(read(&*store, &fleet()).await.unwrap(), before);
        }
    }

    #[tokio::test]
    async fn one_who_waits_comes_when_it_is_free_or_gives_up() {
        let (stores, _scratch) = stores().await;
        for store in stores {
            let claim = Claim::new(name(&fleet()), id("slow"), Nonce::random(), WAIT);
            let slow = store.acquire(&[claim]).await.unwrap().remove(0).unwrap().held().unwrap();
            let pause = |control: &mut Control| {
                control.paused.insert(shard("a"));
            };
            let short = Duration::from_millis(50);
            let error = change(&*store, &fleet(), &id("me"), short, pause).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable);
            assert!(error.to_string().contains("nothing was changed"), "{error}");
            let (me, fleet) = (id("me"), fleet());
            let (changed, ()) = tokio::join!(change(&*store, &fleet, &me, WAIT, pause), async {
                Clock::boot().sleep(short).await;
                store.release(&[slow.hold.into()]).await.unwrap().remove(0).unwrap();
            });
            assert!(changed.unwrap().paused.contains("a"));
        }
    }
}
