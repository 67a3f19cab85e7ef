//! Evicting: a DELETE that nobody called. An insert that finds no free slot may take the place of
//! another key's value in one CAS. Production: `memory/evict.rs`, `insert.rs`.

use super::mutation::Mutation;
use super::state::At;
use super::turn::Turn;
use super::word::{Kind, Word};
use crate::monitor::Event;
use crate::script::Op;

impl Turn<'_> {
    /// READs the slot. What is moving is no victim.
    pub fn evict_look(&mut self) {
        let Op::Evict(key, slot) = self.op else { unreachable!("only evictions begin here") };
        let Some(candidate) = self.setup.candidate_at(key, slot) else {
            self.done();
            return;
        };
        let word = self.read(candidate);
        if word.kind() != Kind::Visible || !word.shows(key) {
            self.done();
            return;
        }
        if self.setup.lacks(Mutation::NotedBeforeEvicted) {
            self.write_note(word);
        }
        let me = self.me();
        (me.words[candidate as usize], me.target, me.at) = (word, candidate, At::Evict);
    }

    /// CASes the word to EMPTY. Linearization point: the eviction begins and ends with it. A word
    /// that has changed is no victim any more.
    pub fn evict(&mut self) {
        let (candidate, victim) = (self.me().target, self.me().target_word());
        if self.clear(candidate, victim, "evict") {
            self.observe(Event::Evicted(victim.key()));
            self.installed(victim);
        } else if self.setup.lacks(Mutation::EvictedAnyway) {
            self.installed(victim);
        } else {
            self.done();
        }
    }

    /// The candidate whose value an insert is to evict, if it shows one that does not move.
    pub fn victim_of_insert(&self, words: &[Word]) -> Option<u8> {
        let Op::PutOver(key, _, slot) = self.op else { return None };
        let candidate = self.setup.candidate_at(key, slot)?;
        (words[candidate as usize].kind() == Kind::Visible).then_some(candidate)
    }

    /// CASes the word of another key to the own tentative one. Linearization point of the eviction.
    pub fn replace(&mut self) {
        let (candidate, victim) = (self.me().target, self.me().target_word());
        if !self.cas_tentative(candidate, victim) {
            self.restart();
            return;
        }
        self.observe(Event::Evicted(victim.key()));
        (self.me().word, self.me().at) = (victim, At::NoteReplaced);
    }

    /// WRITEs the note of the value that was evicted.
    pub fn note_replaced(&mut self) {
        let (candidate, victim) = (self.me().target, self.me().word);
        self.write_note(victim);
        self.is_tentative(candidate);
    }
}
