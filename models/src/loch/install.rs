//! Writing an entry and bringing its word into the index, or a word out of it.
//! Production: `put.rs`, `insert.rs`, `delete.rs`, `conditional.rs`.

use super::mutation::Mutation;
use super::state::At;
use super::turn::Turn;
use super::word::{Kind, NEW_GENERATION, Word};
use crate::script::Op;

impl Turn<'_> {
    /// Takes a free entry, or the client's own again, and gives it a new generation.
    pub fn write(&mut self) -> bool {
        let mut entries = self.setup.entries_of(self.client);
        let own = match self.me().own {
            Some(own) => own,
            None => {
                let can_be_had =
                    |e: &u8| self.state.entries[*e as usize].free && !self.is_pinned(*e);
                let Some(free) = entries.find(can_be_had) else { return false };
                if self.setup.pins() {
                    // A pin may come between the look at the pins and the new generation.
                    (self.me().own, self.me().at) = (Some(free), At::Claim);
                    self.story.say(|| format!("finds d{free} free"));
                    return true;
                }
                free
            }
        };
        self.write_entry(own);
        true
    }

    /// Gives the entry that was found free its generation.
    pub fn claim(&mut self) {
        let own = self.me().own.expect("an entry was found");
        self.write_entry(own);
    }

    fn write_entry(&mut self, own: u8) {
        let reuses_word =
            self.me().own_was_shown && self.setup.lacks(Mutation::TentativeWordReused);
        let me = self.me();
        (me.own, me.own_was_shown, me.at) = (Some(own), false, At::WriteKey);
        let blind = matches!(self.op, Op::Put(..) | Op::PutOver(..));
        let entry = &mut self.state.entries[own as usize];
        (entry.free, entry.blind, entry.marked) = (false, blind, false);
        if !reuses_word {
            entry.generation = NEW_GENERATION;
        }
        self.story.say(|| format!("writes d{own}"));
        if !self.setup.torn {
            self.write_key();
            self.write_value();
        }
    }

    /// Writes the key of the own entry.
    pub fn write_key(&mut self) {
        let key = self.op_key();
        let own = self.me().own.expect("an entry was taken");
        self.state.entries[own as usize].key = key;
        self.me().at = At::WriteValue;
        self.story.say(|| format!("its key {key:?}"));
    }

    /// Writes its value.
    pub fn write_value(&mut self) {
        let value = match self.op {
            Op::Put(_, value) | Op::PutOver(_, value, _) => value,
            Op::PutIf(_, _, value) | Op::PutIfAbsent(_, value) => value,
            Op::FetchAdd(_) => 1,
            _ => unreachable!("only these write"),
        };
        self.write_own_value(value);
        self.me().at = self.first_look();
        self.story.say(|| format!("its value {value}"));
    }

    /// Writes the value of the own entry; no other client can read it yet.
    pub fn write_own_value(&mut self, value: u8) {
        let own = self.me().own.expect("an entry was taken");
        self.state.entries[own as usize].value = value;
    }

    /// CASes the word that was found to the client's own word, or to EMPTY. Linearization point of
    /// an update and of a DELETE that finds a value.
    pub fn update(&mut self) {
        let (candidate, found) = (self.me().target, self.me().target_word());
        let slot = self.setup.slot_of(self.me().key, candidate);
        if matches!(self.op, Op::Delete(_)) {
            if self.clear(candidate, found, "delete") {
                self.me().cached = Default::default();
                self.returns(1);
                self.installed(found);
                return;
            }
        } else {
            let own = self.own_word();
            if self.cas(candidate, found, own, "update") {
                self.remember(candidate, own);
                let result = match self.op {
                    Op::PutIf(..) => 1,
                    Op::FetchAdd(_) => self.me().value,
                    _ => 0,
                };
                self.returns(result);
                self.installed(found);
                return;
            }
        }
        let now = self.state.slots[slot];
        let absorbs = match self.op {
            Op::Put(..) | Op::PutOver(..) => true,
            Op::Delete(_) => self.setup.lacks(Mutation::DeleteAbsorbed),
            _ => false,
        };
        if absorbs && now.shows(self.op_key()) && !now.same_entry(found) {
            self.me().word = now;
            self.me().at = At::Absorb;
        } else {
            self.restart();
        }
    }

    /// READs the entry to which the CAS was lost. If an unconditional PUT wrote it, this PUT took
    /// effect just before that PUT: linearization point.
    pub fn absorb(&mut self) {
        let winner = self.me().word;
        let entry = self.state.entries[winner.entry() as usize];
        let any = self.setup.lacks(Mutation::AbsorbedByConditional);
        let blind = entry.blind || any;
        self.story.say(|| format!("READ flags of d{}: blind {}", winner.entry(), entry.blind));
        if self.is_current(winner) && blind {
            self.story.say(|| "was overwritten by it".to_owned());
            self.returns(u8::from(matches!(self.op, Op::Delete(_))));
            self.done();
        } else {
            self.restart();
        }
    }

    /// WRITEs the note of the entry that was replaced. It names the generation: if the entry was
    /// freed by others and reused meanwhile, it changes nothing.
    pub fn note(&mut self) {
        let word = self.me().word;
        self.write_note(word);
        self.done();
    }

    /// WRITEs a note: the entry that a word named is free.
    pub fn write_note(&mut self, word: Word) {
        let entry = &mut self.state.entries[word.entry() as usize];
        let current = entry.generation == word.generation();
        if current || self.setup.lacks(Mutation::NoteIgnoresGeneration) {
            entry.free = true;
        }
        self.story.say(|| {
            let late = if current { "" } else { ", of an old generation" };
            format!("WRITE note of d{}{late}", word.entry())
        });
    }

    /// No candidate shows a value: chooses the slot of the insert.
    pub fn choose_slot(&mut self) {
        if matches!(self.op, Op::FetchAdd(_)) {
            self.write_own_value(1);
        }
        let (key, words) = (self.me().key, self.me().words);
        let count = self.setup.candidates;
        let me = self.me();
        me.forget_look();
        if self.setup.home_insert && words[0].is_empty() {
            let me = self.me();
            (me.words[0], me.seen, me.at) = (words[0], 1, At::HomeLook);
            if count == 1 {
                self.me().at = At::HomeInsert;
            }
        } else if let Some(victim) = self.victim_of_insert(&words) {
            let me = self.me();
            me.words = words;
            me.keep_only(victim);
            (me.target, me.at) = (victim, At::Replace);
        } else if words.iter().any(|word| word.is_empty()) {
            let me = self.me();
            me.words = words.map(|word| if word.is_empty() { word } else { Word::UNKNOWN });
            me.at = At::Tentative;
        } else if let Some(rival) = (0..count).find(|c| words[*c as usize].is_tentative_of(key)) {
            let me = self.me();
            me.words[rival as usize] = words[rival as usize];
            (me.slot, me.at) = (rival, At::MakeRoom);
        } else {
            self.fails("fails: FULL");
        }
    }

    /// CASes a tentative insert of the key to EMPTY, because there is no other room.
    pub fn make_room(&mut self) {
        let rival = self.me().slot;
        let word = self.me().words[rival as usize];
        self.clear(rival, word, "make room");
        self.restart();
    }

    /// READs another candidate, after the free home was seen: a rival that was committed since then
    /// has changed the home.
    pub fn home_look(&mut self, choice: u8) -> bool {
        let Some(word) = self.read_once(choice) else { return false };
        let key = self.me().key;
        if word.shows(key) || word.is_tentative_of(key) {
            self.me().words[choice as usize] = word;
        }
        if self.saw_all() {
            self.settle_home();
        }
        true
    }

    /// Deals with the words of the other candidates, in their order.
    fn settle_home(&mut self) {
        let words = self.me().words;
        let known = |c: &u8| words[*c as usize] != Word::UNKNOWN;
        match (1..self.setup.candidates).find(known) {
            None => self.me().at = At::HomeInsert,
            Some(c) if words[c as usize].is_visible() => self.restart(),
            Some(c) => {
                self.me().slot = c;
                self.me().at = At::HomeKill;
            }
        }
    }

    /// CASes a tentative insert of the key to EMPTY.
    pub fn home_kill(&mut self) {
        let rival = self.me().slot;
        let word = self.me().words[rival as usize];
        if self.clear(rival, word, "remove rival") {
            self.me().words[rival as usize] = Word::UNKNOWN;
            self.me().slot = 0;
            self.settle_home();
        } else {
            self.restart();
        }
    }

    /// CASes the free home to the own word. Linearization point of an insert at home.
    pub fn home_insert(&mut self) {
        let (home, own) = (self.me().words[0], self.own_word());
        if self.cas(0, home, own, "insert at home") {
            self.inserted(0, own);
        } else {
            self.restart();
        }
    }

    fn inserted(&mut self, candidate: u8, word: Word) {
        self.remember(candidate, word);
        self.me().own = None;
        self.returns(u8::from(matches!(self.op, Op::PutIfAbsent(..))));
        self.done();
    }

    /// CASes a free slot to the own word, tentatively.
    pub fn insert_tentatively(&mut self, choice: u8) -> bool {
        let words = self.me().words;
        let first = words.iter().position(|word| word.is_empty()) == Some(choice as usize);
        let free = words[choice as usize];
        if !free.is_empty() || !(first || self.setup.any_free_slot) {
            return false;
        }
        match self.cas_tentative(choice, free) {
            true => self.is_tentative(choice),
            false => self.restart(),
        }
        true
    }

    /// CASes a candidate's word to the own word, tentatively. Returns whether it did.
    pub fn cas_tentative(&mut self, choice: u8, from: Word) -> bool {
        let own = self.own_word();
        match self.setup.lacks(Mutation::NoTentativeInsert) {
            true => self.cas(choice, from, own, "insert"),
            false => self.cas(choice, from, own.with(Kind::Tentative, 0, 0), "insert tentatively"),
        }
    }

    /// Goes on after a tentative word is in place.
    pub fn is_tentative(&mut self, choice: u8) {
        let own = self.own_word();
        if self.setup.lacks(Mutation::NoTentativeInsert) {
            self.inserted(choice, own);
            return;
        }
        let alone = self.setup.candidates == 1;
        let me = self.me();
        me.words[choice as usize] = own.with(Kind::Tentative, 0, 0);
        me.keep_only(choice);
        (me.target, me.seen, me.own_was_shown) = (choice, 1 << choice, true);
        me.at = if alone { At::Commit } else { At::Verify };
    }

    /// READs another candidate, after the tentative word is in place.
    pub fn verify(&mut self, choice: u8) -> bool {
        let Some(word) = self.read_once(choice) else { return false };
        self.keep_rival(choice, word);
        if self.saw_all() {
            self.settle_rivals();
        }
        true
    }

    /// Remembers what another candidate holds, if it stands against the commit.
    fn keep_rival(&mut self, candidate: u8, word: Word) {
        let key = self.me().key;
        let minds_home = self.setup.home_insert && !self.setup.lacks(Mutation::FreeHomeIgnored);
        let free_home = candidate == 0 && word.is_empty() && minds_home;
        let stands = free_home || word.shows(key) || word.is_tentative_of(key);
        self.me().words[candidate as usize] = if stands { word } else { Word::UNKNOWN };
    }

    /// Deals with the words of the other candidates, in their order.
    fn settle_rivals(&mut self) {
        let (words, target) = (self.me().words, self.me().target);
        let known = |c: &u8| *c != target && words[*c as usize] != Word::UNKNOWN;
        let next = (0..self.setup.candidates).find(known);
        self.me().slot = next.unwrap_or(0);
        self.me().at = match next {
            None => At::Commit,
            Some(c) if words[c as usize].kind() == Kind::Tentative => At::Rival,
            // A value, or a free home, which must be used.
            Some(_) => At::Withdraw,
        };
        if self.me().at == At::Withdraw {
            self.me().keep_only(target);
            self.me().target = target;
        }
    }

    /// Two tentative inserts meet: the one in the higher slot gives way, until it has lost
    /// patience.
    pub fn meet_rival(&mut self, choice: u8) -> bool {
        let (rival, target) = (self.me().slot, self.me().target);
        let patient = self.setup.lacks(Mutation::EndlessPatience);
        let (lower, loses_patience) = (rival < target, choice > 0);
        if loses_patience && (!lower || patient) {
            return false;
        }
        let gives_way = lower && !loses_patience;
        if gives_way {
            self.withdraw();
            return true;
        }
        let word = self.me().words[rival as usize];
        if self.clear(rival, word, "remove rival") {
            self.me().words[rival as usize] = Word::UNKNOWN;
            self.settle_rivals();
        } else {
            self.me().at = At::VerifyAgain;
        }
        true
    }

    /// READs the slot of a rival again, because the rival was gone when it should have been
    /// removed.
    pub fn verify_again(&mut self) {
        let rival = self.me().slot;
        let word = self.read(rival);
        self.keep_rival(rival, word);
        self.settle_rivals();
    }

    /// CASes the tentative word to the visible one. Linearization point of an insert elsewhere.
    pub fn commit(&mut self) {
        let (target, tentative) = (self.me().target, self.me().target_word());
        let shown = tentative.with(Kind::Visible, 0, 0);
        if self.cas(target, tentative, shown, "commit") {
            self.inserted(target, shown);
        } else {
            // Another client removed it: it certainly had no effect.
            self.restart();
        }
    }

    /// CASes the tentative word to EMPTY. The word was in the index, whichever client removes it.
    pub fn withdraw(&mut self) {
        let (target, tentative) = (self.me().target, self.me().target_word());
        self.clear(target, tentative, "withdraw");
        self.restart();
    }
}
