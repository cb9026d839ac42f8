//! Runs one operation on a batch of names.
//!
//! First, without any lock, every new record is written to a temporary file and synced. Then, one name at a time and under its
//! lock, the current record is read again. If the new record still follows from it, the temporary file is renamed into place;
//! otherwise the record is written again. Names that are locked are retried. Last, the directory is synced. Only after that is
//! any lease reported as held.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::directory::{Directory, DirectoryHandle};
use super::error::failed;
use super::liveness::DeadProcesses;
use super::lock::{LockAttempt, NameLock, busy};
use super::operation::FileOperation;
use super::paths::RecordPath;
use super::read::{ExpiryJudge, ReadMode, ReadRecord, read_record};
use super::stored_record::{LivenessId, StoredRecord, TermPlace};
use super::temp_record::{Sync, TempRecord, remove_record, write_tail};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Kind, Result};
use crate::lease::{Name, StoreTime, Token};
use crate::store::record::{FoundRecord, RecordWrite, RuleContext, Step, TermTime};

/// From this batch size on, one `syncfs` of the file system replaces an fsync of each new record.
const SYNCFS_BATCH_MIN: usize = 33;

/// How long to wait before a busy lock is tried again.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The greatest token of each name that this process has read or written. A smaller token later means that an old file was put
/// back.
#[derive(Debug, Default)]
pub(super) struct GreatestTokens(Mutex<HashMap<Name, Token>>);

impl GreatestTokens {
    fn floor(&self, name: &Name) -> Option<Token> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn record_token(&self, name: &Name, token: Token) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), token);
    }
}

/// The state of one batch.
pub(super) struct BatchRun<'a> {
    pub(super) directory: &'a Directory,
    pub(super) judge: &'a ExpiryJudge,
    pub(super) tokens: &'a GreatestTokens,
    pub(super) clock: &'a Clock,
    pub(super) live: Option<&'a LivenessId>,
    minting_micros: u64,
    dead_processes: DeadProcesses,
    /// Directories in which a record was put in place or removed.
    touched: BTreeSet<Option<String>>,
}

/// The progress of one item.
pub(super) enum BatchSlot<'a, T> {
    /// Still to be done under the lock; with the temporary record, if one was written.
    Open(Option<TempRecord<'a>>),
    /// In place; the answer is valid once the directory is synced.
    Placed(T),
    Done(Result<T>),
}

impl<'a> BatchRun<'a> {
    pub(super) fn new(
        directory: &'a Directory,
        judge: &'a ExpiryJudge,
        tokens: &'a GreatestTokens,
        clock: &'a Clock,
        live: Option<&'a LivenessId>,
    ) -> Self {
        let (dead_processes, touched) = (DeadProcesses::default(), BTreeSet::new());
        let minting_micros = clock.minting_micros();
        BatchRun { directory, judge, tokens, clock, live, minting_micros, dead_processes, touched }
    }

    /// Runs every operation and returns the answers in order.
    pub(super) fn run<V: FileOperation>(
        mut self,
        operations: &[V],
    ) -> Result<Vec<Result<V::Answer>>> {
        self.directory.check_in_place()?;
        let (leases, tmp) = (self.directory.leases.reopen()?, self.directory.tmp.reopen()?);
        let sync = match operations.len() {
            many if many >= SYNCFS_BATCH_MIN
                && self.directory.file_system.syncfs_reports_errors =>
            {
                Sync::Later
            }
            _ => Sync::Now,
        };
        let mut slots: Vec<_> =
            operations.iter().map(|operation| self.prepare(operation, sync)).collect();
        sync_temp_records(&tmp, &mut slots, sync);
        self.commit_all(operations, &mut slots);
        let synced = self.sync_directories(&leases);
        // Checked last: if the directory was moved away before this, another leader may be elected in its replacement.
        self.directory.check_in_place()?;
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

    /// Reads the record without a lock, and writes the new record to a temporary file if one is needed.
    pub(super) fn prepare<V: FileOperation>(
        &mut self,
        operation: &V,
        sync: Sync,
    ) -> BatchSlot<'a, V::Answer> {
        if V::RENEWS {
            return BatchSlot::Open(None);
        }
        let step =
            read_record(self.directory, operation.name(), ReadMode::Unlocked).and_then(|found| {
                match found {
                    // The holder's time cannot be read, so this read decides nothing.
                    Some(found) if found.stored.place.is_some() && found.beat.is_none() => Ok(None),
                    found => self.apply(operation, found.as_ref()).map(Some),
                }
            });
        match step {
            Ok(Some(PlannedStep { write: Some(stored), .. }))
                if !stored.record.is_forgettable() =>
            {
                match self.temp_record(&stored, sync) {
                    Ok(temp_record) => BatchSlot::Open(Some(temp_record)),
                    Err(error) => BatchSlot::Done(Err(error)),
                }
            }
            // A waiter needs no lock to learn that it must wait, so a hundred waiters do not block the holder.
            Ok(Some(PlannedStep { write: None, answer })) if V::CLAIMS => {
                BatchSlot::Done(Ok(answer))
            }
            // A record that could not be read because another process was writing it is read again under the lock.
            Err(error) if V::CLAIMS && error.kind() != Kind::Unavailable => {
                BatchSlot::Done(Err(error))
            }
            Ok(_) | Err(_) => BatchSlot::Open(None),
        }
    }

