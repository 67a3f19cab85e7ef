//! Every bound of the engines, in one place.

/// Bytes of the longest key.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// Bytes of the longest value a table can be declared for.
pub const VALUE_BYTES_MAX: u64 = 1 << 30;

/// Bytes of the longest value a table takes unless it is declared otherwise.
pub const VALUE_BYTES_DEFAULT: u64 = 64 << 20;

/// Bytes of one node's data table.
pub const DATA_TABLE_BYTES_MAX: u64 = 8 << 40;

/// Entries start at multiples of this number of bytes; in data tables whose addresses need more
/// bits than an index entry has, at multiples of a larger power of two.
pub const GRAIN_BYTES: u64 = 16;

/// Bytes of a chunk, the unit in which clients lease memory.
pub const CHUNK_BYTES: u64 = 16 << 10;

/// Hash functions a table can have.
pub const WAYS_MAX: usize = 4;

/// Index shards of a node.
pub const SHARDS_PER_NODE_MAX: u32 = 4096;

/// Candidate slots a key can have: ways times slots of a bucket.
pub const CANDIDATES_MAX: usize = 16;

/// Moves that make room for one insert, one after the other (nessie §4.2.3).
pub const MOVE_DEPTH_MAX: usize = 5;

/// Slots looked at in search of a chain of moves.
pub const MOVE_SEARCH_SLOTS_MAX: usize = 512;

/// Nodes of a cluster: the data table identifier of an index entry has eight bits.
pub const NODES_MAX: usize = 256;

/// Bytes of a table's name.
pub const TABLE_NAME_BYTES_MAX: usize = 48;

/// Tables of a region.
pub const TABLES_MAX: usize = 16;

/// Looks, one after the other, at a word that changes at every look. A caller that must wait for
/// such a word, because of a race or damage, goes back to the loop that checks its deadline.
pub const LOOKS_MAX: usize = 64;

/// Slabs swept for retired entries before new memory is leased.
pub const SWEEP_SLABS: usize = 4;

/// Attempts of a GET-and-touch that finds another value each time it touches what it found.
pub const TOUCHES_MAX: usize = 1000;

/// Chunk descriptors that a search for a slab reads at a time: those of 256 MiB. The next search
/// goes on where this one found its slab, so its cost does not grow with the data table.
pub const SEARCH_CHUNKS: u64 = 16 << 10;

/// So many searches are made for an abandoned slab with room in it, before free chunks are taken
/// instead; and for any memory by a client that has to evict otherwise.
pub const SEARCHES_FOR_ROOM: u64 = 4;

/// Values that a client which is short of memory evicts at a time, where memory is near. The more,
/// the longer the PUTs that do it, and the fewer they are. With one, the slowest hundredth of PUTs
/// takes as long as with two, and the mean is longer.
pub const EVICTED_NEAR: usize = 2;
/// The same over a network, where each search costs round trips.
pub const EVICTED_FAR: usize = 8;

/// Values that are looked at for each that is evicted. The more, the better the choice.
pub const SAMPLED_FOR_ONE: usize = 16;

/// Slots looked at in search of a chain of moves, in a table that evicts.
pub const EVICTING_SEARCH_SLOTS_MAX: usize = 32;

/// Keys that a worker lists in one step of a scan, about.
pub const SCAN_PAGE_KEYS: usize = 256;

/// Bytes of keys that it lists, about: a page goes into a message, even if its last key is the
/// longest.
pub const SCAN_PAGE_BYTES: usize = 8 << 10;

/// Places of the index at which it looks. The worker serves nobody meanwhile.
pub const SCAN_PAGE_PLACES: u64 = 1024;

/// Buckets at which a client looks in one step of a scan.
pub const SCAN_STEP_BUCKETS: u64 = 256;

/// Entries, and chunks, at which a node looks in one piece of its walk for what has expired: less
/// than a millisecond's work.
pub const EXPIRY_LOOKS: usize = 4096;

/// Values that have expired and are removed in one piece of such a walk.
pub const EXPIRY_REMOVALS: usize = 256;

/// How long an insert waits for another client's tentative entry before it removes it. Liveness
/// only: removing it early costs the other client a retry, never a result.
pub const PATIENCE_US: u64 = 500;

/// Values that a session can have pinned at a time. Whoever takes an entry that was pinned looks at
/// the pins of all sessions, so the number is a small one.
pub const PINS_MAX: usize = 32;

/// Freed entries rest in a queue of this length before they are used again. Readers that are on
/// their way to an entry then rarely have to start over.
pub const QUARANTINE_ENTRIES: usize = 512;

/// Longer entries do not rest. Those that were freed last are used first, while they are still in
/// the processor's caches; to read them takes so long that a rest would spare few readers.
pub const QUARANTINE_ENTRY_BYTES_MAX: u64 = 8 << 10;

