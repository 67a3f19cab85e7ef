//! Marks: what a table that evicts knows of how its values are used.
//!
//! A bucket of such a table ends with a word of marks: one byte for each of its slots. The word
//! comes with the bucket, so to look at a mark costs a reader nothing. A mark says nothing about
//! what is true: it may be lost, late, or another value's, and then a value that is used more is
//! evicted before one that is used less. So marks are written without CAS and without waiting.
//!
//! | byte | field |
//! | --- | --- |
//! | 0 | zero: to readers of the index the word looks like an EMPTY slot |
//! | 1 to 3 | marks of the slots |
//! | 4 to 7 | ghosts: prints of the keys whose values were evicted last, the latest first |
//!
//! **A mark** has three bits that count uses, and five bits of the epoch of the last one. An epoch
//! is an eighth of a turnover: so long as it takes for an eighth of the table's memory to get new
//! values (see [`super::ledger`]). A use counts if it is the first of its epoch. So a value that is
//! read all the time costs its readers one store an epoch, and the count says how many epochs the
//! value was of use in.
//!
//! **A ghost** stands in the first bucket of its key. A key that gets a value again while its ghost
//! is there was evicted too early: its value begins with one use (S3-FIFO's ghost queue, at the
//! price of no lookup).

/// Bits of a mark that hold the epoch.
const EPOCH_BITS: u32 = 5;
/// Epochs that a mark can tell apart.
pub const EPOCHS: u64 = 1 << EPOCH_BITS;
/// Ages of values, in epochs, that say how long ago the last use was. A mark that is older is
/// written anew, before it comes to look young.
pub const AGES: usize = EPOCHS as usize - 3;
/// The age of a mark that was written anew.
const OLD: u8 = EPOCHS as u8 / 2;
/// The most uses that a mark counts.
pub const USES_MAX: u8 = u8::MAX >> EPOCH_BITS;
/// Ghosts of a bucket.
const GHOSTS: usize = 4;
/// The byte at which the ghosts start.
pub const GHOSTS_AT: u64 = 4;

/// The word of marks of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Marks(pub u64);

/// The mark of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u8);

impl Marks {
    /// The mark of the slot at a position of the bucket.
    #[inline(always)]
    pub fn of(self, position: usize) -> Mark {
        Mark((self.0 >> ((1 + position) * 8)) as u8)
    }

    /// Whether the bucket has a ghost of a key with this print.
    #[inline]
    pub fn has_ghost(self, print: u8) -> bool {
        self.0.to_le_bytes()[GHOSTS_AT as usize..].contains(&print)
    }

    /// The ghosts of the bucket when another one has come, which takes the place of the oldest.
    pub fn with_ghost(self, print: u8) -> [u8; GHOSTS] {
        let bytes = self.0.to_le_bytes();
        let [.., a, b, c, _] = bytes;
        [print, a, b, c]
    }
}

impl Mark {
    /// The mark of a new value: it was never used.
    pub fn new(epoch: u8) -> Self {
        Self(epoch)
    }

    /// The mark of a new value of a key whose last one was evicted a short time ago.
    pub fn returned(epoch: u8) -> Self {
        Self::new(epoch).used(epoch).unwrap_or_default()
    }

    fn uses(self) -> u8 {
        self.0 >> EPOCH_BITS
    }

    fn epoch(self) -> u8 {
        self.0 & (EPOCHS - 1) as u8
    }

    /// The mark after a use, if it is another one.
    #[inline(always)]
    pub fn used(self, epoch: u8) -> Option<Self> {
        if self.uses() > 0 && self.epoch() == epoch {
            return None;
        }
        Some(Self((self.uses() + 1).min(USES_MAX) << EPOCH_BITS | epoch))
    }

    /// Epochs since the last use, or since the value came.
    pub fn age(self, epoch: u8) -> u8 {
        epoch.wrapping_sub(self.epoch()) & (EPOCHS - 1) as u8
    }

    /// Whether the value was used, as far as its mark remembers.
    pub fn is_used(self) -> bool {
        self.uses() > 0
    }