    /// Applies the operation to the record that was read. The clock is read here, after the record.
    fn apply<V: FileOperation>(
        &mut self,
        operation: &V,
        found: Option<&ReadRecord>,
    ) -> Result<PlannedStep<V::Answer>> {
        let now = self.clock.now();
        let found_record = found.map(|found| FoundRecord {
            record: &found.stored.record,
            standing: self.judge.standing(self.directory, found, now, &mut self.dead_processes),
        });
        let context = context(now, self.minting_micros, self.tokens.floor(operation.name()));
        let Step { answer, write } = operation.apply(found_record, &context)?;
        let write = write.map(|RecordWrite { record, time, .. }| StoredRecord {
            name: operation.name().clone(),
            place: self.place(
                operation,
                found,
                time,
                now,
                record.term.as_ref().map(|term| term.ttl),
            ),
            record,
        });
        Ok(PlannedStep { answer, write })
    }

    /// Where and until when the term of a new record is held; `ttl` is that term's.
    fn place<V: FileOperation>(
        &self,
        operation: &V,
        found: Option<&ReadRecord>,
        time: TermTime,
        now: Moment,
        ttl: Option<Duration>,
    ) -> Option<TermPlace> {
        let before = found.and_then(|found| found.stored.place.as_ref());
        let (era, until) = (self.judge.era.clone(), ttl.map(|ttl| now + ttl));
        match time {
            TermTime::Begins => {
                let live = self.live.filter(|_| operation.ends_with_process()).cloned();
                Some(TermPlace { era, live, until })
            }
            TermTime::Extended => {
                let live = before.and_then(|place| place.live.clone());
                Some(TermPlace { era, live, until })
            }
            TermTime::Unchanged => before.cloned(),
            TermTime::None => None,
        }
    }

