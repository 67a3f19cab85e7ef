//! What values are worth, as a client of a table that evicts learns it.
//!
//! A value is worth the hits that it can be expected to bring for the time that it takes up memory
//! (hit density: LHD, Beckmann et al., NSDI 2018). Values with equal marks are taken for alike. So
//! the client counts, for each mark, how many values it has seen where it looked for something to
//! evict, and how many were used when they had the mark. From values of *u* uses that are *a*
//! epochs old,
//!
//! ```text
//! values        V(u, a) = values seen / part of the index looked at * epochs
//! uses a epoch  r(u, a) = (hits(u, a) + W * C * guess) / (V(u, a) + W) * trend(a)
//! stay          s(u, a) = exp(-r(u, a))
//! hits to come  H(u, a) = 1 - s(u, a) + D * s(u, a) * H(u, a + 1)
//! time to come  T(u, a) = (1 - s(u, a)) / r(u, a) + D * s(u, a) * T(u, a + 1)
//! worth         H(u, a) / T(u, a)
//! ```
//!
//! Values that nobody uses any more are seen and not hit, so they lose their worth soon, whatever
//! their marks brought before. D says how much less what comes an epoch later counts: much will
//! have changed until then.
//!
//! The **guess** stands for the little that is known of rare marks, with the weight of W values for
//! an epoch: a value is worth the more the more often it was used, and half as much with every two
//! turnovers since (LRFU). C makes the guesses comparable with what was counted: with it they
//! foretell, over all marks, as many hits as there were.
//!
//! Counts fade slowly. So that a client sees soon that its traffic has changed, it compares the
//! hits of each age with those that its rates had **foretold** for the values that it saw, over a
//! shorter time, and multiplies the rates by
//!
//! ```text
//! trend        t(a) = (found(a) + K * t(a - 1)) / (foretold(a) + K)        t(-1) = 1
//! ```
//!
//! which is at most 1.5.
//!
//! If all keys change at once, nothing is found any more that is older than the change. By the
//! trend of the youngest of those ages, the older ones, in which no values were seen since, are not
//! expected to bring hits either.
//!
//! Marks of the oldest values only say that they are old ([`AGES`]). Their hits are not counted,
//! because nobody can say for how long they were there.
//!
//! A client learns from its own traffic only. A client that evicts and does not look for values
//! sees no hits, and they would teach it nothing: such a client goes by the guess alone.

use std::cell::{Cell, RefCell, RefMut};
use std::mem;

use super::uses::{Uses, UsesOfClasses};
use crate::nessie::layout::ledger::EPOCHS_A_TURNOVER;
use crate::nessie::layout::marks::{AGES, Mark, USES_MAX};

const USES: usize = USES_MAX as usize + 1;
/// The weight of the guess.
const GUESS_WEIGHT: f32 = 100.0;
/// The epochs after which the guess is half as much.
const GUESS_HALVES_IN: f32 = 2.0 * EPOCHS_A_TURNOVER as f32;
/// The hits of a value in an epoch, while none were counted.
const HITS_AT_FIRST: f32 = 0.05;
/// How much a hit counts that comes an epoch later.
const DISCOUNT: f32 = 0.85;
/// What is left of a count when as many bytes were evicted as in an epoch of values that were used,
/// and of what the trend goes by.
const FADED: f32 = 0.9;
const TREND_FADED: f32 = 0.8;
/// How many hits an age counts for that has the trend of the next younger one.
const TREND_WEIGHT: f32 = 20.0;
/// The most that the trend adds: few hits more than were foretold are chance.
const TREND_MAX: f32 = 1.5;
/// A client learns anew after one of so many parts of these bytes, or when an epoch ends.
const LESSON_PARTS: f32 = 8.0;
/// A client that looks for fewer values than this part of those that it evicts does not learn.
const LOOKS_MIN: f32 = 0.25;
/// A worth of one hit an epoch.
const UNIT: f32 = (1 << 24) as f32;
/// Fewer hits an epoch, or more, are not told apart.
const HITS_MIN: f32 = 1e-6;
const HITS_MAX: f32 = 100.0;

/// A number for each mark, by uses and age.
type Grid<T> = [[T; AGES]; USES];

/// What a client has learned.
#[derive(Debug)]
pub(in crate::nessie) struct Worth {
    learned: RefCell<Box<Learned>>,
    /// GETs since the last lesson, whether they found a value or not.
    looks: Cell<u32>,
}

