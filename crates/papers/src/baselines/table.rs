//! The hash table of FaRM as HERD's authors emulate it: hopscotch hashing with a neighbourhood of 6
//! (herd §5.1.2).
//!
//! ```text
//! slots     buckets + 5, each  name u64 | checksum u64 | value            (farm-em)
//!                          or  name u64 | checksum u64 | its value's number u64   (farm-em-var)
//! values    one for each slot, behind the slots                           (farm-em-var)
//! ```
//! A key's item is in one of the six slots that begin at its bucket, so one READ finds it. Name and
//! checksum are the paper's 16 bytes of a key: the name is 8 bytes of its hash and is never 0, the
//! checksum is over name and value. The checksum replaces the versions by which FaRM detects a torn
//! READ.
//!
//! # Invariants
//! 1. An item is in its neighbourhood. When an item is moved to make room, it is in its new slot
//!    before its old slot is free.
//! 2. The bytes of a reader are a value of the key if the checksum is right.
//!
//! A GET of a key that is moved meanwhile may miss it. In a measurement, items move only while the
//! table is loaded.

use loch_engines::EngineError;
use loch_fabric::{Buf, Fabric, FabricError, RemoteAddr};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Slots that an item can be in (herd §5.1.2: "its authors set it to 6").
pub const NEIGHBOURHOOD: u64 = 6;
/// Buckets for each record: with fewer, some keys find no place in such a small neighbourhood. FaRM
/// puts these keys into chains.
const BUCKETS_A_RECORD: u64 = 4;
const BUCKETS_MIN: u64 = 64;
/// Name and checksum.
pub const HEAD_BYTES: usize = 16;
/// Bytes of the place of an item's value, if that is not in the table.
const POINTER_BYTES: usize = 8;

/// The shape of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    buckets: u64,
    value_bytes: usize,
    inlined: bool,
    seed: u64,
}

impl Shape {
    /// For `records` records with values of this length.
    pub fn new(records: u64, value_bytes: usize, inlined: bool, seed: u64) -> Self {
        let buckets = (records * BUCKETS_A_RECORD).max(BUCKETS_MIN);
        Self { buckets, value_bytes, inlined, seed }
    }

    fn slots(&self) -> u64 {
        self.buckets + NEIGHBOURHOOD - 1
    }

    /// Whether values are in the table.
    pub fn is_inlined(&self) -> bool {
        self.inlined
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        let rest = if self.inlined { self.value_bytes } else { POINTER_BYTES };
        HEAD_BYTES + rest.next_multiple_of(8)
    }

    /// Bytes of a value.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    fn value_stride(&self) -> u64 {
        self.value_bytes.next_multiple_of(8) as u64
    }

    fn values_at(&self) -> u64 {
        self.slots() * self.slot_bytes() as u64
    }

    /// Bytes of the whole.
    pub fn bytes(&self) -> u64 {
        let values = if self.inlined { 0 } else { self.slots() * self.value_stride() };
        self.values_at() + values
    }

    /// A key's name, which is never 0.
    #[inline]
    pub fn name(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed).max(1)
    }

    #[inline]
    fn bucket(&self, name: u64) -> u64 {
        ((u128::from(name) * u128::from(self.buckets)) >> 64) as u64
    }

    /// The beginning of a name's neighbourhood, in a table whose first byte is `base`.
    #[inline]
    pub fn neighbourhood(&self, base: RemoteAddr, name: u64) -> RemoteAddr {
        self.slot(base, self.bucket(name))
    }

    #[inline]
    fn slot(&self, base: RemoteAddr, slot: u64) -> RemoteAddr {
        base.add(slot * self.slot_bytes() as u64)
    }

    /// The place of a value that is not in the table.
    #[inline]
    pub fn value(&self, base: RemoteAddr, number: u64) -> RemoteAddr {
        base.add(self.values_at() + number % self.slots() * self.value_stride())
    }
}

/// The checksum, which shows that a value is whole and belongs to the key.
#[inline]
pub fn checksum(name: u64, value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, name)
}

/// The server's side of a table: only the server writes the table.
#[derive(Debug)]
pub struct Table {
    shape: Shape,
    base: RemoteAddr,
    /// The name in each slot, 0 for a free slot; and the number of its value, if that is not in the
    /// table.
    items: Vec<(u64, u64)>,
    /// Free numbers of values.
    free: Vec<u64>,
    scratch: Buf,
}

impl Table {
    /// An empty table at `base`, whose memory is zeroed.
    pub fn new(shape: Shape, base: RemoteAddr) -> Self {
        let slots = shape.slots();
        let free = if shape.inlined { Vec::new() } else { (0..slots).rev().collect() };
        Self { shape, base, items: vec![(0, 0); slots as usize], free, scratch: Buf::new() }
    }

    /// Gives a key a value.
    ///
    /// # Errors
    /// [`EngineError::ValueTooLong`] for a value whose length differs from the others,
    /// [`EngineError::IndexFull`] if no slot of the neighbourhood can be freed.
    pub fn put<F: Fabric>(
        &mut self,
        fabric: &F,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), EngineError> {
        let (len, max) = (value.len() as u64, self.shape.value_bytes as u64);
        if len != max {
            return Err(EngineError::ValueTooLong { len, max });
        }
        let name = self.shape.name(key);
        let bucket = self.shape.bucket(name);
        let known =
            (bucket..bucket + NEIGHBOURHOOD).find(|slot| self.items[*slot as usize].0 == name);
        let slot = match known {
            Some(slot) => slot,
            None => {
                let slot = self.make_room(fabric, bucket)?;
                let number = if self.shape.inlined { 0 } else { self.free.pop().unwrap_or(0) };
                self.items[slot as usize] = (name, number);
                slot
            }
        };
        Ok(self.write(fabric, slot, value)?)
    }

