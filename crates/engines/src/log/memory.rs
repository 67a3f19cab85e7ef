//! A disk in memory that fails as disks do: for tests and for the simulator.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::storage::{Storage, StorageError};

/// A disk. Clones are the same disk, which outlives the process that writes to it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage(Rc<RefCell<Disk>>);

#[derive(Debug, Default)]
struct Disk {
    segments: BTreeMap<u64, Segment>,
    /// The sync under way: its segment, the byte up to which it syncs, and the number of looks that
    /// it still takes.
    syncing: Option<(u64, usize, u32)>,
    faults: DiskFaults,
    syncs: u64,
}

#[derive(Debug, Default)]
struct Segment {
    bytes: Vec<u8>,
    /// Whether the process that made the segment lives and has not sealed it.
    open: bool,
    /// The offset from which on a sync would write the bytes.
    clean: usize,
    /// Bytes before that offset that count as written but are not on the disk.
    holes: Vec<Range<usize>>,
}

impl Segment {
    /// The disk refuses to write the bytes up to `len`. As with a Linux page cache, processes can
    /// read them as before, and no sync tries to write them again.
    fn refuse(&mut self, len: usize) {
        if self.clean < len {
            self.holes.push(self.clean..len);
            self.clean = len;
        }
    }

    /// Leaves only the bytes that survive a loss of power: all bytes that are on the disk, and of
    /// the other bytes those that `random` chooses, for each sector and for the end.
    fn lose_power(&mut self, random: &mut impl FnMut() -> u64) {
        // No byte after this is certainly on the disk.
        let mut solid = self.clean;
        while let Some(hole) = self.holes.pop_if(|hole| hole.end == solid) {
            solid = hole.start;
        }
        let uncertain = self.bytes.len() - solid;
        let keep = if uncertain == 0 { 0 } else { random() as usize % (uncertain + 1) };
        self.bytes.truncate(solid + keep);
        for sector in self.bytes[solid..].chunks_mut(SECTOR_BYTES) {
            if random().is_multiple_of(4) {
                sector.fill(0);
            }
        }
        for hole in std::mem::take(&mut self.holes) {
            for sector in self.bytes[hole].chunks_mut(SECTOR_BYTES) {
                if !random().is_multiple_of(4) {
                    sector.fill(0);
                }
            }
        }
        (self.clean, self.open) = (self.bytes.len(), false);
    }
}

/// The unit that a disk writes or does not write.
const SECTOR_BYTES: usize = 64;

/// The faults of a [`MemoryStorage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// This many more appends succeed.
    pub appends_left: Option<u64>,
    /// This many more syncs succeed. The bytes that a failed sync should have made durable count as
    /// written from then on.
    pub syncs_left: Option<u64>,
    /// This many more removals succeed.
    pub removes_left: Option<u64>,
    /// The number of looks at a sync before it is over.
    pub sync_looks: u32,
}

