//! One client of one table: the state that its operations share.

pub(super) mod alloc;
pub(super) mod balance;
pub(super) mod batch;
pub(super) mod cache;
pub(super) mod claims;
pub(super) mod look;
pub(super) mod marking;
pub(super) mod pins;
pub(super) mod searches;
pub(super) mod shortlist;
pub(super) mod turns;
pub(super) mod uses;
pub(super) mod waits;
pub(super) mod worth;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use loch_fabric::{Fabric, FabricError, RegionId, RoundTrip, Validation};

use self::alloc::{Allocator, Owner};
use self::batch::Batch;
use self::cache::Cache;
use self::look::Hand;
use self::marking::Clock;
use self::pins::Pins;
use self::searches::Searches;
use self::turns::Turns;
use self::waits::Wait;
use self::worth::Worth;
use crate::epoch::{Pin, Session};
use crate::error::EngineError;
use crate::kv::check_key;
use crate::limits::NODES_MAX;
use crate::nessie::layout::geometry::Protocol;
use crate::nessie::layout::hash::{Candidates, KeyHash, TableMap};
use crate::nessie::layout::ite::Ite;
use crate::net::CacheLimits;
use crate::planted::{self, Bug};
use crate::region::STAMP_BITS;
use crate::spare::SpareBuffers;

/// A client of a table: one thread's session, endpoint, free entries and cache.
///
/// Its operations are `async` and take `&self`, so any number of them can be under way in the lanes
/// of its thread.
pub struct Client<F: Fabric> {
    pub(super) fabric: F,
    pub(super) map: Arc<TableMap>,
    pub(super) session: Session,
    /// The data tables from which this client allocates, its own node's first.
    pub(super) tables: Vec<u8>,
    pub(super) alloc: RefCell<Allocator>,
    pub(super) waits: RefCell<VecDeque<Wait>>,
    /// The slabs whose descriptors lanes are changing, and those that were left in the middle.
    pub(super) claims: RefCell<Vec<claims::Claimed>>,
    /// The number of lanes that look at a wait, which is not in the list meanwhile.
    pub(super) looking: Cell<u32>,
    /// The lanes that look for memory, and whose turn it is.
    pub(super) turns: Turns,
    /// How often a lane has made room. A lane that found no room looks again if this has changed.
    pub(super) rooms: Cell<u64>,
    /// The parts of the chunk table at which the next searches for a slab begin: for each kind of
    /// search, for short and for long entries.
    pub(super) search_at: [[Cell<u64>; 2]; 3],
    pub(super) cache: Option<RefCell<Cache>>,
    /// Whether buckets are read one after the other, and checked only by generation: where a round
    /// trip is cheap. Otherwise all buckets are read in one doorbell.
    pub(super) one_by_one: bool,
    /// Whether all memory is mapped, so that a batch needs no doorbells: the steps of its keys
    /// overlap, whatever the table's options say about single operations.
    pub(super) is_near: bool,
    /// Bytes to read of an entry of unknown length: the length of the last entry.
    pub(super) read_hint: Cell<usize>,
    /// Buffers for keys, used again and again.
    pub(super) spare: SpareBuffers,
    /// The state of a batch, used again and again.
    pub(super) batch: Cell<Option<Box<Batch>>>,
    pub(super) pins: Pins,
    /// Whether the memory of all nodes is mapped.
    pub(super) is_all_mapped: bool,
    /// The clock of the marks, in a table that evicts.
    pub(super) clock: Clock,
    /// What values are worth, in a table that evicts.
    pub(super) worth: Worth,
    /// Where the client looks next for something to evict.
    pub(super) hand: Hand,
    /// How often inserts search for something to move, in a table that evicts.
    pub(super) searches: Searches,
    /// Keys whose values operations under way build on: this client does not evict them meanwhile.
    pub(super) spared: RefCell<Vec<KeyHash>>,
    pub(super) counts: Counts,
    pub(super) timeout_us: u64,
    stamps: Cell<Stamps>,
}

/// An operation of a client that may not be used again for long. When this is dropped, after the
/// operation's future, grace periods do not wait for the client longer than for its verbs.
#[must_use = "the operation ends when this is dropped"]
pub struct Leaving<'a, F: Fabric>(&'a Client<F>);

