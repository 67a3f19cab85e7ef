//! The ledger of a table: a few words on each node, in which its clients count what they evict, and
//! what they find expired. What is counted is a hint, and clients add to it now and then.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | turned over: bytes that made room for others, or were filled; the first node's alone counts |
//! | 64 | 8 | expiring: 1 if an entry of the node's data table ever had an expiry |
//! | 128 | 16 × 248 | for each size class: values evicted, and values that expired |

use loch_fabric::RemoteAddr;

use super::marks::EPOCHS;
use super::slab::Class;

/// Epochs of a turnover.
pub const EPOCHS_A_TURNOVER: u64 = 8;
/// The word is on a line of its own, which stays in the caches of all who read it.
const EXPIRING_OFFSET: u64 = 64;
const COUNTS_OFFSET: u64 = 128;
/// Classes with counts of their own. Longer entries share those of the last.
const CLASSES: u64 = 248;

/// The ledger of one node.
#[derive(Clone, Copy, Debug)]
pub struct Ledger {
    at: RemoteAddr,
}

/// What a table has forgotten, of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Values that made room for others.
    pub evicted: u64,
    /// Values that were taken out because they had expired.
    pub expired: u64,
}

impl Ledger {
    /// The ledger that starts at `at`.
    pub fn new(at: RemoteAddr) -> Self {
        Self { at }
    }

    /// The word that counts the bytes that were turned over.
    pub fn turned_over(&self) -> RemoteAddr {
        self.at
    }

    /// The word that is not 0 if an entry of the node's data table ever had an expiry.
    pub fn expiring(&self) -> RemoteAddr {
        self.at.add(EXPIRING_OFFSET)
    }

    /// The words that count what was evicted of a class, and what has expired.
    pub fn counts(&self, class: &Class) -> [RemoteAddr; 2] {
        let number = u64::from(class.id).min(CLASSES - 1);
        let at = self.at.add(COUNTS_OFFSET + number * 16);
        [at, at.add(8)]
    }
}

/// Bytes that are turned over in an epoch of marks, of a table with so many bytes of data on all
/// nodes.
pub fn epoch_bytes(data_bytes: u64) -> u64 {
    (data_bytes / EPOCHS_A_TURNOVER).max(1)
}

/// The epoch of marks when so many bytes were turned over.
pub fn epoch_of(turned_over: u64, data_bytes: u64) -> u8 {
    (turned_over / epoch_bytes(data_bytes) % EPOCHS) as u8
}

#[cfg(test)]
mod tests {
    use loch_fabric::RegionId;

    use super::*;
    use crate::nessie::layout::slab::{Classes, LARGE};

    #[test]
    fn an_epoch_is_an_eighth_of_a_turnover_and_starts_over() {
        let epochs = |turned| epoch_of(turned, 8000);
        assert_eq!([0, 999, 1000, 8000, 31_999, 32_000].map(epochs), [0, 0, 1, 8, 31, 0]);
        assert_eq!(epoch_of(5, 1), 5, "a table without memory has no epochs to divide by");
    }

    #[test]
    fn every_class_has_its_counts_and_none_lies_behind_the_ledger() {
        let ledger = Ledger::new(RemoteAddr::new(RegionId(0), 64));
        let classes = Classes::new(4 << 30, 16);
        let large = classes.of(1 << 30);
        assert_eq!(large.id, LARGE);
        let all = classes.all().iter().chain([&large]).flat_map(|class| ledger.counts(class));
        let offsets: Vec<u64> = all.map(|at| at.offset() - 64).collect();
        assert!(offsets.is_sorted_by(|a, b| a + 8 <= *b));
        assert!(offsets[0] >= 128 && offsets.iter().all(|at| at + 8 <= 4096));
    }
}
