//! MIGRATE (nessie §4.2.3), with its aborts (§4.3.1). An abort changes no result that clients see.

use super::state::{At, Life, Word};
use super::turn::Turn;
use crate::script::Op;

impl Turn<'_> {
    fn source(&self) -> u8 {
        let Op::Move(source, _) = self.op else { unreachable!("only a MIGRATE comes here") };
        source
    }

    fn destination(&self) -> u8 {
        let Op::Move(_, destination) = self.op else { unreachable!("only a MIGRATE comes here") };
        destination
    }

    fn source_word(&mut self) -> Word {
        let source = self.source();
        self.me().words[source as usize]
    }

    fn own_word(&mut self) -> Word {
        Word::naming(self.me().own.expect("a copy was written"))
    }

    /// READs the source slot.
    pub fn migrate_source(&mut self) {
        let source = self.source();
        let word = self.read(source);
        self.me().words[source as usize] = word;
        self.me().at = At::MigrateEntry;
        if word.is_empty() {
            self.done();
        }
    }

    /// READs its entry, which must be valid.
    pub fn migrate_entry(&mut self) {
        let word = self.source_word();
        let entry = self.read_named(word);
        self.me().copied = (entry.key, entry.value);
        self.me().at = At::MigrateDestination;
        if !entry.valid {
            self.done();
        }
    }

    /// READs the destination slot, which must be empty.
    pub fn migrate_destination(&mut self) {
        let destination = self.destination();
        let word = self.read(destination);
        self.me().words[destination as usize] = word;
        self.me().at = At::MigrateCopy;
        if !word.is_empty() {
            self.done();
        }
    }

    /// Writes the copy, invalid.
    pub fn migrate_copy(&mut self) -> bool {
        let (key, value) = self.me().copied;
        let own = self.write_entry(key, value, Word::default());
        self.me().own = own;
        self.me().at = At::MigratePlace;
        own.is_some()
    }

    /// CASes the destination to the copy.
    pub fn migrate_place(&mut self) {
        let destination = self.destination();
        let (empty, own) = (self.me().words[destination as usize], self.own_word());
        if self.cas(destination, empty, own, "place copy") {
            self.me().at = At::MigrateClear;
        } else {
            let number = own.entry().expect("it names the copy");
            self.state.entries[number as usize].life = Life::Free;
            self.done();
        }
    }

    /// CASes the source to EMPTY.
    pub fn migrate_clear(&mut self) {
        let (source, word, empty) = (self.source(), self.source_word(), self.new_empty());
        let cleared = self.cas(source, word, empty, "clear source");
        self.me().at = if cleared { At::MigrateCommit } else { At::MigrateUndo };
    }

    /// CASes the destination to EMPTY, because the source has changed.
    pub fn migrate_undo(&mut self) {
        let (destination, own, empty) = (self.destination(), self.own_word(), self.new_empty());
        if self.cas(destination, own, empty, "undo") {
            self.retire(own.entry().expect("it names the copy"));
        }
        self.done();
    }

    /// Sets the copy's valid bit.
    pub fn migrate_commit(&mut self) {
        let own = self.me().own.expect("a copy was written");
        self.state.entries[own as usize].valid = true;
        self.story.say(|| format!("d{own} is valid"));
        self.me().at = At::MigrateRetire;
    }

    /// Marks the original for recycling.
    pub fn migrate_retire(&mut self) {
        let word = self.source_word();
        self.retire(word.entry().expect("the source named an entry"));
        self.done();
    }
}
