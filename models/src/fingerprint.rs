//! Fingerprints of states, and the set of fingerprints that were seen.
//!
//! The set keeps 64 bits of a state, not the state. Two states with one fingerprint would be taken
//! for one, and the successors of the second would not be visited. Among `n` states the probability
//! that any two share a fingerprint is about `n² / 2⁶⁵`: one in 37 000 000 for a million states,
//! one in 370 000 for ten million, one in 3 700 for a hundred million. A fingerprint cannot make up
//! a violation: a trace is played again from the start.

use std::hash::{Hash, Hasher};

/// 64 bits that stand for a state.
pub fn fingerprint<T: Hash>(value: &T) -> u64 {
    let mut hasher = Folding { sum: SEED, pending: 0, bits: 0 };
    value.hash(&mut hasher);
    hasher.finish()
}

const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
const MULTIPLIER: u64 = 0xD6E8_FEB8_6659_FD93;

/// Gathers small integers into words and folds each into the sum by a full multiplication, whose
/// upper half comes back in: every bit of the input reaches every bit of the sum.
struct Folding {
    sum: u64,
    pending: u64,
    bits: u32,
}

impl Folding {
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.sum ^ word) * u128::from(MULTIPLIER);
        self.sum = (product as u64) ^ ((product >> 64) as u64).rotate_left(29) ^ word;
    }

    fn gather(&mut self, value: u64, bits: u32) {
        if self.bits + bits > 64 {
            let full = self.pending;
            self.fold(full);
            (self.pending, self.bits) = (0, 0);
        }
        self.pending |= value << self.bits;
        self.bits += bits;
        if self.bits == 64 {
            let full = self.pending;
            self.fold(full);
            (self.pending, self.bits) = (0, 0);
        }
    }
}

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.gather(u64::from_le_bytes(chunk.try_into().expect("chunks have 8 bytes")), 64);
        }
        chunks.remainder().iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, value: u8) {
        self.gather(value.into(), 8);
    }

    fn write_u16(&mut self, value: u16) {
        self.gather(value.into(), 16);
    }

    fn write_u32(&mut self, value: u32) {
        self.gather(value.into(), 32);
    }

    fn write_u64(&mut self, value: u64) {
        self.gather(value, 64);
    }

    /// Lengths and the numbers of enum variants, which are small: two bytes are enough.
    fn write_usize(&mut self, value: usize) {
        debug_assert!(value <= usize::from(u16::MAX), "{value} is no length of a state's part");
        self.gather(value as u64 & 0xffff, 16);
    }

    fn finish(&self) -> u64 {
        let mut last = Self { ..*self };
        last.fold(self.pending);
        last.fold(u64::from(self.bits));
        last.fold(last.sum >> 32);
        last.sum
    }
}

/// A set of fingerprints: open addressing, eight bytes a place, at most five eighths full.
pub struct Seen {
    places: Vec<u64>,
    len: usize,
}

impl Default for Seen {
    fn default() -> Self {
        Self { places: vec![FREE; 1 << 12], len: 0 }
    }
}

/// Marks a place that is free; a fingerprint of this value is stored as 1.
const FREE: u64 = 0;

impl Seen {
    /// Adds a fingerprint; returns whether it is new.
    pub fn insert(&mut self, fingerprint: u64) -> bool {
        let stored = fingerprint.max(1);
        let at = self.place_of(stored);
        if self.places[at] == stored {
            return false;
        }
        self.places[at] = stored;
        self.len += 1;
        if self.len * 8 > self.places.len() * 5 {
            self.grow();
        }
        true
    }

    /// The place where it is, or would be.
    fn place_of(&self, stored: u64) -> usize {
        let mask = self.places.len() - 1;
        let mut at = (stored >> 20) as usize & mask;
        while self.places[at] != FREE && self.places[at] != stored {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        let bigger = vec![FREE; self.places.len() * 2];
        let old = std::mem::replace(&mut self.places, bigger);
        for stored in old.into_iter().filter(|stored| *stored != FREE) {
            let at = self.place_of(stored);
            self.places[at] = stored;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_is_known_and_nothing_else() {
        let mut seen = Seen::default();
        assert!((0..100_000u64).all(|n| seen.insert(fingerprint(&n))));
        assert!((0..100_000u64).all(|n| !seen.insert(fingerprint(&n))));
        assert!(seen.insert(fingerprint(&100_000u64)));
        assert!(seen.insert(0) && !seen.insert(0));
    }

    #[test]
    fn small_fields_do_not_run_into_each_other() {
        assert_ne!(fingerprint(&(1u8, 0u8)), fingerprint(&(0u8, 1u8)));
        assert_ne!(fingerprint(&[0u16, 1]), fingerprint(&[1u16, 0]));
        assert_ne!(fingerprint(&(0u8, 0u8)), fingerprint(&0u8));
    }

    #[test]
    fn one_bit_of_the_input_changes_half_of_the_output() {
        let mut changed = 0;
        for bit in 0..64 {
            changed += (fingerprint(&[7u64, 9]) ^ fingerprint(&[7u64 ^ 1 << bit, 9])).count_ones();
        }
        assert!((28 * 64..36 * 64).contains(&changed), "{changed} of 4096 bits");
    }
}
