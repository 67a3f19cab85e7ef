//! From a key to its candidate slots: N-way cuckoo hashing over all shards (nessie §4.1.1).

use loch_fabric::{RegionId, RemoteAddr};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::geometry::Shape;
use super::ite::{Codec, Ite};
use super::ledger::Ledger;
use super::marks::{Mark, Marks};
use super::moves::MoveRing;
use super::slab::{Class, Classes, Slab};
use crate::key_hash::mix;
use crate::limits::{CANDIDATES_MAX, WAYS_MAX};
use crate::region::STAMP_OFFSET;

/// The addresses of all parts of one table: the cluster map as the data path needs it.
#[derive(Clone, Debug)]
pub struct TableMap {
    /// The table's shape.
    pub shape: Shape,
    /// The codec of the table's index entries.
    pub codec: Codec,
    /// The table's size classes.
    pub classes: Classes,
    /// First byte of each index shard, by shard number. A shard moves by changing its line here.
    shards: Vec<RemoteAddr>,
    /// First byte of the chunk table on each node, by data table identifier.
    chunks: Vec<RemoteAddr>,
    /// First byte of each data table.
    data: Vec<RemoteAddr>,
    /// Bytes of each data table.
    data_bytes: u64,
    /// The ledger on each node.
    ledgers: Vec<Ledger>,
    /// The move ring on each node.
    move_rings: Vec<MoveRing>,
    /// Session slots of each node.
    sessions: Vec<(RegionId, u32)>,
}

impl TableMap {
    /// The map of a table that starts at `nodes[i].0` on node `i`, which has `nodes[i].1` session
    /// slots. The nodes get shards in turn.
    ///
    /// # Panics
    /// If the number of `nodes` is not the geometry's.
    pub fn new(shape: Shape, nodes: &[(RemoteAddr, u32)]) -> Self {
        let geometry = &shape.geometry;
        assert_eq!(nodes.len(), geometry.nodes as usize, "one table on each node");
        let shards = (0..geometry.shards_per_node as u64 * nodes.len() as u64)
            .map(|s| {
                let node = nodes[s as usize % nodes.len()].0;
                node.add(s / nodes.len() as u64 * geometry.shard_bytes())
            })
            .collect();
        Self {
            codec: Codec::new(shape.bits, shape.options.filter_bits),
            classes: Classes::new(geometry.data_bytes(), shape.bits.grain_bytes()),
            shards,
            chunks: nodes.iter().map(|n| n.0.add(shape.chunk_table_offset())).collect(),
            data: nodes.iter().map(|n| n.0.add(shape.data_offset())).collect(),
            data_bytes: geometry.data_bytes(),
            ledgers: nodes.iter().map(|n| Ledger::new(n.0.add(shape.ledger_offset()))).collect(),
            move_rings: nodes
                .iter()
                .map(|n| MoveRing::new(n.0.add(shape.move_ring_offset()), geometry.node_slots()))
                .collect(),
            sessions: nodes.iter().map(|n| (n.0.region(), n.1)).collect(),
            shape,
        }
    }

    /// Nodes, with their session slots.
    pub fn sessions(&self) -> &[(RegionId, u32)] {
        &self.sessions
    }

    /// Data tables.
    pub fn data_tables(&self) -> usize {
        self.data.len()
    }

    /// The region of data table `dti`.
    pub fn region_of(&self, dti: u8) -> RegionId {
        self.data[dti as usize].region()
    }

    /// The data table in `region`.
    pub fn dti_of(&self, region: RegionId) -> Option<u8> {
        self.data.iter().position(|t| t.region() == region).map(|i| i as u8)
    }

    /// Index shards, in order.
    pub fn shards(&self) -> &[RemoteAddr] {
        &self.shards
    }

    /// The first byte of data table `dti`; `None` if there is no such table.
    #[inline(always)]
    pub fn data_base(&self, dti: u8) -> Option<RemoteAddr> {
        self.data.get(dti as usize).copied()
    }

    /// Bytes of each data table.
    #[inline(always)]
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The ledger of the node with data table `dti`.
    pub fn ledger(&self, dti: u8) -> Ledger {
        self.ledgers[usize::from(dti)]
    }

