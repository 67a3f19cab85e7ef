//! Renaming, so that equal states have equal names.
//!
//! Generations of an entry and tags of a slot's EMPTYs only have to be different. After every step
//! they are renamed in the order in which the state mentions them: an entry's current generation is
//! 0, and the older generations that a client still remembers are 1, 2 and so on. So the model has
//! finitely many states though clients write fresh words for ever, and no word is ever repeated by
//! accident, as long as the protocol makes fresh ones where it must.

use super::setup::Setup;
use super::state::{ENTRIES_MAX, SLOTS_MAX, State};
use super::word::{NEW_GENERATION, Word};

const GENERATIONS: usize = NEW_GENERATION as usize + 1;
const UNNAMED: u8 = u8::MAX;

struct Names {
    /// New names of generations, by entry and old name.
    generations: [[u8; GENERATIONS]; ENTRIES_MAX],
    next_generation: [u8; ENTRIES_MAX],
    /// The old tags of each slot; a tag's place is its new name.
    tags: [[u16; TAGS_MAX]; SLOTS_MAX],
    tag_count: [u8; SLOTS_MAX],
}

/// EMPTY words of one slot that can be known at the same time: one in the slot, and one for each
/// client.
const TAGS_MAX: usize = 8;

impl Names {
    fn rename(&mut self, slot: usize, word: &mut Word) {
        if word.is_empty() {
            *word = Word::empty(self.tag(slot, word.tag()));
        } else if word.is_occupied() {
            let entry = word.entry() as usize;
            let name = &mut self.generations[entry][word.generation() as usize];
            if *name == UNNAMED {
                *name = self.next_generation[entry];
                self.next_generation[entry] += 1;
                assert!(*name < NEW_GENERATION, "too many generations of d{entry} are known");
            }
            *word = word.with_generation(*name);
        }
    }

    fn tag(&mut self, slot: usize, tag: u16) -> u16 {
        let known = &mut self.tag_count[slot];
        if let Some(name) = self.tags[slot][..*known as usize].iter().position(|t| *t == tag) {
            return name as u16;
        }
        self.tags[slot][*known as usize] = tag;
        *known += 1;
        u16::from(*known) - 1
    }
}

/// Renames generations and tags.
pub fn rename(setup: &Setup, state: &mut State) {
    let mut names = Names {
        generations: [[UNNAMED; GENERATIONS]; ENTRIES_MAX],
        next_generation: [1; ENTRIES_MAX],
        tags: [[0; TAGS_MAX]; SLOTS_MAX],
        tag_count: [0; SLOTS_MAX],
    };
    for (entry, names) in state.entries.iter_mut().zip(&mut names.generations) {
        names[entry.generation as usize] = 0;
        entry.generation = 0;
    }
    for (slot, word) in state.slots.iter_mut().enumerate() {
        names.rename(slot, word);
    }
    for client in &mut state.clients[..setup.scripts.len()] {
        for (candidate, word) in client.words.iter_mut().enumerate() {
            names.rename(setup.slot_of(client.key, candidate as u8), word);
        }
        // These name entries, so the slot does not matter.
        names.rename(0, &mut client.word);
        names.rename(0, &mut client.cached.word);
    }
}
