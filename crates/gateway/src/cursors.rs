//! Cursors of scans, as numbers.
//!
//! A client of Redis keeps a cursor as a number of 64 bits, and one of Loch's does not fit into it.
//! So the gateway remembers the cursors of scans that are under way, and gives them numbers.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, PoisonError};

use loch::ScanCursor;

use crate::limits::CURSORS_MAX;

/// The cursors that are under way.
#[derive(Debug, Default)]
pub(crate) struct Cursors(Mutex<Known>);

#[derive(Debug)]
struct Known {
    last: u64,
    cursors: VecDeque<(u64, ScanCursor)>,
}

impl Default for Known {
    /// Begins at any number: those of another gateway, or of the one before, are not known here.
    fn default() -> Self {
        let random = RandomState::new().build_hasher().finish();
        // Some clients keep numbers as doubles.
        Self { last: random >> 16, cursors: VecDeque::new() }
    }
}

impl Cursors {
    /// A number for a cursor; the one that was given its number first is forgotten for it.
    pub fn number(&self, cursor: ScanCursor) -> u64 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.cursors.len() == CURSORS_MAX {
            known.cursors.pop_front();
        }
        known.last += 1;
        let number = known.last;
        known.cursors.push_back((number, cursor));
        number
    }

    /// The cursor of a number.
    pub fn cursor(&self, number: u64) -> Option<ScanCursor> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.cursors.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some(known.cursors[at].1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_cursors_as_there_is_room_for_are_known_the_last_ones() {
        let cursors = Cursors::default();
        let numbers: Vec<u64> =
            (0..CURSORS_MAX + 3).map(|_| cursors.number(ScanCursor::default())).collect();
        let known = |number: &&u64| cursors.cursor(**number).is_some();
        assert_eq!(numbers.iter().filter(known).count(), CURSORS_MAX);
        assert!(cursors.cursor(numbers[2]).is_none() && cursors.cursor(numbers[3]).is_some());
        let other = Cursors::default();
        other.number(ScanCursor::default());
        assert!(other.cursor(numbers[numbers.len() - 1]).is_none());
        assert!(numbers.iter().all(|number| *number < 1 << 53));
    }
}
