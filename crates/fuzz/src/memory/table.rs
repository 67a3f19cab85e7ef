//! The table that is damaged: small, so that every word matters, in two nodes' memory, with entries
//! of all kinds and slabs that clients left in order and not in order.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use loch_engines::epoch::Session;
use loch_engines::limits::KEY_BYTES_MAX;
use loch_engines::nessie::geometry::{Geometry, Options, Shape};
use loch_engines::nessie::hash::TableMap;
use loch_engines::nessie::{CacheLimits, Client, PutOptions};
use loch_engines::region::{SESSION_BYTES, SESSIONS_OFFSET, TABLE_ALIGN_BYTES};
use loch_fabric::lanes::block_on;
use loch_fabric::shm::Region;
use loch_fabric::{RegionId, RemoteAddr};

use super::watch::{Run, Watch};

/// Session slots of a node.
pub const SESSIONS: u32 = 4;
/// Bytes of the longest value.
pub const VALUE_BYTES_MAX: u64 = 256 << 10;
/// Possible owners of chunks: the two clients, the client that made the table, nobody.
pub const OWNERS: [u32; 4] = [1, 1 << 24 | 1, 2, 0];

const NODES: u16 = 2;
/// First byte of the table.
const TABLE: u64 = TABLE_ALIGN_BYTES;
/// Memory behind the table, which is not its own.
const BEHIND_BYTES: u64 = 128 << 10;
/// Time an operation has after it had to start over.
const TIMEOUT_US: u64 = 3000;

/// Ways, slots of a bucket, whether round trips are dear, whether there is a cache.
const SHAPES: [(u8, u8, bool, Option<bool>); 6] = [
    (3, 4, false, None),
    (3, 4, true, None),
    (2, 1, false, None),
    (3, 4, false, Some(true)),
    (4, 4, false, None),
    (2, 1, true, Some(false)),
];

/// A table as it was made, to start every run from.
struct Made {
    map: Arc<TableMap>,
    bytes: Vec<Vec<u8>>,
}

thread_local! {
    static REGIONS: RefCell<Vec<Arc<Region>>> = const { RefCell::new(Vec::new()) };
    static MADE: RefCell<[Option<Rc<Made>>; SHAPES.len()]> = RefCell::default();
}

/// A table, and what happens to it.
pub struct World {
    pub map: Arc<TableMap>,
    pub run: Rc<Run>,
    pub dear: bool,
}

impl World {
    /// A table of one of a few shapes, as it was made.
    pub fn new(which: u8) -> Self {
        let which = which as usize % SHAPES.len();
        let made = MADE.with_borrow_mut(|made| {
            Rc::clone(made[which].get_or_insert_with(|| Rc::new(make(which))))
        });
        let world = Self::over(&made.map, which);
        for (region, bytes) in world.run.regions.iter().zip(&made.bytes) {
            region.copy_in(0, bytes);
        }
        world
    }

    fn over(map: &Arc<TableMap>, which: usize) -> Self {
        let bytes = TABLE + map.shape.bytes();
        let regions = REGIONS.with_borrow_mut(|regions| {
            let make = || Region::anonymous(bytes + BEHIND_BYTES).expect("a few MiB of memory");
            if regions.is_empty() {
                regions.extend((0..NODES).map(|_| Arc::new(make())));
            }
            regions.clone()
        });
        let slots = SESSIONS_OFFSET..SESSIONS_OFFSET + SESSIONS as u64 * SESSION_BYTES;
        // The longest entry, rounded up as the next READ's length is.
        let longest = VALUE_BYTES_MAX as usize + KEY_BYTES_MAX + 64;
        let run = Rc::new(Run::new(regions, TABLE..bytes, slots, longest));
        Self { map: map.clone(), run, dear: SHAPES[which].2 }
    }

    /// A client of node `who`, in the second of its slots.
    pub fn client_over(&self, who: u8, fabric: Watch) -> Client<Watch> {
        let incarnation = (who as u64) << 24 | 1;
        self.attach(who, 1, incarnation, fabric)
    }

    fn attach(&self, home: u8, slot: u32, incarnation: u64, fabric: Watch) -> Client<Watch> {
        self.announce(home, slot, incarnation);
        let session = Session::new(RegionId(home), slot, incarnation);
        let cache = CacheLimits { lines: 16, entry_bytes_max: 256 };
        Client::new(fabric, self.map.clone(), session, cache, TIMEOUT_US)
    }

    fn announce(&self, home: u8, slot: u32, incarnation: u64) {
        let at = SESSIONS_OFFSET + slot as u64 * SESSION_BYTES;
        let slot = [incarnation.to_le_bytes(), [0; 8]].concat();
        self.run.regions[home as usize].copy_in(at, &slot);
    }
}

fn shape(which: usize) -> Shape {
    let (ways, bucket_slots, dear, cache) = SHAPES[which];
    let geometry = Geometry {
        ways,
        bucket_slots,
        nodes: NODES,
        options: Options { checksums: dear, cache, ..Options::default() }.to_bits(),
        shards_per_node: 1,
        buckets_per_shard: 4,
        chunks: 16,
        value_bytes_max: VALUE_BYTES_MAX,
        seed: 7,
    };
    geometry.validate().expect("a small table is one")
}

fn make(which: usize) -> Made {
    let at = |n| (RemoteAddr::new(RegionId(n as u8), TABLE), SESSIONS);
    let nodes: Vec<_> = (0..NODES).map(at).collect();
    let map = Arc::new(TableMap::new(shape(which), &nodes));
    let world = World::over(&map, which);
    let len = world.run.regions[0].len() as usize;
    for region in &world.run.regions {
        region.copy_in(0, &vec![0; len]);
    }
    for home in 0..NODES as u8 {
        world.run.begin(u64::MAX, None);
        let fabric = Watch::new(Rc::clone(&world.run), RegionId(home), world.dear);
        let client = world.attach(home, 2, (home as u64) << 24 | 2, fabric);
        for key in 0..super::KEYS {
            let value = vec![key; [8, 40, 100, 8, 1000, 70_000][(key + home) as usize % 6]];
            // The index has fewer slots than there are keys.
            let _ = block_on(client.put(&super::key_of(key), &value, PutOptions::default()));
            if key % 5 == 3 {
                let _ = block_on(client.delete(&super::key_of(key)));
            }
        }
        // The first leaves in order, the second dies.
        if home == 0 {
            block_on(client.detach()).expect("nothing is damaged yet");
        }
        world.announce(home, 2, 0);
    }
    let copy = |region: &Arc<Region>| {
        let mut bytes = vec![0; len];
        region.copy_out(0, &mut bytes);
        bytes
    };
    let bytes = world.run.regions.iter().map(copy).collect();
    Made { map, bytes }
}
