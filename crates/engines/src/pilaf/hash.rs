//! From a key to its node and its candidate slots (pilaf §3.4: 3-way cuckoo hashing).

use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::layout::WAYS;
use crate::key_hash::mix;

/// The hash of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash {
    /// The part that an entry keeps: it gives the candidates of a moved key without reading the
    /// key.
    pub name: u64,
    /// The part that picks the node. It is independent of the name, so that every node's slots are
    /// used evenly.
    spread: u64,
}

impl KeyHash {
    /// The hash of `key` in a table with this seed.
    pub fn of(seed: u64, key: &[u8]) -> Self {
        let hash = xxh3_128_with_seed(key, seed);
        Self { name: hash as u64, spread: (hash >> 64) as u64 }
    }

    /// The node that serves the key, out of `nodes`.
    pub fn node(&self, nodes: usize) -> usize {
        (((self.spread >> 32) * nodes as u64) >> 32) as usize
    }
}

/// The candidate slots of the key whose hash has this name, in the order in which a client looks at
/// them. They are distinct.
///
/// # Panics
/// If `slots` is not a power of two, or fewer than the ways.
pub fn candidates(name: u64, slots: u64) -> [u64; WAYS] {
    assert!(slots.is_power_of_two() && slots >= WAYS as u64, "slots are planned so");
    let mask = slots - 1;
    let mut candidates = [mix(name) & mask; WAYS];
    for way in 1..WAYS {
        let mut slot =
            mix(name.wrapping_add((way as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))) & mask;
        while candidates[..way].contains(&slot) {
            slot = (slot + 1) & mask;
        }
        candidates[way] = slot;
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_distinct_and_spread() {
        for slots in [4u64, 8, 1024] {
            let mut seen = vec![0u32; slots as usize];
            for key in 0..20_000u32 {
                let hash = KeyHash::of(3, &key.to_le_bytes());
                let of_key = candidates(hash.name, slots);
                assert!(of_key[0] != of_key[1] && of_key[0] != of_key[2] && of_key[1] != of_key[2]);
                of_key.iter().for_each(|slot| seen[*slot as usize] += 1);
            }
            let mean = 60_000 / slots as u32;
            assert!(seen.iter().all(|n| *n > mean / 3 && *n < mean * 2), "{slots}: {seen:?}");
        }
        let nodes: Vec<_> = (0..300u32).map(|k| KeyHash::of(3, &k.to_le_bytes()).node(3)).collect();
        assert!((0..3).all(|node| nodes.iter().filter(|n| **n == node).count() > 60));
    }
}
