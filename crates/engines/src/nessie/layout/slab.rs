//! Size classes, slabs and the chunk table: how a data table is cut into entries.
//!
//! A data table is an array of chunks, each with a descriptor word in the chunk table. A client
//! leases a run of chunks by CAS and cuts it into entries of one size: a **slab**. Each long entry
//! has a run of its own, a slab of one entry.
//!
//! | slab offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | generation floor: entries never used have this generation |
//! | 8 | 8 | formatted: entries that were ever used; the others are free |
//! | 64 | 4 × entries | notes |
//! | data_at | class bytes × entries | entries |
//!
//! **Notes.** The client that unlinks an entry from the index WRITEs the low half of the entry's
//! generation into its note. The client that reuses the entry clears the note and then changes the
//! generation. So an entry is free if, and only if, its note is its generation. A note that comes
//! late belongs to an older generation and says nothing.

use super::ite::Place;
use crate::limits::CHUNK_BYTES;

/// Bytes of a slab's header.
pub const SLAB_HEADER_BYTES: u64 = 64;
/// Offset of the count of entries ever used.
pub const FORMATTED_OFFSET: u64 = 8;
/// The class number of slabs with one long entry.
pub const LARGE: u8 = u8::MAX;

const CLASS_BYTES_MIN: u64 = 64;
const CLASS_BYTES_MAX: u64 = 256 << 10;
const SLAB_BYTES_WANTED: u64 = 1 << 20;
/// Entries from this size on are multiples of a cache line.
const LINED_UP_FROM: u64 = 1 << 10;
/// A data table with fewer bytes has fewer classes, and fewer entries in its slabs.
const SMALL_DATA_BYTES: u64 = 64 << 20;
/// The length of long entries is rounded up to one of so many lengths for each doubling, so that
/// entries of about the same length can have each other's memory.
const LARGE_A_DOUBLING: u64 = 32;

/// How entries of one size lie in their slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    /// The number of the class; [`LARGE`] for long entries, whose classes also differ in `chunks`.
    pub id: u8,
    /// Chunks of a slab; a power of two unless the class is [`LARGE`].
    pub chunks: u32,
    /// Entries of a slab.
    pub entries: u32,
    /// Bytes of an entry.
    pub entry_bytes: u64,
    /// Where the first entry starts in the slab.
    pub data_at: u64,
}

/// A run of chunks: the data table and the first chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slab {
    /// The data table.
    pub dti: u8,
    /// The first chunk.
    pub chunk: u32,
}

/// An entry of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The slab.
    pub slab: Slab,
    /// The entry's number in the slab.
    pub number: u32,
}

impl Class {
    /// The class of entries of at least `least` bytes, as many as a slab of these chunks holds.
    /// They share what would be left of the slab.
    fn new(id: u8, least: u64, chunks: u32, grain_bytes: u64) -> Self {
        let bytes = chunks as u64 * CHUNK_BYTES;
        let data_at = |entries| data_at(entries, grain_bytes);
        // Notes and entries share the bytes after the header.
        let mut entries = (bytes - SLAB_HEADER_BYTES) / (least + 4);
        while entries > 0 && data_at(entries) + entries * least > bytes {
            entries -= 1;
        }
        let data_at = data_at(entries);
        let share = bytes.saturating_sub(data_at).checked_div(entries).unwrap_or(0);
        // Long entries do not begin in the middle of a cache line.
        let unit = if least < LINED_UP_FROM { grain_bytes } else { grain_bytes.max(64) };
        let entry_bytes = share / unit * unit;
        Self { id, chunks, entries: entries as u32, entry_bytes, data_at }
    }

    /// The class of a long entry.
    fn large(entry_len: u64, grain_bytes: u64) -> Self {
        let chunks = (data_at(1, grain_bytes) + entry_len).div_ceil(CHUNK_BYTES);
        Self::large_of(chunks.next_multiple_of(large_step(chunks)) as u32, grain_bytes)
    }