/// What was counted, and what follows from it.
#[derive(Debug, Default)]
pub(in crate::nessie) struct Learned {
    /// What was counted since the last lesson, and before it.
    new: Counts,
    old: Counts,
    /// For each mark the uses of a value in an epoch, without the trend and with it.
    rates: Grid<f32>,
    expected: Grid<f32>,
    /// For each age the hits of a short time, and how many the rates had foretold.
    found: [f32; AGES],
    foretold: [f32; AGES],
    /// The epoch of the last lesson.
    epoch: u8,
    worth: Grid<u32>,
    /// The uses of the values of each class.
    pub classes: UsesOfClasses,
}

/// What a client counts.
#[derive(Debug, Default)]
struct Counts {
    /// Values that were used when they had a mark.
    hits: Grid<f32>,
    /// Values that had it when the client looked for something to evict.
    seen: Grid<f32>,
    /// The part of the index in which they were, looks at the same slots counted anew.
    index: f32,
    /// Values in the index that were used in their epoch already, by anybody, and the uses that
    /// were expected by then of those that were not.
    used: f32,
    expected: f32,
    /// Epochs' worth of bytes that were evicted.
    epochs: f32,
    /// Values that were evicted, by how much they count on the clock of the marks.
    gone: f32,
    looks: f32,
}

impl Counts {
    /// For how many values and epochs one counts that was seen; `None` if the client hardly looked
    /// for values.
    fn scale(&self) -> Option<f32> {
        let knows = self.looks >= self.gone * LOOKS_MIN && self.index > 0.0;
        knows.then(|| self.epochs / self.index)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut f32> {
        let Self { hits, seen, index, used, expected, epochs, gone, looks } = self;
        let numbers = [index, used, expected, epochs, gone, looks];
        hits.iter_mut().chain(seen).flatten().chain(numbers)
    }
}

impl Default for Worth {
    fn default() -> Self {
        let mut learned = Box::<Learned>::default();
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
        if let Some(hits) = self.learned.borrow_mut().new.hits[uses].get_mut(age) {
            *hits += 1.0;
        }
    }

    /// What was learned, for looks at many values.
    pub fn learned(&self) -> RefMut<'_, Learned> {
        RefMut::map(self.learned.borrow_mut(), Box::as_mut)
    }

    /// Counts a value that was evicted: as how much of a value it counts on the clock of the marks,
    /// and its part of the bytes of an epoch.
    pub fn is_gone(&self, count: f32, epochs: f32) {
        let mut learned = self.learned.borrow_mut();
        learned.new.gone += count;
        learned.new.epochs += epochs;
    }

    /// Learns from what was counted, if an epoch has ended or much was evicted.
    pub fn tick(&self, epoch: u8) {
        let mut learned = self.learned.borrow_mut();
        if learned.epoch != epoch || learned.new.epochs * LESSON_PARTS >= 1.0 {
            learned.epoch = epoch;
            learned.new.looks += self.looks.take() as f32;
            learned.take_lesson();
        }
    }

    /// Whether the client has learned anything, and does not go by the guess alone.
    pub fn has_learned(&self) -> bool {
        self.learned.borrow().old.scale().is_some()
    }

    /// How much a value with this mark is worth. The value that is worth least is evicted.
    pub fn of(&self, mark: Mark, epoch: u8) -> u32 {
        self.learned.borrow().of(mark, epoch)
    }
}

impl Learned {
    /// Counts a value that the client comes by when it looks for something to evict.
    #[inline(always)]
    pub fn saw(&mut self, mark: Mark, epoch: u8) {
        let (uses, age) = mark.uses_and_age(epoch);
        self.new.seen[uses][age.min(AGES - 1)] += 1.0;
    }

    /// Takes note that the client has seen the values in such a part of the index, and of the uses
    /// there.
    pub fn has_looked_at(&mut self, part: f32, uses: Uses) {
        self.new.index += part;
        self.new.used += uses.found;
        self.new.expected += uses.expected;
    }

    /// The uses of a value in the index in this epoch, of which such a part is over.
    #[inline(always)]
    pub fn uses(&self, mark: Mark, epoch: u8, part: f32) -> Uses {
        match mark.uses_and_age(epoch) {
            (0, 0) => Uses::default(),
            (_, 0) => Uses { found: 1.0, expected: 0.0 },
            (uses, age) => {
                Uses { found: 0.0, expected: self.expected[uses][age.min(AGES - 1)] * part }
            }
        }
    }

    /// Uses in the index, as a multiple of those expected: at most 1. It is less for a client that
    /// evicts a smaller part of what all evict than it uses of what all use. The rates that it
    /// learns are higher by as much.
    pub fn used_of_expected(&self) -> f32 {
        let (used, expected) = (self.old.used, self.old.expected);
        if used < expected { used / expected } else { 1.0 }
    }