    /// The move ring of the node with data table `dti`.
    pub fn move_ring(&self, dti: u8) -> MoveRing {
        self.move_rings[usize::from(dti)]
    }

    /// The number of buckets, of all shards.
    pub fn buckets(&self) -> u64 {
        u64::from(self.shape.geometry.buckets_per_shard) * self.shards.len() as u64
    }

    /// A run of at most `most` buckets of one shard, from bucket `first` on, among all buckets: its
    /// first byte, and the number of its buckets.
    pub fn run(&self, first: u64, most: u64) -> (RemoteAddr, u64) {
        let geometry = &self.shape.geometry;
        let of_shard = u64::from(geometry.buckets_per_shard);
        let (shard, within) = (first / of_shard, first % of_shard);
        let at = self.shards[shard as usize].add(within * geometry.bucket_bytes());
        (at, most.min(of_shard - within))
    }

    /// The bucket of a slot, and the slot's position in it.
    #[inline(always)]
    pub fn bucket_of(&self, slot: RemoteAddr) -> (RemoteAddr, usize) {
        let within = slot.offset() & (self.shape.geometry.bucket_bytes() - 1);
        (RemoteAddr::new(slot.region(), slot.offset() - within), within as usize / 8)
    }

    /// The mark of a slot, in a table that evicts.
    #[inline(always)]
    pub fn mark_addr(&self, slot: RemoteAddr) -> RemoteAddr {
        let (bucket, position) = self.bucket_of(slot);
        self.marks_addr(bucket).add(1 + position as u64)
    }

    /// The word of marks of a bucket, in a table that evicts.
    #[inline(always)]
    pub fn marks_addr(&self, bucket: RemoteAddr) -> RemoteAddr {
        bucket.add(u64::from(self.shape.geometry.bucket_slots) * 8)
    }

    /// The descriptor word of a chunk.
    #[inline(always)]
    pub fn chunk_addr(&self, dti: u8, chunk: u64) -> RemoteAddr {
        self.chunks[dti as usize].add(chunk * 8)
    }

    /// The class of the slab that a descriptor at `chunk` names; `None` if no such slab is
    /// possible.
    pub fn slab_class(&self, chunk: u32, id: u8, chunks: u32) -> Option<Class> {
        let class = self.classes.by_id(id, chunks)?;
        class.may_start_at(chunk, self.shape.geometry.chunks).then_some(class)
    }

    /// The first byte of a slab.
    #[inline(always)]
    pub fn slab_addr(&self, slab: Slab) -> RemoteAddr {
        let base = self.data[slab.dti as usize];
        base.add(slab.chunk as u64 * crate::limits::CHUNK_BYTES)
    }

    /// The shard and the bucket that a hash value of a key stands for.
    #[inline(always)]
    fn bucket(&self, h: u64, key: &KeyHash) -> (RemoteAddr, u64) {
        let shard = if self.shape.coupled {
            self.shard_of_owner(h, key)
        } else {
            ((h >> 32) * self.shards.len() as u64) >> 32
        };
        let bucket = ((h & u32::MAX as u64) * self.shape.geometry.buckets_per_shard as u64) >> 32;
        (self.shards[shard as usize], bucket)
    }

    /// The shard among those of the key's owner: shards belong to the nodes in turn.
    #[inline]
    fn shard_of_owner(&self, h: u64, key: &KeyHash) -> u64 {
        let own = ((h >> 32) * self.shape.geometry.shards_per_node as u64) >> 32;
        own * self.data.len() as u64 + u64::from(key.owner(self))
    }

    /// The word from which stamps of `region` are leased.
    pub fn stamp_addr(region: RegionId) -> RemoteAddr {
        RemoteAddr::new(region, STAMP_OFFSET)
    }
}

/// The hash of a key, from which all its candidates are derived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyHash {
    low: u64,
    high: u64,
}

impl KeyHash {
    /// The hash of `key` in a table.
    #[inline(always)]
    pub fn of(map: &TableMap, key: &[u8]) -> Self {
        let hash = xxh3_128_with_seed(key, map.shape.geometry.seed);
        Self { low: hash as u64, high: (hash >> 64) as u64 }
    }

    /// The key's name in caches.
    #[inline]
    pub fn name(&self) -> u64 {
        self.low ^ self.high.rotate_left(32)
    }