impl<F: Fabric> Drop for Leaving<'_, F> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A client's counts besides verbs.
#[derive(Debug, Default)]
pub struct Counts {
    /// Times that an operation started over because another client changed a word that it looked
    /// at.
    pub retries: Cell<u64>,
    /// Moves made to free a slot.
    pub moves: Cell<u64>,
    /// Unfinished moves of other clients that this client completed or undid.
    pub helped: Cell<u64>,
    /// Values that this client removed because they had expired.
    pub expired: Cell<u64>,
    /// Values evicted to make room for others, in a table that evicts.
    pub evicted: Cell<u64>,
}

/// The stamps that this client may still use: unique numbers, leased in blocks from its node.
#[derive(Clone, Copy, Debug, Default)]
struct Stamps {
    next: u64,
    end: u64,
    block: u64,
}

/// Blocks start small, for clients that write once, and double up to this length.
const STAMP_BLOCK_MAX: u64 = 1 << 16;
const STAMP_BLOCK_MIN: u64 = 16;
/// Stamps of a node. Node and stamp together fit an EMPTY word's tag.
const STAMPS: u64 = 1 << STAMP_BITS;

const _: () = assert!(NODES_MAX << (58 - STAMP_BITS) <= 1 << 16, "a tag has 58 bits or more");

impl<F: Fabric> Client<F> {
    /// A client over `fabric`, to which all regions of `map` are attached.
    ///
    /// `timeout_us` bounds the time for which an operation goes on after its first restart.
    ///
    /// # Panics
    /// If the table is one for [`super::published::Client`]s.
    pub fn new(
        fabric: F,
        map: Arc<TableMap>,
        session: Session,
        cache: CacheLimits,
        timeout_us: u64,
    ) -> Self {
        assert_eq!(map.shape.protocol, Protocol::Loch, "the table is of another protocol");
        Self::of_any_protocol(fabric, map, session, cache, timeout_us)
    }

    /// The part of a client that both protocols have in common.
    pub(super) fn of_any_protocol(
        fabric: F,
        map: Arc<TableMap>,
        session: Session,
        cache: CacheLimits,
        timeout_us: u64,
    ) -> Self {
        let dear = fabric.caps().round_trip == RoundTrip::Dear;
        let options = map.shape.options;
        let home = map.dti_of(session.home()).expect("the home node is in the map");
        let all = (0..map.data_tables()).map(|t| t as u8);
        let mut tables: Vec<u8> = all.filter(|t| fabric.is_mapped(map.region_of(*t))).collect();
        // The home table comes first and then the others in turn, so that clients that run out of
        // memory do not all meet in one table.
        tables
            .sort_by_key(|t| (*t as usize + map.data_tables() - home as usize) % map.data_tables());
        let is_all_mapped = tables.len() == map.data_tables();
        if map.shape.coupled {
            // In a coupled table, entries that a node writes lie on that node.
            tables.truncate(1);
        }
        let cached = options.cache.unwrap_or(dear);
        let is_near = fabric.caps().validation == Validation::Reread && !session.is_observer();
        Self {
            tables,
            cache: cached.then(|| RefCell::new(Cache::new(cache))),
            one_by_one: is_near && !options.batched_reads.unwrap_or(dear),
            is_near,
            read_hint: Cell::new(0),
            alloc: RefCell::default(),
            waits: RefCell::default(),
            claims: RefCell::default(),
            looking: Cell::new(0),
            turns: Turns::default(),
            rooms: Cell::new(0),
            search_at: Default::default(),
            spare: SpareBuffers::default(),
            batch: Cell::default(),
            pins: Pins::default(),
            is_all_mapped,
            clock: Clock::of(&map, home, &fabric),
            worth: Worth::default(),
            hand: Hand::of(&map, home),
            searches: Searches::default(),
            spared: RefCell::default(),
            counts: Counts::default(),
            timeout_us,
            stamps: Cell::default(),
            fabric,
            map,
            session,
        }
    }

    /// The fabric, for its counters.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The node whose memory is this client's own.
    pub fn home(&self) -> RegionId {
        self.session.home()
    }

    /// The table's map.
    pub fn map(&self) -> &Arc<TableMap> {
        &self.map
    }

