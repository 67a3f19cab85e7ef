//! GET, PUT and DELETE: the forward and the reverse pass (nessie §4.2.1, §4.2.2, §4.2.4).

use super::state::{At, Life, Word};
use super::turn::Turn;
use crate::script::Op;

impl Turn<'_> {
    fn gets(&self) -> bool {
        matches!(self.op, Op::Get(_))
    }

    /// Forward pass: READs a slot.
    pub fn read_slot(&mut self) {
        let slot = self.me().slot;
        let word = self.read(slot);
        self.me().words[slot as usize] = word;
        if let Some(entry) = word.entry() {
            self.me().at = At::ReadEntry;
            if self.gets() && self.setup.cache {
                self.look_into_cache(entry);
            }
            return;
        }
        if !self.gets() && self.me().chosen.is_none() {
            // The first slot that is empty or has the key.
            self.me().chosen = Some(slot);
            if !self.setup.prefers_match {
                self.me().at = At::Write;
                return;
            }
        }
        self.next_slot();
    }

    fn look_into_cache(&mut self, entry: u8) {
        let line = self.state.caches[self.client][entry as usize];
        if line != 0 && line >> 4 == self.op_key() as u8 + 1 {
            self.story.say(|| format!("d{entry} is in its cache"));
            self.returns(line & 15);
            self.done();
        }
    }

    /// READs the entry that a slot names.
    pub fn read_entry(&mut self) {
        let (slot, key) = (self.me().slot, self.op_key());
        let word = self.me().words[slot as usize];
        let entry = self.read_named(word);
        if entry.key != key {
            self.next_slot();
        } else if !self.gets() {
            if entry.valid {
                (self.me().chosen, self.me().at) = (Some(slot), At::Write);
            } else {
                self.aborts("the entry is invalid");
            }
        } else if entry.valid {
            if self.setup.cache {
                let number = word.entry().expect("it names an entry");
                let line = (key as u8 + 1) << 4 | entry.value;
                self.state.caches[self.client][number as usize] = line;
            }
            self.returns(entry.value);
            self.done();
        } else if !entry.previous.is_empty() {
            (self.me().old, self.me().at) = (entry.previous, At::ReadPrevious);
        } else {
            self.aborts("the entry is invalid");
        }
    }

    fn next_slot(&mut self) {
        self.me().slot += 1;
        self.me().at = At::ReadSlot;
        if self.me().slot < self.setup.slots {
            return;
        }
        if self.gets() {
            (self.me().slot, self.me().at) = (self.reverse_from(), At::VerifyAbsent);
        } else if self.me().chosen.is_some() {
            self.me().at = At::Write;
        } else {
            self.aborts("there is no room");
        }
    }

    /// READs the previous version of an invalid entry (nessie §4.3.2).
    pub fn read_previous(&mut self) {
        let previous = self.me().old;
        let entry = self.read_named(previous);
        if entry.key == self.op_key() && entry.valid {
            self.returns(entry.value);
            self.done();
        } else {
            self.aborts("the previous version is invalid");
        }
    }

    /// Reverse pass of a GET: READs a slot.
    pub fn verify_absent(&mut self) {
        let slot = self.me().slot;
        if self.read(slot) != self.me().words[slot as usize] {
            self.aborts("a slot has changed");
        } else if slot == 0 {
            self.returns(0);
            self.done();
        } else {
            self.me().slot -= 1;
        }
    }

    /// Writes the own entry, invalid. A DELETE's is empty.
    pub fn write(&mut self) -> bool {
        let chosen = self.me().chosen.expect("a slot was chosen");
        let old = self.me().words[chosen as usize];
        let value = match self.op {
            Op::Put(_, value) => value,
            _ => 0,
        };
        let previous = if old.is_empty() { Word::default() } else { old };
        let own = self.write_entry(self.op_key(), value, previous);
        self.me().own = own;
        self.me().at = At::Install;
        own.is_some()
    }

    /// CASes the chosen slot to the own entry.
    pub fn install(&mut self) {
        let chosen = self.me().chosen.expect("a slot was chosen");
        let own = self.me().own.expect("an entry was written");
        let old = self.me().words[chosen as usize];
        if !self.cas(chosen, old, Word::naming(own), "install") {
            self.state.entries[own as usize].life = Life::Free;
            self.aborts("the CAS failed");
            return;
        }
        let me = self.me();
        me.words[chosen as usize] = Word::naming(own);
        (me.old, me.slot, me.at) = (old, chosen, At::ReadRest);
        self.stage(old);
        self.next_rest();
    }

    fn stage(&mut self, word: Word) {
        if let Some(entry) = word.entry() {
            self.me().staged |= 1 << entry;
        }
    }

    fn next_rest(&mut self) {
        self.me().slot += 1;
        self.me().at = At::ReadRest;
        if self.me().slot >= self.setup.slots {
            (self.me().slot, self.me().at) = (self.reverse_from(), At::Verify);
        }
    }

    /// Continues the forward pass, to find duplicates: READs a slot.
    pub fn read_rest(&mut self) {
        let slot = self.me().slot;
        let word = self.read(slot);
        self.me().words[slot as usize] = word;
        if word.is_empty() {
            self.next_rest();
        } else {
            self.me().at = At::ReadRestEntry;
        }
    }

    /// READs the entry it names.
    pub fn read_rest_entry(&mut self) {
        let slot = self.me().slot;
        let word = self.me().words[slot as usize];
        if self.read_named(word).key == self.op_key() {
            self.me().at = At::RemoveDuplicate;
        } else {
            self.next_rest();
        }
    }

    /// CASes the slot of a duplicate to EMPTY.
    pub fn remove_duplicate(&mut self) {
        let slot = self.me().slot;
        let word = self.me().words[slot as usize];
        let empty = self.new_empty();
        if self.cas(slot, word, empty, "remove duplicate") {
            self.stage(word);
            self.me().words[slot as usize] = empty;
            self.next_rest();
        } else {
            self.aborts_installed("the CAS failed");
        }
    }

    /// Reverse pass of a PUT or DELETE: READs a slot.
    pub fn verify(&mut self) {
        let slot = self.me().slot;
        if self.read(slot) != self.me().words[slot as usize] {
            self.aborts_installed("a slot has changed");
        } else if slot == 0 {
            self.me().at = At::Commit;
        } else {
            self.me().slot -= 1;
        }
    }

    /// Sets the valid bit; a DELETE CASes its slot to EMPTY instead.
    pub fn commit(&mut self) {
        let own = self.me().own.expect("an entry was written");
        if let Op::Put(..) = self.op {
            self.state.entries[own as usize].valid = true;
            self.story.say(|| format!("d{own} is valid"));
        } else {
            let chosen = self.me().chosen.expect("a slot was chosen");
            let empty = self.new_empty();
            if !self.cas(chosen, Word::naming(own), empty, "delete") {
                self.aborts("the CAS failed");
                return;
            }
            self.stage(Word::naming(own));
        }
        self.returns(0);
        self.forget_words();
        self.me().at = At::Retire;
    }

    /// Marks the staged entries for recycling.
    pub fn retire_staged(&mut self) {
        self.retire_all();
        self.done();
    }

    fn retire_all(&mut self) {
        let staged = self.me().staged;
        (0..16u8).filter(|entry| staged >> entry & 1 != 0).for_each(|entry| self.retire(entry));
    }

    /// CASes the chosen slot to the word that it held before.
    pub fn roll_back(&mut self) {
        let chosen = self.me().chosen.expect("a slot was chosen");
        let own = Word::naming(self.me().own.expect("an entry was written"));
        let old = self.me().old;
        if self.cas(chosen, own, old, "roll back") {
            if let Some(entry) = old.entry() {
                self.me().staged &= !(1 << entry);
            }
            self.stage(own);
        }
        self.retire_all();
        self.aborts("rolled back");
    }
}