    /// What a ghost of the key looks like. It is never zero, which is no ghost.
    #[inline]
    pub fn print(&self) -> u8 {
        ((self.high >> 32) as u8).max(1)
    }

    /// The filter bits as they stand in an index entry.
    #[inline(always)]
    pub fn filter(&self, map: &TableMap) -> u64 {
        map.codec.filter(self.high >> 40)
    }

    /// The node, by its place in the map, that owns the key in a coupled table. The choice uses
    /// other bits than the choice of the first bucket and the filter.
    #[inline]
    pub fn owner(&self, map: &TableMap) -> u8 {
        (((self.high & u32::MAX as u64) * map.data.len() as u64) >> 32) as u8
    }

    /// The position of the home slot in the first bucket.
    #[inline]
    fn home(&self, map: &TableMap) -> u8 {
        (self.high >> 60) as u8 % map.shape.geometry.bucket_slots
    }

    /// The bucket of the first hash function, which holds most keys.
    #[inline(always)]
    pub fn first_bucket(&self, map: &TableMap) -> RemoteAddr {
        self.bucket(map, &[])
    }

    /// The bucket of the next hash function, after those whose buckets are `earlier`.
    #[inline(always)]
    pub fn bucket(&self, map: &TableMap, earlier: &[RemoteAddr]) -> RemoteAddr {
        let geometry = &map.shape.geometry;
        let bucket_bytes = geometry.bucket_bytes();
        // Double hashing gives each way a hash of its own, over all buckets of all shards.
        let h = match earlier.len() as u64 {
            0 => self.low,
            way => mix(self.low.wrapping_add(way.wrapping_mul(self.high | 1))),
        };
        let (shard, mut bucket) = map.bucket(h, self);
        let mut at = shard.add(bucket * bucket_bytes);
        // Two candidates are never the same slot. A shard has more buckets than a key has ways.
        while earlier.contains(&at) {
            bucket = (bucket + 1) % geometry.buckets_per_shard as u64;
            at = shard.add(bucket * bucket_bytes);
        }
        at
    }
}

/// A key's candidate slots.
///
/// Candidates are numbered bucket by bucket. In the first bucket the numbering starts at the key's
/// *home* slot, so that candidate 0 is home; the order is the same for every client.
#[derive(Clone, Copy, Debug)]
pub struct Candidates {
    /// The key's hash.
    pub hash: KeyHash,
    /// The filter bits as they stand in an index entry.
    pub filter: u64,
    /// First byte of each bucket.
    buckets: [RemoteAddr; WAYS_MAX],
    ways: u8,
    bucket_slots: u8,
    home: u8,
}

impl Candidates {
    /// The candidates of `key`.
    #[inline]
    pub fn of(map: &TableMap, key: &[u8]) -> Self {
        Self::from_hash(map, KeyHash::of(map, key))
    }

    /// The candidates of the key with this hash.
    pub fn from_hash(map: &TableMap, hash: KeyHash) -> Self {
        let geometry = &map.shape.geometry;
        let mut buckets = [hash.first_bucket(map); WAYS_MAX];
        for way in 1..geometry.ways as usize {
            buckets[way] = hash.bucket(map, &buckets[..way]);
        }
        Self {
            hash,
            filter: hash.filter(map),
            buckets,
            ways: geometry.ways,
            bucket_slots: geometry.bucket_slots,
            home: hash.home(map),
        }
    }

    /// The number of candidates.
    #[inline]
    pub fn count(&self) -> usize {
        self.ways as usize * self.bucket_slots as usize
    }

    /// Slots of a bucket.
    #[inline]
    pub fn bucket_slots(&self) -> usize {
        self.bucket_slots as usize
    }

    /// The buckets, in order.
    #[inline]
    pub fn buckets(&self) -> &[RemoteAddr] {
        &self.buckets[..self.ways as usize]
    }

    /// The address of candidate `c`.
    #[inline]
    pub fn slot(&self, c: usize) -> RemoteAddr {
        let c = self.position(c);
        self.buckets[c / self.bucket_slots as usize]
            .add((c % self.bucket_slots as usize) as u64 * 8)
    }