    /// The counts besides verbs.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sets how many freed entries rest before the first of them is used again, if there are other
    /// free entries. Zero reuses an entry at once: that is as correct but makes readers start over
    /// more often.
    pub fn set_quarantine(&self, entries: usize) {
        self.alloc.borrow_mut().quarantine = entries;
    }

    /// The incarnation of this client's session.
    pub fn incarnation(&self) -> u64 {
        self.session.incarnation()
    }

    /// Stops announcing an epoch that only waited for verbs to settle, if they have settled. A
    /// client that is idle for long calls this now and then, so that no grace period waits for it.
    ///
    /// # Errors
    /// The fabric's.
    #[inline]
    pub fn rest(&self) -> Result<(), FabricError> {
        self.session.settle(&self.fabric)
    }

    /// Waits for what its operations have posted and not waited for, unless another one is under
    /// way, and puts slabs to use that dropped futures have left. A client over a network does this
    /// after each operation: nobody knows whether it is used again, and until then no grace period
    /// would pass.
    ///
    /// # Errors
    /// The fabric's.
    pub async fn come_to_rest(&self) -> Result<(), EngineError> {
        self.session.come_to_rest(&self.fabric).await?;
        self.put_right().await?;
        Ok(())
    }

    /// Whether an operation is under way, and so announced.
    pub fn is_working(&self) -> bool {
        self.session.is_working()
    }

    /// Whether this client announces nothing: no operation is under way, and no verb that one has
    /// posted.
    pub fn is_at_rest(&self) -> bool {
        self.session.is_at_rest()
    }

    /// Called when nobody may use this client for long: grace periods then do not wait for it
    /// longer than for its verbs.
    pub fn leave(&self) {
        self.session.leave(&self.fabric);
    }

    /// Notes that an operation of a client over a network begins, whose future may be dropped: when
    /// the result is dropped, nobody may use the client for long.
    pub fn leaving(&self) -> Leaving<'_, F> {
        Leaving(self)
    }

    /// Holds this client's epoch, as an operation under way does, until the result is dropped:
    /// for callers that look at the table's memory by themselves.
    ///
    /// # Errors
    /// The fabric's.
    pub fn hold(&self) -> Result<Pin<'_, F>, EngineError> {
        self.session.pin(&self.fabric)
    }

    pub(super) fn owner(&self) -> Owner<'_, F> {
        Owner { fabric: &self.fabric, map: &self.map, id: self.session.incarnation() as u32 }
    }

    /// The hash of a key, if its length is valid.
    #[inline(always)]
    pub(super) fn hash(&self, key: &[u8]) -> Result<KeyHash, EngineError> {
        check_key(key)?;
        Ok(KeyHash::of(&self.map, key))
    }

    /// The candidates of a key, if its length is valid.
    #[inline]
    pub(super) fn candidates(&self, key: &[u8]) -> Result<Candidates, EngineError> {
        Ok(Candidates::from_hash(&self.map, self.hash(key)?))
    }

    /// A number that no client of any node ever used.
    #[inline(always)]
    pub(super) async fn stamp(&self) -> Result<u64, EngineError> {
        let mut stamps = self.stamps.get();
        if stamps.next == stamps.end {
            let block = (stamps.block * 2).clamp(STAMP_BLOCK_MIN, STAMP_BLOCK_MAX);
            let home = self.session.home();
            let leased = self.fabric.fetch_add(TableMap::stamp_addr(home), block).await;
            // Stamps that nobody gets are no harm.
            let first = leased.map_err(|error| EngineError::from(error).without_effect())?;
            if first >= STAMPS - block {
                return Err(no_stamps(first));
            }
            // The first stamp is skipped: the tag of a slot that was never written is zero.
            stamps = Stamps { next: first + 1, end: first + block, block };
        }
        self.stamps.set(Stamps { next: stamps.next + 1, ..stamps });
        Ok(self.stamp_of(stamps.next))
    }

    /// A stamp, if one has been leased already.
    #[inline(always)]
    pub(super) fn stamp_at_hand(&self) -> Option<u64> {
        let stamps = self.stamps.get();
        (stamps.next != stamps.end).then(|| {
            self.stamps.set(Stamps { next: stamps.next + 1, ..stamps });
            self.stamp_of(stamps.next)
        })
    }

    #[inline(always)]
    fn stamp_of(&self, number: u64) -> u64 {
        let node = self.tables.first().copied().unwrap_or(0) as u64;
        node << STAMP_BITS | number
    }

    /// An EMPTY word that was never in any slot.
    #[inline]
    pub(super) async fn fresh_empty(&self) -> Result<Ite, EngineError> {
        let tag = if planted::is(Bug::UntaggedEmpty) { 0 } else { self.stamp().await? };
        Ok(self.map.codec.empty(tag))
    }

    /// CASes a slot: `Ok(Ok(()))` if it held `from`, otherwise the word that it holds.
    #[inline]
    pub(super) async fn cas(
        &self,
        candidates: &Candidates,
        slot: usize,
        from: Ite,
        to: Ite,
    ) -> Result<Result<(), Ite>, EngineError> {
        let seen = Ite(self.fabric.compare_swap(candidates.slot(slot), from.0, to.0).await?);
        Ok(if seen == from { Ok(()) } else { Err(seen) })
    }

    /// CASes a slot from `from` to a fresh EMPTY. Returns whether it held `from`.
    pub(super) async fn clear(
        &self,
        candidates: &Candidates,
        slot: usize,
        from: Ite,
    ) -> Result<bool, EngineError> {
        let empty = self.fresh_empty().await?;
        Ok(self.cas(candidates, slot, from, empty).await?.is_ok())
    }
}

