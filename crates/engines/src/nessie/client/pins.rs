//! Pins: entries whose values are read in place, and whose memory is therefore not used again.
//!
//! A session announces each of its pins in a word of its own in its node's memory: the address of
//! the pinned entry. A client that takes a free entry must see that no session has it pinned. So
//! that this costs nothing where there are no pins, a pin also sets a bit in the entry's generation
//! ([`PINNED`](crate::nessie::layout::dte::PINNED)), a word that is looked at anyway. The bit stays
//! until the entry is used again, and says that the pins have to be looked at.
//!
//! # Invariants
//! 1. A session that pins announces first, and sets the bit; then it looks at the index again. If
//!    the index still names the entry, the pin holds. If not, the session withdraws it.
//! 2. Before an entry is used again, or its slab is cut anew, it is out of the index; its note is
//!    looked at first, then its generation, then the pins. The note comes after the word was taken
//!    out of the index. A session whose pin holds looked at the index before that: so its bit and
//!    its pin are seen.
//! 3. Pins are in the memory of the session's node. They end when the session does, however it
//!    ends: the node clears them before the slot shows that it is free.

use std::cell::Cell;

use loch_fabric::{Buf, Fabric, FabricError, RegionId, RemoteAddr};

use crate::epoch::Session;
use crate::limits::PINS_MAX;
use crate::nessie::layout::hash::TableMap;
use crate::region::{PINNERS_OFFSET, PINS_BYTES, pins_offset};

const _: () = assert!(PINS_MAX <= u32::BITS as usize, "a bit each");

/// The pins of one client.
#[derive(Debug, Default)]
pub(in crate::nessie) struct Pins {
    /// The words in use, a bit each.
    held: Cell<u32>,
    /// Whether the node's bound of pinners is above this session's slot.
    counted: Cell<bool>,
}

impl Pins {
    /// The number of a word that is not in use, which it is from now on.
    pub fn take(&self) -> Option<u32> {
        let number = (!self.held.get()).trailing_zeros();
        ((number as usize) < PINS_MAX).then(|| {
            self.held.set(self.held.get() | 1 << number);
            number
        })
    }

    /// The word with this number is not in use any more.
    pub fn give_back(&self, number: u32) {
        self.held.set(self.held.get() & !(1 << number));
    }

    /// Raises the node's bound of pinners above the slot of the session.
    pub async fn count<F: Fabric>(&self, fabric: &F, session: &Session) -> Result<(), FabricError> {
        let (at, least) = (pinners_addr(session.home()), u64::from(session.slot()) + 1);
        while !self.counted.get() {
            let bound = fabric.load(at)?;
            if bound < least {
                fabric.compare_swap(at, bound, least).await?;
            }
            self.counted.set(bound >= least);
        }
        Ok(())
    }
}

/// The word of a session's pin.
pub(in crate::nessie) fn pin_addr(map: &TableMap, session: &Session, number: u32) -> RemoteAddr {
    let home = session.home();
    let node = map.sessions().iter().find(|(region, _)| *region == home);
    let (_, sessions) = node.expect("the home node is in the map");
    RemoteAddr::new(home, pins_offset(*sessions, session.slot()) + u64::from(number) * 8)
}

fn pinners_addr(node: RegionId) -> RemoteAddr {
    RemoteAddr::new(node, PINNERS_OFFSET)
}

/// Whether a session has pinned the entry at `at`. The caller has looked at the entry's note and
/// generation before (invariant 2).
#[cold]
pub(in crate::nessie) fn is_pinned<F: Fabric>(
    fabric: &F,
    map: &TableMap,
    at: RemoteAddr,
) -> Result<bool, FabricError> {
    fabric.fence();
    let pinned = at.to_word().to_le_bytes();
    let mut pins = Buf::with_capacity(PINS_BYTES as usize);
    for (node, sessions) in map.sessions() {
        // Only clients that have all memory mapped pin entries.
        if !fabric.is_mapped(*node) {
            continue;
        }
        let bound = fabric.load(pinners_addr(*node))?.min(u64::from(*sessions)) as u32;
        for slot in 0..bound {
            pins.clear();
            let first = RemoteAddr::new(*node, pins_offset(*sessions, slot));
            fabric.load_bytes(first, PINS_BYTES as usize, &mut pins)?;
            if pins.chunks_exact(8).any(|pin| pin == pinned) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_pins_as_there_are_words_are_taken_and_given_back_in_any_order() {
        let pins = Pins::default();
        for number in 0..PINS_MAX as u32 {
            assert_eq!(pins.take(), Some(number));
        }
        assert_eq!(pins.take(), None);
        for number in [PINS_MAX as u32 - 1, 0, 7] {
            pins.give_back(number);
            assert_eq!((pins.take(), pins.take()), (Some(number), None));
        }
    }
}
