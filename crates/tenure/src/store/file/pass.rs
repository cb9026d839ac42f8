//! One pass of a verb over many names.
//!
//! First every new record is written beside and synced, without any lock. Then, one name at a time under its lock, the
//! record is read again; if the new one still follows from it, it is put in place, else it is written anew. Names that
//! are locked are come back to. Last, the directory is synced, and only then is anything said to be held.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::directory::{Directory, Handle};
use super::draft::{Draft, Sync, put_tail, remove_record};
use super::failure::failed;
use super::live::Deaths;
use super::lock::{NameLock, Tried, busy};
use super::names::Spot;
use super::record::{LiveMark, Record};
use super::rules::{At, Judged, Step, Verb};
use super::sight::{Judge, Right, Sight, look};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Kind, Result};
use crate::lease::{Name, Token};

/// From this many new records on, the file system is synced once instead of each of them.
const SYNC_ALL_FROM: usize = 33;

/// How long to wait before a busy lock is tried again.
const AGAIN: Duration = Duration::from_millis(1);

/// The greatest token seen of each name. A smaller one later means that an old file was put back.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<Name, Token>>);

impl Memory {
    fn floor(&self, name: &Name) -> Option<Token> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn keep(&self, name: &Name, token: Token) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), token);
    }
}

/// What a pass works with.
pub(super) struct Pass<'a> {
    pub(super) directory: &'a Directory,
    pub(super) judge: &'a Judge,
    pub(super) memory: &'a Memory,
    pub(super) clock: &'a Clock,
    pub(super) live: Option<&'a LiveMark>,
    minting_micros: u64,
    deaths: Deaths,
    /// Directories in which a record was put in place.
    touched: BTreeSet<Option<String>>,
}

