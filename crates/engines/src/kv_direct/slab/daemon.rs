//! The host's side.

use std::sync::Arc;

use super::Pools;

/// The host's side of a slab allocator: splits and merges free slabs.
#[derive(Debug)]
pub struct Daemon {
    _pools: Arc<Pools>,
}

impl Daemon {
    /// The daemon of `pools`, which has no other.
    pub fn new(pools: Arc<Pools>) -> Self {
        Self { _pools: pools }
    }

    /// Does a bounded amount of work; whether there is more.
    pub fn turn(&mut self) -> bool {
        false
    }
}
