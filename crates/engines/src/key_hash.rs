//! The hash of a key, from which engines choose the places that may hold it.

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The 16-byte hash of a key.
///
/// In the papers the hash *is* the key. Here it only says where to look. The key itself lies in the
/// entry and is compared, so two keys with the same hash are two keys.
///
/// The upper half chooses the worker, the lower half the bucket and the word's tag in it. If both
/// choices used the same bits, a worker's keys would share some of their bucket's bits, and most of
/// its index would never be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl KeyHash {
    /// The hash of `key` in a table with this seed.
    #[inline(always)]
    pub fn of(seed: u64, key: &[u8]) -> Self {
        let hash = xxh3_128_with_seed(key, seed);
        Self { low: hash as u64, high: (hash >> 64) as u64 }
    }

    /// The key's partition out of `partitions`.
    #[inline(always)]
    pub fn partition(self, partitions: u32) -> u32 {
        share(self.high, partitions)
    }

    /// The key's bucket out of `buckets`.
    #[inline(always)]
    pub fn bucket(self, buckets: u32) -> u32 {
        share(self.low, buckets)
    }
}

/// One of `parts`, chosen by the upper 32 bits of `hash`.
#[inline(always)]
fn share(hash: u64, parts: u32) -> u32 {
    (((hash >> 32) * u64::from(parts)) >> 32) as u32
}

/// Bits that all depend on all bits of `h`.
#[inline]
pub(crate) fn mix(mut h: u64) -> u64 {
    h = (h ^ h >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    h = (h ^ h >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    h ^ h >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_partition_use_its_whole_index() {
        let mut used = [0; 64];
        let keys = (0..64_000u32).map(|key| KeyHash::of(1, &key.to_le_bytes()));
        for hash in keys.filter(|hash| hash.partition(16) == 3) {
            used[hash.bucket(64) as usize] += 1;
        }
        assert!(used.iter().all(|keys| (30..=100).contains(keys)), "{used:?}");
    }
}
