//! Looking at the candidates and at the entries that they name, and the decisions that follow.
//! Production: `read.rs`, `get.rs`, and the beginning of every other operation.

use super::mutation::Mutation;
use super::state::{At, Fault};
use super::turn::Turn;
use super::word::{Kind, Word};
use crate::script::{Key, Op};

impl Turn<'_> {
    /// READs one candidate of the first look.
    pub fn look(&mut self, choice: u8) -> bool {
        let Some(word) = self.read_once(choice) else { return false };
        let key = self.me().key;
        if self.op.is_read() && !self.setup.key_reads && word.shows(key) {
            self.me().words[choice as usize] = word;
            self.found(choice);
            return true;
        }
        if self.matters(word) {
            self.me().words[choice as usize] = word;
        }
        if self.saw_all() {
            if self.setup.key_reads {
                self.next_key(0);
            } else {
                self.decide();
            }
        }
        true
    }

    /// Whether a word has to be remembered: a word that cannot influence the operation is forgotten
    /// at once, which saves states.
    fn matters(&mut self, word: Word) -> bool {
        let compares = matches!(self.op, Op::Get(_) | Op::Pin(_) | Op::Delete(_) | Op::PutIf(..));
        let evicts = matches!(self.op, Op::PutOver(..));
        let key = self.me().key;
        compares || evicts || self.setup.key_reads || word.is_empty() || word.key() == key
    }

    /// Goes on to the next occupied candidate whose key is to be read.
    fn next_key(&mut self, first: u8) {
        let occupied = |candidate: &u8| self.state.clients[self.client].words[*candidate as usize];
        let next = (first..self.setup.candidates).find(|c| occupied(c).is_occupied());
        match next {
            Some(candidate) => {
                self.me().slot = candidate;
                self.me().at = At::ReadKeys;
            }
            None => self.decide(),
        }
    }

    /// READs the generation and the key of an entry that a slot named.
    pub fn read_key(&mut self) {
        let candidate = self.me().slot;
        let word = self.me().words[candidate as usize];
        let entry = self.state.entries[word.entry() as usize];
        self.story.say(|| format!("READ key of d{}: {:?}", word.entry(), entry.key));
        if !self.is_current(word) {
            self.restart();
            return;
        }
        if entry.key != word.key() {
            self.state.fault = Some(Fault::WrongEntryAccepted);
        }
        self.next_key(candidate + 1);
    }

    /// Whether an entry still has the generation that a word names.
    pub fn is_current(&self, word: Word) -> bool {
        let current = self.state.entries[word.entry() as usize].generation == word.generation();
        current || self.setup.lacks(Mutation::NoGenerationCheck)
    }

    /// All candidates were read: decides the next step.
    fn decide(&mut self) {
        let (key, words) = (self.me().key, self.me().words);
        let count = self.setup.candidates;
        let writes = !self.op.is_read();
        let shows = |kinds: fn(Kind) -> bool| {
            let matches =
                |c: &u8| words[*c as usize].shows(key) && kinds(words[*c as usize].kind());
            (0..count).find(matches)
        };
        if let Some(moving) = shows(|kind| kind != Kind::Visible).filter(|_| writes) {
            self.help(moving);
        } else if let Some(found) = shows(|_| true) {
            self.found(found);
        } else if matches!(self.op, Op::Get(_) | Op::Pin(_) | Op::Delete(_) | Op::PutIf(..)) {
            self.me().seen = 0;
            self.me().at = At::SecondLook;
            if self.setup.lacks(Mutation::OneLookIsEnough) {
                self.returns(0);
                self.done();
            }
        } else {
            self.choose_slot();
        }
    }

    /// A candidate shows a value of the key.
    fn found(&mut self, candidate: u8) {
        self.me().keep_only(candidate);
        self.me().target = candidate;
        self.me().at = match self.op {
            Op::Get(_) if self.setup.torn => At::ReadBody,
            Op::Get(_) | Op::PutIf(..) | Op::FetchAdd(_) => At::ReadEntry,
            Op::Pin(_) => At::PinAnnounce,
            Op::PutIfAbsent(..) => {
                // Linearization point: the READ of the slot.
                self.returns(0);
                self.done();
                return;
            }
            _ => At::Update,
        };
    }

    /// READs an entry that was found, whole.
    pub fn read_entry(&mut self) {
        let word = self.me().target_word();
        let entry = self.state.entries[word.entry() as usize];
        self.story.say(|| format!("READ d{}: {:?}={}", word.entry(), entry.key, entry.value));
        if !self.is_current(word) {
            self.restart();
            return;
        }
        match self.op {
            Op::PutIf(_, was, _) if entry.value == was => self.me().at = At::Update,
            Op::FetchAdd(_) => {
                self.me().value = entry.value;
                self.write_own_value(entry.value + 1);
                self.me().at = At::Update;
            }
            Op::PutIf(..) => {
                // Linearization point: the READ of the slot.
                self.returns(0);
                self.done();
            }
            _ => self.got(entry.value),
        }
    }

    /// READs the value or the key of an entry that was found; their order is not fixed.
    pub fn read_body(&mut self, choice: u8) -> bool {
        let bit = 1 << choice;
        if self.me().seen & bit != 0 {
            return false;
        }
        let word = self.me().target_word();
        let entry = self.state.entries[word.entry() as usize];
        let first = self.me().seen == 0;
        let me = self.me();
        me.seen |= bit;
        if choice == 0 {
            me.value = entry.value;
        } else {
            me.key_read = entry.key;
        }
        if me.seen == 3 {
            (me.seen, me.at) = (0, At::Recheck);
        }
        self.story.say(|| match choice {
            0 => format!("READ value of d{}: {}", word.entry(), entry.value),
            _ => format!("READ key of d{}: {:?}", word.entry(), entry.key),
        });
        let looks_first = self.setup.lacks(Mutation::NoSecondGenerationRead) && first;
        if looks_first && !self.is_current(word) {
            self.restart();
        }
        true
    }

    /// READs the generation, after the body arrived: the owner writes it before anything else.
    pub fn recheck(&mut self) {
        let word = self.me().target_word();
        let current = self.is_current(word);
        self.story.say(|| format!("READ generation of d{}", word.entry()));
        if !current && !self.setup.lacks(Mutation::NoSecondGenerationRead) {
            self.restart();
            return;
        }
        let (wanted, read) = (self.me().key, self.me().key_read);
        if read != wanted {
            self.state.fault = Some(Fault::WrongEntryAccepted);
        }
        let value = self.me().value;
        self.got(value);
    }

    /// A GET has its value. Linearization point: the READ of the slot.
    fn got(&mut self, value: u8) {
        let (candidate, word) = (self.me().target, self.me().target_word());
        if self.setup.cache && word.kind() == Kind::Visible {
            self.remember(candidate, word);
            self.me().cached.value = value;
        }
        self.returns(value);
        self.done();
    }

    /// READs one candidate of the second look, posted after the first arrived. Linearization point
    /// of a miss: any moment between the two.
    pub fn second_look(&mut self, choice: u8) -> bool {
        let Some(word) = self.read_once(choice) else { return false };
        if word != self.me().words[choice as usize] {
            self.restart();
        } else if self.saw_all() {
            self.returns(0);
            self.done();
        }
        true
    }

    /// Tries the remembered word: a READ of the slot for a GET, the CAS for an update.
    pub fn try_cached(&mut self) -> bool {
        let cached = self.me().cached;
        let slot = self.setup.slot_of(cached.key, cached.candidate);
        match self.op {
            Op::Get(_) => {
                if self.read(cached.candidate) == cached.word {
                    self.story.say(|| "as remembered".to_owned());
                    self.returns(cached.value);
                    self.done();
                    return true;
                }
            }
            Op::Delete(_) => {
                self.forget_cached();
                if self.clear(cached.candidate, cached.word, "delete") {
                    self.returns(1);
                    self.installed(cached.word);
                    return true;
                }
            }
            _ => {
                let own = self.own_word();
                self.forget_cached();
                if self.cas(cached.candidate, cached.word, own, "update") {
                    self.remember(cached.candidate, own);
                    self.returns(u8::from(matches!(self.op, Op::PutIf(..))));
                    self.installed(cached.word);
                    return true;
                }
                // A failure says nothing about when the word ceased to be true.
                let there = self.state.slots[slot];
                if self.setup.lacks(Mutation::AbsorbedByMemory) && there.shows(cached.key) {
                    self.returns(0);
                    self.done();
                    return true;
                }
            }
        }
        self.forget_cached();
        self.me().at = At::Look;
        true
    }

    fn forget_cached(&mut self) {
        self.me().cached = Default::default();
    }

    /// The key of the operation.
    pub fn op_key(&self) -> Key {
        self.op.key().expect("only operations with a key come here")
    }
}