    /// How much a value with this mark is worth.
    #[inline(always)]
    pub fn of(&self, mark: Mark, epoch: u8) -> u32 {
        let (uses, age) = mark.uses_and_age(epoch);
        self.worth[uses][age.min(AGES - 1)]
    }

    fn take_lesson(&mut self) {
        let mut new = mem::take(&mut self.new);
        let epochs = new.epochs;
        self.compare(&new, TREND_FADED.powf(epochs));
        self.old.all().zip(new.all()).for_each(|(old, new)| *old += *new);
        self.learn();
        let faded = FADED.powf(epochs);
        self.old.all().for_each(|count| *count *= faded);
    }

    /// Compares the hits of each age with what the rates foretold.
    fn compare(&mut self, new: &Counts, faded: f32) {
        let scale = new.scale();
        for age in 0..AGES {
            self.found[age] *= faded;
            self.foretold[age] *= faded;
            let Some(scale) = scale else { continue };
            for uses in 0..USES {
                self.found[age] += new.hits[uses][age];
                self.foretold[age] += new.seen[uses][age] * scale * self.rates[uses][age];
            }
        }
    }

    /// For each age, how many times as many hits there are as the rates foretell.
    fn trend(&self) -> [f32; AGES] {
        let mut trend = 1.0;
        std::array::from_fn(|age| {
            let found = self.found[age] + TREND_WEIGHT * trend;
            trend = (found / (self.foretold[age] + TREND_WEIGHT)).min(TREND_MAX);
            trend
        })
    }

    fn learn(&mut self) {
        let (scale, trend) = (self.old.scale(), self.trend());
        let Counts { hits, seen, .. } = &self.old;
        let values = |uses: usize, age: usize| seen[uses][age] * scale.unwrap_or(0.0);
        let hits = |uses: usize, age: usize| scale.map_or(0.0, |_| hits[uses][age]);
        let (mut found, mut guessed) = (0.0, 0.0);
        for (uses, age) in (0..USES).flat_map(|uses| (0..AGES).map(move |age| (uses, age))) {
            found += hits(uses, age);
            guessed += values(uses, age) * guess(uses, age);
        }
        let calibrated = (found + GUESS_WEIGHT * HITS_AT_FIRST) / (guessed + GUESS_WEIGHT);
        for uses in 0..USES {
            let (mut hits_to_come, mut time_to_come) = (0.0, 0.0);
            // Nothing is foretold of the time after the oldest marks. Old values are worth a little
            // more for it, and more requests hit.
            for age in (0..AGES).rev() {
                let guess = GUESS_WEIGHT * calibrated * guess(uses, age);
                let rate = (hits(uses, age) + guess) / (values(uses, age) + GUESS_WEIGHT);
                self.rates[uses][age] = rate;
                let rate = (rate * trend[age]).max(HITS_MIN);
                self.expected[uses][age] = rate;
                let leave = -(-rate).exp_m1();
                let later = DISCOUNT * (1.0 - leave);
                hits_to_come = leave + later * hits_to_come;
                time_to_come = leave / rate + later * time_to_come;
                let worth = (hits_to_come / time_to_come).min(HITS_MAX);
                self.worth[uses][age] = (worth * UNIT) as u32;
            }
        }
    }
}

