//! Pins: values that are read in place, and entries that are not used again meanwhile.
//! Production: `pin.rs`, and `alloc.rs` with `pins.rs`.

use super::mutation::Mutation;
use super::state::{At, Fault};
use super::turn::Turn;

impl Turn<'_> {
    /// Announces that the entry that was found is pinned.
    pub fn pin_announce(&mut self) {
        self.me().pins = true;
        self.me().at = At::PinMark;
        self.story.say(|| "announces its pin".to_owned());
    }

    /// CASes the mark into the entry, if it still has the generation that was found.
    pub fn pin_mark(&mut self) {
        let word = self.me().target_word();
        let current = self.is_current(word);
        self.story.say(|| format!("mark d{}: ok {current}", word.entry()));
        if current {
            self.state.entries[word.entry() as usize].marked = true;
            self.me().at = At::PinLook;
        } else {
            self.withdraw_pin();
        }
    }

    /// READs the slot again. Linearization point of a PIN that finds a value.
    pub fn pin_look(&mut self) {
        let (candidate, word) = (self.me().target, self.me().target_word());
        if self.read(candidate) != word && !self.setup.lacks(Mutation::PinUnverified) {
            self.withdraw_pin();
            return;
        }
        let value = self.state.entries[word.entry() as usize].value;
        self.me().value = value;
        self.returns(value);
        self.me().at = At::PinHold;
    }

    /// Looks at the value in place, and ends the pin.
    pub fn pin_hold(&mut self) {
        let (word, value) = (self.me().target_word(), self.me().value);
        let entry = self.state.entries[word.entry() as usize];
        self.story.say(|| format!("looks at d{} and unpins it", word.entry()));
        if entry.generation != word.generation() || entry.value != value {
            self.state.fault = Some(Fault::PinnedChanged);
        }
        self.done();
    }

    fn withdraw_pin(&mut self) {
        self.me().pins = false;
        self.restart();
    }

    /// Whether a client that is about to use an entry again sees that it is pinned.
    pub fn is_pinned(&self, entry: u8) -> bool {
        let clients = &self.state.clients[..self.setup.scripts.len()];
        let pins = clients.iter().any(|other| other.pins && other.target_word().entry() == entry);
        self.state.entries[entry as usize].marked && pins && !self.setup.lacks(Mutation::PinIgnored)
    }
}
