//! A cluster of regions in one process, without nodes: what engine tests run on.

use std::sync::Arc;

use loch_engines::epoch::Session;
use loch_engines::nessie::geometry::{Bits, Geometry, Options, Protocol};
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::{CacheLimits, Client, published};
use loch_engines::region::{
    PINS_BYTES, SESSION_BYTES, SESSIONS_OFFSET, pins_offset, tables_offset,
};
use loch_fabric::shm::{Region, ShmEndpoint};
use loch_fabric::{Fabric, RegionId, RemoteAddr};

pub const SESSIONS: u32 = 64;

pub struct TestCluster {
    regions: Vec<Arc<Region>>,
    pub map: Arc<TableMap>,
    next: std::sync::atomic::AtomicU64,
    seating: std::sync::Mutex<()>,
}

pub struct Plan {
    pub nodes: u16,
    pub table_bytes: u64,
    pub index_slots: u64,
    pub ways: u8,
    pub bucket_slots: u8,
    pub options: Options,
    pub protocol: Protocol,
    /// An index of one shard with this many buckets, however few.
    pub tiny_index: Option<u32>,
    /// Memory is taken as it is touched, so that a table can be larger than the host.
    pub sparse: bool,
    /// The data tables have addresses as if they had so many bytes.
    pub addresses_of: Option<u64>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            nodes: 1,
            table_bytes: 16 << 20,
            index_slots: 1 << 14,
            ways: 3,
            bucket_slots: 4,
            options: Options::default(),
            protocol: Protocol::Loch,
            tiny_index: None,
            sparse: false,
            addresses_of: None,
        }
    }
}

impl TestCluster {
    pub fn new(plan: Plan) -> Self {
        let Plan { nodes, table_bytes, index_slots, ways, bucket_slots, options, .. } = plan;
        let planned =
            Geometry::plan(nodes, table_bytes, index_slots, ways, bucket_slots, 64 << 20, options);
        let mut geometry = planned.unwrap();
        if let Some(buckets) = plan.tiny_index {
            (geometry.shards_per_node, geometry.buckets_per_shard) = (1, buckets);
        }
        let mut shape = geometry.with_protocol(plan.protocol).validate().unwrap();
        if let Some(bytes) = plan.addresses_of {
            shape.bits = Bits::new(shape.bits.candidates, nodes, bytes);
        }
        let table = tables_offset(SESSIONS);
        let dir = if plan.sparse { tempfile::tempdir_in("/dev/shm") } else { tempfile::tempdir() };
        let dir = dir.unwrap();
        let region = |n| {
            let path = dir.path().join(format!("{n}"));
            let bytes = table + shape.bytes();
            if plan.sparse {
                #[allow(clippy::disallowed_types, reason = "a region without pages")]
                std::fs::File::create_new(&path).unwrap().set_len(bytes).unwrap();
                return Arc::new(Region::open(&path, true).unwrap());
            }
            let region = Region::create(&path, bytes).unwrap();
            if shape.bytes() > 1 << 28 {
                region.populate();
            }
            Arc::new(region)
        };
        let regions: Vec<_> = (0..nodes).map(region).collect();
        let at = |n| (RemoteAddr::new(RegionId(n as u8), table), SESSIONS);
        let map = Arc::new(TableMap::new(shape, &(0..nodes).map(at).collect::<Vec<_>>()));
        Self { regions, map, next: 1.into(), seating: Default::default() }
    }

    /// A client whose home is `node`.
    #[allow(dead_code, reason = "not every test is over plain shm")]
    pub fn client(&self, node: u8) -> Client<ShmEndpoint> {
        self.client_over(node, |shm| shm)
    }

    /// A client over a fabric made of the shm endpoint.
    #[allow(dead_code, reason = "not every test is of Loch's own protocol")]
    pub fn client_over<F: Fabric>(
        &self,
        node: u8,
        fabric: impl FnOnce(ShmEndpoint) -> F,
    ) -> Client<F> {
        let (shm, session) = self.seat(node);
        Client::new(fabric(shm), self.map.clone(), session, CacheLimits::default(), 1_000_000)
    }

    /// A client of the published protocol.
    #[allow(dead_code, reason = "not every test is of the published protocol")]
    pub fn published_over<F: Fabric>(
        &self,
        node: u8,
        fabric: impl FnOnce(ShmEndpoint) -> F,
    ) -> published::Client<F> {
        let (shm, session) = self.seat(node);
        let cache = CacheLimits::default();
        published::Client::new(fabric(shm), self.map.clone(), session, cache, 1_000_000)
    }

    fn seat(&self, node: u8) -> (ShmEndpoint, Session) {
        let incarnation = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // Sessions are opened by several threads: a slot that is seen to be free is taken at once.
        let _alone = self.seating.lock().unwrap();
        let is_free = |slot: &u32| {
            let mut word = [0; 8];
            self.regions[node as usize]
                .copy_out(SESSIONS_OFFSET + *slot as u64 * SESSION_BYTES, &mut word);
            u64::from_le_bytes(word) == 0
        };
        let slot = (0..SESSIONS).find(is_free).expect("a test has no more sessions than slots");
        let home = RegionId(node);
        let mut shm = ShmEndpoint::new(home);
        for (n, region) in self.regions.iter().enumerate() {
            shm.attach(RegionId(n as u8), region.clone());
        }
        let at = SESSIONS_OFFSET + slot as u64 * SESSION_BYTES;
        let region = &self.regions[node as usize];
        region.copy_in(at, &[incarnation.to_le_bytes(), [0; 8]].concat());
        (shm, Session::new(home, slot, incarnation))
    }

    /// Leaves `left` stamps until a multiple of 2^`bits`: generations of new slabs start at a
    /// stamp, so short generations are about to start over.
    #[allow(dead_code, reason = "not every test is about generations")]
    pub fn set_stamps(&self, bits: u32, left: u64) {
        let stamp = (1u64 << bits) - left;
        for region in &self.regions {
            region.copy_in(loch_engines::region::STAMP_OFFSET, &stamp.to_le_bytes());
        }
    }

    /// Ends a session as its node would.
    #[allow(dead_code, reason = "not every test kills clients")]
    pub fn kill(&self, incarnation: u64) {
        for region in &self.regions {
            for slot in 0..SESSIONS {
                let at = SESSIONS_OFFSET + slot as u64 * SESSION_BYTES;
                let mut word = [0; 8];
                region.copy_out(at, &mut word);
                if u64::from_le_bytes(word) == incarnation {
                    // The pins and the word, as nodes do: the next session clears the announcement.
                    region.copy_in(pins_offset(SESSIONS, slot), &[0; PINS_BYTES as usize]);
                    region.copy_in(at, &[0; 8]);
                }
            }
        }
    }
}
