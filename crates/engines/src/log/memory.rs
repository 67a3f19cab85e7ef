//! A disk that is memory, and fails as disks do: for tests and for the simulator.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::storage::{Storage, StorageError};

/// A disk. Clones are the same disk: it outlives the process that writes to it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage(Rc<RefCell<Disk>>);

#[derive(Debug, Default)]
struct Disk {
    segments: BTreeMap<u64, Segment>,
    /// The sync under way: of which segment, up to which byte, and how many looks it still takes.
    syncing: Option<(u64, usize, u32)>,
    faults: DiskFaults,
    syncs: u64,
}

#[derive(Debug, Default)]
struct Segment {
    bytes: Vec<u8>,
    durable: usize,
}

/// What goes wrong with a [`MemoryStorage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Appends succeed so many times more.
    pub appends_left: Option<u64>,
    /// Syncs succeed so many times more.
    pub syncs_left: Option<u64>,
    /// Looks at a sync that was begun before it is over.
    pub sync_looks: u32,
}

impl MemoryStorage {
    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.0.borrow_mut().faults = faults;
    }

    /// Syncs so far.
    pub fn syncs(&self) -> u64 {
        self.0.borrow().syncs
    }

    /// The process dies: a sync under way ends, or does not; all that was appended stays.
    pub fn kill(&self) {
        self.0.borrow_mut().syncing = None;
    }

    /// The host loses its power. Of what was not synced, `random` decides for each sector of 64
    /// bytes whether it is there, and where the segment ends.
    pub fn lose_power(&self, mut random: impl FnMut() -> u64) {
        let disk = &mut *self.0.borrow_mut();
        disk.syncing = None;
        for segment in disk.segments.values_mut() {
            let unsynced = segment.bytes.len() - segment.durable;
            let keep = if unsynced == 0 { 0 } else { random() as usize % (unsynced + 1) };
            segment.bytes.truncate(segment.durable + keep);
            for sector in segment.bytes[segment.durable..].chunks_mut(64) {
                if random().is_multiple_of(4) {
                    sector.fill(0);
                }
            }
            segment.durable = segment.bytes.len();
        }
    }

    /// Damages a bit.
    ///
    /// # Panics
    /// If there is no such byte.
    pub fn flip(&self, segment: u64, bit: usize) {
        let mut disk = self.0.borrow_mut();
        let segment = disk.segments.get_mut(&segment).expect("there is such a segment");
        segment.bytes[bit / 8] ^= 1 << (bit % 8);
    }

    /// Bytes of a segment.
    pub fn len(&self, segment: u64) -> usize {
        self.0.borrow().segments.get(&segment).map_or(0, |segment| segment.bytes.len())
    }
}

fn failed(what: &'static str, segment: u64, reason: &str) -> StorageError {
    StorageError { what, segment, reason: reason.into() }
}

impl Disk {
    fn get(&mut self, what: &'static str, segment: u64) -> Result<&mut Segment, StorageError> {
        self.segments.get_mut(&segment).ok_or_else(|| failed(what, segment, "there is none"))
    }

    fn end_sync(&mut self, segment: u64, len: usize) -> Result<(), StorageError> {
        if !spend(&mut self.faults.syncs_left) {
            return Err(failed("syncing", segment, "the disk failed"));
        }
        self.syncs += 1;
        let segment = self.get("syncing", segment)?;
        segment.durable = segment.durable.max(len);
        Ok(())
    }
}

/// Whether there is one left.
fn spend(left: &mut Option<u64>) -> bool {
    match left {
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
        None => true,
    }
}

impl Storage for MemoryStorage {
    fn segments(&mut self) -> Result<Vec<u64>, StorageError> {
        Ok(self.0.borrow().segments.keys().copied().collect())
    }

    fn read(&mut self, segment: u64) -> Result<Vec<u8>, StorageError> {
        Ok(self.0.borrow_mut().get("reading", segment)?.bytes.clone())
    }

    fn create(&mut self, segment: u64) -> Result<(), StorageError> {
        let last = self.0.borrow_mut().segments.insert(segment, Segment::default());
        last.map_or(Ok(()), |_| Err(failed("creating", segment, "there is one already")))
    }

    fn append(&mut self, segment: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let disk = &mut *self.0.borrow_mut();
        if !spend(&mut disk.faults.appends_left) {
            // As a disk that is full: a part of it is written.
            let half = &bytes[..bytes.len() / 2];
            disk.get("appending to", segment)?.bytes.extend_from_slice(half);
            return Err(failed("appending to", segment, "the disk is full"));
        }
        disk.get("appending to", segment)?.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn begin_sync(&mut self, segment: u64) -> Result<(), StorageError> {
        let disk = &mut *self.0.borrow_mut();
        let (len, looks) = (disk.get("syncing", segment)?.bytes.len(), disk.faults.sync_looks);
        assert!(disk.syncing.replace((segment, len, looks)).is_none(), "one sync at a time");
        Ok(())
    }

    fn is_synced(&mut self) -> Result<bool, StorageError> {
        let disk = &mut *self.0.borrow_mut();
        let Some((segment, len, looks)) = &mut disk.syncing else { return Ok(true) };
        if *looks > 0 {
            *looks -= 1;
            return Ok(false);
        }
        let (segment, len) = (*segment, *len);
        disk.syncing = None;
        disk.end_sync(segment, len).map(|()| true)
    }

    fn sync(&mut self, segment: u64) -> Result<(), StorageError> {
        let disk = &mut *self.0.borrow_mut();
        let len = disk.get("syncing", segment)?.bytes.len();
        disk.end_sync(segment, len)
    }

    fn truncate(&mut self, segment: u64, len: u64) -> Result<(), StorageError> {
        let mut disk = self.0.borrow_mut();
        let segment = disk.get("truncating", segment)?;
        segment.bytes.truncate(len as usize);
        segment.durable = segment.durable.min(len as usize);
        Ok(())
    }

    fn remove(&mut self, segment: u64) -> Result<(), StorageError> {
        let last = self.0.borrow_mut().segments.remove(&segment);
        last.map(|_| ()).ok_or_else(|| failed("removing", segment, "there is none"))
    }
}
