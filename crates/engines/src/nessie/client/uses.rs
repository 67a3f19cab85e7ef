//! How much the values of each size class are used, beside what their marks let expect
//! (`memory/balance.rs`).
//!
//! Values of a size that nobody wants any more have good marks for some time. But all the time a
//! client sees in the index how many values were used in an epoch, whoever has put them. If those
//! of a class are fewer than their marks let expect, all values of the class are worth less, by the
//! same **share**:
//!
//! ```text
//! share = (found + W * others) / (expected + W)
//! ```
//!
//! in this epoch or in the one before, whichever is more: some values are unused for an epoch and
//! come back. Of a class with few expected uses nothing can be told in this way, and many uses come
//! in bursts. So W uses count as if they had the share of `others`, of all values of other classes
//! than the one for which the client evicts. This share is remembered for longer: when the sizes
//! change, old marks soon let expect next to nothing.

use std::mem;
use std::ops::AddAssign;

use crate::nessie::layout::slab::{Class, LARGE};

/// Uses of values in the index, in an epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::nessie) struct Uses {
    /// Values that were used in it already.
    pub found: f32,
    /// The uses that were expected by now of the others.
    pub expected: f32,
}

impl AddAssign for Uses {
    fn add_assign(&mut self, other: Self) {
        self.found += other.found;
        self.expected += other.expected;
    }
}

impl Uses {
    /// The same, if of the uses that are expected there are such a part everywhere.
    pub fn of_expected(self, part: f32) -> Self {
        Self { expected: self.expected * part, ..self }
    }

    /// Found of expected, if `before` is the share that they had without these, and counts as
    /// `weight` uses.
    fn share(&self, before: f32, weight: f32) -> f32 {
        ((self.found + weight * before) / (self.expected + weight)).min(1.0)
    }
}

/// The weight of all other classes beside the uses of a class.
const OTHERS_WEIGHT: f32 = 100.0;
/// The weight of what was known of the others before an epoch.
const BEFORE_WEIGHT: f32 = 5.0;

/// The uses of the values of all classes.
#[derive(Debug)]
pub(in crate::nessie) struct UsesOfClasses {
    epoch: u8,
    /// By the number of a class, the uses of its values in this epoch and in the one before.
    classes: Vec<[Uses; 2]>,
    /// The uses, in this epoch, of values of other classes than the one for which the client
    /// evicted.
    others: Uses,
    /// The share of the others at the end of the epoch before.
    others_before: f32,
}

impl Default for UsesOfClasses {
    fn default() -> Self {
        Self { epoch: 0, classes: Vec::new(), others: Uses::default(), others_before: 1.0 }
    }
}

impl UsesOfClasses {
    /// Goes on to an epoch.
    pub fn tick(&mut self, epoch: u8) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.others_before = self.others.share(self.others_before, BEFORE_WEIGHT);
            self.others = Uses::default();
            self.classes.iter_mut().for_each(|[now, before]| *before = mem::take(now));
        }
    }

    /// Counts the uses of values of a class that are seen when the client evicts for another one,
    /// or for the same.
    pub fn count(&mut self, uses: Uses, class: &Class, evicts: &Class) {
        // Of long values there are too few to tell anything.
        if class.id == LARGE {
            return;
        }
        let at = usize::from(class.id);
        if at >= self.classes.len() {
            self.classes.resize(at + 1, [Uses::default(); 2]);
        }
        self.classes[at][0] += uses;
        if class.id != evicts.id {
            self.others += uses;
        }
    }

    /// The share of what values of a class seem to be worth that they are worth: at most 1.
    pub fn share(&self, class: &Class) -> f32 {
        let now = self.others.share(self.others_before, BEFORE_WEIGHT);
        let others = now.max(self.others_before);
        let of_class = self.classes.get(usize::from(class.id)).copied().unwrap_or_default();
        of_class.map(|uses| uses.share(others, OTHERS_WEIGHT)).into_iter().fold(0.0, f32::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nessie::layout::slab::Classes;

    fn classes() -> [Class; 3] {
        let classes = Classes::new(64 << 20, 16);
        [1000, 10_000, 100_000].map(|len| classes.of(len))
    }

    #[test]
    fn a_class_that_is_not_used_as_expected_for_an_epoch_loses_its_share() {
        let ([short, middle, long], mut uses) = (classes(), UsesOfClasses::default());
        let mut share_after = |epoch, found, expected| {
            uses.tick(epoch);
            uses.count(Uses { found, expected }, &short, &long);
            // The others are used as ever.
            uses.count(Uses { found: 1e6, expected: 1e6 }, &middle, &long);
            uses.share(&short)
        };
        assert_eq!(share_after(0, 0.0, 0.0), 1.0);
        assert_eq!(share_after(1, 5000.0, 4000.0), 1.0, "no more than what their marks say");
        assert!(share_after(1, 0.0, 1000.0) > 0.9, "some of them were used in this epoch");
        assert!(share_after(2, 0.0, 9900.0) > 0.9, "they may come back");
        assert!((0.009..0.011).contains(&share_after(3, 0.0, 9900.0)));
        assert_eq!(share_after(4, 9900.0, 9900.0), 1.0);
        assert_eq!(share_after(5, 0.0, 0.0), 1.0, "nothing can be told of them");
    }

    #[test]
    fn a_class_of_which_little_is_known_has_the_share_of_the_others() {
        let ([short, middle, long], mut uses) = (classes(), UsesOfClasses::default());
        for epoch in 0..4 {
            uses.tick(epoch);
            let expected = if epoch == 0 { 0.0 } else { 495.0 };
            uses.count(Uses { found: 0.0, expected }, &short, &long);
            // The class for which the client evicts is not one of the others.
            uses.count(Uses { found: 1e6, expected: 1.0 }, &long, &long);
        }
        assert!(uses.share(&middle) < 0.001, "{}", uses.share(&middle));
        assert_eq!(uses.share(&long), 1.0);
        (4..12).for_each(|epoch| uses.tick(epoch));
        assert!(uses.share(&middle) < 0.001, "it is remembered");
        uses.count(Uses { found: 20.0, expected: 5.0 }, &short, &long);
        assert_eq!(uses.share(&middle), 1.0);
    }
}
