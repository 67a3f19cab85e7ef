//! What values are worth, as a client of a table that evicts learns it.
//!
//! A value is worth what it can be expected to bring for the memory that it takes: the hits that
//! will come, divided by the time until it is hit for the last time or evicted (least hit density,
//! Beckmann et al., NSDI 2018). Values with equal marks are taken for alike. So the client counts,
//! for each mark, how many values were used when they had it, and how many were evicted. From
//! values of *u* uses that are *a* epochs old,
//!
//! ```text
//! values of this age   N(u, a) = the sum of hits(u, b) + gone(u, b) for all b >= a
//! hits to come         H(u, a) = the sum of hits(u, b) for all b >= a
//! time to come         T(u, a) = the sum of N(u, b) for all b >= a
//! worth                (H + W * C * guess) / (T + W)
//! ```
//!
//! The **guess** stands for the little that is known of rare marks, with the weight of W values for
//! an epoch: a value is worth the more the more often it was used, and half as much with each
//! turnover since (LRFU). C makes the guesses comparable with what was counted: with it they
//! foretell, over all marks, as many hits as there were. Counts fade by a tenth with each epoch, so
//! what is learned follows the traffic.
//!
//! Marks of the oldest values only say that they are old ([`AGES`]). What becomes of those is not
//! counted, because nobody can say for how long they were there.
//!
//! A client learns from its own traffic only. A client that evicts and does not look for values
//! sees no hits, and they would teach it nothing: such a client goes by the guess alone.

use std::cell::{Cell, RefCell};

use crate::nessie::layout::ledger::EPOCHS_A_TURNOVER;
use crate::nessie::layout::marks::{AGES, Mark, USES_MAX};

const USES: usize = USES_MAX as usize + 1;
/// The weight of the guess.
const GUESS_WEIGHT: f32 = 200.0;
/// The hits of a value in an epoch, while none were counted.
const HITS_AT_FIRST: f32 = 0.05;
/// What is left of a count after an epoch.
const FADED: f32 = 0.9;
/// A client that looks for fewer values than this part of those that it evicts does not learn.
const LOOKS_MIN: f32 = 0.25;
/// A worth of one hit an epoch.
const UNIT: f32 = (1 << 24) as f32;

/// A number for each mark, by uses and age.
type Grid<T> = [[T; AGES]; USES];

/// What a client has learned.
#[derive(Debug)]
pub(in crate::nessie) struct Worth {
    learned: RefCell<Box<Learned>>,
    /// GETs since the last lesson, whether they found a value or not.
    looks: Cell<u32>,
}

#[derive(Debug)]
struct Learned {
    hits: Grid<f32>,
    gone: Grid<f32>,
    looks: f32,
    /// The epoch of the last lesson.
    epoch: u8,
    worth: Grid<u32>,
}

impl Default for Worth {
    fn default() -> Self {
        let (hits, gone) = ([[0.0; AGES]; USES], [[0.0; AGES]; USES]);
        let worth = [[0; AGES]; USES];
        let mut learned = Box::new(Learned { hits, gone, looks: 0.0, epoch: 0, worth });
        learned.learn();
        Self { learned: RefCell::new(learned), looks: Cell::new(0) }
    }
}

impl Worth {
    /// Counts GETs.
    #[inline]
    pub fn looked(&self, gets: u32) {
        self.looks.set(self.looks.get().saturating_add(gets));
    }

    /// Counts the first use of a value in an epoch, with the mark that it had before.
    pub fn was_used(&self, mark: Mark, epoch: u8) {
        let (uses, age) = mark.uses_and_age(epoch);
        if let Some(hits) = self.learned.borrow_mut().hits[uses].get_mut(age) {
            *hits += 1.0;
        }
    }

    /// Counts a value that was evicted.
    pub fn is_gone(&self, mark: Mark, epoch: u8) {
        let (uses, age) = mark.uses_and_age(epoch);
        if let Some(gone) = self.learned.borrow_mut().gone[uses].get_mut(age) {
            *gone += 1.0;
        }
    }

    /// Learns from what was counted, if an epoch has ended.
    pub fn tick(&self, epoch: u8) {
        let mut learned = self.learned.borrow_mut();
        if learned.epoch != epoch {
            learned.epoch = epoch;
            learned.looks += self.looks.take() as f32;
            learned.learn();
            learned.fade();
        }
    }

