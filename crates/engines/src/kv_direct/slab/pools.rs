//! Free slabs on the host.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::{Class, Slab, merge::cover};

/// The free slabs of one processor, shared with the host's daemon.
#[derive(Debug)]
pub struct Pools {
    pub(super) stacks: Mutex<Vec<Vec<Slab>>>,
    pub(super) largest: Class,
}

impl Pools {
    /// All places of `places` are free, as slabs up to class `largest`.
    ///
    /// # Panics
    /// If place 0 is one of them, or one of more than 31 bits.
    pub fn new(places: Range<u32>, largest: Class) -> Arc<Self> {
        let mut stacks = vec![Vec::new(); usize::from(largest.number()) + 1];
        cover(places, largest).for_each(|slab| stacks[slab.class().index()].push(slab));
        Arc::new(Self { stacks: Mutex::new(stacks), largest })
    }

    /// The largest class.
    pub fn largest(&self) -> Class {
        self.largest
    }
}