    fn write<F: Fabric>(&mut self, fabric: &F, slot: u64, value: &[u8]) -> Result<(), FabricError> {
        let (name, number) = self.items[slot as usize];
        let head = [name.to_le_bytes(), checksum(name, value).to_le_bytes()];
        let at = self.shape.slot(self.base, slot);
        self.scratch.clear();
        self.scratch.extend_from_slice(head.as_flattened());
        if self.shape.inlined {
            self.scratch.extend_from_slice(value);
        } else {
            self.scratch.extend_from_slice(&number.to_le_bytes());
            fabric.store(self.shape.value(self.base, number), &[value])?;
        }
        fabric.store(at, &[&self.scratch])
    }

    /// A free slot in the neighbourhood of `bucket`: the nearest free one is brought there, one
    /// move after the other.
    fn make_room<F: Fabric>(&mut self, fabric: &F, bucket: u64) -> Result<u64, EngineError> {
        let slots = self.items.len() as u64;
        let mut free = (bucket..slots).find(|slot| self.items[*slot as usize].0 == 0);
        while let Some(to) = free.filter(|to| *to >= bucket + NEIGHBOURHOOD) {
            let movable =
                |from: &u64| to < self.shape.bucket(self.items[*from as usize].0) + NEIGHBOURHOOD;
            free = (to + 1 - NEIGHBOURHOOD..to).find(movable);
            if let Some(from) = free {
                self.shift(fabric, from, to)?;
            }
        }
        free.ok_or(EngineError::IndexFull { slots, moves: slots as usize })
    }

    fn shift<F: Fabric>(&mut self, fabric: &F, from: u64, to: u64) -> Result<(), FabricError> {
        let (old, new) = (self.shape.slot(self.base, from), self.shape.slot(self.base, to));
        self.scratch.clear();
        fabric.load_bytes(old, self.shape.slot_bytes(), &mut self.scratch)?;
        fabric.store(new, &[&self.scratch])?;
        fabric.store(old, &[&[0; HEAD_BYTES]])?;
        self.items[to as usize] = std::mem::take(&mut self.items[from as usize]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loch_fabric::shm::{Region, ShmEndpoint};
    use loch_fabric::{RegionId, lanes::block_on};

    use super::*;

    fn memory(bytes: u64) -> ShmEndpoint {
        let mut fabric = ShmEndpoint::new(RegionId(0));
        fabric.attach(RegionId(0), Arc::new(Region::anonymous(bytes).unwrap()));
        fabric
    }

    #[test]
    fn slots_have_the_papers_sizes() {
        let bytes = |value, inlined| 6 * Shape::new(1, value, inlined, 0).slot_bytes();
        // herd §5.3: "a single 288 byte READ" for items of 16 and 32 bytes; and §5.1.2.
        assert_eq!((bytes(32, true), bytes(32, false)), (288, 6 * (16 + 8)));
    }

    #[test]
    fn an_item_is_in_its_neighbourhood_however_full_the_table_is() {
        for inlined in [true, false] {
            // A shape for no records has the fewest buckets, of which these keys fill more than a
            // half.
            let shape = Shape::new(0, 32, inlined, 7);
            let (fabric, base) = (memory(1 << 16), RemoteAddr::new(RegionId(0), 64));
            let mut table = Table::new(shape, base);
            let value = |key: u64| [key as u8 ^ 0x5a; 32];
            let mut stored = Vec::new();
            for key in 0..48u64 {
                match table.put(&fabric, &key.to_le_bytes(), &value(key)) {
                    Ok(()) => stored.push(key),
                    Err(error) => {
                        assert!(matches!(error, EngineError::IndexFull { .. }), "{error}")
                    }
                }
            }
            assert!(stored.len() >= 36, "{}", stored.len());
            let shifted = |(slot, item): (usize, &(u64, u64))| {
                item.0 != 0 && slot as u64 != shape.bucket(item.0)
            };
            assert!(table.items.iter().enumerate().any(shifted), "some are not in their bucket");
            for key in stored {
                assert_eq!(read(&fabric, &shape, base, key), Some(value(key).to_vec()), "{key}");
            }
            assert_eq!(read(&fabric, &shape, base, 99), None);
        }
    }

    #[test]
    fn a_value_of_another_length_is_refused() {
        let shape = Shape::new(1, 32, true, 7);
        let mut table = Table::new(shape, RemoteAddr::new(RegionId(0), 0));
        let error = table.put(&memory(1 << 16), b"key", &[0; 31]).unwrap_err();
        assert!(matches!(error, EngineError::ValueTooLong { len: 31, max: 32 }), "{error}");
    }

    fn read(fabric: &ShmEndpoint, shape: &Shape, base: RemoteAddr, key: u64) -> Option<Vec<u8>> {
        let name = shape.name(&key.to_le_bytes());
        let len = shape.slot_bytes() * NEIGHBOURHOOD as usize;
        let (slots, done) = block_on(fabric.read(shape.neighbourhood(base, name), len, Buf::new()));
        done.unwrap();
        let slot =
            slots.chunks_exact(shape.slot_bytes()).find(|it| it[..8] == name.to_le_bytes())?;
        let value = if shape.inlined {
            slot[HEAD_BYTES..HEAD_BYTES + 32].to_vec()
        } else {
            let number = u64::from_le_bytes(slot[HEAD_BYTES..].try_into().unwrap());
            let (value, done) = block_on(fabric.read(shape.value(base, number), 32, Buf::new()));
            done.unwrap();
            value.to_vec()
        };
        assert_eq!(slot[8..HEAD_BYTES], checksum(name, &value).to_le_bytes());
        Some(value)
    }
}
