//! The circular log of a cache: entries are appended, and overwrite the oldest (herd §4.1).
//!
//! A **place** is a grain of the log. The log is written in **laps**, from place 0 towards its end;
//! an entry that does not fit before the end begins the next lap. A [`Position`] is a place
//! together with 16 bits of the lap in which it was written.
//!
//! # Why an overwritten entry is never taken for a present one
//! Let the log be in lap L and its tail at place t. Bytes before t were written in lap L. Bytes at
//! t and beyond were written in lap L - 1, were skipped, or are older. An entry of lap l at place p
//! * is present if l = L: entries of this lap lie before t;
//! * is present if l = L - 1 and p >= t: entries do not overlap the end of the log, and no entry of
//!   this lap reaches beyond t, so no byte of it was written since;
//! * is overwritten, or about to be, in all other cases.
//!
//! [`Log::has`] decides by 16 bits of l. It errs only if L - l is 2^16 or 2^16 + 1 or more, and the
//! index never holds such a word: in each lap a part of the index is swept of words whose entry is
//! gone, and the whole index in [`SWEEP_LAPS`](super::lossy::SWEEP_LAPS) = 2^14 laps. A word is
//! dead two laps after it was written at the latest, so it is swept when L - l <= 2^14 + 3 < 2^16.

/// The place of an entry, and the lap of its writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// The lap in which the entry was written, modulo 2^16.
    pub lap: u16,
    /// The entry's first grain.
    pub place: u32,
}

/// A circular log; the bytes themselves are the partition's.
#[derive(Debug)]
pub(super) struct Log {
    /// Grains of the log.
    grains: u32,
    lap: u16,
    /// The next grain to be written.
    tail: u32,
}

/// Room for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Appended {
    pub position: Position,
    /// Whether the entry is the first of its lap: the index has to be swept now.
    pub begins_lap: bool,
}

impl Log {
    pub fn new(grains: u32) -> Self {
        Self { grains, lap: 0, tail: 0 }
    }

    /// Takes the next `grains` grains.
    ///
    /// # Panics
    /// If the log has fewer.
    #[inline]
    pub fn append(&mut self, grains: u32) -> Appended {
        assert!(grains <= self.grains, "an entry of {grains} grains in a log of {}", self.grains);
        let begins_lap = grains > self.grains - self.tail;
        if begins_lap {
            self.lap = self.lap.wrapping_add(1);
            self.tail = 0;
        }
        let position = Position { lap: self.lap, place: self.tail };
        self.tail += grains;
        Appended { position, begins_lap }
    }

    /// Whether the entry that was written at a position is still there; see above.
    #[inline(always)]
    pub fn has(&self, position: Position) -> bool {
        match self.lap.wrapping_sub(position.lap) {
            0 => position.place < self.tail,
            1 => position.place >= self.tail,
            _ => false,
        }
    }

    /// Orders positions by age: the older of two positions has the larger number.
    #[inline(always)]
    pub fn age(&self, position: Position) -> u64 {
        u64::from(self.lap.wrapping_sub(position.lap)) << 32 | u64::from(u32::MAX - position.place)
    }

    /// The log's lap, for tests.
    #[cfg(test)]
    pub fn lap(&self) -> u16 {
        self.lap
    }

    /// Begins at a later lap, for tests of the time when the laps' numbers start over.
    #[cfg(test)]
    pub fn set_lap(&mut self, lap: u16) {
        assert_eq!(self.tail, 0, "an empty log");
        self.lap = lap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares the log with a model that remembers which entry was written last to each grain.
        #[test]
        fn it_has_what_nothing_was_written_over(
            lengths in prop::collection::vec(1u32..20, 1..400),
            grains in 40u32..100,
            lap: u16,
        ) {
            let mut log = Log::new(grains);
            log.set_lap(lap);
            let mut owners = vec![usize::MAX; grains as usize];
            let mut entries = Vec::new();
            for (n, len) in lengths.into_iter().enumerate() {
                let position = log.append(len).position;
                let place = position.place;
                entries.push((position, len));
                owners[place as usize..(place + len) as usize].fill(n);
                for (n, (position, len)) in entries.iter().enumerate() {
                    let range = position.place as usize..(position.place + len) as usize;
                    let whole = owners[range].iter().all(|owner| *owner == n);
                    prop_assert!(whole || !log.has(*position), "entry {n} is overwritten");
                    let newer = entries.len() - n;
                    prop_assert!(newer > 2 || grains < 60 || log.has(*position), "entry {n} is new");
                }
                let ages: Vec<_> = entries.iter().map(|(position, _)| log.age(*position)).collect();
                prop_assert!(ages.is_sorted_by(|a, b| a > b), "{ages:?}");
            }
        }
    }
}
