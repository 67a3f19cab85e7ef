//! How often an insert of a table that evicts searches for a value to move out of its way.
//!
//! A search costs many times as much as an eviction, and if the index is full, all are in vain. So
//! after each that was in vain, twice as many inserts as before evict without one.

use std::cell::Cell;

/// The most inserts that do not search.
const SKIPPED_MAX: u32 = 63;

/// What a client remembers of its searches.
#[derive(Debug, Default)]
pub(in crate::nessie) struct Searches {
    /// Inserts that do not search from now on.
    skipped: Cell<u32>,
    /// The number of them after the last search.
    pause: Cell<u32>,
}

impl Searches {
    /// Whether an insert does not search; counts it if so.
    pub fn skips_one(&self) -> bool {
        let skipped = self.skipped.get();
        self.skipped.set(skipped.saturating_sub(1));
        skipped > 0
    }

    /// Notes whether a search has found something to move.
    pub fn has_ended(&self, has_moved: bool) {
        let pause = if has_moved { 0 } else { (2 * self.pause.get() + 1).min(SKIPPED_MAX) };
        self.pause.set(pause);
        self.skipped.set(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_in_vain_become_rare_and_one_that_moves_something_is_followed_by_the_next() {
        let searches = Searches::default();
        let skipped = || (0..).take_while(|_| searches.skips_one()).count();
        let after = |has_moved| {
            searches.has_ended(has_moved);
            skipped()
        };
        assert_eq!(skipped(), 0);
        let vain = [false, false, true, false, false, false, false, false, false, false];
        assert_eq!(vain.map(after), [1, 3, 0, 1, 3, 7, 15, 31, 63, 63]);
    }
}
