//! From a key to the processor, the bucket and the slot that may hold it (kv-direct §3.3.1).

pub use crate::key_hash::KeyHash;

/// Bits of the secondary hash, which stands beside a pointer in a hash slot.
pub const SECONDARY_BITS: u32 = 9;

impl KeyHash {
    /// The secondary hash, which stands beside the pointer to the key's entry.
    #[inline(always)]
    pub fn secondary(self) -> u16 {
        self.low as u16 & ((1 << SECONDARY_BITS) - 1)
    }
}