    /// The uses, and the epochs since the last one.
    pub fn uses_and_age(self, epoch: u8) -> (usize, usize) {
        (self.uses().into(), self.age(epoch).into())
    }

    /// The mark to be written in the place of one whose epoch will soon look like a coming one: a
    /// use less, and not quite as old.
    pub fn kept_old(self, epoch: u8) -> Option<Self> {
        let uses = self.uses().saturating_sub(1);
        let is_old = usize::from(self.age(epoch)) >= AGES;
        is_old.then_some(Self::of_age(uses, OLD, epoch))
    }

    /// The same by a client that does not evict values of this size: it leaves the uses, and the
    /// mark becomes no older than this. So many epochs may pass before a client comes by again: it
    /// takes long to see the whole index if the values that are evicted are long.
    pub fn still_old(self, epoch: u8) -> Option<Self> {
        (self.age(epoch) > OLD).then_some(Self::of_age(self.uses(), OLD, epoch))
    }

    fn of_age(uses: u8, age: u8, epoch: u8) -> Self {
        Self(uses << EPOCH_BITS | epoch.wrapping_sub(age) & (EPOCHS - 1) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Otherwise a reader of the index would take the marks for a value.
        #[test]
        fn marks_and_ghosts_have_bytes_of_their_own(bytes: [u8; 8], print: u8) {
            let marks = Marks(u64::from_le_bytes(bytes));
            for position in 0..3 {
                prop_assert_eq!(marks.of(position), Mark(bytes[1 + position]));
            }
            let ghosts = marks.with_ghost(print);
            prop_assert_eq!(ghosts, [print, bytes[4], bytes[5], bytes[6]]);
            prop_assert_eq!(marks.has_ghost(print), bytes[4..].contains(&print));
        }

        #[test]
        fn a_use_counts_once_an_epoch(epoch in 0u8..32, later in 1u8..32) {
            let new = Mark::new(epoch);
            let used = new.used(epoch).unwrap();
            prop_assert_eq!((used.uses(), used.age(epoch), used.used(epoch)), (1, 0, None));
            prop_assert_eq!(Mark::returned(epoch), used);
            let now = (epoch + later) % 32;
            prop_assert_eq!(used.age(now), later);
            let mut mark = used.used(now).unwrap();
            prop_assert_eq!((mark.uses(), mark.age(now)), (2, 0));
            for uses in 3..20u8 {
                mark = mark.used((now + uses) % 32).unwrap();
                prop_assert_eq!(mark.uses(), uses.min(7));
            }
        }

        #[test]
        fn a_mark_that_is_old_fades_before_it_looks_young(epoch in 0u8..32, bits: u8) {
            let mark = Mark(bits);
            let kept = mark.kept_old(epoch);
            prop_assert_eq!(kept.is_some(), mark.age(epoch) > 28);
            if let Some(kept) = kept {
                let faded = (16, mark.uses().saturating_sub(1));
                prop_assert_eq!((kept.age(epoch), kept.uses()), faded);
            }
        }

        /// Of 80,000 values of 1 KiB that nobody used any more, some thousand came to look as if
        /// they had just been used, and kept their memory.
        #[test]
        fn a_mark_that_clients_come_by_now_and_then_never_looks_younger(
            uses in 0u8..8,
            pauses in proptest::collection::vec(1u8..16, 1..20),
        ) {
            let (mut mark, mut epoch, mut age) = (Mark(uses << EPOCH_BITS), 0u8, 0u32);
            for pause in pauses {
                (epoch, age) = ((epoch + pause) % EPOCHS as u8, age + u32::from(pause));
                let shown = u32::from(mark.age(epoch));
                prop_assert!(shown <= age && shown >= age.min(16), "{} of {}", shown, age);
                mark = mark.still_old(epoch).unwrap_or(mark);
                prop_assert_eq!((u32::from(mark.age(epoch)), mark.uses()), (age.min(16), uses));
            }
        }
    }
}
