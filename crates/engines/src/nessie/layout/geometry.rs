//! A table's shape: the number of a key's candidates, the layout of index and data in a node's
//! memory, and the fields of the 64 bits of an index entry.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::moves::MoveRing;
use crate::error::LayoutError;
use crate::limits::{
    CANDIDATES_MAX, CHUNK_BYTES, DATA_TABLE_BYTES_MAX, GRAIN_BYTES, NODES_MAX, SHARDS_PER_NODE_MAX,
    VALUE_BYTES_MAX,
};
use crate::region::{SEED, Service, TABLE_ALIGN_BYTES, TableParams};

/// The most bits of the data table identifier: 256 data tables.
pub const DTI_BITS_MAX: u32 = 8;
/// Filter bits of an index entry (nessie §6: seven).
pub const FILTER_BITS: u32 = 7;
/// The fewest generation bits that a shape leaves: an entry's owner waits for a grace period each
/// time that they start over.
pub const GEN_BITS_MIN: u32 = 14;

/// The bit of [`Geometry::options`] beside [`Options`] and [`Protocol`] that makes a table coupled.
const COUPLED: u32 = 1 << 16;
/// The bit of [`Options::evicts`], which is not beside those of the other options.
const EVICTS: u32 = 1 << 17;
/// The bits of [`Options`].
const OPTION_BITS: u32 = ((1 << PROTOCOL_AT) - 1) | EVICTS;

/// The shape of a table, fixed when it is created and the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Geometry {
    /// Hash functions of the cuckoo index: 2 to 4 (nessie §4.1.1).
    pub ways: u8,
    /// Slots of a bucket: 1 (the paper's index), 2 or 4; in a table that evicts 1 or 3, because a
    /// word of marks stands beside them. A bucket is read with one READ.
    pub bucket_slots: u8,
    /// Nodes, each with one data table.
    pub nodes: u16,
    /// The [`Options`] and the [`Protocol`] that every client of the table follows, and whether the
    /// table is coupled.
    pub options: u32,
    /// Index shards of one node.
    pub shards_per_node: u32,
    /// Buckets of one shard; every hash function addresses all of them.
    pub buckets_per_shard: u32,
    /// Chunks of one node's data table, of [`CHUNK_BYTES`] each.
    pub chunks: u64,
    /// Bytes of the longest value.
    pub value_bytes_max: u64,
    /// Seed of the key hash.
    pub seed: u64,
}

/// Switches of a table, as bits of [`Geometry::options`]. Each switch is one of the optimisations
/// of nessie §4.3.2, so that its effect can be measured (Figure 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Index entries carry bits of the key's hash.
    pub filter_bits: bool,
    /// Clients remember index words and remote entries. `None`: only where a round trip is
    /// expensive.
    pub cache: Option<bool>,
    /// The header of a long entry is read first, and the value only if it is wanted.
    pub multi_read: bool,
    /// A GET reads all candidates in its first doorbell. `None`: only where a round trip is
    /// expensive.
    pub batched_reads: Option<bool>,
    /// Entries carry a checksum. Readers for whom a second look is expensive need it.
    pub checksums: bool,
    /// A PUT that finds no room evicts other values; buckets have [`super::marks`].
    pub evicts: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filter_bits: true,
            cache: None,
            multi_read: true,
            batched_reads: None,
            checksums: false,
            evicts: false,
        }
    }
}

impl Options {
    /// The options as bits.
    pub fn to_bits(self) -> u32 {
        let tri = |o: Option<bool>| o.map_or(0, |on| 1 + on as u32);
        self.filter_bits as u32
            | (self.multi_read as u32) << 1
            | (self.checksums as u32) << 2
            | tri(self.cache) << 3
            | tri(self.batched_reads) << 5
            | if self.evicts { EVICTS } else { 0 }
    }

