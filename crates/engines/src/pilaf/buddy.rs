//! The free and the allocated blocks of the arena: a buddy allocator (pilaf §4, "RDMA-friendly
//! extents").
//!
//! The allocator works like SQLite's mem5, which the paper ports. Blocks are powers of two and
//! start at multiples of their size. The lowest free block that is large enough is split until it
//! fits. A block that is given back is joined with its other half as long as that is free. Unlike
//! mem5 the allocator keeps no data in the arena: the server does not trust memory that clients can
//! read.
//!
//! # Invariants
//! 1. Every grain belongs to one allocated block or to one free block.
//! 2. No two free blocks are halves of one block.

use super::free_set::FreeSet;
use super::layout::GRAIN_BYTES;

/// Sizes of blocks: 64 bytes to 2 TiB.
const ORDERS_MAX: u32 = 36;

/// A buddy allocator of grains.
#[derive(Clone, Debug)]
pub struct Buddy {
    /// Free blocks by size; a block of order *o* is named by its first grain divided by 2^o.
    free: Vec<FreeSet>,
    grains: u64,
    free_grains: u64,
}

/// The order of the smallest block with at least this many bytes.
pub fn order_of(bytes: u64) -> u32 {
    bytes.div_ceil(GRAIN_BYTES).max(1).next_power_of_two().trailing_zeros()
}

impl Buddy {
    /// An arena of `grains` grains, all free.
    ///
    /// # Panics
    /// If an entry cannot name that many.
    pub fn new(grains: u64) -> Self {
        assert!(grains <= 1 << 32, "a grain's number has 32 bits");
        let orders = (0..ORDERS_MAX).take_while(|order| grains >> order > 0);
        let mut free: Vec<FreeSet> = orders.map(|order| FreeSet::new(grains >> order)).collect();
        let mut at = 0;
        while at < grains {
            // The largest block that starts here and ends inside the arena.
            let fits = 63 - (grains - at).leading_zeros();
            let order = fits.min(at.trailing_zeros());
            free[order as usize].insert(at >> order);
            at += 1 << order;
        }
        Self { free, grains, free_grains: grains }
    }

    /// Grains of the arena.
    pub fn grains(&self) -> u64 {
        self.grains
    }

    /// Grains that are free.
    pub fn free_grains(&self) -> u64 {
        self.free_grains
    }

    /// The first grain of a block of this order, which now belongs to the caller; `None` if no
    /// block is large enough.
    pub fn allocate(&mut self, order: u32) -> Option<u64> {
        let sizes = order as usize..self.free.len();
        let from = sizes.into_iter().find(|size| self.free[*size].len() > 0)?;
        let block = self.free[from].first().expect("it is not empty");
        self.free[from].remove(block);
        let at = block << from;
        for size in (order as usize..from).rev() {
            // The upper half stays free.
            self.free[size].insert((at >> size) + 1);
        }
        self.free_grains -= 1 << order;
        Some(at)
    }

    /// Gives a block back.
    ///
    /// # Panics
    /// If the block does not have that order, or is free.
    pub fn free(&mut self, at: u64, order: u32) {
        assert!(at.is_multiple_of(1 << order) && at + (1 << order) <= self.grains, "not a block");
        assert!(!self.is_free(at), "the block at {at} is free already");
        self.free_grains += 1 << order;
        let (mut block, mut order) = (at >> order, order as usize);
        while order + 1 < self.free.len() && self.free[order].remove(block ^ 1) {
            block >>= 1;
            order += 1;
        }
        self.free[order].insert(block);
    }

    /// Whether a grain is in a free block.
    pub fn is_free(&self, grain: u64) -> bool {
        self.free.iter().enumerate().any(|(order, free)| free.contains(grain >> order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_rounded_up_to_powers_of_two() {
        let orders = [0, 1, 64, 65, 128, 129, 1 << 20].map(order_of);
        assert_eq!(orders, [0, 0, 0, 1, 1, 2, 14]);
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn nothing_is_given_back_twice() {
        let mut buddy = Buddy::new(64);
        let (a, b) = (buddy.allocate(2).unwrap(), buddy.allocate(2).unwrap());
        buddy.free(a, 2);
        buddy.free(b, 2);
        buddy.free(b, 2);
    }

    proptest! {
        /// Compares the allocator with a model that keeps the owner of each grain.
        #[test]
        fn blocks_do_not_overlap_and_all_comes_back(
            grains in 1u64..600,
            steps in prop::collection::vec((any::<bool>(), 0u32..8, any::<usize>()), 0..200),
        ) {
            let mut buddy = Buddy::new(grains);
            let mut owner = vec![false; grains as usize];
            let mut blocks = Vec::new();
            let whole = format!("{:?}", buddy.free);
            for (allocate, order, pick) in steps {
                if allocate || blocks.is_empty() {
                    let Some(at) = buddy.allocate(order) else {
                        // `None` only if no block is free: every aligned run of that size has an
                        // owner in it.
                        let size = 1usize << order;
                        let mut runs = owner.chunks_exact(size);
                        prop_assert!(runs.all(|run| run.iter().any(|taken| *taken)));
                        continue;
                    };
                    prop_assert!(at.is_multiple_of(1 << order) && at + (1 << order) <= grains);
                    for grain in at..at + (1 << order) {
                        prop_assert!(!std::mem::replace(&mut owner[grain as usize], true));
                    }
                    blocks.push((at, order));
                } else {
                    let (at, order) = blocks.swap_remove(pick % blocks.len());
                    buddy.free(at, order);
                    owner[at as usize..(at + (1 << order)) as usize].fill(false);
                }
                for grain in 0..grains {
                    prop_assert_eq!(buddy.is_free(grain), !owner[grain as usize]);
                }
                let free = owner.iter().filter(|taken| !**taken).count() as u64;
                prop_assert_eq!(buddy.free_grains(), free);
            }
            blocks.into_iter().for_each(|(at, order)| buddy.free(at, order));
            prop_assert_eq!(format!("{:?}", buddy.free), whole);
        }
    }
}