/// What a value seems to be worth, in no unit. A value that was never used counts as used a third
/// of a time.
fn guess(uses: usize, age: usize) -> f32 {
    (uses as f32 + 0.3) * (-(age as f32) / GUESS_HALVES_IN).exp2()
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

    /// Sees so many values of a mark.
    fn see(worth: &Worth, uses: u8, age: u8, values: u16) {
        (0..values).for_each(|_| worth.learned().saw(mark(uses, 0), age));
    }

    /// So many epochs pass, and values are evicted. What was seen is what the table has had
    /// meanwhile.
    fn pass(worth: &Worth, epochs: f32, evicted: u16) {
        worth.is_gone(evicted.into(), epochs);
        worth.learned().has_looked_at(epochs, Uses::default());
    }

    #[test]
    fn values_that_come_back_late_become_worth_more_with_age() {
        let worth = Worth::default();
        worth.looked(20_000);
        // A loop: each value is used 20 epochs after the last time.
        (0..=20).for_each(|age| see(&worth, 1, age, 1000));
        (0..1000).for_each(|_| worth.was_used(mark(1, 0), 20));
        pass(&worth, 1.0, 1000);
        worth.tick(1);
        assert!(of(&worth, 1, 19) > 2 * of(&worth, 1, 2), "close to its use");
        assert!(of(&worth, 1, 21) < of(&worth, 1, 19) / 2, "past it");
    }

    #[test]
    fn what_was_learned_fades() {
        let worth = Worth::default();
        let before = of(&worth, 2, 8);
        worth.looked(50_000);
        see(&worth, 2, 8, 10_000);
        pass(&worth, 1.0, 1000);
        worth.tick(1);
        assert!(of(&worth, 2, 8) < before / 5);
        for epoch in 0..250 {
            pass(&worth, 1.0, 0);
            worth.tick(epoch % 32);
        }
        let after = of(&worth, 2, 8);
        assert!(after.abs_diff(before) < before / 100, "{after} of {before}");
    }

    /// All keys change at once: what was used all the time is not used again, and not evicted.
    #[test]
    fn values_that_nobody_uses_any_more_lose_their_worth_while_they_stay() {
        let worth = Worth::default();
        for epoch in 1..9 {
            worth.looked(20_000);
            see(&worth, 7, 1, 1000);
            see(&worth, 0, 0, 1000);
            (0..500).for_each(|_| worth.was_used(mark(7, 0), 1));
            (0..100).for_each(|_| worth.was_used(mark(0, 0), 0));
            pass(&worth, 1.0, 1000);
            worth.tick(epoch);
        }
        let before = of(&worth, 7, 1);
        assert!(before > 2 * of(&worth, 0, 0));
        // Half an epoch: nothing but new values is evicted.
        for _ in 0..4 {
            worth.looked(20_000);
            see(&worth, 7, 1, 5000);
            see(&worth, 0, 0, 1000);
            (0..200).for_each(|_| worth.was_used(mark(0, 0), 0));
            pass(&worth, 1.0 / LESSON_PARTS, 1000);
            worth.tick(8);
        }
        let after = of(&worth, 7, 1);
        assert!(after < before / 3, "{after} of {before}");
    }

    /// The same, of values that the client did not see so old until now.
    #[test]
    fn if_what_is_old_is_not_used_what_is_older_loses_its_worth_too() {
        let worth = Worth::default();
        let epoch = |epoch, hits_of_old: u16, hits_of_new: u16| {
            worth.looked(20_000);
            see(&worth, 7, 3, 5000);
            see(&worth, 2, 0, 5000);
            (0..hits_of_old).for_each(|_| worth.was_used(mark(7, 0), 3));
            (0..hits_of_new).for_each(|_| worth.was_used(mark(2, 0), 0));
            pass(&worth, 1.0, 1000);
            worth.tick(epoch);
        };
        (1..20).for_each(|number| epoch(number, 2000, 1000));
        let before = [(7, 3), (7, 4), (3, 10), (2, 0)].map(|(uses, age)| of(&worth, uses, age));
        (20..23).for_each(|number| epoch(number, 0, 1000));
        let after = [(7, 3), (7, 4), (3, 10), (2, 0)].map(|(uses, age)| of(&worth, uses, age));
        let left = |at: usize| after[at] as f32 / before[at] as f32;
        assert!((0..3).all(|at| left(at) < 0.5), "{before:?}, {after:?}");
        assert!(left(3) > 0.6, "{before:?}, {after:?}");
    }

    /// In an epoch it looks at the whole index, and evicts a tenth of its part.
    #[test]
    fn a_client_sees_by_how_much_its_rates_are_too_high() {
        let worth = Worth::default();
        assert_eq!(worth.learned().used_of_expected(), 1.0);
        for epoch in 1..60 {
            worth.looked(20_000);
            see(&worth, 3, 1, 10_000);
            (0..1000).for_each(|_| worth.was_used(mark(3, 0), 1));
            let mut uses = Uses::default();
            (0..1000).for_each(|_| uses += worth.learned().uses(mark(4, 1), 1, 1.0));
            (0..9000).for_each(|_| uses += worth.learned().uses(mark(3, 0), 1, 1.0));
            worth.is_gone(10.0, 0.1);
            worth.learned().has_looked_at(1.0, uses);
            worth.tick(epoch % 32);
        }
        let of_expected = worth.learned().used_of_expected();
        assert!((0.08..0.13).contains(&of_expected), "{of_expected}");
    }

    #[test]
    fn a_client_that_does_not_look_for_values_learns_nothing_from_seeing_none_used() {
        let worth = Worth::default();
        let before = of(&worth, 3, 2);
        see(&worth, 3, 2, 10_000);
        pass(&worth, 1.0, 1000);
        worth.looked(200);
        worth.tick(1);
        assert_eq!(of(&worth, 3, 2), before);
        worth.looked(10_000);
        worth.tick(2);
        assert!(of(&worth, 3, 2) < before / 5);
    }
}