/// Bytes of a herd request slot (herd §4.2).
pub const HERD_SLOT_BYTES: u64 = 1024;

/// Bytes of a key and its value in a herd table: the room of a slot besides the trailer.
pub const HERD_ITEM_BYTES_MAX: usize = 952;

/// Requests in each stage of herd's pipeline: executing this many takes as long as an access to
/// memory.
pub const HERD_DEPTH: usize = 8;

/// Operations that a kv-direct processor executes at the same time (kv-direct §3.3.3).
pub const KV_DIRECT_IN_FLIGHT: usize = 256;

/// Operations of a kv-direct processor that may wait for others (kv-direct §3.3.3).
pub const KV_DIRECT_WAITING: usize = 768;

/// Workers of a node that serve one table.
pub const WORKERS_MAX: u16 = 256;

/// Operations that a worker of nessie-server or nessie-hybrid has under way at a time.
pub const WORKER_LANES: usize = 16;

/// How long an operation of such a worker goes on after its first restart, in microseconds.
pub const WORKER_OPERATION_US: u64 = 1_000_000;

/// How long a worker that has to end goes on with work it has begun, in microseconds.
pub const WORKER_DRAIN_US: u64 = 100_000;

/// Requests that a client can have under way at one worker.
pub const WINDOW_MAX: u16 = 256;

/// Requests that a client can have under way at all.
pub const REPLIES_MAX: u16 = 4096;

/// Bytes of the requests and replies of a table on one node.
pub const REQUEST_AREA_BYTES_MAX: u64 = 1 << 40;

/// Slots looked at in search of a chain of moves in a pilaf index, before it is doubled (pilaf
/// §3.3: "a limit on the number of kicks").
pub const PILAF_SEARCH_SLOTS_MAX: usize = 512;

/// The last moves of a pilaf index that its server remembers: as many as a client may let pass
/// between two steps of a scan.
pub const PILAF_MOVES_KEPT: usize = 1 << 12;

/// Operations of a packet: as many as kv-direct's reservation station has slots (kv-direct
/// §3.3.3).
pub const PACKET_OPS_MAX: usize = 1024;

/// A kv-direct processor reads slabs of up to this size by one access. Of a larger slab it first
/// reads this much, and then the rest of the entry: for large slabs the unneeded bytes cost more
/// than an access.
pub const KV_DIRECT_READ_BYTES_MAX: u64 = 4096;

/// Turns that a processor without memory waits for its host's daemon, which merges free slabs:
/// about a second of an idle processor.
pub const DAEMON_TURNS_MAX: u32 = 1 << 20;

/// How often a store is tried in vain before the processor reports that there is no memory: another
/// operation may have taken the memory that the daemon merged for this one.
pub const STORES_MAX: u32 = 3;

/// Lines that a kv-direct processor keeps for the next entry, for each operation under way.
pub const KV_DIRECT_KEPT_LINES_MAX: usize = 1024;

/// Free slabs that a kv-direct processor and its host's daemon exchange at a time: four lines,
/// which PCIe carries in one packet.
pub const SLAB_BATCH: usize = 64;

/// Free slabs of a class that a kv-direct processor keeps: with this many or fewer it fetches a
/// batch.
pub const SLABS_LOW: usize = 64;

/// With more free slabs than this it hands a batch back. Between two exchanges there are a batch of
/// allocations, or two batches of frees, whatever their order.
pub const SLABS_HIGH: usize = SLABS_LOW + 3 * SLAB_BATCH;

/// Free slabs of a class that the daemon keeps ready for the processor, if there is enough memory.
pub const POOL_LOW_MAX: u64 = 4096;

/// The pool of one class holds less than one part in this number of all memory.
pub const POOL_SHARE: u64 = 128;

/// Entries that a turn of the daemon moves, sorts, or merges.
pub const DAEMON_TURN_ENTRIES: usize = 4096;

/// Keys of a batch that share one epoch. A byte numbers them.
pub const BATCH_KEYS: usize = 1 << u8::BITS;

/// PUTs of a batch: all of them hold their entries, and the epoch in which these were taken, until
/// the last is installed.
pub const BATCH_PUTS: usize = 32;

/// Entries that a batch reads over a network arrive in one buffer. An entry that is longer than
/// this is read by an operation of its own.
pub const BATCH_ENTRY_BYTES_MAX: usize = 1 << 10;

/// A batch puts an entry that is longer than this by an operation of its own. A batch writes all
/// its entries before it frees the first old one, and the caches cannot hold so many long entries.
pub const BATCH_PUT_BYTES_MAX: usize = 1 << 15;

/// The parts of an entry are joined in private memory, and stored by one copy instead of three, if
/// the value is not longer than this.
pub const STORE_AT_ONCE_BYTES_MAX: usize = 1 << 7;

/// The longest buffer that a client keeps from one batch for the next.
pub const BATCH_BUF_BYTES_MAX: usize = 1 << 21;