    /// The class of long entries that have a run of so many chunks.
    fn large_of(chunks: u32, grain_bytes: u64) -> Self {
        let data_at = data_at(1, grain_bytes);
        let entry_bytes = u64::from(chunks) * CHUNK_BYTES - data_at;
        Self { id: LARGE, chunks, entries: 1, entry_bytes, data_at }
    }

    /// Whether a slab of the class can start at a chunk of a data table with `of_chunks` chunks. A
    /// reader of a descriptor asks this, because a damaged descriptor would lead out of the data
    /// table.
    pub fn may_start_at(&self, chunk: u32, of_chunks: u64) -> bool {
        let aligned = self.id == LARGE || chunk.is_multiple_of(self.chunks);
        aligned && chunk as u64 + self.chunks as u64 <= of_chunks
    }

    /// The offset of entry `number` in its slab.
    #[inline(always)]
    pub fn entry_at(&self, number: u32) -> u64 {
        self.data_at + number as u64 * self.entry_bytes
    }

    /// The offset of the note of entry `number` in its slab.
    #[inline(always)]
    pub fn note_at(&self, number: u32) -> u64 {
        SLAB_HEADER_BYTES + number as u64 * 4
    }

    /// The place of an entry, as an index entry names it.
    #[inline(always)]
    pub fn place(&self, entry: Entry) -> Place {
        let at = entry.slab.chunk as u64 * CHUNK_BYTES + self.entry_at(entry.number);
        Place { dti: entry.slab.dti, offset: at }
    }

    /// The slab with a place, if the place can be among the entries of a slab of this class.
    #[inline(always)]
    pub fn slab(&self, place: Place) -> Option<Slab> {
        // Notes may fill chunks of their own, so the chunk is found without them.
        let mut chunk = place.offset.checked_sub(self.data_at)? / CHUNK_BYTES;
        if self.id != LARGE {
            // Slabs lie at multiples of their size.
            chunk &= !(self.chunks as u64 - 1);
        }
        Some(Slab { dti: place.dti, chunk: chunk as u32 })
    }

    /// The entry at a place, if an entry of this class can start there.
    #[inline(always)]
    pub fn entry(&self, place: Place) -> Option<Entry> {
        let slab = self.slab(place)?;
        let offset = place.offset - self.data_at - u64::from(slab.chunk) * CHUNK_BYTES;
        // A division of thirty-two bits is faster, and no run is longer.
        let (offset, entry_bytes) = (u32::try_from(offset).ok()?, self.entry_bytes as u32);
        let number = offset / entry_bytes;
        (offset % entry_bytes == 0 && number < self.entries).then_some(Entry { slab, number })
    }
}

/// Runs of about so many chunks have a multiple of this number.
fn large_step(chunks: u64) -> u64 {
    (chunks.next_power_of_two() / (2 * LARGE_A_DOUBLING)).max(1)
}

/// Bytes of the longest entry for which a data table has a run.
pub fn longest_entry_bytes(data_bytes: u64, grain_bytes: u64) -> u64 {
    let chunks = data_bytes / CHUNK_BYTES;
    let run = chunks - chunks % large_step(chunks);
    (run * CHUNK_BYTES).saturating_sub(data_at(1, grain_bytes))
}

/// Entries start on a cache line, and at a multiple of the grain.
fn data_at(entries: u64, grain_bytes: u64) -> u64 {
    (SLAB_HEADER_BYTES + entries * 4).next_multiple_of(grain_bytes.max(64))
}

/// The size classes of a table: sixteen to a doubling, multiples of its grain. A table with little
/// memory has eight, and fewer entries in a slab, because each size that is used has a slab at
/// least.
#[derive(Clone, Debug)]
pub struct Classes {
    classes: Vec<Class>,
    grain_bytes: u64,
}

