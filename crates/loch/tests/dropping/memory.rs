//! The memory of a cluster's nodes, as neither client nor node shows it: which sessions announce
//! an operation, and who owns which slab.

use std::collections::BTreeSet;

use loch::NodeConfig;
use loch::engines::nessie::slab::Chunk;
use loch::engines::region::{SESSION_BYTES, SESSIONS_OFFSET};
use loch::simulated::{Layout, Table};
use loch_fabric::shm::Region;

/// The mapped regions of all nodes.
pub struct Memory {
    regions: Vec<Region>,
    table: Table,
}

/// A session: its node, its slot, and its incarnation.
pub type Session = (usize, u64, u64);
/// The descriptor of a slab that is closed or seized: its data table, its first chunk, its word.
pub type Closed = (usize, u64, u64);

impl Memory {
    /// Maps the regions of running nodes.
    pub fn of(nodes: &[NodeConfig]) -> Self {
        let open = |node: &NodeConfig| Region::open(&node.region_path(), false).unwrap();
        let table = Layout::of(&nodes[0]).unwrap().tables.remove(0);
        Self { regions: nodes.iter().map(open).collect(), table }
    }

    /// The bytes of all data tables.
    pub fn data_bytes(&self) -> u64 {
        let map = self.table.map.nessie().expect("it is a table of nessie");
        map.shape.geometry.data_bytes() * self.regions.len() as u64
    }

    /// Bytes that a value takes under a short key.
    pub fn entry_bytes(&self, value_bytes: usize) -> u64 {
        let map = self.table.map.nessie().expect("it is a table of nessie");
        map.classes.of(value_bytes + 48).entry_bytes
    }

    fn word(&self, node: usize, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.regions[node].copy_out(offset, &mut word);
        u64::from_le_bytes(word)
    }

    /// The sessions that live, each with its announcement.
    fn sessions(&self) -> Vec<(Session, u64)> {
        let slots =
            |node: usize| (0..u64::from(self.table.places[node].1)).map(move |it| (node, it));
        let all = (0..self.regions.len()).flat_map(slots);
        let read = all.map(|(node, slot)| {
            let at = SESSIONS_OFFSET + slot * SESSION_BYTES;
            ((node, slot, self.word(node, at)), self.word(node, at + 8))
        });
        read.filter(|((.., incarnation), _)| *incarnation != 0).collect()
    }

    /// The sessions that announce an operation, those of the nodes' scrubbers among them.
    pub fn announcing(&self) -> Vec<Session> {
        let announce = self.sessions().into_iter().filter(|(_, word)| word & 1 == 1);
        announce.map(|(session, _)| session).collect()
    }

    fn chunks(&self) -> Vec<(Closed, Chunk)> {
        let map = self.table.map.nessie().expect("it is a table of nessie");
        let chunks = map.shape.geometry.chunks;
        let all = (0..self.regions.len()).flat_map(|dti| (0..chunks).map(move |it| (dti, it)));
        let read = all.map(|(dti, chunk)| {
            let at = map.chunk_addr(dti as u8, chunk);
            let word = self.word(dti, at.offset());
            ((dti, chunk, word), Chunk::from_word(word).expect("a descriptor has a meaning"))
        });
        read.collect()
    }

    /// The slabs that are neither free nor for anybody to allocate from.
    pub fn closed(&self) -> BTreeSet<Closed> {
        let is_closed = |chunk| {
            matches!(chunk, Chunk::Forming { .. } | Chunk::Seized { .. } | Chunk::Closing { .. })
        };
        self.chunks().into_iter().filter(|(_, chunk)| is_closed(*chunk)).map(|(at, _)| at).collect()
    }

    /// The slabs whose owner's session has ended.
    pub fn of_the_dead(&self) -> Vec<Chunk> {
        // The owners are read before the sessions, of which others may begin meanwhile.
        let chunks = self.chunks();
        let live: BTreeSet<u32> =
            self.sessions().iter().map(|((.., incarnation), _)| *incarnation as u32).collect();
        let owner = |chunk| match chunk {
            Chunk::Leased { owner, .. }
            | Chunk::Forming { owner, .. }
            | Chunk::Seized { owner, .. }
            | Chunk::Closing { owner, .. } => Some(owner),
            _ => None,
        };
        let is_dead = |chunk| owner(chunk).is_some_and(|owner| !live.contains(&owner));
        chunks.into_iter().map(|(_, chunk)| chunk).filter(|chunk| is_dead(*chunk)).collect()
    }
}
