//! A set of small numbers that finds its lowest quickly: the free blocks of one size.

const FANOUT: u64 = 64;

/// Numbers below a bound: one bit for each, and above these bits a tree. A bit of the tree says
/// that the 64 bits below it are not all zero. Finding the lowest number therefore takes as many
/// steps as the tree is high.
#[derive(Clone, Debug)]
pub struct FreeSet {
    levels: Vec<Vec<u64>>,
    len: u64,
}

impl FreeSet {
    /// The empty set of numbers below `bound`.
    pub fn new(bound: u64) -> Self {
        let mut levels = Vec::new();
        let mut words = bound.div_ceil(FANOUT).max(1);
        loop {
            levels.push(vec![0; words as usize]);
            if words == 1 {
                return Self { levels, len: 0 };
            }
            words = words.div_ceil(FANOUT);
        }
    }

    /// The number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the set holds a number. It never holds a number beyond the bound.
    pub fn contains(&self, number: u64) -> bool {
        let word = self.levels[0].get((number / FANOUT) as usize);
        word.is_some_and(|word| word >> (number % FANOUT) & 1 == 1)
    }

    /// Adds a number.
    ///
    /// # Panics
    /// If the set holds it already.
    pub fn insert(&mut self, number: u64) {
        assert!(!self.contains(number), "block {number} is free already");
        self.len += 1;
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[(at / FANOUT) as usize];
            let had = *word != 0;
            *word |= 1 << (at % FANOUT);
            if had {
                return;
            }
            at /= FANOUT;
        }
    }

    /// Removes a number. Returns whether the set held it.
    pub fn remove(&mut self, number: u64) -> bool {
        if !self.contains(number) {
            return false;
        }
        self.len -= 1;
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[(at / FANOUT) as usize];
            *word &= !(1 << (at % FANOUT));
            if *word != 0 {
                break;
            }
            at /= FANOUT;
        }
        true
    }

    /// The lowest number.
    pub fn first(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let low = |at: u64, level: &Vec<u64>| {
            at * FANOUT + u64::from(level[at as usize].trailing_zeros())
        };
        Some(self.levels.iter().rev().fold(0, low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(
            bound in 1u64..20_000,
            steps in prop::collection::vec((any::<u64>(), any::<bool>()), 0..300),
        ) {
            let (mut set, mut model) = (FreeSet::new(bound), BTreeSet::new());
            for (number, add) in steps {
                let number = number % bound;
                if add && !set.contains(number) {
                    set.insert(number);
                    model.insert(number);
                } else {
                    prop_assert_eq!(set.remove(number), model.remove(&number));
                }
                prop_assert_eq!(set.first(), model.first().copied());
                prop_assert_eq!(set.len(), model.len() as u64);
            }
        }
    }
}
