//! The memory of a node: words that only the simulation touches, one access at a time.

use std::cell::Cell;

/// The registered memory of a node.
#[derive(Debug)]
pub(super) struct Memory {
    words: Box<[Cell<u64>]>,
}

impl Memory {
    /// `bytes` zeros, rounded up to whole words.
    pub fn new(bytes: u64) -> Self {
        Self { words: vec![Cell::new(0); bytes.div_ceil(8) as usize].into() }
    }

    pub fn len(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// The aligned word at `at`.
    #[inline]
    pub fn load(&self, at: u64) -> u64 {
        self.words[at as usize / 8].get()
    }

    /// Replaces the aligned word at `at`.
    #[inline]
    pub fn store(&self, at: u64, word: u64) {
        self.words[at as usize / 8].set(word);
    }

    /// Copies `out.len()` bytes out.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        if at.is_multiple_of(8) && out.len().is_multiple_of(8) {
            let words = &self.words[at as usize / 8..];
            for (out, word) in out.chunks_exact_mut(8).zip(words) {
                out.copy_from_slice(&word.get().to_le_bytes());
            }
            return;
        }
        for (from, part) in pieces(at, out.len()) {
            let word = self.load(from & !7).to_le_bytes();
            let skip = (from & 7) as usize;
            out[part.clone()].copy_from_slice(&word[skip..skip + part.len()]);
        }
    }

    /// Copies `bytes` in.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        for (to, part) in pieces(at, bytes.len()) {
            let mut word = self.load(to & !7).to_le_bytes();
            let skip = (to & 7) as usize;
            word[skip..skip + part.len()].copy_from_slice(&bytes[part]);
            self.store(to & !7, u64::from_le_bytes(word));
        }
    }

    /// Zeros, as after a loss of power.
    pub fn clear(&self) {
        self.words.iter().for_each(|word| word.set(0));
    }

    /// The place of a byte, for callers that fill values in place.
    pub fn place(&self, at: u64) -> *mut u8 {
        self.words.as_ptr().cast::<u8>().cast_mut().wrapping_add(at as usize)
    }
}

/// The pieces of `len` bytes at `at` that lie in one word each: where each starts, and which of the
/// bytes it has. Memory accesses one piece at once.
pub(super) fn pieces(
    at: u64,
    len: usize,
) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> + Clone {
    let end = at + len as u64;
    let mut from = at;
    std::iter::from_fn(move || {
        if from >= end {
            return None;
        }
        let to = ((from & !7) + 8).min(end);
        let piece = (from, (from - at) as usize..(to - at) as usize);
        from = to;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_go_where_they_are_told(
            at in (0u64..40, any::<bool>()),
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let at = if at.1 { at.0 & !7 } else { at.0 };
            let memory = Memory::new(96);
            memory.write(0, &[0xAA; 96]);
            memory.write(at, &bytes);
            let mut all = [0; 96];
            memory.read(0, &mut all);
            let mut expected = [0xAA; 96];
            expected[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
            prop_assert_eq!(all, expected);
            let mut back = vec![0; bytes.len()];
            memory.read(at, &mut back);
            prop_assert_eq!(back, bytes);
        }
    }
}
