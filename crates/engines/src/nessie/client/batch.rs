//! What a batch of operations keeps between its steps: the client uses the memory again and again.

use arrayvec::ArrayVec;
use loch_fabric::{Buf, RegionId, RemoteAddr, Swap};

use super::alloc::Own;
use crate::limits::{BATCH_KEYS, BATCH_PUTS};
use crate::nessie::layout::hash::{KeyHash, TableMap};
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::marks::Mark;
use crate::operation::Version;

/// As many as keys of a batch.
type Each<T> = ArrayVec<T, BATCH_KEYS>;

/// The state of one batch. Keys are named by their number in it.
pub(in crate::nessie) struct Batch {
    pub looks: [Look; BATCH_KEYS],
    /// The entries that PUTs replace, or DELETEs take away.
    pub old: Each<Old>,
    /// The CASes that take them away.
    pub swaps: Each<Swap>,
    /// The keys that are looked for in the index, if not all are.
    pub cold: Each<u8>,
    /// The keys that are left to the general path.
    pub rest: Each<u8>,
    /// The keys whose values were read, in a table that evicts.
    pub used: Each<u8>,
    /// The entries into which the values of PUTs were written.
    pub owned: ArrayVec<Own, BATCH_PUTS>,
    /// What was written into them.
    pub written: ArrayVec<Written, BATCH_PUTS>,
    /// Memory for one entry.
    pub entry: Buf,
}

/// A look for a key: from its first bucket to the entry that its first match names.
#[derive(Clone, Copy, Debug)]
pub(in crate::nessie) struct Look {
    pub hash: KeyHash,
    /// The slot that may show the key, or the bucket in which it is looked for.
    pub slot: RemoteAddr,
    /// The slot's word.
    pub word: Ite,
    /// The slot's mark, in a table that evicts.
    pub mark: Mark,
    /// How many buckets have shown no match, or [`Look::REMEMBERED`].
    pub way: u8,
}

impl Default for Look {
    fn default() -> Self {
        let slot = RemoteAddr::new(RegionId(0), 0);
        Self { hash: KeyHash::default(), slot, word: Ite::default(), mark: Mark::default(), way: 0 }
    }
}

impl Look {
    /// The look begins in the bucket where the client's cache remembers the key.
    pub const REMEMBERED: u8 = u8::MAX;

    /// Begins in the key's first bucket.
    #[inline(always)]
    pub fn begin(map: &TableMap, hash: KeyHash) -> Self {
        let slot = hash.first_bucket(map);
        Self { hash, slot, ..Self::default() }
    }
}

/// An entry that is to be taken out of the index.
#[derive(Clone, Copy, Debug)]
pub(in crate::nessie) struct Old {
    /// The number of its key.
    pub key: u8,
    /// Its length.
    pub entry_len: u32,
    pub generation: u64,
}

/// What a PUT writes into an entry.
#[derive(Clone, Copy, Debug)]
pub(in crate::nessie) struct Written {
    /// The value's version.
    pub version: Version,
    /// The length of the entry, once it is written. The caller's key may have another by then.
    pub entry_len: u32,
}

/// The keys of a batch whose entries must be renewed before a word names them again.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::nessie) struct Renewed(u32);

const _: () = assert!(BATCH_PUTS <= u32::BITS as usize, "a bit for each key");

impl Renewed {
    pub fn insert(&mut self, key: u8) {
        self.0 |= 1 << key;
    }

    pub fn contains(self, key: u8) -> bool {
        self.0 & 1 << key != 0
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            looks: [Look::default(); BATCH_KEYS],
            old: Each::new(),
            swaps: Each::new(),
            cold: Each::new(),
            rest: Each::new(),
            used: Each::new(),
            owned: ArrayVec::new(),
            written: ArrayVec::new(),
            entry: Buf::new(),
        }
    }
}
