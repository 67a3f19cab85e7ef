//! The working state of a lane.

use crate::kv_direct::item::Item;
use crate::operation::{Outcome, Version};

/// The working state of a lane.
#[derive(Debug, Default)]
pub(super) struct OpContext {
    pub(super) item: Item,
    pub(super) own: Vec<u8>,
    pub(super) before: Vec<u8>,
    pub(super) at_hand: AtHand,
    pub(super) is_dirty: bool,
    pub(super) version: Version,
    pub(super) expires_at_ms: Option<u64>,
}

/// The place of a key's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AtHand {
    /// There is no value.
    #[default]
    Absent,
    /// In the item as it was read, except for changes that keep its length.
    Item,
    /// In a copy.
    Own,
    /// In memory only.
    Elsewhere,
}

impl OpContext {
    pub(super) fn value(&self) -> &[u8] {
        match self.at_hand {
            AtHand::Absent | AtHand::Elsewhere => &[],
            AtHand::Item => self.item.value(),
            AtHand::Own => &self.own,
        }
    }

    pub(super) fn value_mut(&mut self) -> &mut [u8] {
        match self.at_hand {
            AtHand::Absent | AtHand::Elsewhere => &mut [],
            AtHand::Item => self.item.value_mut(),
            AtHand::Own => &mut self.own,
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.at_hand != AtHand::Absent
    }

    pub(super) fn found(&self) -> Outcome<'_> {
        let (version, expires_at_ms) = (self.version, self.expires_at_ms);
        Outcome::Found { version, expires_at_ms, value: self.value() }
    }

    /// Keeps a copy of a value at hand.
    #[inline]
    pub(super) fn keep(&mut self, value: &[u8]) {
        self.own.clear();
        self.own.extend_from_slice(value);
        self.at_hand = AtHand::Own;
    }
}

/// The bytes of one element, as the low bytes of a word.
pub(super) fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
