//! Appending: records gather in a buffer, the buffer is appended to a segment, and the segment is
//! synced. Each step takes everything that the step before has gathered meanwhile, which is the
//! group commit.
//!
//! # Invariants
//! 1. `durable` ≤ `written` ≤ `last`: up to these LSNs records were synced, appended, and buffered.
//! 2. A segment is synced to its end before the first record of the next one is appended. So the
//!    durable records are a prefix of the log, except in the part of the last segment that was not
//!    synced.
//! 3. After the storage has failed once, the log never calls another record durable: the log is
//!    **poisoned**. Records that it called durable before stay durable.

use super::record::{self, HEADER_BYTES, Header, Kind, Op, Record};
use super::storage::{Storage, StorageError};
use super::{LogError, Policy};

/// A log, as its owner appends to it.
#[derive(Debug)]
pub struct Log<S> {
    pub(super) storage: S,
    pub(super) policy: Policy,
    table: u64,
    /// The number of the segment that takes the records.
    segment: u64,
    /// The bytes that were appended to that segment.
    segment_len: u64,
    /// The number of the next segment.
    next_segment: u64,
    buffer: Vec<u8>,
    last: u64,
    written: u64,
    durable: u64,
    /// The LSN up to which the sync under way makes records durable.
    syncing: Option<u64>,
    /// When the first record of the buffer came, and when the first record came that is not
    /// durable.
    buffered_us: u64,
    unsynced_us: u64,
    /// When the sync under way began.
    synced_us: u64,
    poison: Option<StorageError>,
    /// Bytes that were appended since the last snapshot began, and bytes of that snapshot.
    pub(super) grown_bytes: u64,
    pub(super) snapshot_bytes: u64,
}

/// The place where a recovered log goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resume {
    pub table: u64,
    /// The segment in which the log goes on. It is made now.
    pub segment: u64,
    /// The LSN of that segment's first record.
    pub first: u64,
    /// The records that the log has so far, as bytes of that segment.
    pub records: Vec<u8>,
    /// The LSN of the last of these records, or of the last record before them.
    pub last: u64,
    pub grown_bytes: u64,
    pub snapshot_bytes: u64,
}

impl<S: Storage> Log<S> {
    /// A log that goes on in a new segment. All records that it holds so far are durable: records
    /// that may not be durable are written again into that segment.
    pub(super) fn resume(storage: S, policy: Policy, at: Resume) -> Result<Self, LogError> {
        let mut log = Self {
            storage,
            policy,
            table: at.table,
            segment: at.segment,
            segment_len: 0,
            next_segment: at.segment,
            buffer: Vec::new(),
            last: at.last,
            written: at.last,
            durable: at.last,
            syncing: None,
            buffered_us: 0,
            unsynced_us: 0,
            synced_us: 0,
            poison: None,
            grown_bytes: at.grown_bytes,
            snapshot_bytes: at.snapshot_bytes,
        };
        let made = log.begin(at.first, &at.records);
        log.note(made)?;
        Ok(log)
    }

    /// Makes the segment of a log that was recovered.
    fn begin(&mut self, first: u64, records: &[u8]) -> Result<(), StorageError> {
        (self.segment, self.segment_len) = self.create(Kind::Log, first)?;
        if !records.is_empty() {
            self.storage.append(self.segment, records)?;
            self.segment_len += records.len() as u64;
            self.storage.sync(self.segment)?;
        }
        Ok(())
    }

    /// The policy of the log.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The LSN of the last record.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The LSN up to which records survive a loss of power.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The LSN up to which records survive the death of the process.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes of the log that the last snapshot does not make superfluous.
    pub fn grown_bytes(&self) -> u64 {
        self.grown_bytes
    }

    /// Bytes of the last snapshot.
    pub fn snapshot_bytes(&self) -> u64 {
        self.snapshot_bytes
    }

    /// Whether another record may be appended without putting more records at risk than the policy
    /// allows. If not, call [`Log::turn`] until it may.
    pub fn has_room(&self, now_us: u64) -> bool {
        let (at_risk, policy) = (self.last - self.durable, &self.policy);
        at_risk == 0
            || (at_risk < policy.loss_records_max
                && now_us.saturating_sub(self.unsynced_us) < policy.loss_us_max)
    }

    /// Appends a record to the buffer. Returns the record's LSN.
    ///
    /// # Errors
    /// [`LogError::Poisoned`].
    #[inline]
    pub fn append(&mut self, op: Op<'_>, now_us: u64) -> Result<u64, LogError> {
        self.sound()?;
        if self.buffer.is_empty() {
            self.buffered_us = now_us;
        }
        if self.last == self.durable {
            self.unsynced_us = now_us;
        }
        self.last += 1;
        let record = Record { lsn: self.last, durable: self.durable, op };
        record::write(self.segment, &record, &mut self.buffer);
        Ok(self.last)
    }

    /// Does the work that is due: takes note of a finished sync, appends the buffer, begins a sync.
    /// Waits for the disk only when a segment is full.
    ///
    /// # Errors
    /// [`LogError::Storage`] if the storage fails, and [`LogError::Poisoned`] from then on.
    pub fn turn(&mut self, now_us: u64) -> Result<(), LogError> {
        self.sound()?;
        let done = self.attempt_turn(now_us);
        self.note(done)
    }

