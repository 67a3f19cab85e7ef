//! The processor's side.

use std::sync::Arc;

use super::{Class, Place, Pools, Slab};
use crate::kv_direct::memory::HostMemory;

/// The processor's side of its slab allocator.
#[derive(Debug)]
pub struct Slabs {
    pools: Arc<Pools>,
}

impl Slabs {
    /// The processor's side of `pools`, which has no other.
    pub fn new(pools: Arc<Pools>) -> Self {
        Self { pools }
    }

    /// A slab of this class, if there is one.
    ///
    /// If there is none, and [`Self::starving`] says so, there may be one when the daemon has had
    /// its turns.
    pub async fn allocate<H: HostMemory>(&self, memory: &H, class: Class) -> Option<Place> {
        memory.exchange(false, 1).await;
        let mut stacks = self.pools.stacks.lock().expect("nobody panicked");
        let mut slab = stacks.iter_mut().skip(class.index()).find_map(Vec::pop)?;
        while slab.class() > class {
            let (lower, upper) = slab.halves()?;
            stacks[upper.class().index()].push(upper);
            slab = lower;
        }
        Some(slab.place())
    }

    /// Takes back a slab that was allocated as this class.
    pub async fn free<H: HostMemory>(&self, memory: &H, place: Place, class: Class) {
        memory.exchange(true, 1).await;
        let mut stacks = self.pools.stacks.lock().expect("nobody panicked");
        stacks[class.index()].push(Slab::new(place, class));
    }

    /// Whether the daemon was asked for memory and has not yet answered.
    pub fn starving(&self) -> bool {
        false
    }

    /// All free slabs, in order; only while neither an operation nor a turn of the daemon is under
    /// way.
    pub fn free_slabs(&self) -> Vec<Slab> {
        let stacks = self.pools.stacks.lock().expect("nobody panicked");
        let mut slabs: Vec<Slab> = stacks.iter().flatten().copied().collect();
        slabs.sort_unstable();
        slabs
    }
}
