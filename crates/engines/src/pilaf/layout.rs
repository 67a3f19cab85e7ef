//! The bytes that clients read: root, hash table entries, extents (pilaf §3.3, Figure 5).
//!
//! `docs/memory-layout.md` has them as tables. Everything is self-verifying: the root and each
//! entry carry a CRC-64 of themselves, and an entry's pointer carries CRC-64s of the bytes to which
//! it points. A reader believes only bytes whose checksum it has computed.
//!
//! # Invariants
//! 1. An entry's checksum covers its stamp, the table's generation and the number of its slot. So
//!    bytes that were written for another slot, for another index or as a value never count as an
//!    entry.
//! 2. A stamp is used for one write of one slot in a generation, also for EMPTY entries. So if two
//!    READs show the same stamp, the slot did not change between them.
//! 3. The checksums of a pointer cover the expiry, the key and the value, and the checksum of the
//!    entry covers the version: bytes that verify *are* that version of that key, whatever the
//!    memory was used for meanwhile.

use loch_fabric::RemoteAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::checksum;
use crate::operation::Version;

/// Words of a root and of an entry: a cache line each.
pub const LINE_WORDS: usize = 8;
/// Bytes of a root and of an entry.
pub const LINE_BYTES: u64 = 64;
/// Offset of the two copies of the lease of versions from the root; see
/// [`versions`](super::versions).
pub const LEASES_OFFSET: u64 = 64;
/// Offset of the arena from the root.
pub const ARENA_OFFSET: u64 = 4096;
/// Extents start at multiples of this many bytes of the arena, and blocks have at least this size.
pub const GRAIN_BYTES: u64 = 64;
/// Candidate slots of a key (pilaf §3.4: three hash functions).
pub const WAYS: usize = 3;
/// Bytes of an expiry, which comes before the key in an extent that has one.
pub const EXPIRY_BYTES: usize = 8;

const EXPIRES: u32 = 1;

/// The root, where clients begin (pilaf §3.3: the root objects' location and size).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Root {
    /// Twice the generation, plus one while the table is closed. Clients look at this word again.
    pub state: u64,
    /// Offset of the index's first byte in the arena.
    pub index: u64,
    /// Slots of the index, a power of two.
    pub slots: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Reserved, zero.
    pub reserved: [u64; 3],
    /// [`checksum`] of the bytes before this field.
    pub checksum: u64,
}

/// One slot of the hash table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Entry {
    /// The number of this write among all writes of the index.
    pub stamp: u64,
    /// The key's hash.
    pub hash: u64,
    /// The extent, in grains from the arena's first byte.
    pub grain: u32,
    /// Bytes of the key; 0: the slot is EMPTY.
    pub key_len: u32,
    /// Bytes of the value.
    pub value_len: u32,
    flags: u32,
    /// [`checksum`] of the extent up to the end of its key.
    pub key_checksum: u64,
    /// [`checksum`] of the value.
    pub value_checksum: u64,
    /// The version that users see.
    pub version: Version,
    checksum: u64,
}

const _: () = {
    assert!(size_of::<Root>() as u64 == LINE_BYTES && size_of::<Root>() == LINE_WORDS * 8);
    assert!(size_of::<Entry>() as u64 == LINE_BYTES);
    assert!(std::mem::offset_of!(Entry, grain) == 16);
    assert!(std::mem::offset_of!(Entry, value_len) == 24);
    assert!(std::mem::offset_of!(Entry, key_checksum) == 32);
    assert!(std::mem::offset_of!(Entry, checksum) == 56);
    assert!(std::mem::offset_of!(Root, checksum) == 56);
    assert!(ARENA_OFFSET.is_multiple_of(LINE_BYTES) && ARENA_OFFSET >= LINE_BYTES);
    assert!(crate::limits::VALUE_BYTES_MAX <= u32::MAX as u64);
};

impl Root {
    /// The root of a generation, not closed, with its checksum.
    pub fn sealed(generation: u64, index: u64, slots: u64, arena_bytes: u64) -> Self {
        let state = generation << 1;
        let mut root = Self { state, index, slots, arena_bytes, reserved: [0; 3], checksum: 0 };
        root.checksum = root.computed();
        root
    }

    fn computed(&self) -> u64 {
        checksum(&self.as_bytes()[..size_of::<Self>() - 8])
    }

