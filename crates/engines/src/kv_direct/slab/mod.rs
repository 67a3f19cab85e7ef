//! The slab allocator: free memory, shared by the processor and a daemon on its host (kv-direct
//! §3.3.2, §4 "Slab Memory Allocator").
//!
//! # How it works
//! Memory is cut into *slabs* of 32 bytes times a power of two, each at a multiple of its size. For
//! each size there is a stack of free ones on the host ([`Pools`]), and for the small sizes one
//! more in the processor's own memory ([`Slabs`]), so that nearly every allocation and free is made
//! there. The two exchange slabs a batch at a time: that is all the allocator costs in accesses to
//! host memory.
//!
//! The [`Daemon`] on the host works at the other end of the host's stacks. It keeps the small ones
//! from running low by splitting larger slabs, and merges small slabs when many are free, lazily:
//! it sorts them by place and looks for neighbours. There are no headers, and no bitmap: a slab
//! that is free is known by its entry, one that is used by whoever uses it.
//!
//! ```text
//!  processor                    host
//!  ┌──────────────┐   batch    ┌───────────────────────────┐
//!  │ pop, push ⇄  │ ◄────────► │ left … a ring … right     │ ◄──── daemon: splits, merges
//!  └──────────────┘            └───────────────────────────┘
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `class.rs` | sizes, places, and both in one word |
//! | `slabs.rs` | the processor's side: allocate and free |
//! | `traffic.rs` | what an exchange costs |
//! | `stack.rs` | a stack with two ends and two owners |
//! | `pools.rs` | all stacks, and the question for more |
//! | `daemon.rs` | when to split and merge |
//! | `merge.rs` | how: a radix sort, and runs of neighbours |
//!
//! # Invariants
//! 1. Each place is in exactly one slab: used, in the processor's stacks, in the pools, or in the
//!    daemon's hands. Slabs do not overlap and are aligned to their size.
//! 2. Memory changes its owner only by an entry that one side puts and the other takes (`stack.rs`,
//!    invariants 1 to 3).
//! 3. An allocation fails for want of memory only if there is no free slab of its size or above,
//!    even after everything was merged that was free when it first failed: see [`Slabs::allocate`].
//!
//! # Faults
//! All of it is volatile, as the memory it manages. A daemon that stops, stops splitting and
//! merging: the processor then cuts larger slabs itself, and what is in pieces stays in pieces.
//! Whoever is dropped, hands back what it had.

mod class;
mod daemon;
mod merge;
mod pools;
mod slabs;
mod stack;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
mod traffic;

pub use class::{Class, PLACE_BYTES, PLACES_MAX, Place, Slab};
pub use daemon::Daemon;
pub use pools::Pools;
pub use slabs::Slabs;