impl Classes {
    /// The classes of a table whose data tables have `data_bytes`. A smaller data table has smaller
    /// slabs, so that many clients can have their own slabs of many classes.
    pub fn new(data_bytes: u64, grain_bytes: u64) -> Self {
        let is_small = data_bytes < SMALL_DATA_BYTES;
        let (a_doubling, entries) = if is_small { (8, 4) } else { (16, 8) };
        let wanted = SLAB_BYTES_WANTED.min(data_bytes / 512).max(CHUNK_BYTES);
        let most = (data_bytes / 16).max(CHUNK_BYTES);
        let mut classes: Vec<Class> = Vec::new();
        let mut least = CLASS_BYTES_MIN.max(grain_bytes);
        while least <= CLASS_BYTES_MAX {
            let id = classes.len() as u8;
            let mut class = Class::new(id, least, 1, grain_bytes);
            let enough =
                |c: &Class| c.chunks as u64 * CHUNK_BYTES >= wanted && c.entries as u64 >= entries;
            while !enough(&class) && class.chunks as u64 * CHUNK_BYTES * 2 <= most {
                class = Class::new(id, least, class.chunks * 2, grain_bytes);
            }
            if class.entries < 2 {
                break;
            }
            classes.push(class);
            let doubling = (class.entry_bytes + 1).next_power_of_two() / 2;
            let step = (doubling / a_doubling).max(grain_bytes);
            least = (class.entry_bytes / step + 1) * step;
        }
        assert!(classes.len() < LARGE as usize);
        Self { classes, grain_bytes }
    }

    /// The class for an entry of `len` bytes.
    #[inline]
    pub fn of(&self, len: usize) -> Class {
        let len = len as u64;
        let at = self.classes.partition_point(|c| c.entry_bytes < len);
        self.classes.get(at).copied().unwrap_or_else(|| Class::large(len, self.grain_bytes))
    }

    /// The class that a chunk descriptor names.
    pub fn by_id(&self, id: u8, chunks: u32) -> Option<Class> {
        if id == LARGE {
            // A longer run is nobody's: values are shorter, and numbers of entries have 32 bits.
            let bytes = data_at(1, self.grain_bytes) + 1..=u64::from(u32::MAX);
            return bytes
                .contains(&(u64::from(chunks) * CHUNK_BYTES))
                .then(|| Class::large_of(chunks, self.grain_bytes));
        }
        self.classes.get(id as usize).copied().filter(|c| c.chunks == chunks)
    }

    /// All classes but the large ones.
    pub fn all(&self) -> &[Class] {
        &self.classes
    }
}

/// The use of a chunk: the meaning of its descriptor word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The chunk is not used.
    Free,
    /// The first chunk of a run that `owner` is putting together; its bytes mean nothing yet.
    Forming {
        /// Class number.
        class: u8,
        /// Chunks of the run.
        chunks: u32,
        /// The low half of the session's incarnation.
        owner: u32,
    },
    /// The first chunk of a slab from which `owner` allocates.
    Leased {
        /// Class number.
        class: u8,
        /// Chunks of the run.
        chunks: u32,
        /// The low half of the session's incarnation.
        owner: u32,
    },
    /// The first chunk of a slab that `owner` takes over from a client that does not use it. The
    /// owner may allocate from it after a grace period.
    Seized {
        /// Class number.
        class: u8,
        /// Chunks of the run.
        chunks: u32,
        /// The low half of the session's incarnation.
        owner: u32,
    },
    /// The first chunk of a slab without an owner.
    Abandoned {
        /// Class number.
        class: u8,
        /// Chunks of the run.
        chunks: u32,
        /// The free entries that its last owner knew of; a hint.
        free_hint: u32,
    },
    /// The first chunk of a slab without an entry in use. `owner` will take it apart after grace
    /// periods.
    Closing {
        /// Class number.
        class: u8,
        /// Chunks of the run.
        chunks: u32,
        /// The low half of the session's incarnation.
        owner: u32,
    },
    /// A chunk of the run that starts `back` chunks before.
    Tail {
        /// Chunks back to the first chunk of the run.
        back: u32,
    },
}