    /// The options that `bits` stand for; `None` if no options do.
    pub fn from_bits(bits: u32) -> Option<Self> {
        let tri = |b: u32| match b & 3 {
            0 => Some(None),
            1 => Some(Some(false)),
            2 => Some(Some(true)),
            _ => None,
        };
        (bits & !OPTION_BITS == 0).then_some(())?;
        Some(Self {
            evicts: bits & EVICTS != 0,
            filter_bits: bits & 1 != 0,
            multi_read: bits & 2 != 0,
            checksums: bits & 4 != 0,
            cache: tri(bits >> 3)?,
            batched_reads: tri(bits >> 5)?,
        })
    }
}

/// The rules that the clients of a table follow: bits of [`Geometry::options`] above the bits of
/// [`Options`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Loch's own protocol: [`crate::nessie::Client`].
    #[default]
    Loch,
    /// The published protocol, repaired: [`crate::nessie::published::Client`].
    Published {
        /// A GET that meets an undecided PUT takes the previous version. Without this switch it
        /// waits until the PUT is decided (nessie §4.3.2).
        previous_versions: bool,
    },
}

/// Where the bits of a [`Protocol`] start.
const PROTOCOL_AT: u32 = 7;

impl Protocol {
    fn to_bits(self) -> u32 {
        match self {
            Self::Loch => 0,
            Self::Published { previous_versions } => (2 | previous_versions as u32) << PROTOCOL_AT,
        }
    }

    fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits >> PROTOCOL_AT {
            0 => Self::Loch,
            2 => Self::Published { previous_versions: false },
            3 => Self::Published { previous_versions: true },
            _ => return None,
        })
    }
}

/// A [`Geometry`] with every field checked, and the values that follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The checked geometry.
    pub geometry: Geometry,
    /// The options.
    pub options: Options,
    /// The protocol.
    pub protocol: Protocol,
    /// Whether a key's owner node holds all candidates of the key and its entry too (nessie §5,
    /// "partially coupled"): for a table whose values are written only by its nodes' workers.
    pub coupled: bool,
    /// The fields of an index entry.
    pub bits: Bits,
}

/// The fields of the 64 bits of an index entry, from the low end: state, filter, generation, data
/// table, index of the entry in the data table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// Candidate slots of a key.
    pub candidates: u32,
    /// The number of values of the hop count: an entry can be moved one time less than this until
    /// its next PUT.
    pub hops: u32,
    /// First bit of the filter.
    pub filter_at: u32,
    /// First bit of the generation.
    pub gen_at: u32,
    /// Bits of the generation.
    pub gen_bits: u32,
    /// First bit of the data table identifier.
    pub dti_at: u32,
    /// First bit of the index.
    pub idx_at: u32,
    /// The unit of the index, as an exponent: entries start at multiples of 2 to this many bytes.
    pub grain_bits: u32,
}

impl Bits {
    /// The fields for data tables of `data_bytes` on each of `nodes`.
    ///
    /// The address of an entry is its data table and its index. If they do not fit with a grain of
    /// [`GRAIN_BYTES`], the identifier gives way first, down to what a cluster of twice the nodes
    /// needs. That costs nothing. Then the grain grows, which rounds entries up.
    pub fn new(candidates: u32, nodes: u16, data_bytes: u64) -> Self {
        // The state field enumerates kinds with their hop and candidate index (see `ite`): 2 + H
        // values for EMPTY, T and V, and H-1 times the candidates for each of F and C. H is at
        // least one, and larger if that costs no bit.
        let states = |hops: u32| 2 + hops + 2 * (hops - 1) * candidates;
        let state_bits = states(2).next_power_of_two().ilog2().max(5);
        let hops = (2..=4).rev().find(|h| states(*h) <= 1 << state_bits).expect("two hops fit");
        let gen_at = state_bits + FILTER_BITS;
        let address_bits = 64 - gen_at - GEN_BITS_MIN;
        let wanted = (data_bytes / GRAIN_BYTES).next_power_of_two().ilog2();
        let dti_bits_min = (1 + u32::from(nodes).next_power_of_two().ilog2()).min(DTI_BITS_MAX);
        let dti_bits = address_bits.saturating_sub(wanted).clamp(dti_bits_min, DTI_BITS_MAX);
        let idx_bits = wanted.min(address_bits - dti_bits);
        let idx_at = 64 - idx_bits;
        let dti_at = idx_at - dti_bits;
        Self {
            candidates,
            hops,
            filter_at: state_bits,
            gen_at,
            gen_bits: dti_at - gen_at,
            dti_at,
            idx_at,
            grain_bits: GRAIN_BYTES.ilog2() + wanted - idx_bits,
        }
    }

