//! The slab allocator (kv-direct §3.3.2, §4 "Slab Memory Allocator").

mod class;
mod daemon;
mod merge;
mod pools;
mod slabs;

pub use class::{Class, PLACE_BYTES, PLACES_MAX, Place, Slab};
pub use daemon::Daemon;
pub use pools::Pools;
pub use slabs::Slabs;
