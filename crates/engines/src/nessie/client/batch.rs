//! What a batch of operations keeps between its stages: the client uses the memory again and again.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Buf, RemoteAddr};

use crate::limits::BATCH_KEYS;
use crate::nessie::layout::hash::KeyHash;
use crate::nessie::layout::ite::Ite;

/// The state of one batch. Keys are named by their number in it.
#[derive(Default)]
pub(in crate::nessie) struct Batch {
    pub hashes: Vec<KeyHash>,
    /// The keys of which no bucket so far had a match, and their next buckets.
    pub pending: Vec<u8>,
    pub at: Vec<RemoteAddr>,
    pub buckets: [[u64; BUCKET_WORDS_MAX]; BATCH_KEYS],
    /// The entries that are read.
    pub named: Vec<Named>,
    pub reads: Vec<(RemoteAddr, usize)>,
    pub entries: Buf,
    /// The keys that are left to the general path.
    pub rest: Vec<u8>,
}

/// An entry that a slot names.
#[derive(Clone, Copy)]
pub(in crate::nessie) struct Named {
    pub key: u8,
    pub slot: RemoteAddr,
    pub word: Ite,
}