    /// Entries start at multiples of this number of bytes, and take up multiples of it.
    pub fn grain_bytes(&self) -> u64 {
        1 << self.grain_bits
    }
}

impl Geometry {
    /// The geometry that a table's directory entry describes.
    pub fn of(params: &TableParams) -> Self {
        let bytes = params.as_bytes();
        Self::read_from_prefix(bytes).expect("an entry is longer").0
    }

    /// The geometry as a directory entry holds it.
    pub fn params(&self, service: Service) -> TableParams {
        let mut params = TableParams { service, ..TableParams::default() };
        params.as_mut_bytes()[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        params
    }

    /// The geometry of a table with `table_bytes` per node, whose index has at least `index_slots`
    /// slots over all nodes.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if that does not fit; it names values that would.
    pub fn plan(
        nodes: u16,
        table_bytes: u64,
        index_slots: u64,
        ways: u8,
        bucket_slots: u8,
        value_bytes_max: u64,
        options: Options,
    ) -> Result<Self, LayoutError> {
        // Shards have equal sizes and are as small as is useful, because a growing cluster moves
        // whole shards: sixteen on a node for small tables, more for large ones.
        let per_node = index_slots.div_ceil(nodes.max(1) as u64);
        let shards_per_node = (per_node / (1 << 20)).next_power_of_two();
        let shards_per_node = shards_per_node.clamp(16, SHARDS_PER_NODE_MAX as u64) as u32;
        let slots_of_buckets = shards_per_node as u64 * bucket_slots.max(1) as u64;
        let buckets = per_node.div_ceil(slots_of_buckets).max(BUCKETS_PER_SHARD_MIN);
        let mut geometry = Self {
            ways,
            bucket_slots,
            nodes,
            options: options.to_bits(),
            shards_per_node,
            buckets_per_shard: u32::try_from(buckets).unwrap_or(u32::MAX),
            chunks: 1,
            value_bytes_max,
            seed: SEED,
        };
        let overhead = geometry.index_bytes().next_multiple_of(TABLE_ALIGN_BYTES);
        // Every chunk needs its own bytes and a word in the chunk table.
        let beside = TABLE_ALIGN_BYTES + LEDGER_BYTES + geometry.move_ring_bytes();
        let room = table_bytes.saturating_sub(overhead).saturating_sub(beside);
        geometry.chunks = (room / (CHUNK_BYTES + 8)).min(DATA_TABLE_BYTES_MAX / CHUNK_BYTES);
        let planned = geometry.validate().and_then(|shape| match geometry.chunks {
            PLANNED_CHUNKS_MIN.. => Ok(shape.geometry),
            _ => Err(geometry.wrong_data_bytes()),
        });
        planned.map_err(|error| {
            LayoutError::Geometry(format!(
                "{table_bytes} bytes of a node's memory are left for it, and with {index_slots} index \
                 slots and values of up to {value_bytes_max} bytes it cannot be laid out: {error}"
            ))
        })
    }

    /// The same shape, but coupled: see [`Shape::coupled`].
    #[must_use]
    pub fn coupled(self) -> Self {
        Self { options: self.options | COUPLED, ..self }
    }

    /// Checks every field and derives the other values.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`], which names the field and its valid values.
    pub fn validate(&self) -> Result<Shape, LayoutError> {
        let wrong = |text: String| Err(LayoutError::Geometry(text));
        if !(2..=4).contains(&self.ways) {
            return wrong(format!("ways is {}, it may be 2 to 4", self.ways));
        }
        let (possible, some): (&[u8], _) = match self.evicts() {
            true => (&[1, 3], "1 or 3, because the table evicts"),
            false => (&[1, 2, 4], "1, 2 or 4"),
        };
        if !possible.contains(&self.bucket_slots) {
            return wrong(format!("bucket_slots is {}, it may be {some}", self.bucket_slots));
        }
        if self.nodes == 0 || self.nodes as usize > NODES_MAX {
            return wrong(format!("nodes is {}, it may be 1 to {NODES_MAX}", self.nodes));
        }
        let few = (self.buckets_per_shard as u64) < BUCKETS_PER_SHARD_MIN;
        if self.shards_per_node == 0 || self.shards_per_node > SHARDS_PER_NODE_MAX || few {
            return wrong("the index has no shards, too many, or too few buckets in them".into());
        }
        if self.value_bytes_max > VALUE_BYTES_MAX {
            return wrong(format!(
                "value_max is {}, it may be up to {VALUE_BYTES_MAX}",
                self.value_bytes_max
            ));
        }
        let most = DATA_TABLE_BYTES_MAX / CHUNK_BYTES;
        if self.chunks == 0 || self.chunks > most {
            return Err(self.wrong_data_bytes());
        }
        let known = (
            Options::from_bits(self.options & OPTION_BITS),
            Protocol::from_bits(self.options & !(COUPLED | EVICTS)),
        );
        let (Some(options), Some(protocol)) = known else {
            return wrong(format!("options {:#x} are unknown", self.options));
        };
        if options.evicts && protocol != Protocol::Loch {
            return wrong(
                "a table of protocol \"published\" does not evict: use protocol \"loch\"".into(),
            );
        }
        let candidates = self.ways as u32 * self.bucket_slots as u32;
        let bits = Bits::new(candidates, self.nodes, self.data_bytes());
        let coupled = self.options & COUPLED != 0;
        Ok(Shape { geometry: *self, options, protocol, coupled, bits })
    }

    fn wrong_data_bytes(&self) -> LayoutError {
        LayoutError::Geometry(format!(
            "its data table has {} bytes a node, it may have {} to {DATA_TABLE_BYTES_MAX}: give it \
             more memory or fewer index_slots",
            self.data_bytes(),
            PLANNED_CHUNKS_MIN * CHUNK_BYTES
        ))
    }

    /// The same geometry for the clients of a protocol.
    pub fn with_protocol(self, protocol: Protocol) -> Self {
        let options = self.options & (COUPLED | OPTION_BITS);
        Self { options: options | protocol.to_bits(), ..self }
    }

    /// Bytes of one node's index.
    pub fn index_bytes(&self) -> u64 {
        self.shards_per_node as u64 * self.shard_bytes()
    }

    /// Bytes of one index shard.
    pub fn shard_bytes(&self) -> u64 {
        // A shard starts on a cache line, so that a bucket never straddles one.
        (self.buckets_per_shard as u64 * self.bucket_bytes()).next_multiple_of(64)
    }

    /// Words of a bucket: its slots and, in a table that evicts, their marks.
    #[inline(always)]
    pub fn bucket_words(&self) -> usize {
        self.bucket_slots as usize + usize::from(self.evicts())
    }

    /// Bytes of a bucket. A bucket starts at a multiple of them.
    #[inline(always)]
    pub fn bucket_bytes(&self) -> u64 {
        self.bucket_words() as u64 * 8
    }

    #[inline(always)]
    fn evicts(&self) -> bool {
        self.options & EVICTS != 0
    }

    /// Slots of the whole index, over all nodes.
    pub fn index_slots(&self) -> u64 {
        self.nodes as u64 * self.node_slots()
    }

    /// Slots of one node's index.
    pub fn node_slots(&self) -> u64 {
        self.shards_per_node as u64 * self.buckets_per_shard as u64 * self.bucket_slots as u64
    }

    /// Bytes of the data tables for each slot of the index.
    pub fn bytes_a_slot(&self) -> u64 {
        self.data_bytes() / self.node_slots()
    }

    /// Bytes of one node's [`super::moves`].
    fn move_ring_bytes(&self) -> u64 {
        MoveRing::bytes(self.node_slots())
    }

    /// Bytes of one node's data table.
    pub fn data_bytes(&self) -> u64 {
        self.chunks.saturating_mul(CHUNK_BYTES)
    }
}

/// The fewest buckets of a shard: as many as the most candidates that a key has in it, so that the
/// candidates differ.
const BUCKETS_PER_SHARD_MIN: u64 = 4;
/// The fewest chunks of a planned data table: with fewer, no client could lease a slab of each
/// common size. A table with fewer is in order nevertheless, and simulations have such tables.
const PLANNED_CHUNKS_MIN: u64 = 64;
/// Bytes of the [`super::ledger`], with those that align it.
const LEDGER_BYTES: u64 = 4096;

impl Shape {
    /// Where the chunk table starts, from the table's first byte.
    pub fn chunk_table_offset(&self) -> u64 {
        self.geometry.index_bytes().next_multiple_of(TABLE_ALIGN_BYTES)
    }

