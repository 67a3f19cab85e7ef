//! A processor's entries: a hash index and slabs in host memory (kv-direct §3.3.1).
//!
//! The first lines of memory are the hash index: a key has one head bucket, from which a chain goes
//! through buckets in 64-byte slabs. Small entries are inline in a bucket; for each other entry a
//! slot of the bucket points to the slab. An operation is a [`lookup`](Storage::lookup), which
//! reads the chain up to the key and the entry, and then at most one of [`store`](Storage::store),
//! [`rewrite`](Storage::rewrite) and [`remove`](Storage::remove), which write and read nothing.
//!
//! | operation | inline | in a slab |
//! | --- | --- | --- |
//! | GET | 1 read | 2 reads |
//! | PUT, the entry keeps its slots or its class | 1 read, 1 write | 2 reads, 1 write |
//! | PUT of a new key | 1 read, 1 write | 1 read, 2 writes |
//! | DELETE | 1 read, 1 write | 2 reads, 1 write |
//!
//! Each chained bucket on the way adds a read, and a PUT that adds a bucket to the chain adds a
//! write.
//!
//! # Invariants
//! 1. A key has at most one entry, in a bucket of its chain. Whether an entry is inline depends on
//!    its size, and on whether there was room in its bucket when it was written.
//! 2. Operations on one *group*, which is a chain, exclude each other; the station ensures that. So
//!    the bytes that a lookup has read stay current until the operation is done.
//! 3. A slab belongs to one pointer or one chain, or is free.
//! 4. An operation that fails has changed nothing: every step that can fail comes before the first
//!    write of a bucket.
//! 5. Contradictory bytes are reported as damaged, and never followed outside the memory.

mod check;
mod lookup;
mod plan;
mod scan;
mod stages;
mod store;
mod straight;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::Arc;

pub use self::check::Report;
pub use self::lookup::{Head, Lookup};
pub use self::plan::{Options, Plan};
pub use self::straight::{Glance, InPlace};
use super::item::Format;
use super::key::KeyHash;
use super::slab::{Class, PLACE_BYTES, Pools, Slabs};
use crate::lines::{HostMemory, LINE_BYTES, Line};

/// Places of a line.
const LINE_PLACES: u32 = (LINE_BYTES as u64 / PLACE_BYTES) as u32;

/// The class of the slab of a chained bucket.
const BUCKET_CLASS: Class = Class::holding(LINE_BYTES as u64).expect("a line is a slab");

const _: () = assert!(BUCKET_CLASS.bytes() == LINE_BYTES as u64);

/// The word that begins at a byte of an entry.
#[inline(always)]
fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the parts of an entry are inside"))
}

/// The entries of one processor.
#[derive(Debug)]
pub struct Storage<H> {
    memory: H,
    /// Lines of the memory.
    lines: u32,
    slabs: Slabs,
    format: Format,
    buckets: u32,
    inline_bytes_max: u64,
    value_bytes_max: u64,
    /// Lines for entries that are about to be written to their slabs.
    spare: RefCell<Vec<Vec<Line>>>,
}

impl<H: HostMemory> Storage<H> {
    /// A storage without entries, in memory that is all zero.
    ///
    /// # Panics
    /// If the memory does not have as many lines as planned.
    pub fn new(memory: H, plan: &Plan, pools: Arc<Pools>) -> Self {
        assert_eq!(memory.lines(), plan.lines(), "the memory is the plan's");
        Self {
            memory,
            lines: plan.lines(),
            slabs: Slabs::new(pools),
            format: plan.format(),
            buckets: plan.buckets(),
            inline_bytes_max: plan.inline_bytes_max().into(),
            value_bytes_max: plan.value_bytes_max(),
            spare: RefCell::default(),
        }
    }

    /// The memory, with its counts.
    pub fn memory(&self) -> &H {
        &self.memory
    }

    /// The processor's side of the slab allocator.
    pub fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    /// The group of a key, which is the number of its head bucket: at most one operation on a group
    /// is under way.
    #[inline(always)]
    pub fn group(&self, hash: KeyHash) -> u32 {
        hash.bucket(self.buckets)
    }
}
