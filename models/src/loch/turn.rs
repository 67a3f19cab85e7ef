//! One step of one client: the verbs, and the beginning and end of an operation.

use super::mutation::Mutation;
use super::setup::Setup;
use super::state::{At, Cached, Client, Fault, State};
use super::word::{Kind, NEW_TAG, Word};
use crate::monitor::{Call, Event, Monitor};
use crate::script::Op;
use crate::story::Story;

/// A client that makes a step in a state.
pub struct Turn<'a> {
    pub setup: &'a Setup,
    pub monitor: &'a Monitor,
    pub state: &'a mut State,
    pub client: usize,
    pub op: Op,
    pub story: &'a mut Story,
}

impl Turn<'_> {
    pub fn me(&mut self) -> &mut Client {
        &mut self.state.clients[self.client]
    }

    /// Makes the step; `false` if this choice does not exist, and then the state means nothing.
    pub fn step(&mut self, choice: u8) -> bool {
        if self.me().at == At::Idle {
            self.begin();
        }
        let at = self.me().at;
        let unnoticed = matches!(at, At::Write | At::Claim | At::WriteKey | At::WriteValue)
            || matches!(at, At::EvictLook | At::Evict);
        if !unnoticed && !self.me().invoked && self.op.key().is_some() {
            // As late as can be, so that the operation's interval is as short as it can be.
            self.me().invoked = true;
            self.observe(Event::Invoked);
        }
        match at {
            At::Idle => unreachable!("an operation has begun"),
            At::Write => return choice == 0 && self.write(),
            At::Claim => self.claim(),
            At::WriteKey => self.write_key(),
            At::WriteValue => self.write_value(),
            At::Cached => return choice == 0 && self.try_cached(),
            At::Look => return self.look(choice),
            At::ReadKeys => self.read_key(),
            At::ReadEntry => self.read_entry(),
            At::PinAnnounce => self.pin_announce(),
            At::PinMark => self.pin_mark(),
            At::PinLook => self.pin_look(),
            At::PinHold => self.pin_hold(),
            At::ReadBody => return self.read_body(choice),
            At::Recheck => self.recheck(),
            At::SecondLook => return self.second_look(choice),
            At::Update => self.update(),
            At::Absorb => self.absorb(),
            At::Note => self.note(),
            At::HomeLook => return self.home_look(choice),
            At::HomeKill => self.home_kill(),
            At::HomeInsert => self.home_insert(),
            At::MakeRoom => self.make_room(),
            At::Tentative => return self.insert_tentatively(choice),
            At::Verify => return self.verify(choice),
            At::Rival => return self.meet_rival(choice),
            At::VerifyAgain => self.verify_again(),
            At::Commit => self.commit(),
            At::Withdraw => self.withdraw(),
            At::EvictLook => self.evict_look(),
            At::Evict => self.evict(),
            At::Replace => self.replace(),
            At::NoteReplaced => self.note_replaced(),
            At::MoveSource => self.move_source(),
            At::MoveDestination => self.move_destination(),
            At::Freeze => self.freeze(),
            At::PlaceCopy => self.place_copy(),
            At::TakeBack => self.take_back(),
            At::Scan => return self.scan(choice),
            At::ScanClear => self.scan_clear(),
            At::ScanAgain => self.scan_again(),
            At::Drop => self.drop_source(),
            At::Finish => self.finish_move(),
            At::HelpCopy => self.help_copy(),
            At::HelpFrozen => self.help_frozen(),
            At::HelpRetag => self.help_retag(),
            At::HelpUndo => self.help_undo(),
            At::Settle => self.settle(),
            At::SettleClear => self.settle_clear(),
            At::ScrubPick => return self.scrub_pick(choice),
            At::ScrubLook => return self.scrub_look(choice),
            At::ScrubEntry => return self.scrub_entry(),
            At::ScrubLookAgain => return self.scrub_look_again(choice),
            At::ScrubSecondLook => return self.scrub_second_look(choice),
            At::ScrubKill => self.scrub_kill(),
            At::ScrubNote => self.scrub_note(),
        }
        true
    }

    fn begin(&mut self) {
        let at = match self.op {
            Op::Move(..) => At::MoveSource,
            Op::Evict(..) => At::EvictLook,
            Op::Settle(_) => At::Settle,
            Op::Scrub => At::ScrubPick,
            Op::Get(_) | Op::Pin(_) | Op::Delete(_) => self.first_look(),
            _ => At::Write,
        };
        let key = self.op.key().unwrap_or_default();
        let me = self.me();
        (me.key, me.at) = (key, at);
    }

    /// The first place to look: the remembered word, if there is a suitable one.
    pub fn first_look(&mut self) -> At {
        let cached = self.me().cached;
        let usable = cached.word != Word::UNKNOWN && Some(cached.key) == self.op.key();
        let allowed = match self.op {
            Op::Get(_) | Op::Put(..) | Op::PutOver(..) | Op::Delete(_) => true,
            Op::PutIf(_, was, _) => cached.value == was,
            _ => false,
        };
        if usable && allowed && !self.me().invoked { At::Cached } else { At::Look }
    }

    /// Starts over, after a slot changed. An entry that was shown tentatively is written again.
    pub fn restart(&mut self) {
        self.story.say(|| "starts over".to_owned());
        let me = self.me();
        me.forget_look();
        me.at = if me.own_was_shown { At::Write } else { At::Look };
    }

    pub fn observe(&mut self, event: Event) {
        let call = Call::new(self.client, self.me().op as usize);
        self.state.history = self.monitor.after(self.state.history, call, event);
    }

    /// Returns a result. The note of the replaced entry, if there is one, follows.
    pub fn returns(&mut self, result: u8) {
        let op = self.op;
        self.story.say(|| match op {
            Op::Put(..) | Op::PutOver(..) => "returns".to_owned(),
            Op::Get(_) | Op::Pin(_) if result == 0 => "returns ABSENT".to_owned(),
            Op::Delete(_) => format!("returns {}", ["NOT FOUND", "FOUND"][result as usize]),
            Op::PutIf(..) | Op::PutIfAbsent(..) => {
                format!("returns {}", ["REFUSED", "DONE"][result as usize])
            }
            _ => format!("returns {result}"),
        });
        self.observe(Event::Returned(result));
        self.is_over();
    }

    /// Fails, certainly without effect.
    pub fn fails(&mut self, why: &str) {
        self.story.say(|| why.to_owned());
        self.observe(Event::Failed);
        self.done();
    }

    /// No grace period waits for this operation any longer.
    fn is_over(&mut self) {
        let bit = 1 << self.client;
        self.state.clients.iter_mut().for_each(|other| other.waits_for &= !bit);
    }

    /// Ends the operation; an entry that was not installed is free again.
    pub fn done(&mut self) {
        if let Some(own) = self.me().own.take() {
            self.state.entries[own as usize].free = true;
        }
        self.is_over();
        let me = self.me();
        me.forget_look();
        me.op += 1;
        *me = Client { op: me.op, cached: me.cached, ..Client::default() };
    }

    /// Ends an operation that installed its entry, or removed one: `replaced` is noted.
    pub fn installed(&mut self, replaced: Word) {
        let me = self.me();
        me.forget_look();
        (me.own, me.own_was_shown) = (None, false);
        (me.word, me.at) = (replaced, At::Note);
    }

    /// Stops. Its words in the index stay.
    pub fn crash(&mut self) {
        let me = self.me();
        let (op, undecided) = (me.op, me.invoked && !matches!(me.at, At::Note | At::PinHold));
        if undecided {
            self.observe(Event::Unknown);
        }
        self.is_over();
        self.state.crashes += 1;
        *self.me() = Client { op, dead: true, ..Client::default() };
    }

    /// READs a candidate of the client's key.
    pub fn read(&mut self, candidate: u8) -> Word {
        let slot = self.setup.slot_of(self.me().key, candidate);
        let word = self.state.slots[slot];
        self.story.say(|| format!("READ slot {slot}: {word}"));
        word
    }

    /// READs a candidate as a part of a look; `None` if it was read before in this look.
    pub fn read_once(&mut self, candidate: u8) -> Option<Word> {
        let bit = 1 << candidate;
        if self.me().seen & bit != 0 {
            return None;
        }
        self.me().seen |= bit;
        Some(self.read(candidate))
    }

    /// Whether all candidates were read in this look.
    pub fn saw_all(&mut self) -> bool {
        self.me().seen == (1 << self.setup.candidates) - 1
    }

    /// CASes a candidate of the client's key.
    pub fn cas(&mut self, candidate: u8, from: Word, to: Word, why: &str) -> bool {
        let slot = self.setup.slot_of(self.me().key, candidate);
        let there = self.state.slots[slot];
        let swapped = there == from;
        self.story.say(|| {
            let outcome = if swapped { "ok".to_owned() } else { format!("fails, it is {there}") };
            format!("{why}: CAS slot {slot} {from} -> {to} {outcome}")
        });
        if swapped {
            self.state.slots[slot] = to;
            if self.setup.check_unique_words && self.is_remembered(slot, to) {
                self.state.fault = Some(Fault::WordRepeated);
            }
        }
        swapped
    }

    /// CASes a candidate to a fresh EMPTY.
    pub fn clear(&mut self, candidate: u8, from: Word, why: &str) -> bool {
        let empty = self.fresh_empty();
        self.cas(candidate, from, empty, why)
    }

    pub fn fresh_empty(&self) -> Word {
        Word::empty(if self.setup.lacks(Mutation::UntaggedEmpty) { 0 } else { NEW_TAG })
    }

    /// Whether a client would take a word for the one that was in the slot when it looked.
    fn is_remembered(&self, slot: usize, word: Word) -> bool {
        self.state.clients.iter().enumerate().any(|(number, client)| {
            let looked = (0..self.setup.candidates).any(|candidate| {
                client.words[candidate as usize] == word
                    && self.setup.slot_of(client.key, candidate) == slot
            });
            let cached = client.cached;
            let cached =
                cached.word == word && self.setup.slot_of(cached.key, cached.candidate) == slot;
            number != self.client && (looked || cached)
        })
    }

    /// The word that shows the client's own entry.
    pub fn own_word(&mut self) -> Word {
        let key = self.me().key;
        let own = self.me().own.expect("an entry was written");
        Word::naming(Kind::Visible, own, self.state.entries[own as usize].generation, key)
    }

    /// Remembers a word of the operation's key.
    pub fn remember(&mut self, candidate: u8, word: Word) {
        if self.setup.cache {
            let value = self.state.entries[word.entry() as usize].value;
            let me = self.me();
            me.cached = Cached { word, key: me.key, candidate, value };
        }
    }
}