#[cold]
fn no_stamps(first: u64) -> EngineError {
    let what = format!("the next stamp of the home node is {first:#x}, of {STAMPS:#x} there are");
    EngineError::Damaged { what }
}

/// The attempts of one operation: counts them, backs off, and gives up when the time is over.
///
/// The clock is first read when an operation has to start over: the usual operation ends before
/// reading it would pay.
#[derive(Default)]
pub(crate) struct Attempts {
    began_us: Option<u64>,
    tries: u32,
}

/// Attempts without back-off: most conflicts are over by then.
const TRIES_AT_ONCE: u32 = 3;
/// The longest back-off is this power of two, in microseconds.
const BACK_OFF_LOG2_MAX: u32 = 8;

impl Attempts {
    /// Called before an operation starts over.
    pub async fn again<F: Fabric>(&mut self, client: &Client<F>) -> Result<(), EngineError> {
        client.counts.retries.set(client.counts.retries.get() + 1);
        let now = client.fabric.now_us();
        let began = *self.began_us.get_or_insert(now);
        if now - began > client.timeout_us {
            return Err(EngineError::Timeout { timeout_us: client.timeout_us });
        }
        self.tries += 1;
        if self.tries > TRIES_AT_ONCE {
            let most = 1 << (self.tries - TRIES_AT_ONCE).min(BACK_OFF_LOG2_MAX);
            client.fabric.pause(client.fabric.random() % most).await;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use loch_fabric::shm::{Region, ShmEndpoint};
    use loch_fabric::{RegionId, RemoteAddr};

    use super::*;
    use crate::nessie::layout::geometry::{Geometry, Options};
    use crate::region::tables_offset;

    /// The only client of a table of one node.
    pub fn client(table_bytes: u64) -> Client<ShmEndpoint> {
        client_with(table_bytes, Options::default())
    }

    /// The only client of a table of one node, with these options.
    pub fn client_with(table_bytes: u64, options: Options) -> Client<ShmEndpoint> {
        let [client] = clients_with(table_bytes, options);
        client
    }

    /// Clients of one table.
    pub fn clients_with<const N: usize>(
        table_bytes: u64,
        options: Options,
    ) -> [Client<ShmEndpoint>; N] {
        let slots = if options.evicts { 3 } else { 4 };
        let geometry = Geometry::plan(1, table_bytes, 1 << 10, 3, slots, 4 << 20, options);
        let shape = geometry.unwrap().validate().unwrap();
        let table = tables_offset(1);
        let region = Arc::new(Region::anonymous(table + shape.bytes()).unwrap());
        std::array::from_fn(|number| {
            let mut fabric = ShmEndpoint::new(RegionId(0));
            fabric.attach(RegionId(0), region.clone());
            let map = TableMap::new(shape, &[(RemoteAddr::new(RegionId(0), table), 1)]);
            let session = Session::new(RegionId(0), number as u32, 1 + number as u64);
            Client::new(fabric, Arc::new(map), session, CacheLimits::default(), 1_000_000)
        })
    }
}