    /// The root in these words; `None` if they are torn, damaged, or of a closed table.
    pub fn verified(words: &[u64; LINE_WORDS]) -> Option<Self> {
        let root: Self = zerocopy::transmute!(*words);
        let fits = root
            .slots
            .checked_mul(LINE_BYTES)
            .and_then(|bytes| bytes.checked_add(root.index))
            .is_some_and(|end| end <= root.arena_bytes);
        (root.checksum == root.computed() && root.state & 1 == 0 && root.slots.is_power_of_two())
            .then_some(root)
            .filter(|_| fits)
    }

    /// The number of the index, which never repeats.
    pub fn generation(&self) -> u64 {
        self.state >> 1
    }

    /// The words as they lie in memory.
    pub fn words(&self) -> [u64; LINE_WORDS] {
        zerocopy::transmute!(*self)
    }
}

/// The place of a slot, which its entry's checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotName {
    /// The index's generation.
    pub generation: u64,
    /// The number of the slot in the index.
    pub slot: u64,
}

impl Entry {
    /// An EMPTY entry, not sealed yet.
    pub const EMPTY: Self = Self {
        stamp: 0,
        hash: 0,
        grain: 0,
        key_len: 0,
        value_len: 0,
        flags: 0,
        key_checksum: 0,
        value_checksum: 0,
        version: Version::from_u64(0),
        checksum: 0,
    };

    /// The entry of a value, not sealed yet.
    ///
    /// # Panics
    /// If the key or the value is longer than the limits allow.
    pub fn of(hash: u64, version: Version, key: &[u8], value: &[u8], expiry: Option<u64>) -> Self {
        let key_checksum = match expiry {
            None => checksum(key),
            Some(ms) => checksum(&[&ms.to_le_bytes(), key].concat()),
        };
        Self {
            hash,
            version,
            key_len: u32::try_from(key.len()).expect("keys are checked on entry"),
            value_len: u32::try_from(value.len()).expect("values are checked on entry"),
            flags: if expiry.is_some() { EXPIRES } else { 0 },
            key_checksum,
            value_checksum: checksum(value),
            ..Self::EMPTY
        }
    }

    /// The entry as it is written into a slot.
    pub fn sealed(mut self, stamp: u64, name: SlotName) -> Self {
        self.stamp = stamp;
        self.checksum = self.computed(name);
        self
    }

    fn computed(&self, name: SlotName) -> u64 {
        let mut bytes = [0; 72];
        bytes[..56].copy_from_slice(&self.as_bytes()[..56]);
        bytes[56..64].copy_from_slice(&name.generation.to_le_bytes());
        bytes[64..].copy_from_slice(&name.slot.to_le_bytes());
        checksum(&bytes)
    }

    /// The entry in these words; `None` if they are torn or damaged, or not of this slot.
    pub fn verified(words: &[u64; LINE_WORDS], name: SlotName) -> Option<Self> {
        let entry = Self::from_words(*words);
        (entry.checksum == entry.computed(name)).then_some(entry)
    }

    /// The entry in these words, unverified: for the server, which alone writes this memory.
    pub fn from_words(words: [u64; LINE_WORDS]) -> Self {
        zerocopy::transmute!(words)
    }

    /// The words as they lie in memory.
    pub fn words(&self) -> [u64; LINE_WORDS] {
        zerocopy::transmute!(*self)
    }

    /// Whether the slot holds no key.
    pub fn is_empty(&self) -> bool {
        self.key_len == 0
    }

    /// Where the key starts in the extent.
    pub fn key_at(&self) -> usize {
        if self.flags & EXPIRES != 0 { EXPIRY_BYTES } else { 0 }
    }

    /// Where the value starts in the extent.
    pub fn value_at(&self) -> usize {
        self.key_at() + self.key_len as usize
    }

    /// Bytes of the extent.
    pub fn extent_len(&self) -> usize {
        self.value_at() + self.value_len as usize
    }