/// How far one item is.
pub(super) enum Slot<'a, T> {
    /// To be done under the lock; with what was written beside.
    Open(Option<Draft<'a>>),
    /// Put in place, and true when the directory is synced.
    Placed(T),
    Done(Result<T>),
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        directory: &'a Directory,
        judge: &'a Judge,
        memory: &'a Memory,
        clock: &'a Clock,
        live: Option<&'a LiveMark>,
    ) -> Self {
        let (deaths, touched) = (Deaths::default(), BTreeSet::new());
        let minting_micros = clock.minting_micros();
        Pass { directory, judge, memory, clock, live, minting_micros, deaths, touched }
    }

    /// Does every item, and answers in their order.
    pub(super) fn run<V: Verb>(mut self, verbs: &[V]) -> Result<Vec<Result<V::Answer>>> {
        self.directory.still_there()?;
        let (leases, tmp) = (self.directory.leases.again()?, self.directory.tmp.again()?);
        let sync = match verbs.len() {
            many if many >= SYNC_ALL_FROM && self.directory.file_system.syncfs_tells => Sync::Later,
            _ => Sync::Now,
        };
        let mut slots: Vec<_> = verbs.iter().map(|verb| self.prepare(verb, sync)).collect();
        sync_drafts(&tmp, &mut slots, sync);
        self.commit_all(verbs, &mut slots);
        let synced = self.sync_directories(&leases);
        // Asked last: a directory that was moved away before this may have another leader now.
        self.directory.still_there()?;
        Ok(self.answers(slots, synced))
    }

    pub(super) fn answers<T>(&self, slots: Vec<Slot<'a, T>>, synced: Result<()>) -> Vec<Result<T>> {
        let answer = |slot| match slot {
            Slot::Done(answer) => answer,
            Slot::Placed(answer) => synced.clone().map(|()| answer),
            Slot::Open(_) => Err(Error::unavailable("this item was never tried")),
        };
        slots.into_iter().map(answer).collect()
    }

    /// Looks without a lock, and writes beside what would have to be written.
    pub(super) fn prepare<V: Verb>(&mut self, verb: &V, sync: Sync) -> Slot<'a, V::Answer> {
        if V::RENEWS {
            return Slot::Open(None);
        }
        let step = look(self.directory, verb.name(), Right::Glance).and_then(|sight| match sight {
            // Its time cannot be read, so nothing is decided on this look.
            Some(sight) if sight.record.term.is_some() && sight.beat.is_none() => Ok(None),
            sight => self.step(verb, sight.as_ref()).map(Some),
        });
        match step {
            Ok(Some(Step::Write(record, _))) => match self.draft(&record, sync) {
                Ok(draft) => Slot::Open(Some(draft)),
                Err(error) => Slot::Done(Err(error)),
            },
            // A waiter needs no lock to learn that it has to wait: a hundred of them are in nobody's way.
            Ok(Some(Step::Answer(answer))) if V::CLAIMS => Slot::Done(Ok(answer)),
            // What could not be read for others who write is read again under the lock.
            Err(error) if V::CLAIMS && error.kind() != Kind::Unavailable => Slot::Done(Err(error)),
            Ok(_) | Err(_) => Slot::Open(None),
        }
    }

    /// What the verb makes of what was seen. The clock is read here, after the record was.
    fn step<V: Verb>(&mut self, verb: &V, sight: Option<&Sight>) -> Result<Step<V::Answer>> {
        let now = self.clock.now();
        let judged = sight.map(|sight| Judged {
            record: &sight.record,
            standing: self.judge.standing(self.directory, sight, now, &mut self.deaths),
        });
        verb.step(judged, self.at(now, self.memory.floor(verb.name())))
    }

    fn at(&self, now: Moment, floor: Option<Token>) -> At<'a> {
        At {
            now,
            minting_micros: self.minting_micros,
            era: &self.judge.era,
            live: self.live,
            floor,
        }
    }

    fn draft(&self, record: &Record, sync: Sync) -> Result<Draft<'a>> {
        Draft::write(self.directory, record, encode_head(record)?, sync)
    }

    /// Every open item under its lock; those that are locked by others again and again, each within its patience.
    pub(super) fn commit_all<V: Verb>(&mut self, verbs: &[V], slots: &mut [Slot<'a, V::Answer>]) {
        let mut open: Vec<usize> = (0..slots.len()).collect();
        open.retain(|&i| matches!(slots[i], Slot::Open(_)));
        let mut begun = None;
        loop {
            open.retain(|&i| {
                let Slot::Open(draft) = &mut slots[i] else { return false };
                match self.commit(&verbs[i], draft) {
                    Ok(None) => return true,
                    Ok(Some(slot)) => slots[i] = slot,
                    Err(error) => slots[i] = Slot::Done(Err(error)),
                }
                false
            });
            if open.is_empty() {
                return;
            }
            // After the first round: the time the others took is not taken from the patience with these.
            let waited = self.clock.now().since(*begun.get_or_insert_with(|| self.clock.now()));
            open.retain(|&i| {
                let too_long = waited >= verbs[i].patience();
                if too_long {
                    let spot = Spot::of_lock(verbs[i].name());
                    slots[i] = Slot::Done(Err(busy(self.directory, &spot, waited)));
                }
                !too_long
            });
            if open.is_empty() {
                return;
            }
            pause();
        }
    }

    /// One item under its lock; `None` if somebody else has it.
    fn commit<V: Verb>(
        &mut self,
        verb: &V,
        draft: &mut Option<Draft<'a>>,
    ) -> Result<Option<Slot<'a, V::Answer>>> {
        let directory = self.directory;
        let (name, spot) = (verb.name(), Spot::of(verb.name()));
        let lock_spot = Spot::of_lock(name);
        let lock = match NameLock::attempt(directory, &lock_spot, V::CLAIMS)? {
            Tried::Locked(lock) => lock,
            Tried::Busy => return Ok(None),
            Tried::Missing => match look(directory, name, Right::Glance)? {
                None => return self.never_seen(verb).map(Some),
                // Somebody has removed it.
                Some(_) => match NameLock::attempt(directory, &lock_spot, true)? {
                    Tried::Locked(lock) => lock,
                    Tried::Busy | Tried::Missing => return Ok(None),
                },
            },
        };
        let sight = look(directory, name, Right::Locked)?;
        self.remember(name, sight.as_ref())?;
        let (record, answer) = match self.step(verb, sight.as_ref())? {
            Step::Answer(answer) => return Ok(Some(Slot::Done(Ok(answer)))),
            Step::Write(record, answer) => (record, answer),
            Step::Remove(answer) => {
                lock.check()?;
                self.touched.insert(spot.sub.clone());
                remove_record(directory, name)?;
                self.judge.forget(name);
                lock.check()?;
                return Ok(Some(Slot::Placed(answer)));
            }
        };
        let head = encode_head(&record)?;
        let beat =
            sight.as_ref().and_then(|sight| sight.beat).map_or(0, |beat| beat.wrapping_add(1));
        let slot = match &sight {
            Some(sight) if V::RENEWS && sight.head == head => {
                lock.check()?;
                put_tail(&sight.file, &record, &head, beat, &spot.shown(&spot.record()))?;
                Slot::Done(Ok(answer))
            }
            _ => {
                let draft = match draft.take().filter(|draft| draft.head == head) {
                    Some(draft) => draft,
                    // The record has changed since the draft was written.
                    None => Draft::write(directory, &record, head, Sync::Now)?,
                };
                lock.check()?;
                // Before, in case it is there although this fails.
                self.touched.insert(spot.sub.clone());
                draft.place(&record, beat)?;
                self.judge.forget(name);
                Slot::Placed(answer)
            }
        };
        self.memory.keep(name, record.token);
        // Again, and this is the one that counts: whoever got past our lock came later, and has seen what we wrote.
        lock.check()?;
        Ok(Some(slot))
    }

    fn never_seen<V: Verb>(&mut self, verb: &V) -> Result<Slot<'a, V::Answer>> {
        match self.step(verb, None)? {
            Step::Answer(answer) => Ok(Slot::Done(Ok(answer))),
            Step::Write(..) | Step::Remove(_) => {
                Err(Error::unavailable("only a claim makes a record"))
            }
        }
    }

    /// Refuses a record that is older than what we have seen of it.
    fn remember(&self, name: &Name, sight: Option<&Sight>) -> Result<()> {
        let Some(Sight { record, .. }) = sight else { return Ok(()) };
        match self.memory.floor(name) {
            // The record of an ephemeral lease may have been removed and made anew, on a clock that was set back.
            Some(floor) if record.token < floor && !record.ephemeral => {
                Err(Error::corrupt(format!(
                    "the token of '{name}' went back from {floor} to {}: an old file was put back. \
                 Move it away, or restart whoever uses {}",
                    record.token, self.directory.leases.path
                )))
            }
            _ => {
                self.memory.keep(name, record.token);
                Ok(())
            }
        }
    }

    fn sync_directories(&self, leases: &Handle) -> Result<()> {
        for sub in self.touched.iter().flatten() {
            if let Some(sub) = leases.sub(sub, false)? {
                sub.sync()?;
            }
        }
        if !self.touched.is_empty() {
            leases.sync()?;
        }
        Ok(())
    }
}

/// One sync for all drafts. If it fails, none of them may be used.
fn sync_drafts<T>(tmp: &Handle, slots: &mut [Slot<'_, T>], sync: Sync) {
    let is_draft = |slot: &&mut Slot<'_, T>| matches!(slot, Slot::Open(Some(_)));
    let mut drafts = slots.iter_mut().filter(is_draft).peekable();
    if sync == Sync::Now || drafts.peek().is_none() {
        return;
    }
    if let Err(errno) = rustix::fs::syncfs(tmp) {
        let error = failed("cannot sync", &tmp.path, errno);
        drafts.for_each(|slot| *slot = Slot::Done(Err(error.clone())));
    }
}

fn encode_head(record: &Record) -> Result<Vec<u8>> {
    let name = &record.name;
    record
        .encode_head()
        .map_err(|why| Error::invalid(format!("the record of '{name}' cannot be written: {why}")))
}

/// The pass runs on a thread of its own, where waiting holds up nobody else.
#[allow(clippy::disallowed_methods, reason = "this thread is only ours")]
fn pause() {
    std::thread::sleep(AGAIN);
}