    /// The position of candidate `c` among the words of all buckets as they lie in memory, and the
    /// reverse: in the first bucket two positions are exchanged so that home comes first.
    #[inline]
    pub fn position(&self, c: usize) -> usize {
        let (slots, exchanged) = (self.bucket_slots as usize, c ^ self.home as usize);
        // In a bucket of three slots the one without a partner stays where it is.
        if c < slots && exchanged < slots { exchanged } else { c }
    }

    /// Words of all buckets, as they lie in memory, by candidate number.
    #[inline]
    pub fn arrange(&self, words: &[u64; CANDIDATES_MAX]) -> [Ite; CANDIDATES_MAX] {
        let mut arranged = words.map(Ite);
        for c in 0..self.bucket_slots as usize {
            arranged[c] = Ite(words[self.position(c)]);
        }
        arranged
    }

    /// The mark of candidate `c`, among those of all buckets.
    #[inline]
    pub fn mark_in(&self, marks: &[Marks; WAYS_MAX], c: usize) -> Mark {
        let (position, slots) = (self.position(c), self.bucket_slots());
        marks[position / slots].of(position % slots)
    }

    /// Splits the words of all buckets of a table that evicts, as they lie in memory, into slots by
    /// candidate number and marks by way.
    #[inline]
    pub fn arrange_marked(
        &self,
        words: &[u64; CANDIDATES_MAX],
    ) -> ([Ite; CANDIDATES_MAX], [Marks; WAYS_MAX]) {
        let slots = self.bucket_slots();
        let (mut plain, mut marks) = ([0; CANDIDATES_MAX], [Marks::default(); WAYS_MAX]);
        for (way, bucket) in words.chunks_exact(slots + 1).enumerate().take(self.ways.into()) {
            plain[way * slots..][..slots].copy_from_slice(&bucket[..slots]);
            marks[way] = Marks(bucket[slots]);
        }
        (self.arrange(&plain), marks)
    }

    /// The candidate number of a slot.
    pub fn index_of(&self, slot: RemoteAddr) -> Option<usize> {
        (0..self.count()).find(|c| self.slot(*c) == slot)
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::{Geometry, Options};
    use super::*;

    #[test]
    fn candidates_are_distinct_and_home_is_the_first() {
        for (ways, bucket) in [(2, 1), (3, 1), (4, 4), (3, 2)] {
            let g = Geometry::plan(3, 16 << 20, 64, ways, bucket, 64, Options::default()).unwrap();
            let nodes: Vec<_> =
                (0..3).map(|n| (RemoteAddr::new(RegionId(n), 1 << 16), 8)).collect();
            let map = TableMap::new(g.validate().unwrap(), &nodes);
            let mut homes = std::collections::HashSet::new();
            for key in 0..2000u32 {
                let c = Candidates::of(&map, &key.to_le_bytes());
                let slots: std::collections::HashSet<_> =
                    (0..c.count()).map(|i| c.slot(i)).collect();
                assert_eq!(slots.len(), (ways * bucket) as usize);
                assert!((0..c.count()).all(|i| c.index_of(c.slot(i)) == Some(i)));
                assert!((0..c.count()).all(|i| c.position(c.position(i)) == i));
                homes.insert(c.slot(0));
            }
            assert!(homes.len() > 40, "homes are spread over slots, shards and nodes");
        }
    }

    #[test]
    fn coupled_candidates_are_all_on_the_owner() {
        let g = Geometry::plan(3, 16 << 20, 64, 3, 2, 64, Options::default()).unwrap().coupled();
        let nodes: Vec<_> = (0..3).map(|n| (RemoteAddr::new(RegionId(n), 1 << 16), 8)).collect();
        let map = TableMap::new(g.validate().unwrap(), &nodes);
        let (mut owned, mut homes) = ([0; 3], std::collections::HashSet::new());
        for key in 0..3000u32 {
            let c = Candidates::of(&map, &key.to_le_bytes());
            let owner = c.hash.owner(&map);
            let region = map.region_of(owner);
            assert!((0..c.count()).all(|i| c.slot(i).region() == region));
            owned[usize::from(owner)] += 1;
            homes.insert(c.slot(0));
        }
        assert!(owned.iter().all(|keys| (900..1100).contains(keys)), "{owned:?}");
        assert!(homes.len() > 40, "homes are spread over slots and shards");
    }
}
