//! Compaction: a snapshot of the table replaces the log before it.
//!
//! 1. [`Log::begin_snapshot`] seals the segment and goes on in a new one, whose first LSN is *s* +
//!    1.
//! 2. The owner adds every key with its state ([`Log::add`]), while changes are appended to the
//!    log. A state may be newer than *s*: the log will then repeat it, and repeating a state
//!    changes nothing.
//! 3. [`Log::finish_snapshot`] makes the log durable up to its last LSN *e*. Only then does it end
//!    the snapshot, with a record that contains *e*, and make that record durable. This is the
//!    switch: from here on a recovery can begin with the snapshot, and needs the log from *s* + 1
//!    to *e*.
//! 4. Segments before the new one, and older snapshots, are removed, the oldest first.
//!
//! A crash before the switch leaves an incomplete snapshot and the whole log. A crash after it
//! leaves superfluous segments. A crash **at** the switch leaves a snapshot that can be read but
//! may not be on the disk, and everything that it replaces; so a recovery takes the snapshot only
//! if something that it replaces is gone (`recover.rs`).

use super::LogError;
use super::append::Log;
use super::record::{self, Op, Record};
use super::storage::Storage;

/// A snapshot that is being written.
#[must_use = "a snapshot is finished or abandoned"]
#[derive(Debug)]
pub struct Snapshot {
    /// The snapshot makes records up to this LSN superfluous.
    lsn: u64,
    /// The segment of the log that begins after the snapshot's LSN.
    first_kept: u64,
    parts: Vec<u64>,
    /// Bytes of the last part.
    part_len: u64,
    buffer: Vec<u8>,
    records: u64,
    bytes: u64,
}

/// Bytes that the buffer gathers before they are appended.
const BUFFER_BYTES: usize = 64 << 10;

impl<S: Storage> Log<S> {
    /// Begins a snapshot of all changes that were logged so far. The owner has made all of them.
    ///
    /// # Errors
    /// As [`Log::turn`].
    pub fn begin_snapshot(&mut self, now_us: u64) -> Result<Snapshot, LogError> {
        let (lsn, first_kept) = self.cut(now_us)?;
        let part = self.create_part(0, lsn)?;
        self.grown_bytes = 0;
        Ok(Snapshot {
            lsn,
            first_kept,
            parts: vec![part],
            part_len: 0,
            buffer: Vec::new(),
            records: 0,
            bytes: 0,
        })
    }

    /// Adds the present state of a key, or a lease.
    ///
    /// # Errors
    /// As [`Log::turn`].
    pub fn add(&mut self, snapshot: &mut Snapshot, op: Op<'_>) -> Result<(), LogError> {
        if snapshot.part_len + snapshot.buffer.len() as u64 >= self.policy.segment_bytes {
            self.seal_part(snapshot)?;
            let part = self.create_part(snapshot.parts.len() as u32, snapshot.lsn)?;
            snapshot.parts.push(part);
            snapshot.part_len = 0;
        }
        snapshot.records += 1;
        let record = Record { lsn: snapshot.records, durable: 0, op };
        record::write(snapshot.part(), &record, &mut snapshot.buffer);
        if snapshot.buffer.len() >= BUFFER_BYTES {
            self.write_part(snapshot)?;
        }
        Ok(())
    }

    /// Ends a snapshot that has every key, and removes what it replaces.
    ///
    /// # Errors
    /// As [`Log::turn`].
    pub fn finish_snapshot(&mut self, mut snapshot: Snapshot, now_us: u64) -> Result<(), LogError> {
        self.sync(now_us)?;
        let lsn = self.last();
        // All parts but the last are durable, so the end is never durable without the rest.
        self.add(&mut snapshot, Op::End { lsn })?;
        // The switch.
        self.seal_part(&mut snapshot)?;
        self.snapshot_bytes = snapshot.bytes;
        // The snapshot's own parts have higher numbers.
        let first_kept = snapshot.first_kept;
        self.store(|storage| {
            let mut replaced =
                storage.segments()?.into_iter().filter(|segment| *segment < first_kept);
            // In ascending order: a recovery concludes from the oldest missing segment.
            replaced.try_for_each(|segment| storage.remove(segment))
        })
    }

    /// Abandons a snapshot.
    ///
    /// # Errors
    /// As [`Log::turn`].
    pub fn abandon_snapshot(&mut self, snapshot: Snapshot) -> Result<(), LogError> {
        self.store(|storage| snapshot.parts.iter().try_for_each(|part| storage.remove(*part)))
    }

    /// Writes the rest of a part, and makes it durable.
    fn seal_part(&mut self, snapshot: &mut Snapshot) -> Result<(), LogError> {
        self.write_part(snapshot)?;
        let part = snapshot.part();
        self.store(|storage| storage.seal(part))
    }

    fn write_part(&mut self, snapshot: &mut Snapshot) -> Result<(), LogError> {
        let (part, bytes) = (snapshot.part(), std::mem::take(&mut snapshot.buffer));
        self.store(|storage| storage.append(part, &bytes))?;
        snapshot.part_len += bytes.len() as u64;
        snapshot.bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Snapshot {
    fn part(&self) -> u64 {
        *self.parts.last().expect("a snapshot has a part")
    }
}
