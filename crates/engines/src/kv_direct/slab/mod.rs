//! The slab allocator: free memory, shared by the processor and a daemon on its host (kv-direct
//! §3.3.2, §4 "Slab Memory Allocator").
//!
//! # How it works
//! Memory is cut into *slabs* of 32 bytes times a power of two, each at a multiple of its size. For
//! each size there is a stack of free slabs on the host ([`Pools`]). For the small sizes there is
//! one more stack in the processor's own memory ([`Slabs`]), where nearly every allocation and free
//! takes place. The two stacks exchange slabs a batch at a time: these are the allocator's only
//! accesses to host memory.
//!
//! The [`SlabDaemon`] on the host works at the other end of the host's stacks. It keeps the stacks
//! of small slabs from running low by splitting larger slabs. It merges small slabs lazily, when
//! many are free: it sorts them by place and looks for neighbours. There are no headers, and there
//! is no bitmap: a free slab is known by its entry in a stack, a used slab only to its user.
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
//! 1. Each place is in exactly one slab: in a used slab, in the processor's stacks, in the pools,
//!    or in the daemon's hands. Slabs do not overlap and are aligned to their size.
//! 2. Memory changes its owner only through an entry that one side puts and the other side takes
//!    (`stack.rs`, invariants 1 to 3).
//! 3. An allocation fails for lack of memory only if no slab of its size or above is free, even
//!    after merging everything that was free when it first failed: see [`Slabs::allocate`].
//!
//! # Faults
//! All of it is volatile, as is the memory that it manages. If the daemon stops, nothing is split
//! or merged: the processor then cuts larger slabs itself, and free memory in pieces stays in
//! pieces. A side that is dropped hands back its slabs.

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
pub use daemon::SlabDaemon;
pub use pools::Pools;
pub use slabs::Slabs;