    /// How much a value with this mark is worth. The value that is worth least is evicted.
    pub fn of(&self, mark: Mark, epoch: u8) -> u32 {
        let (uses, age) = mark.uses_and_age(epoch);
        self.learned.borrow().worth[uses][age.min(AGES - 1)]
    }
}

impl Learned {
    fn learn(&mut self) {
        let gone: f32 = self.gone.iter().flatten().sum();
        let knows = self.looks >= gone * LOOKS_MIN;
        let (mut values, mut hits, mut guessed) = ([[0.0; AGES]; USES], 0.0, 0.0);
        for (uses, values) in values.iter_mut().enumerate().filter(|_| knows) {
            let mut older = 0.0;
            for age in (0..AGES).rev() {
                older += self.hits[uses][age] + self.gone[uses][age];
                values[age] = older;
                hits += self.hits[uses][age];
                guessed += older * guess(uses, age);
            }
        }
        let calibrated = (hits + GUESS_WEIGHT * HITS_AT_FIRST) / (guessed + GUESS_WEIGHT);
        for (uses, values) in values.iter().enumerate() {
            let (mut hits, mut time) = (0.0, 0.0);
            for age in (0..AGES).rev() {
                hits += if knows { self.hits[uses][age] } else { 0.0 };
                time += values[age];
                let guess = GUESS_WEIGHT * calibrated * guess(uses, age);
                self.worth[uses][age] = ((hits + guess) / (time + GUESS_WEIGHT) * UNIT) as u32;
            }
        }
    }

    fn fade(&mut self) {
        let counts = self.hits.iter_mut().chain(&mut self.gone).flatten();
        counts.chain([&mut self.looks]).for_each(|count| *count *= FADED);
    }
}

/// What a value seems to be worth, in no unit. A value that was never used counts as used a third
/// of a time.
fn guess(uses: usize, age: usize) -> f32 {
    (uses as f32 + 0.3) * (-(age as f32) / EPOCHS_A_TURNOVER as f32).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(uses: u8, epoch: u8) -> Mark {
        (0..uses).fold(Mark::new(epoch), |mark, _| Mark(mark.0 + (1 << 5)))
    }

    /// What values of so many uses, and so old, are worth.
    fn of(worth: &Worth, uses: u8, age: u8) -> u32 {
        worth.of(mark(uses, 0), age)
    }

    #[test]
    fn at_first_values_that_are_used_more_and_later_are_worth_more() {
        let worth = Worth::default();
        for uses in 1..8 {
            for age in 1..AGES as u8 {
                assert!(of(&worth, uses, age) < of(&worth, uses, age - 1));
                assert!(of(&worth, uses, age) > of(&worth, uses - 1, age));
            }
        }
    }

    #[test]
    fn values_that_come_back_late_become_worth_more_with_age() {
        let worth = Worth::default();
        worth.looked(20_000);
        // A loop: each value is used 20 epochs after the last time, or is gone before.
        for _ in 0..5_000 {
            worth.was_used(mark(1, 0), 20);
            worth.is_gone(mark(1, 0), 4);
        }
        worth.tick(1);
        assert!(of(&worth, 1, 19) > 2 * of(&worth, 1, 2), "close to its use");
        assert!(of(&worth, 1, 21) < of(&worth, 1, 19) / 2, "past it");
    }

    #[test]
    fn what_was_learned_fades() {
        let worth = Worth::default();
        let before = of(&worth, 2, 8);
        worth.looked(50_000);
        (0..10_000).for_each(|_| worth.is_gone(mark(2, 0), 8));
        worth.tick(1);
        assert!(of(&worth, 2, 8) < before / 10);
        (0..200).for_each(|epoch| worth.tick(epoch % 32));
        let after = of(&worth, 2, 8);
        assert!(after.abs_diff(before) < before / 100, "{after} of {before}");
    }

    #[test]
    fn a_client_that_does_not_look_for_values_learns_nothing_from_seeing_none_used() {
        let worth = Worth::default();
        let before = of(&worth, 3, 2);
        (0..10_000).for_each(|_| worth.is_gone(mark(3, 0), 2));
        worth.looked(2_000);
        worth.tick(1);
        assert_eq!(of(&worth, 3, 2), before);
        worth.looked(10_000);
        worth.tick(2);
        assert!(of(&worth, 3, 2) < before / 10);
    }
}