    fn temp_record(&self, stored: &StoredRecord, sync: Sync) -> Result<TempRecord<'a>> {
        TempRecord::write(self.directory, stored, encode_head(stored)?, sync)
    }

    /// Completes every open item under its lock. Items whose lock is busy are retried, each for its lock timeout.
    pub(super) fn commit_all<V: FileOperation>(
        &mut self,
        operations: &[V],
        slots: &mut [BatchSlot<'a, V::Answer>],
    ) {
        let mut open: Vec<usize> = (0..slots.len()).collect();
        open.retain(|&i| matches!(slots[i], BatchSlot::Open(_)));
        let mut started = None;
        loop {
            open.retain(|&i| {
                let BatchSlot::Open(temp_record) = &mut slots[i] else { return false };
                match self.commit(&operations[i], temp_record) {
                    Ok(None) => return true,
                    Ok(Some(slot)) => slots[i] = slot,
                    Err(error) => slots[i] = BatchSlot::Done(Err(error)),
                }
                false
            });
            if open.is_empty() {
                return;
            }
            // Counted from the end of the first round: the time that other items took does not count against these.
            let waited = self.clock.now().since(*started.get_or_insert_with(|| self.clock.now()));
            open.retain(|&i| {
                let too_long = waited >= operations[i].lock_timeout();
                if too_long {
                    let record_path = RecordPath::of_lock(operations[i].name());
                    slots[i] = BatchSlot::Done(Err(busy(self.directory, &record_path, waited)));
                }
                !too_long
            });
            if open.is_empty() {
                return;
            }
            pause();
        }
    }

    /// Completes one item under its lock; `None` if another process holds the lock.
    fn commit<V: FileOperation>(
        &mut self,
        operation: &V,
        temp_record: &mut Option<TempRecord<'a>>,
    ) -> Result<Option<BatchSlot<'a, V::Answer>>> {
        let directory = self.directory;
        let (name, record_path) = (operation.name(), RecordPath::of(operation.name()));
        let lock_path = RecordPath::of_lock(name);
        let lock = match NameLock::attempt(directory, &lock_path, V::CLAIMS)? {
            LockAttempt::Locked(lock) => lock,
            LockAttempt::Busy => return Ok(None),
            LockAttempt::Missing => match read_record(directory, name, ReadMode::Unlocked)? {
                None => return self.apply_without_record(operation).map(Some),
                // The record exists, so its lock file was removed.
                Some(_) => match NameLock::attempt(directory, &lock_path, true)? {
                    LockAttempt::Locked(lock) => lock,
                    LockAttempt::Busy | LockAttempt::Missing => return Ok(None),
                },
            },
        };
        let found = read_record(directory, name, ReadMode::Locked)?;
        self.check_token(name, found.as_ref())?;
        let PlannedStep { answer, write } = self.apply(operation, found.as_ref())?;
        let Some(stored) = write else {
            return Ok(Some(BatchSlot::Done(Ok(answer))));
        };
        if stored.record.is_forgettable() {
            lock.check()?;
            self.touched.insert(record_path.sub.clone());
            remove_record(directory, name)?;
            self.judge.forget(name);
            lock.check()?;
            return Ok(Some(BatchSlot::Placed(answer)));
        }
        let head = encode_head(&stored)?;
        let beat =
            found.as_ref().and_then(|found| found.beat).map_or(0, |beat| beat.wrapping_add(1));
        let slot = match &found {
            Some(found) if V::RENEWS && found.head == head => {
                lock.check()?;
                write_tail(
                    &found.file,
                    &stored,
                    &head,
                    beat,
                    &record_path.shown(&record_path.record()),
                )?;
                BatchSlot::Done(Ok(answer))
            }
            _ => {
                let temp_record =
                    match temp_record.take().filter(|temp_record| temp_record.head == head) {
                        Some(temp_record) => temp_record,
                        // The record has changed since the temporary record was written.
                        None => TempRecord::write(directory, &stored, head, Sync::Now)?,
                    };
                lock.check()?;
                // Noted before, in case the rename took effect although it returns an error.
                self.touched.insert(record_path.sub.clone());
                temp_record.place(&stored, beat)?;
                self.judge.forget(name);
                BatchSlot::Placed(answer)
            }
        };
        self.tokens.record_token(name, stored.record.token);
        // Checked again, and this check is the decisive one: a process that got past this lock did so later, and has read what
        // was written here.
        lock.check()?;
        Ok(Some(slot))
    }

    fn apply_without_record<V: FileOperation>(
        &mut self,
        operation: &V,
    ) -> Result<BatchSlot<'a, V::Answer>> {
        match self.apply(operation, None)? {
            PlannedStep { answer, write: None } => Ok(BatchSlot::Done(Ok(answer))),
            PlannedStep { write: Some(_), .. } => {
                Err(Error::unavailable("only a claim makes a record"))
            }
        }
    }

    /// Refuses a record that is older than one this process has read or written.
    fn check_token(&self, name: &Name, found: Option<&ReadRecord>) -> Result<()> {
        let Some(record) = found.map(|found| &found.stored.record) else { return Ok(()) };
        match self.tokens.floor(name) {
            // The record of an ephemeral lease may have been removed and created again, on a clock that was set back.
            Some(floor) if record.token < floor && !record.ephemeral => {
                Err(Error::corrupt(format!(
                    "the token of '{name}' went back from {floor} to {}: an old file was put back. \
                 Move it away, or restart every program that uses {}",
                    record.token, self.directory.leases.path
                )))
            }
            _ => {
                self.tokens.record_token(name, record.token);
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

/// One sync for all temporary records. If it fails, none of them may be used.
fn sync_temp_records<T>(tmp: &DirectoryHandle, slots: &mut [BatchSlot<'_, T>], sync: Sync) {
    let is_temp_record = |slot: &&mut BatchSlot<'_, T>| matches!(slot, BatchSlot::Open(Some(_)));
    let mut temp_records = slots.iter_mut().filter(is_temp_record).peekable();
    if sync == Sync::Now || temp_records.peek().is_none() {
        return;
    }
    if let Err(errno) = rustix::fs::syncfs(tmp) {
        let error = failed("cannot sync", &tmp.path, errno);
        temp_records.for_each(|slot| *slot = BatchSlot::Done(Err(error.clone())));
    }
}

/// The answer of an operation, and the record to write in a file, if any.
struct PlannedStep<T> {
    answer: T,
    write: Option<StoredRecord>,
}

/// The times at which an operation is applied. Start-up waits are on the wall clock, because the boot clock means nothing to
/// another machine.
pub(super) fn context(now: Moment, wall_micros: u64, floor: Option<Token>) -> RuleContext {
    let store_time = Some(StoreTime(now.as_nanos() / 1_000));
    RuleContext { store_time, wait_micros: wall_micros, minting_micros: wall_micros, floor }
}

fn encode_head(stored: &StoredRecord) -> Result<Vec<u8>> {
    let name = &stored.name;
    stored.encode_head().map_err(|reason| {
        Error::invalid(format!("the record of '{name}' cannot be written: {reason}"))
    })
}

/// The batch runs on its own thread, where waiting delays no other task.
#[allow(clippy::disallowed_methods, reason = "this thread is only ours")]
fn pause() {
    std::thread::sleep(LOCK_RETRY_INTERVAL);
}
