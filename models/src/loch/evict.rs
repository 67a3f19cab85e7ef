//! Evicting: a DELETE that nobody called. Production: `memory/evict.rs`.

use super::mutation::Mutation;
use super::state::At;
use super::turn::Turn;
use super::word::Kind;
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
            self.observe(Event::Invoked);
            self.observe(Event::Returned(0));
            self.installed(victim);
        } else if self.setup.lacks(Mutation::EvictedAnyway) {
            self.installed(victim);
        } else {
            self.done();
        }
    }
}