    /// The expiry, in milliseconds since the Unix epoch, of an extent that begins with `extent`.
    pub fn expires_at_ms(&self, extent: &[u8]) -> Option<u64> {
        (self.flags & EXPIRES != 0).then_some(())?;
        let bytes = extent.get(..EXPIRY_BYTES)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// Whether `extent` begins with the expiry and key that this entry points to.
    pub fn verifies_key(&self, extent: &[u8]) -> bool {
        extent.get(..self.value_at()).is_some_and(|head| checksum(head) == self.key_checksum)
    }

    /// Whether `extent` is the extent to which this entry points.
    pub fn verifies(&self, extent: &[u8]) -> bool {
        let value = extent.get(self.value_at()..self.extent_len());
        self.verifies_key(extent) && value.is_some_and(|v| checksum(v) == self.value_checksum)
    }
}

/// The bytes of an extent.
pub fn extent_parts<'a>(
    expiry: &'a Option<[u8; EXPIRY_BYTES]>,
    key: &'a [u8],
    value: &'a [u8],
) -> [&'a [u8]; 3] {
    [expiry.as_ref().map_or(&[][..], |bytes| &bytes[..]), key, value]
}

/// The first byte of an extent.
pub fn extent_addr(root: RemoteAddr, grain: u32) -> RemoteAddr {
    root.add(ARENA_OFFSET + u64::from(grain) * GRAIN_BYTES)
}

/// The first byte of a slot of an index that starts `index` bytes into the arena.
pub fn slot_addr(root: RemoteAddr, index: u64, slot: u64) -> RemoteAddr {
    root.add(ARENA_OFFSET + index + slot * LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAME: SlotName = SlotName { generation: 7, slot: 12 };

    #[test]
    fn zeros_are_neither_a_root_nor_an_entry() {
        assert_eq!(Root::verified(&[0; LINE_WORDS]), None);
        assert_eq!(Entry::verified(&[0; LINE_WORDS], SlotName { generation: 0, slot: 0 }), None);
        assert_eq!(Entry::verified(&[0; LINE_WORDS], NAME), None);
    }

    #[test]
    fn a_closed_root_is_not_used_and_every_flipped_bit_is_noticed() {
        let root = Root::sealed(9, 4096, 64, 1 << 20);
        assert_eq!(Root::verified(&root.words()), Some(root));
        for bit in 0..LINE_WORDS * 64 {
            let mut words = root.words();
            words[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(Root::verified(&words), None, "bit {bit}");
        }
        let outside = Root::sealed(9, 1 << 20, 64, 1 << 20);
        assert_eq!(Root::verified(&outside.words()), None);
    }

    proptest! {
        #[test]
        fn every_flipped_bit_of_an_entry_is_noticed(
            stamp: u64, hash: u64, version: u64, grain: u32, expires: Option<u64>,
            key in prop::collection::vec(any::<u8>(), 1..40),
            value in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let version = Version::from_u64(version);
            let entry = Entry { grain, ..Entry::of(hash, version, &key, &value, expires) };
            let entry = entry.sealed(stamp, NAME);
            let words = entry.words();
            prop_assert_eq!(Entry::verified(&words, NAME), Some(entry));
            for bit in 0..LINE_WORDS * 64 {
                let mut bad = words;
                bad[bit / 64] ^= 1 << (bit % 64);
                prop_assert_eq!(Entry::verified(&bad, NAME), None, "bit {}", bit);
            }
            prop_assert_eq!(Entry::verified(&words, SlotName { slot: 13, ..NAME }), None);
            prop_assert_eq!(Entry::verified(&words, SlotName { generation: 8, ..NAME }), None);
        }

        #[test]
        fn every_flipped_bit_of_an_extent_is_noticed(
            expires: Option<u64>,
            key in prop::collection::vec(any::<u8>(), 1..40),
            value in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let entry = Entry::of(1, Version::from_u64(2), &key, &value, expires);
            let expiry = expires.map(u64::to_le_bytes);
            let extent = extent_parts(&expiry, &key, &value).concat();
            prop_assert_eq!(extent.len(), entry.extent_len());
            prop_assert!(entry.verifies(&extent) && entry.verifies_key(&extent));
            prop_assert!(entry.verifies_key(&extent[..entry.value_at()]));
            prop_assert_eq!(entry.expires_at_ms(&extent), expires);
            prop_assert_eq!(&extent[entry.key_at()..entry.value_at()], &key[..]);
            for bit in 0..extent.len() * 8 {
                let mut bad = extent.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(!entry.verifies(&bad), "bit {}", bit);
                prop_assert_eq!(entry.verifies_key(&bad), bit / 8 >= entry.value_at());
            }
            prop_assert!(!entry.verifies(&extent[..extent.len() - 1]));
        }
    }
}
