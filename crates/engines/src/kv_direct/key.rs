//! From a key to the processor, the bucket and the slot that may hold it (kv-direct §3.3.1).

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Bits of the secondary hash, which stands beside a pointer in a hash slot.
pub const SECONDARY_BITS: u32 = 9;

/// The hash of a key.
///
/// The upper half chooses the processor, the lower half bucket and secondary hash. If both choices
/// used the same bits, the keys of one processor would share some of their bucket's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash {
    low: u64,
    high: u64,
}

impl KeyHash {
    /// The hash of `key` in a table with this seed.
    #[inline(always)]
    pub fn of(seed: u64, key: &[u8]) -> Self {
        let hash = xxh3_128_with_seed(key, seed);
        Self { low: hash as u64, high: (hash >> 64) as u64 }
    }

    /// The key's processor out of `processors`.
    #[inline(always)]
    pub fn processor(self, processors: u32) -> u32 {
        share(self.high, processors)
    }

    /// The key's bucket out of `buckets`.
    #[inline(always)]
    pub fn bucket(self, buckets: u32) -> u32 {
        share(self.low, buckets)
    }

    /// The secondary hash, which stands beside the pointer to the key's entry.
    #[inline(always)]
    pub fn secondary(self) -> u16 {
        self.low as u16 & ((1 << SECONDARY_BITS) - 1)
    }
}

/// One of `parts`, chosen by the upper 32 bits of `hash`.
#[inline(always)]
fn share(hash: u64, parts: u32) -> u32 {
    (((hash >> 32) * u64::from(parts)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_processor_use_its_whole_index() {
        let mut used = [0; 64];
        let keys = (0..64_000u32).map(|key| KeyHash::of(1, &key.to_le_bytes()));
        for hash in keys.filter(|hash| hash.processor(16) == 3) {
            used[hash.bucket(64) as usize] += 1;
        }
        assert!(used.iter().all(|keys| (30..=100).contains(keys)), "{used:?}");
    }
}
