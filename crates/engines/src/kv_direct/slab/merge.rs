//! Merging free slabs: a radix sort by place, then neighbours become one (kv-direct §5.1.2, Figure
//! 12).
//!
//! All work is in steps of bounded length, since a daemon that merges billions of slabs has other
//! pools to look after.

use std::ops::Range;

use super::{Class, Place, Slab};

/// Bits of a digit.
const DIGIT_BITS: u32 = 11;

/// Values of a digit.
const DIGITS: usize = 1 << DIGIT_BITS;

/// Digits of a word.
const PASSES: usize = u32::BITS.div_ceil(DIGIT_BITS) as usize;

/// Free slabs while they are sorted.
///
/// Least significant digit first: each pass copies all words from one array to the other, stable in
/// the order of one digit.
#[derive(Debug)]
pub(super) struct Sort {
    words: Vec<u32>,
    sorted: Vec<u32>,
    /// The number of words with this digit; then the place of the next of these words.
    counts: Box<[[u32; DIGITS]; PASSES]>,
    pass: usize,
    /// Words copied in this pass.
    copied: usize,
}

impl Sort {
    /// An empty sort with room for this many slabs.
    pub(super) fn with_capacity(slabs: usize) -> Self {
        let counts = Box::new([[0; DIGITS]; PASSES]);
        let words = Vec::with_capacity(slabs);
        Self { words, sorted: Vec::new(), counts, pass: 0, copied: 0 }
    }

    /// Adds a slab; only before the first step.
    #[inline]
    pub(super) fn push(&mut self, slab: Slab) {
        self.words.push(slab.word());
        for (pass, counts) in self.counts.iter_mut().enumerate() {
            counts[digit(slab.word(), pass)] += 1;
        }
    }

    /// The number of slabs.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Slab `index` in the present order; `None` behind the last.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Slab> {
        self.words.get(index).copied().and_then(Slab::of_word)
    }

    /// Copies up to `budget` words. Returns whether all are in order now.
    pub(super) fn step(&mut self, budget: usize) -> bool {
        if self.copied == 0 && !self.begin() {
            return true;
        }
        let end = (self.copied + budget).min(self.words.len());
        let counts = &mut self.counts[self.pass];
        for word in &self.words[self.copied..end] {
            let at = &mut counts[digit(*word, self.pass)];
            self.sorted[*at as usize] = *word;
            *at += 1;
        }
        self.copied = end;
        if end == self.words.len() {
            std::mem::swap(&mut self.words, &mut self.sorted);
            (self.pass, self.copied) = (self.pass + 1, 0);
        }
        self.pass == PASSES
    }

    /// Starts the next pass that changes the order, if there is one.
    fn begin(&mut self) -> bool {
        let all = self.words.len() as u32;
        while let Some(counts) = self.counts.get_mut(self.pass) {
            if !counts.contains(&all) {
                let mut next = 0;
                for count in counts {
                    next += std::mem::replace(count, next);
                }
                if self.sorted.len() < self.words.len() {
                    // The memory is not touched before it is written.
                    self.sorted = vec![0; self.words.len()];
                }
                return true;
            }
            self.pass += 1;
        }
        false
    }
}

#[inline(always)]
fn digit(word: u32, pass: usize) -> usize {
    (word >> (pass as u32 * DIGIT_BITS)) as usize % DIGITS
}

/// Free slabs that border on each other.
#[derive(Debug, Default)]
pub(super) struct Run(Range<u32>);

impl Run {
    /// Adds the next slab in the order of places. If there is a gap before it, a new run starts
    /// with it, and the old one is returned.
    ///
    /// # Panics
    /// If the slab overlaps the run: the same place was given to two owners.
    #[inline]
    pub(super) fn add(&mut self, slab: Slab) -> Range<u32> {
        if self.0.end == slab.start() {
            self.0.end = slab.end();
            return 0..0;
        }
        assert!(
            slab.start() > self.0.end,
            "{slab:?} and places up to {} are free twice",
            self.0.end
        );
        std::mem::replace(&mut self.0, slab.start()..slab.end())
    }

    /// The run so far; a new one starts.
    pub(super) fn end(&mut self) -> Range<u32> {
        std::mem::take(&mut self.0)
    }
}

/// The places of `range` as a minimal number of slabs, each aligned, none above `largest`, in
/// order.
pub(super) fn cover(range: Range<u32>, largest: Class) -> impl Iterator<Item = Slab> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let left = range.end.checked_sub(at).filter(|left| *left > 0)?;
        let number = at.trailing_zeros().min(left.ilog2()).min(u32::from(largest.number()));
        let slab = Slab::new(Place::new(at)?, Class::new(number as u8)?);
        at = slab.end();
        Some(slab)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(slabs: &[Slab], budget: usize) -> Vec<Slab> {
        let mut sort = Sort::with_capacity(0);
        slabs.iter().for_each(|slab| sort.push(*slab));
        let steps = PASSES * slabs.len().div_ceil(budget) + 1;
        assert!((0..steps).any(|_| sort.step(budget)), "it takes more than {steps} steps");
        (0..sort.len()).map_while(|index| sort.get(index)).collect()
    }

    fn slab() -> impl Strategy<Value = Slab> {
        (1u32..1 << 31, 0u8..8).prop_filter_map("place 0", |(number, class)| {
            let class = Class::new(class)?;
            Some(Slab::new(Place::new(number & !(class.places() - 1))?, class))
        })
    }

    proptest! {
        #[test]
        fn sorts_as_std_does(
            mut slabs in proptest::collection::vec(slab(), 0..500),
            shift in 0u32..31,
            budget in 1..99usize,
        ) {
            slabs.retain(|slab| slab.start() >> shift > 0);
            let mut expected = slabs.clone();
            expected.sort_unstable();
            prop_assert_eq!(sorted(&slabs, budget), expected);
        }

        #[test]
        fn a_range_is_covered_by_few_slabs(
            start in 1u32..5000,
            len in 0u32..5000,
            largest in 0u8..14,
        ) {
            let largest = Class::new(largest).expect("a class");
            let slabs: Vec<Slab> = cover(start..start + len, largest).collect();
            let mut at = start;
            for slab in &slabs {
                prop_assert_eq!(slab.start(), at);
                prop_assert!(slab.class() <= largest);
                at = slab.end();
            }
            prop_assert_eq!(at, start + len);
            for pair in slabs.windows(2) {
                let [left, right] = [pair[0], pair[1]];
                let are_buddies = left.class() == right.class()
                    && left.class() < largest
                    && left.start() % (2 * left.class().places()) == 0;
                prop_assert!(!are_buddies, "{:?} and {:?}", left, right);
            }
        }
    }

    #[test]
    fn a_run_ends_at_a_gap() {
        let slab = |number| Slab::new(Place::new(number).expect("not 0"), Class::SMALLEST);
        let mut run = Run::default();
        let ended: Vec<_> = [3, 4, 5, 7, 9, 10].map(|number| run.add(slab(number))).into();
        assert_eq!(ended, [0..0, 0..0, 0..0, 3..6, 7..8, 0..0]);
        assert_eq!((run.end(), run.end()), (9..11, 0..0));
    }

    #[test]
    #[should_panic(expected = "are free twice")]
    fn a_slab_that_is_free_twice_is_seen() {
        let slab = Slab::new(Place::new(4).expect("not 0"), Class::SMALLEST);
        let mut run = Run::default();
        run.add(slab);
        run.add(slab);
    }
}
