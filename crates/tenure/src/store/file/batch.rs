//! One pass of a verb over many names.
//!
//! First every new record is written beside and synced, without any lock. Then, one name at a time under its lock, the
//! record is read again; if the new one still follows from it, it is put in place, else it is written anew. Names that
//! are locked are come back to. Last, the directory is synced, and only then is anything said to be held.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::directory::{Directory, DirectoryHandle};
use super::error::failed;
use super::liveness::DeadProcesses;
use super::lock::{LockAttempt, NameLock, busy};
use super::paths::RecordPath;
use super::read::{ExpiryJudge, ExpiryProof, ReadRecord, look};
use super::record::{LivenessId, Record};
use super::rules::{FoundRecord, Operation, RuleContext, Step};
use super::temp_record::{Sync, TempRecord, put_tail, remove_record};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Kind, Result};
use crate::lease::{Name, Token};

/// From this many new records on, the file system is synced once instead of each of them.
const SYNC_ALL_FROM: usize = 33;

/// How long to wait before a busy lock is tried again.
const AGAIN: Duration = Duration::from_millis(1);

/// The greatest token seen of each name. A smaller one later means that an old file was put back.
#[derive(Debug, Default)]
pub(super) struct BatchCache(Mutex<HashMap<Name, Token>>);

impl BatchCache {
    fn floor(&self, name: &Name) -> Option<Token> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn keep(&self, name: &Name, token: Token) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), token);
    }
}

/// What a pass works with.
pub(super) struct BatchRun<'a> {
    pub(super) directory: &'a Directory,
    pub(super) judge: &'a ExpiryJudge,
    pub(super) memory: &'a BatchCache,
    pub(super) clock: &'a Clock,
    pub(super) live: Option<&'a LivenessId>,
    minting_micros: u64,
    deaths: DeadProcesses,
    /// Directories in which a record was put in place.
    touched: BTreeSet<Option<String>>,
}

/// How far one item is.
pub(super) enum BatchSlot<'a, T> {
    /// To be done under the lock; with what was written beside.
    Open(Option<TempRecord<'a>>),
    /// Put in place, and true when the directory is synced.
    Placed(T),
    Done(Result<T>),
}

impl<'a> BatchRun<'a> {
    pub(super) fn new(
        directory: &'a Directory,
        judge: &'a ExpiryJudge,
        memory: &'a BatchCache,
        clock: &'a Clock,
        live: Option<&'a LivenessId>,
    ) -> Self {
        let (deaths, touched) = (DeadProcesses::default(), BTreeSet::new());
        let minting_micros = clock.minting_micros();
        BatchRun { directory, judge, memory, clock, live, minting_micros, deaths, touched }
    }

    /// Does every item, and answers in their order.
    pub(super) fn run<V: Operation>(mut self, verbs: &[V]) -> Result<Vec<Result<V::Answer>>> {
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

    pub(super) fn answers<T>(
        &self,
        slots: Vec<BatchSlot<'a, T>>,
        synced: Result<()>,
    ) -> Vec<Result<T>> {
        let answer = |slot| match slot {
            BatchSlot::Done(answer) => answer,
            BatchSlot::Placed(answer) => synced.clone().map(|()| answer),
            BatchSlot::Open(_) => Err(Error::unavailable("this item was never tried")),
        };
        slots.into_iter().map(answer).collect()
    }

    /// Looks without a lock, and writes beside what would have to be written.
    pub(super) fn prepare<V: Operation>(
        &mut self,
        verb: &V,
        sync: Sync,
    ) -> BatchSlot<'a, V::Answer> {
        if V::RENEWS {
            return BatchSlot::Open(None);
        }
        let step =
            look(self.directory, verb.name(), ExpiryProof::Glance).and_then(|sight| match sight {
                // Its time cannot be read, so nothing is decided on this look.
                Some(sight) if sight.record.term.is_some() && sight.beat.is_none() => Ok(None),
                sight => self.step(verb, sight.as_ref()).map(Some),
            });
        match step {
            Ok(Some(Step::Write(record, _))) => match self.draft(&record, sync) {
                Ok(draft) => BatchSlot::Open(Some(draft)),
                Err(error) => BatchSlot::Done(Err(error)),
            },
            // A waiter needs no lock to learn that it has to wait: a hundred of them are in nobody's way.
            Ok(Some(Step::Answer(answer))) if V::CLAIMS => BatchSlot::Done(Ok(answer)),
            // What could not be read for others who write is read again under the lock.
            Err(error) if V::CLAIMS && error.kind() != Kind::Unavailable => {
                BatchSlot::Done(Err(error))
            }
            Ok(_) | Err(_) => BatchSlot::Open(None),
        }
    }

    /// What the verb makes of what was seen. The clock is read here, after the record was.
    fn step<V: Operation>(
        &mut self,
        verb: &V,
        sight: Option<&ReadRecord>,
    ) -> Result<Step<V::Answer>> {
        let now = self.clock.now();
        let judged = sight.map(|sight| FoundRecord {
            record: &sight.record,
            standing: self.judge.standing(self.directory, sight, now, &mut self.deaths),
        });
        verb.step(judged, self.at(now, self.memory.floor(verb.name())))
    }

