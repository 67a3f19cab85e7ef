//! What a batch of operations keeps between its steps: the client uses the memory again and again.

use arrayvec::ArrayVec;
use loch_fabric::{Buf, RegionId, RemoteAddr};

use crate::limits::BATCH_KEYS;
use crate::nessie::layout::dte::Header;
use crate::nessie::layout::hash::{KeyHash, TableMap};
use crate::nessie::layout::ite::Ite;

/// As many as keys of a batch.
pub(in crate::nessie) type Each<T> = ArrayVec<T, BATCH_KEYS>;

/// The state of one batch. Keys are named by their number in it.
pub(in crate::nessie) struct Batch {
    pub hashes: [KeyHash; BATCH_KEYS],
    /// The words that may show the keys.
    pub words: [Ite; BATCH_KEYS],
    /// Their slots, or the buckets in which they are looked for.
    pub slots: [RemoteAddr; BATCH_KEYS],
    /// How many buckets of the keys have shown no match.
    pub ways: [u8; BATCH_KEYS],
    /// The entries that PUTs replace, or DELETEs take away.
    pub old: Each<(u8, Header)>,
    /// The keys that are left to the general path.
    pub rest: Each<u8>,
    /// Memory for one entry.
    pub entry: Buf,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            hashes: [KeyHash::default(); BATCH_KEYS],
            words: [Ite::default(); BATCH_KEYS],
            slots: [RemoteAddr::new(RegionId(0), 0); BATCH_KEYS],
            ways: [0; BATCH_KEYS],
            old: Each::new(),
            rest: Each::new(),
            entry: Buf::new(),
        }
    }
}

impl Batch {
    /// Begins to look for a key. Returns its first bucket.
    #[inline(always)]
    pub fn begin_at(&mut self, map: &TableMap, number: usize, hash: KeyHash) -> RemoteAddr {
        let bucket = hash.first_bucket(map);
        self.hashes[number] = hash;
        self.ways[number] = 0;
        self.slots[number] = bucket;
        bucket
    }
}
