//! The invariants of every state.

use super::setup::Setup;
use super::state::{Fault, State};
use super::word::{Kind, Word};
use crate::monitor::History;
use crate::script::Key;

/// The violation in a state, if there is one.
pub fn violation(setup: &Setup, state: &State) -> Option<String> {
    match state.fault {
        Some(Fault::WordRepeated) => {
            return Some("I3: a word came back into a slot where it was remembered".to_owned());
        }
        Some(Fault::WrongEntryAccepted) => {
            return Some("an entry was accepted that is not the one looked for".to_owned());
        }
        Some(Fault::PinnedChanged) => {
            return Some("P: an entry changed while it was pinned".to_owned());
        }
        None => (),
    }
    if state.history == History::IMPOSSIBLE {
        return Some("not linearizable: no order of the operations explains this".to_owned());
    }
    let slots = &state.slots[..setup.slots as usize];
    [Key::A, Key::B]
        .into_iter()
        .find_map(|key| two_values(slots, key))
        .or_else(|| unowned_entry(state, slots))
}

/// I1: at most one visible slot per key, or exactly F and C of the same entry.
fn two_values(slots: &[Word], key: Key) -> Option<String> {
    let mut shown = slots.iter().filter(|word| word.shows(key));
    let (first, second) = (shown.next()?, shown.next()?);
    let kinds = (first.kind(), second.kind());
    let moving = matches!(kinds, (Kind::Frozen, Kind::Copy) | (Kind::Copy, Kind::Frozen));
    let same = first.same_entry(*second) && first.hop() == second.hop();
    (!moving || !same || shown.next().is_some())
        .then(|| format!("I1: two values of key {key:?}: {first} and {second}"))
}

/// I2: an occupied slot names an entry that has that generation and is not free.
fn unowned_entry(state: &State, slots: &[Word]) -> Option<String> {
    slots.iter().enumerate().filter(|(_, word)| word.is_occupied()).find_map(|(slot, word)| {
        let entry = &state.entries[word.entry() as usize];
        let sound = entry.generation == word.generation() && !entry.free && entry.key == word.key();
        (!sound).then(|| format!("I2: slot {slot} names d{}, which was reused", word.entry()))
    })
}