    /// Where the [`super::ledger`] starts, from the table's first byte.
    pub fn ledger_offset(&self) -> u64 {
        (self.chunk_table_offset() + self.geometry.chunks * 8).next_multiple_of(64)
    }

    /// Where the [`super::moves`] start, from the table's first byte.
    pub fn move_ring_offset(&self) -> u64 {
        self.ledger_offset() + LEDGER_BYTES
    }

    /// Where the data table starts, from the table's first byte.
    pub fn data_offset(&self) -> u64 {
        let end = self.move_ring_offset() + self.geometry.move_ring_bytes();
        end.next_multiple_of(TABLE_ALIGN_BYTES)
    }

    /// Bytes of the table on one node.
    pub fn bytes(&self) -> u64 {
        self.data_offset() + self.geometry.data_bytes()
    }
}

const _: () = {
    assert!(size_of::<Geometry>() == 40);
    assert!(CANDIDATES_MAX == 4 * 4);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(bytes: u64, slots: u64, ways: u8, bucket: u8) -> Shape {
        let g = Geometry::plan(1, bytes, slots, ways, bucket, 1 << 20, Options::default()).unwrap();
        g.validate().unwrap()
    }

    #[test]
    fn the_default_shape_reaches_256_tables_of_16_gib() {
        for nodes in [1, 3, 256] {
            let b = Bits::new(12, nodes, 16 << 30);
            let fields = (b.filter_at, b.gen_at, b.gen_bits, b.dti_at, b.idx_at, b.grain_bits);
            assert_eq!(fields, (5, 12, 14, 26, 34, 4), "tables that are there keep their words");
        }
    }

    /// The table of docs/memory-layout.md.
    #[test]
    fn the_grain_of_a_large_table_is_the_documented_one() {
        let largest = |nodes: u16, grain: u64| {
            let fits = |bits: &u32| Bits::new(12, nodes, 1 << bits).grain_bytes() <= grain;
            let gib = (30..=43).rev().find(fits).map(|bits| 1u64 << (bits - 30));
            gib.unwrap_or_default()
        };
        let tib = 1 << 10;
        for (nodes, of_16, of_64, of_128) in [
            (1, 2 * tib, 8 * tib, 8 * tib),
            (2, tib, 4 * tib, 8 * tib),
            (4, 512, 2 * tib, 4 * tib),
            (8, 256, tib, 2 * tib),
            (16, 128, 512, tib),
            (64, 32, 128, 256),
            (256, 16, 64, 128),
        ] {
            let seen = (largest(nodes, 16), largest(nodes, 64), largest(nodes, 128));
            assert_eq!(seen, (of_16, of_64, of_128), "{nodes} nodes");
        }
        assert_eq!(Bits::new(12, 256, DATA_TABLE_BYTES_MAX).grain_bytes(), 8 << 10);
    }

    #[test]
    fn no_table_is_too_large_for_an_index_entry() {
        for candidates in [2, 3, 6, 8, 12, 16] {
            for nodes in 1..=NODES_MAX as u16 {
                for bytes in (16..=43).flat_map(|bits| [1u64 << bits, (1 << bits) - CHUNK_BYTES]) {
                    let b = Bits::new(candidates, nodes, bytes);
                    let dti_bits = b.idx_at - b.dti_at;
                    assert!(b.gen_at + b.gen_bits == b.dti_at && b.gen_bits >= GEN_BITS_MIN);
                    assert!(1 << dti_bits >= nodes && dti_bits <= DTI_BITS_MAX, "{nodes} {bytes}");
                    assert!((bytes.max(1) - 1) >> b.grain_bits >> (64 - b.idx_at) == 0, "{bytes}");
                    assert!(b.grain_bytes() <= CHUNK_BYTES);
                }
            }
        }
    }

    #[test]
    fn a_small_table_has_longer_generations() {
        assert!(plan(64 << 20, 1 << 14, 3, 4).bits.gen_bits >= 22);
    }

    #[test]
    fn every_way_and_bucket_has_a_hop_to_spare() {
        for ways in 2..=4 {
            for bucket in [1, 2, 4] {
                let shape = plan(64 << 20, 1 << 14, ways, bucket);
                assert!(shape.bits.hops >= 2, "{ways} {bucket}");
            }
        }
        assert_eq!(plan(64 << 20, 1 << 14, 3, 1).bits.hops, 4);
    }

    #[test]
    fn the_plan_uses_the_memory_it_was_given() {
        for bytes in [8u64 << 20, 100 << 20, 3 << 30] {
            let shape = plan(bytes, bytes / 1024, 3, 4);
            assert!(shape.bytes() <= bytes && shape.bytes() + (192 << 10) >= bytes, "{bytes}");
        }
    }

    #[test]
    fn too_little_memory_is_named() {
        let error = Geometry::plan(1, 1 << 20, 1 << 20, 3, 4, 64, Options::default()).unwrap_err();
        assert!(error.to_string().contains("index_slots"), "{error}");
    }

    #[test]
    fn the_bytes_for_a_slot_do_not_depend_on_the_number_of_nodes() {
        let plan = |nodes, slots| {
            Geometry::plan(nodes, 16 << 20, slots, 3, 4, 64, Options::default()).unwrap()
        };
        let bytes = plan(1, 1 << 12).bytes_a_slot();
        assert_eq!(plan(4, 4 << 12).bytes_a_slot(), bytes);
        assert!((3000..4096).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_coupled_table_is_as_large_as_one_that_is_not() {
        let loose = plan(16 << 20, 1 << 10, 3, 4);
        let coupled = loose.geometry.coupled().validate().unwrap();
        assert!(coupled.coupled && !loose.coupled);
        assert_eq!((coupled.options, coupled.bytes()), (loose.options, loose.bytes()));
    }

    #[test]
    fn options_survive_the_trip() {
        for bits in 0..1u32 << 8 {
            if let Some(options) = Options::from_bits(bits) {
                assert_eq!(options.to_bits(), bits);
            }
            if let Some(protocol) = Protocol::from_bits(bits) {
                assert_eq!(protocol.to_bits(), bits >> PROTOCOL_AT << PROTOCOL_AT);
            }
        }
        let shape = plan(64 << 20, 1 << 14, 3, 4);
        let protocol = Protocol::Published { previous_versions: true };
        let published = shape.geometry.with_protocol(protocol).validate().unwrap();
        assert_eq!((published.options, published.protocol), (shape.options, protocol));
        assert_eq!(published.geometry.with_protocol(Protocol::Loch), shape.geometry);
    }
}