const RUN_BITS: u32 = 21;

impl Chunk {
    /// The descriptor word.
    pub fn to_word(self) -> u64 {
        let word = |kind: u64, class: u8, run: u32, owner: u32| {
            debug_assert!(run >> RUN_BITS == 0);
            kind | (class as u64) << 3 | (run as u64) << 11 | (owner as u64) << 32
        };
        match self {
            Self::Free => 0,
            Self::Forming { class, chunks, owner } => word(1, class, chunks, owner),
            Self::Leased { class, chunks, owner } => word(2, class, chunks, owner),
            Self::Abandoned { class, chunks, free_hint } => word(3, class, chunks, free_hint),
            Self::Tail { back } => word(4, 0, back, 0),
            Self::Seized { class, chunks, owner } => word(5, class, chunks, owner),
            Self::Closing { class, chunks, owner } => word(6, class, chunks, owner),
        }
    }

    /// The class number and the chunks of a slab that is leased or abandoned: its entries may hold
    /// values.
    pub fn slab(self) -> Option<(u8, u32)> {
        match self {
            Self::Leased { class, chunks, .. } | Self::Abandoned { class, chunks, .. } => {
                Some((class, chunks))
            }
            _ => None,
        }
    }

    /// The meaning of a descriptor word; `None` for words that no client writes.
    pub fn from_word(word: u64) -> Option<Self> {
        let class = (word >> 3) as u8;
        let chunks = (word >> 11) as u32 & ((1 << RUN_BITS) - 1);
        let owner = (word >> 32) as u32;
        Some(match word & 7 {
            0 if word == 0 => Self::Free,
            1 => Self::Forming { class, chunks, owner },
            2 => Self::Leased { class, chunks, owner },
            3 => Self::Abandoned { class, chunks, free_hint: owner },
            4 if class == 0 && owner == 0 => Self::Tail { back: chunks },
            5 => Self::Seized { class, chunks, owner },
            6 => Self::Closing { class, chunks, owner },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_grow_by_little_and_fill_their_slabs() {
        // Of entries up to 64 KiB one class is at most so many per cent longer than the last.
        for (data_bytes, percent, most) in [(4u64 << 30, 13, 248), (8 << 20, 26, 100)] {
            let classes = Classes::new(data_bytes, 16);
            assert!((50..most).contains(&classes.all().len()), "{}", classes.all().len());
            for pair in classes.all().windows(2).filter(|pair| pair[1].entry_bytes <= 64 << 10) {
                let (a, b) = (pair[0].entry_bytes, pair[1].entry_bytes);
                assert!(
                    b > a && (b - a <= a * percent / 100 || b - a == 16) && b % 16 == 0,
                    "{a} {b}"
                );
            }
            for class in classes.all() {
                let bytes = class.chunks as u64 * CHUNK_BYTES;
                let used = class.entries as u64 * (class.entry_bytes + 4) + SLAB_HEADER_BYTES;
                assert!(used <= bytes && used * 16 >= bytes * 15, "{class:?} uses {used}");
            }
        }
    }

    #[test]
    fn lengths_have_classes_that_waste_little() {
        let classes = Classes::new(4 << 30, 16);
        assert_eq!(classes.of(1).entry_bytes, 64);
        assert_eq!(classes.of(112).entry_bytes, 112);
        for kib in [4, 16, 64, 128, 256, 1 << 10, 10 << 10] {
            let len = (kib << 10) + 100;
            let entry_bytes = classes.of(len).entry_bytes;
            assert!(entry_bytes <= (len + len / 8) as u64, "{len}: {entry_bytes}");
        }
        assert_eq!(classes.of((1 << 20) + 100).chunks, 66);
    }

    /// Descriptors may be damaged.
    #[test]
    fn words_and_classes_that_nobody_writes_mean_nothing() {
        let tail = Chunk::Tail { back: 3 }.to_word();
        for word in [7, 8, 1 << 11, 1 << 63, tail | 1 << 3, tail | 1 << 32, tail | 1 << 3 | 1 << 32]
        {
            assert_eq!(Chunk::from_word(word), None, "{word:#x}");
        }
        let classes = Classes::new(1 << 30, 16);
        assert_eq!(classes.by_id(LARGE, 0), None);
        assert_eq!(classes.by_id(LARGE, (1 << RUN_BITS) - 1), None, "more than 32 bits of bytes");
        assert_eq!(classes.by_id(classes.all().len() as u8, 1), None);
        assert_eq!(classes.by_id(0, classes.all()[0].chunks + 1), None);
    }

    /// A configuration may ask for the longest value.
    #[test]
    fn the_longest_entry_has_a_run_that_fits() {
        for chunks in 64..5_000 {
            let data_bytes = chunks * CHUNK_BYTES;
            let longest = longest_entry_bytes(data_bytes, 16);
            let class = Classes::new(data_bytes, 16).of(longest as usize);
            assert!(u64::from(class.chunks) <= chunks, "{chunks} chunks: {class:?}");
            assert!(longest * 33 > data_bytes * 31, "{chunks} chunks: {longest}");
        }
    }

    proptest! {
        #[test]
        fn every_length_has_a_class_that_holds_it(
            len in 1usize..3 << 20,
            data in 20u32..45,
            grain in 4u32..15,
        ) {
            let classes = Classes::new(1 << data, 1 << grain);
            let class = classes.of(len);
            prop_assert!(class.entry_bytes >= len as u64);
            prop_assert!(class.data_at.is_multiple_of(1 << grain), "entries start at multiples of it");
            prop_assert!(class.id == LARGE || class.entry_bytes.is_multiple_of(1 << grain));
            let end = class.data_at + class.entries as u64 * class.entry_bytes;
            prop_assert!(end <= class.chunks as u64 * CHUNK_BYTES);
            prop_assert!(class.note_at(class.entries) <= class.data_at);
            prop_assert_eq!(classes.by_id(class.id, class.chunks), Some(class));
        }

        #[test]
        fn places_and_entries_are_two_names_of_one_thing(
            len in 1usize..1 << 20,
            n: prop::sample::Index,
            run: prop::sample::Index,
            data in 32u32..=44,
            grain in 4u32..15,
        ) {
            let class = Classes::new(1 << data, 1 << grain).of(len);
            let aligned = if class.id == LARGE { 1 } else { class.chunks };
            let runs = (1 << data) / CHUNK_BYTES / u64::from(aligned);
            let chunk = run.index(runs as usize) as u32 * aligned;
            let number = n.index(class.entries as usize) as u32;
            let entry = Entry { slab: Slab { dti: 3, chunk }, number };
            let place = class.place(entry);
            prop_assert_eq!(class.entry(place), Some(entry));
            prop_assert!(place.offset.is_multiple_of(1 << grain));
            let inside = Place { offset: place.offset + 16, ..place };
            prop_assert_eq!(class.entry(inside), None);
            let behind = class.place(Entry { number: class.entries, ..entry });
            prop_assert!(class.entry(behind).is_none_or(|e| e.slab != entry.slab));
        }

        #[test]
        fn descriptors_survive_the_trip(
            kind in 0usize..7,
            class: u8,
            run in 0u32..1 << 21, owner: u32,
        ) {
            let chunk = [
                Chunk::Free,
                Chunk::Forming { class, chunks: run, owner },
                Chunk::Leased { class, chunks: run, owner },
                Chunk::Abandoned { class, chunks: run, free_hint: owner },
                Chunk::Seized { class, chunks: run, owner },
                Chunk::Closing { class, chunks: run, owner },
                Chunk::Tail { back: run },
            ][kind];
            prop_assert_eq!(Chunk::from_word(chunk.to_word()), Some(chunk));
        }
    }
}