    /// Makes all records durable and waits for that.
    ///
    /// # Errors
    /// As [`Log::turn`].
    pub fn sync(&mut self, now_us: u64) -> Result<(), LogError> {
        self.sound()?;
        let done = self.attempt_sync(now_us);
        self.note(done)
    }

    fn attempt_turn(&mut self, now_us: u64) -> Result<(), StorageError> {
        if let Some(lsn) = self.syncing
            && self.storage.is_synced()?
        {
            self.syncing = None;
            self.made_durable(lsn, self.synced_us);
        }
        let policy = self.policy;
        let age_us = now_us.saturating_sub(self.buffered_us);
        let sync_is_due = policy.sync || now_us.saturating_sub(self.unsynced_us) >= policy.sync_us;
        let sync_is_due = sync_is_due && self.syncing.is_none() && self.last > self.durable;
        let write_is_due = self.buffer.len() >= policy.write_bytes || age_us >= policy.write_us;
        if !self.buffer.is_empty() && (sync_is_due || write_is_due) {
            self.write()?;
        }
        if self.segment_len >= policy.segment_bytes && self.syncing.is_none() {
            self.rotate(now_us)?;
        } else if sync_is_due {
            self.storage.begin_sync(self.segment)?;
            (self.syncing, self.synced_us) = (Some(self.written), now_us);
        }
        Ok(())
    }

    fn attempt_sync(&mut self, now_us: u64) -> Result<(), StorageError> {
        self.await_sync()?;
        self.write()?;
        if self.written > self.durable {
            self.storage.sync(self.segment)?;
            self.made_durable(self.written, now_us);
        }
        Ok(())
    }

    /// Waits for the sync that is under way.
    fn await_sync(&mut self) -> Result<(), StorageError> {
        if let Some(lsn) = self.syncing.take() {
            // The storage does one sync at a time: the end of this one has to be seen.
            while !self.storage.is_synced()? {}
            self.made_durable(lsn, self.synced_us);
        }
        Ok(())
    }

    /// The remaining records were appended after the sync began, so not before that moment.
    fn made_durable(&mut self, lsn: u64, began_us: u64) {
        self.durable = self.durable.max(lsn);
        self.unsynced_us = self.unsynced_us.max(began_us);
    }

    fn write(&mut self) -> Result<(), StorageError> {
        self.storage.append(self.segment, &self.buffer)?;
        self.segment_len += self.buffer.len() as u64;
        self.grown_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        self.written = self.last;
        Ok(())
    }

    /// Goes on in another segment. The next segment exists before this one names it, and the
    /// records of this one are durable before the next one gets any.
    fn rotate(&mut self, now_us: u64) -> Result<(), StorageError> {
        // The seal is a record too.
        let (next, next_len) = self.create(Kind::Log, self.last + 2)?;
        self.last += 1;
        let seal = Record { lsn: self.last, durable: self.durable, op: Op::Seal { next } };
        record::write(self.segment, &seal, &mut self.buffer);
        self.write()?;
        self.storage.seal(self.segment)?;
        self.made_durable(self.written, now_us);
        (self.segment, self.segment_len) = (next, next_len);
        Ok(())
    }

    /// Makes a segment with its header, durably. Returns its number and length.
    fn create(&mut self, kind: Kind, lsn: u64) -> Result<(u64, u64), StorageError> {
        let segment = self.next_segment;
        self.next_segment += 1;
        self.storage.create(segment)?;
        let header = Header { table: self.table, segment, kind, lsn };
        self.storage.append(segment, &header.bytes())?;
        // A sync under way belongs to another segment, and has to end first.
        self.await_sync()?;
        self.storage.sync(segment)?;
        Ok((segment, HEADER_BYTES as u64))
    }

    /// As [`Log::rotate`], for a snapshot that begins. Returns the LSN before the next segment's
    /// first record, and that segment.
    pub(super) fn cut(&mut self, now_us: u64) -> Result<(u64, u64), LogError> {
        self.sound()?;
        let done = self.attempt_sync(now_us).and_then(|()| self.rotate(now_us));
        self.note(done)?;
        Ok((self.last, self.segment))
    }

    /// As [`Log::create`], for a snapshot's part.
    pub(super) fn create_part(&mut self, part: u32, lsn: u64) -> Result<u64, LogError> {
        self.sound()?;
        let made = self.create(Kind::Snapshot { part }, lsn);
        self.note(made).map(|(segment, _)| segment)
    }

    /// Runs an action on the storage; if it fails the log is poisoned.
    pub(super) fn store<T>(
        &mut self,
        work: impl FnOnce(&mut S) -> Result<T, StorageError>,
    ) -> Result<T, LogError> {
        self.sound()?;
        let done = work(&mut self.storage);
        self.note(done)
    }

    #[inline]
    fn sound(&self) -> Result<(), LogError> {
        match &self.poison {
            None => Ok(()),
            Some(error) => Err(LogError::Poisoned(error.clone())),
        }
    }

    fn note<T>(&mut self, done: Result<T, StorageError>) -> Result<T, LogError> {
        done.map_err(|error| {
            self.poison = Some(error.clone());
            LogError::Storage(error)
        })
    }
}
