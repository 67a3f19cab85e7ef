//! What a client of a table that evicts remembers of its evictions in a size class, to see when it
//! should look at other memory (`memory/balance.rs`).

use crate::limits::CHUNK_BYTES;
use crate::nessie::layout::slab::Class;

/// A client looks at other memory when it has evicted this part of a slab at the earliest.
const PARTS: u64 = 8;
/// The longest pause between two looks is as long as it takes to evict a slab, or so many bytes if
/// these are more: of several clients each evicts a slab seldom, and the sizes may have changed
/// meanwhile. A look takes about as long as a dozen PUTs of short values, which are not to be among
/// the slowest hundredth.
const PAUSE_BYTES_MIN: u64 = 512 << 10;
/// The most looks that follow one another.
const LOOKS_MAX: usize = 16;

/// What a client has evicted of a class lately.
#[derive(Debug, Default)]
pub(in crate::nessie) struct Balance {
    /// Bytes that were evicted since the last look. At the beginning some number of them.
    bytes: Option<u64>,
    /// The pause until the next look, in parts of a slab.
    pause: u64,
    /// The looks after that pause, as long as they find memory.
    looks: usize,
    /// Values that were evicted, and the sum of what they were worth. Both fade with each look.
    values: f32,
    worths: f32,
}

impl Balance {
    /// Takes note of values of a class that were evicted, and were worth so much. If a look is due,
    /// returns the mean of those that were evicted lately.
    /// `any`: any number. The first look comes at any moment, so that clients which do one
    /// operation each look as often together as one that does many.
    pub fn evicted(
        &mut self,
        class: &Class,
        worths: impl Iterator<Item = u32>,
        any: impl FnOnce() -> u64,
    ) -> Option<f32> {
        let part = part_bytes(class);
        let bytes = self.bytes.get_or_insert_with(|| any() % part);
        for worth in worths {
            *bytes += class.entry_bytes;
            self.values += 1.0;
            self.worths += worth as f32;
        }
        if *bytes < part * self.pause.max(1) {
            return None;
        }
        let mean = self.worths / self.values;
        *bytes = 0;
        self.values /= 2.0;
        self.worths /= 2.0;
        Some(mean)
    }

    /// The most looks that may follow one another now.
    pub fn looks(&self) -> usize {
        self.looks.max(1)
    }

    /// Takes note of looks, and whether the last one has found memory.
    pub fn has_looked(&mut self, class: &Class, found: bool) {
        let longest = PARTS.max(PAUSE_BYTES_MIN / part_bytes(class));
        (self.pause, self.looks) = match found {
            true => (1, (self.looks() * 2).min(LOOKS_MAX)),
            false => ((self.pause.max(1) * 2).min(longest), 1),
        };
    }
}

/// A part of a slab, of which a client looks at other memory after some.
fn part_bytes(class: &Class) -> u64 {
    u64::from(class.chunks) * CHUNK_BYTES / PARTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nessie::layout::slab::Classes;

    #[test]
    fn looks_that_find_nothing_become_rare_and_one_that_finds_memory_is_soon_followed() {
        let class = Classes::new(64 << 20, 16).of(1000);
        let mut balance = Balance::default();
        let mut until_look = |found| {
            let values = (1..).find(|_| balance.evicted(&class, [1].into_iter(), || 0).is_some());
            balance.has_looked(&class, found);
            values.expect("it comes")
        };
        let first = until_look(false);
        assert!(first * PARTS <= u64::from(class.entries) + PARTS, "{first}");
        let later: Vec<u64> = (0..8).map(|_| until_look(false)).collect();
        assert!(later.is_sorted() && later[7] > 30 * first, "{later:?}");
        assert!(later[7] * class.entry_bytes <= PAUSE_BYTES_MIN + class.entry_bytes);
        until_look(true);
        assert_eq!(until_look(false), first);
    }

    #[test]
    fn the_mean_follows_what_is_evicted() {
        let class = Classes::new(64 << 20, 16).of(1000);
        let mut balance = Balance::default();
        let mut mean = |worth: u32| {
            let worths = std::iter::repeat_n(worth, class.entries as usize);
            let mean = balance.evicted(&class, worths, || 0).expect("it was a slab's worth");
            balance.has_looked(&class, true);
            mean
        };
        assert_eq!(mean(4), 4.0);
        assert!((7.9..8.0).contains(&(0..8).map(|_| mean(8)).fold(0.0, f32::max)));
    }

    #[test]
    fn looks_that_find_memory_are_followed_by_more_and_come_at_once() {
        let class = Classes::new(64 << 20, 16).of(1000);
        let mut balance = Balance::default();
        let after = |found| {
            balance.has_looked(&class, found);
            balance.looks()
        };
        assert_eq!([true, true, true, true, true, false, true].map(after), [2, 4, 8, 16, 16, 1, 2]);
    }
}