impl MemoryStorage {
    /// Changes the faults from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.0.borrow_mut().faults = faults;
    }

    /// The number of syncs so far.
    pub fn syncs(&self) -> u64 {
        self.0.borrow().syncs
    }

    /// The process dies. A sync under way may end or not; all appended bytes can be read, and no
    /// process appends to the existing segments.
    pub fn kill(&self) {
        let disk = &mut *self.0.borrow_mut();
        disk.syncing = None;
        disk.segments.values_mut().for_each(|segment| segment.open = false);
    }

    /// After [`MemoryStorage::kill`]: the disk refuses all bytes that were appended and not synced,
    /// and no process is there to learn of it. The bytes can be read as before, until the power is
    /// lost.
    pub fn refuse_writes(&self) {
        for segment in self.0.borrow_mut().segments.values_mut() {
            segment.refuse(segment.bytes.len());
        }
    }

    /// The host loses its power. For bytes that are not on the disk, `random` decides for each
    /// sector of 64 bytes whether it is there, and where the segment ends.
    pub fn lose_power(&self, mut random: impl FnMut() -> u64) {
        let disk = &mut *self.0.borrow_mut();
        disk.syncing = None;
        for segment in disk.segments.values_mut() {
            segment.lose_power(&mut random);
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

    /// Cuts a segment's end off.
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn truncate(&self, segment: u64, len: usize) {
        let mut disk = self.0.borrow_mut();
        let segment = disk.segments.get_mut(&segment).expect("there is such a segment");
        segment.bytes.truncate(len);
        segment.clean = segment.clean.min(len);
        segment.holes.retain_mut(|hole| {
            hole.end = hole.end.min(len);
            hole.start < hole.end
        });
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

    /// The segment, if a process may append to it and sync it.
    fn opened(&mut self, what: &'static str, segment: u64) -> Result<&mut Segment, StorageError> {
        let found = self.get(what, segment)?;
        if found.open { Ok(found) } else { Err(failed(what, segment, "it is not open")) }
    }

    fn end_sync(&mut self, segment: u64, len: usize) -> Result<(), StorageError> {
        if !spend(&mut self.faults.syncs_left) {
            self.opened("syncing", segment)?.refuse(len);
            return Err(failed("syncing", segment, "the disk failed"));
        }
        self.syncs += 1;
        let segment = self.opened("syncing", segment)?;
        segment.clean = segment.clean.max(len);
        Ok(())
    }
}

/// Takes one from the allowed number. Returns whether there was one.
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
        let made = Segment { open: true, ..Segment::default() };
        let last = self.0.borrow_mut().segments.insert(segment, made);
        last.map_or(Ok(()), |_| Err(failed("creating", segment, "there is one already")))
    }

    fn append(&mut self, segment: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let disk = &mut *self.0.borrow_mut();
        if !spend(&mut disk.faults.appends_left) {
            // Like a full disk, this writes a part of the bytes.
            let half = &bytes[..bytes.len() / 2];
            disk.opened("appending to", segment)?.bytes.extend_from_slice(half);
            return Err(failed("appending to", segment, "the disk is full"));
        }
        disk.opened("appending to", segment)?.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn begin_sync(&mut self, segment: u64) -> Result<(), StorageError> {
        let disk = &mut *self.0.borrow_mut();
        let (len, looks) = (disk.opened("syncing", segment)?.bytes.len(), disk.faults.sync_looks);
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
        let len = disk.opened("syncing", segment)?.bytes.len();
        disk.end_sync(segment, len)
    }

    fn seal(&mut self, segment: u64) -> Result<(), StorageError> {
        self.sync(segment)?;
        self.0.borrow_mut().get("sealing", segment)?.open = false;
        Ok(())
    }

    fn remove(&mut self, segment: u64) -> Result<(), StorageError> {
        let disk = &mut *self.0.borrow_mut();
        if !spend(&mut disk.faults.removes_left) {
            return Err(failed("removing", segment, "the disk failed"));
        }
        let last = disk.segments.remove(&segment);
        last.map(|_| ()).ok_or_else(|| failed("removing", segment, "there is none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1;

    /// A disk with one segment of `synced` bytes that were synced and `unsynced` bytes that were
    /// not; no byte is zero.
    fn disk(synced: usize, unsynced: usize) -> MemoryStorage {
        let mut disk = MemoryStorage::default();
        disk.create(SEGMENT).unwrap();
        disk.append(SEGMENT, &vec![7; synced]).unwrap();
        disk.sync(SEGMENT).unwrap();
        disk.append(SEGMENT, &vec![7; unsynced]).unwrap();
        disk
    }

    fn bytes(disk: &MemoryStorage) -> Vec<u8> {
        disk.clone().read(SEGMENT).unwrap()
    }

    /// Numbers that begin with `first` and take every remainder.
    fn numbers(first: u64) -> impl FnMut() -> u64 {
        let mut next = first;
        move || {
            next += 1;
            next - 1
        }
    }

    #[test]
    fn a_loss_of_power_may_take_any_part_of_what_was_not_synced_and_nothing_else() {
        let (mut lens, mut gone, mut there) = (Vec::new(), 0, 0);
        for first in 101..202 {
            let disk = disk(100, 100);
            disk.lose_power(numbers(first));
            let bytes = bytes(&disk);
            assert!(bytes[..100].iter().all(|byte| *byte == 7));
            let (lost, kept): (Vec<u8>, Vec<u8>) = bytes[100..].iter().partition(|b| **b == 0);
            (gone, there) = (gone + lost.len(), there + kept.len());
            lens.push(bytes.len());
        }
        lens.sort_unstable();
        assert_eq!(lens, (100..=200).collect::<Vec<_>>(), "it ends anywhere");
        assert!(gone > 100 && there > gone, "{gone} bytes lost, {there} kept");
    }

    #[test]
    fn what_the_disk_refused_is_read_until_the_power_is_lost_and_then_mostly_gone() {
        let (mut gone, mut there) = (0, 0);
        for first in 0..8 {
            let mut disk = disk(100, 64);
            disk.refuse_writes();
            // A sync that succeeds does not write it, while bytes after it are on the disk.
            disk.sync(SEGMENT).unwrap();
            disk.append(SEGMENT, &[9; 10]).unwrap();
            disk.sync(SEGMENT).unwrap();
            assert_eq!(bytes(&disk), [&[7; 164][..], &[9; 10]].concat());
            disk.lose_power(numbers(first));
            let bytes = bytes(&disk);
            assert_eq!((&bytes[..100], &bytes[164..]), (&[7; 100][..], &[9; 10][..]));
            let is_there = bytes[100..164] == [7; 64];
            assert!(is_there || bytes[100..164] == [0; 64]);
            *if is_there { &mut there } else { &mut gone } += 1;
        }
        assert_eq!((there, gone), (2, 6));
    }

    /// If no byte was written after it, the end of the segment may be gone with it.
    #[test]
    fn what_was_refused_last_may_be_cut_off() {
        let lens = (65..130).map(|first| {
            let disk = disk(100, 64);
            disk.refuse_writes();
            disk.lose_power(numbers(first));
            disk.len(SEGMENT)
        });
        let mut lens: Vec<_> = lens.collect();
        lens.sort_unstable();
        assert_eq!(lens, (100..=164).collect::<Vec<_>>());
    }

    #[test]
    fn a_segment_that_is_cut_has_refused_bytes_up_to_its_new_end() {
        for len in [50, 100, 130, 164] {
            let mut disk = disk(100, 64);
            disk.refuse_writes();
            disk.append(SEGMENT, &[9; 10]).unwrap();
            disk.sync(SEGMENT).unwrap();
            disk.truncate(SEGMENT, len);
            disk.append(SEGMENT, &[9; 10]).unwrap();
            disk.sync(SEGMENT).unwrap();
            disk.lose_power(|| 1);
            let refused = vec![0; len.saturating_sub(100)];
            assert_eq!(bytes(&disk), [vec![7; len.min(100)], refused, vec![9; 10]].concat());
        }
    }

    #[test]
    fn a_full_disk_takes_half() {
        let mut disk = disk(0, 0);
        disk.set_faults(DiskFaults { appends_left: Some(1), ..DiskFaults::default() });
        disk.append(SEGMENT, &[7; 10]).unwrap();
        assert!(disk.append(SEGMENT, &[7; 10]).is_err());
        assert_eq!(disk.len(SEGMENT), 15);
    }
}