    fn at(&self, now: Moment, floor: Option<Token>) -> RuleContext<'a> {
        RuleContext {
            now,
            minting_micros: self.minting_micros,
            era: &self.judge.era,
            live: self.live,
            floor,
        }
    }

    fn draft(&self, record: &Record, sync: Sync) -> Result<TempRecord<'a>> {
        TempRecord::write(self.directory, record, encode_head(record)?, sync)
    }

    /// Every open item under its lock; those that are locked by others again and again, each within its patience.
    pub(super) fn commit_all<V: Operation>(
        &mut self,
        verbs: &[V],
        slots: &mut [BatchSlot<'a, V::Answer>],
    ) {
        let mut open: Vec<usize> = (0..slots.len()).collect();
        open.retain(|&i| matches!(slots[i], BatchSlot::Open(_)));
        let mut begun = None;
        loop {
            open.retain(|&i| {
                let BatchSlot::Open(draft) = &mut slots[i] else { return false };
                match self.commit(&verbs[i], draft) {
                    Ok(None) => return true,
                    Ok(Some(slot)) => slots[i] = slot,
                    Err(error) => slots[i] = BatchSlot::Done(Err(error)),
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
                    let spot = RecordPath::of_lock(verbs[i].name());
                    slots[i] = BatchSlot::Done(Err(busy(self.directory, &spot, waited)));
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
    fn commit<V: Operation>(
        &mut self,
        verb: &V,
        draft: &mut Option<TempRecord<'a>>,
    ) -> Result<Option<BatchSlot<'a, V::Answer>>> {
        let directory = self.directory;
        let (name, spot) = (verb.name(), RecordPath::of(verb.name()));
        let lock_spot = RecordPath::of_lock(name);
        let lock = match NameLock::attempt(directory, &lock_spot, V::CLAIMS)? {
            LockAttempt::Locked(lock) => lock,
            LockAttempt::Busy => return Ok(None),
            LockAttempt::Missing => match look(directory, name, ExpiryProof::Glance)? {
                None => return self.never_seen(verb).map(Some),
                // Somebody has removed it.
                Some(_) => match NameLock::attempt(directory, &lock_spot, true)? {
                    LockAttempt::Locked(lock) => lock,
                    LockAttempt::Busy | LockAttempt::Missing => return Ok(None),
                },
            },
        };
        let sight = look(directory, name, ExpiryProof::Locked)?;
        self.remember(name, sight.as_ref())?;
        let (record, answer) = match self.step(verb, sight.as_ref())? {
            Step::Answer(answer) => return Ok(Some(BatchSlot::Done(Ok(answer)))),
            Step::Write(record, answer) => (record, answer),
            Step::Remove(answer) => {
                lock.check()?;
                self.touched.insert(spot.sub.clone());
                remove_record(directory, name)?;
                self.judge.forget(name);
                lock.check()?;
                return Ok(Some(BatchSlot::Placed(answer)));
            }
        };
        let head = encode_head(&record)?;
        let beat =
            sight.as_ref().and_then(|sight| sight.beat).map_or(0, |beat| beat.wrapping_add(1));
        let slot = match &sight {
            Some(sight) if V::RENEWS && sight.head == head => {
                lock.check()?;
                put_tail(&sight.file, &record, &head, beat, &spot.shown(&spot.record()))?;
                BatchSlot::Done(Ok(answer))
            }
            _ => {
                let draft = match draft.take().filter(|draft| draft.head == head) {
                    Some(draft) => draft,
                    // The record has changed since the draft was written.
                    None => TempRecord::write(directory, &record, head, Sync::Now)?,
                };
                lock.check()?;
                // Before, in case it is there although this fails.
                self.touched.insert(spot.sub.clone());
                draft.place(&record, beat)?;
                self.judge.forget(name);
                BatchSlot::Placed(answer)
            }
        };
        self.memory.keep(name, record.token);
        // Again, and this is the one that counts: whoever got past our lock came later, and has seen what we wrote.
        lock.check()?;
        Ok(Some(slot))
    }

    fn never_seen<V: Operation>(&mut self, verb: &V) -> Result<BatchSlot<'a, V::Answer>> {
        match self.step(verb, None)? {
            Step::Answer(answer) => Ok(BatchSlot::Done(Ok(answer))),
            Step::Write(..) | Step::Remove(_) => {
                Err(Error::unavailable("only a claim makes a record"))
            }
        }
    }

    /// Refuses a record that is older than what we have seen of it.
    fn remember(&self, name: &Name, sight: Option<&ReadRecord>) -> Result<()> {
        let Some(ReadRecord { record, .. }) = sight else { return Ok(()) };
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

    fn sync_directories(&self, leases: &DirectoryHandle) -> Result<()> {
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
fn sync_drafts<T>(tmp: &DirectoryHandle, slots: &mut [BatchSlot<'_, T>], sync: Sync) {
    let is_draft = |slot: &&mut BatchSlot<'_, T>| matches!(slot, BatchSlot::Open(Some(_)));
    let mut drafts = slots.iter_mut().filter(is_draft).peekable();
    if sync == Sync::Now || drafts.peek().is_none() {
        return;
    }
    if let Err(errno) = rustix::fs::syncfs(tmp) {
        let error = failed("cannot sync", &tmp.path, errno);
        drafts.for_each(|slot| *slot = BatchSlot::Done(Err(error.clone())));
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
