//! The values that a client of a table that evicts will evict next.
//!
//! Whoever looks for values of one class in the index passes those of others. So a client keeps,
//! for each class, those that were worth least of what it has passed since it evicted some of the
//! class. With many classes in use, one search serves them all.

use loch_fabric::RemoteAddr;

use crate::limits::SAMPLED_FOR_ONE;
use crate::nessie::layout::ite::Ite;
use crate::nessie::layout::marks::{Mark, Marks};

/// A slot that shows an entry in one of the client's own slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::nessie) struct Shown {
    pub slot: RemoteAddr,
    pub word: Ite,
    pub mark: Mark,
    /// The marks of its bucket.
    pub marks: Marks,
}

/// The values that are worth least among those of a class that were passed.
#[derive(Debug)]
pub(in crate::nessie) struct Shortlist {
    most: usize,
    /// Values that were passed.
    passed: usize,
    /// By what they are worth.
    least: Vec<(u32, Shown)>,
}

impl Shortlist {
    /// An empty list of at most so many values.
    pub fn new(most: usize) -> Self {
        Self { most, passed: 0, least: Vec::new() }
    }

    /// Passes a value of the class.
    #[inline]
    pub fn pass(&mut self, worth: u32, shown: Shown) {
        self.passed = (self.passed + 1).min(self.most.saturating_mul(SAMPLED_FOR_ONE));
        if self.least.len() == self.most {
            if self.least.last().is_none_or(|dearest| worth >= dearest.0) {
                return;
            }
            self.least.pop();
        }
        let at = self.least.partition_point(|other| other.0 <= worth);
        self.least.insert(at, (worth, shown));
    }

    /// The list, which is empty until it is put back.
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(self.most))
    }

    /// How many values may be evicted: one of so many that were passed.
    pub fn chosen(&self) -> usize {
        (self.passed / SAMPLED_FOR_ONE).min(self.least.len())
    }

    /// The same after so many runs of buckets, if there are as many values in each as in the first
    /// `seen`.
    pub fn chosen_after(&self, runs: usize, seen: usize) -> usize {
        self.passed * runs / (seen * SAMPLED_FOR_ONE)
    }

    /// All values on the list.
    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = Shown> {
        self.least.iter().map(|(_, shown)| *shown)
    }

    /// Takes up to so many values off the list, to be evicted.
    pub fn least(&mut self, most: usize) -> impl Iterator<Item = Shown> {
        let count = self.chosen().min(most);
        self.passed -= count * SAMPLED_FOR_ONE;
        self.least.drain(..count).map(|(_, shown)| shown)
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::RegionId;

    use super::*;

    fn shown(number: u64) -> Shown {
        Shown {
            slot: RemoteAddr::new(RegionId(0), number),
            word: Ite(0),
            mark: Mark::default(),
            marks: Marks::default(),
        }
    }

    /// A list that has passed values which are worth so much; each slot is named after its worth.
    fn passed(most: usize, worths: impl IntoIterator<Item = u32>) -> Shortlist {
        let mut list = Shortlist::new(most);
        worths.into_iter().for_each(|worth| list.pass(worth, shown(worth.into())));
        list
    }

    #[test]
    fn one_of_so_many_goes_and_it_is_the_one_that_is_worth_least() {
        let of = SAMPLED_FOR_ONE as u32;
        let mut list = passed(4, (1..of).rev());
        assert_eq!((list.chosen(), list.least(4).count()), (0, 0), "one too few");
        list.pass(of, shown(of.into()));
        assert_eq!(list.least(4).collect::<Vec<_>>(), [shown(1)]);
        assert_eq!(list.chosen(), 0);
        (0..of).for_each(|_| list.pass(1000, shown(1000)));
        assert_eq!(list.least(4).collect::<Vec<_>>(), [shown(2)], "what was passed before counts");
    }

    #[test]
    fn a_list_is_no_longer_than_it_may_be_however_much_was_passed() {
        let mut list = passed(4, (0..1000).map(|number| number * 7 % 1000));
        assert_eq!(list.chosen(), 4);
        assert_eq!(list.least(3).map(|one| one.slot.offset()).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(list.least(3).map(|one| one.slot.offset()).collect::<Vec<_>>(), [3]);
        assert_eq!(list.chosen(), 0);
    }

    #[test]
    fn a_search_that_finds_few_is_known_to_be_in_vain() {
        let list = passed(4, 0..SAMPLED_FOR_ONE as u32);
        assert_eq!([16, 32, 64].map(|runs| list.chosen_after(runs, 8)), [2, 4, 8]);
    }
}
