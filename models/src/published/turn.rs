//! One step of one client of the published protocol: the verbs, and how operations begin and end.

use super::state::{At, Client, Entry, Life, NEW_TAG, SLOTS_MAX, State, Word};
use super::{Abort, Setup};
use crate::monitor::{Call, Event, Monitor};
use crate::script::{Key, Op};
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

/// The CAS of an operation that has timed out arrives; `false` if there is none.
pub fn late_cas(state: &mut State, client: usize, story: &mut Story) -> bool {
    let Some((slot, from, to)) = state.clients[client].in_flight.take() else { return false };
    let there = &mut state.slots[slot as usize];
    let swapped = *there == from;
    if swapped {
        *there = to;
    }
    let outcome = if swapped { "ok" } else { "fails" };
    story.say(|| format!("its old CAS of slot {slot} {from} -> {to} arrives: {outcome}"));
    true
}

impl Turn<'_> {
    pub fn me(&mut self) -> &mut Client {
        &mut self.state.clients[self.client]
    }

    /// Makes the next step; `false` if there is no entry to write.
    pub fn step(&mut self) -> bool {
        if self.me().at == At::Idle {
            let moves = matches!(self.op, Op::Move(..));
            self.me().at = if moves { At::MigrateSource } else { At::ReadSlot };
            if !moves {
                self.observe(Event::Invoked);
            }
        }
        match self.me().at {
            At::Idle => unreachable!("an operation has begun"),
            At::ReadSlot => self.read_slot(),
            At::ReadEntry => self.read_entry(),
            At::ReadPrevious => self.read_previous(),
            At::VerifyAbsent => self.verify_absent(),
            At::Write => return self.write(),
            At::Install => self.install(),
            At::ReadRest => self.read_rest(),
            At::ReadRestEntry => self.read_rest_entry(),
            At::RemoveDuplicate => self.remove_duplicate(),
            At::Verify => self.verify(),
            At::Commit => self.commit(),
            At::Retire => self.retire_staged(),
            At::RollBack => self.roll_back(),
            At::MigrateSource => self.migrate_source(),
            At::MigrateEntry => self.migrate_entry(),
            At::MigrateDestination => self.migrate_destination(),
            At::MigrateCopy => return self.migrate_copy(),
            At::MigratePlace => self.migrate_place(),
            At::MigrateClear => self.migrate_clear(),
            At::MigrateUndo => self.migrate_undo(),
            At::MigrateCommit => self.migrate_commit(),
            At::MigrateRetire => self.migrate_retire(),
        }
        true
    }

    pub fn crash(&mut self) -> bool {
        if self.me().at == At::Idle || self.state.crashes >= self.setup.crashes {
            return false;
        }
        self.state.crashes += 1;
        self.is_over();
        let (op, in_flight) = (self.me().op, self.me().in_flight);
        *self.me() = Client { op, in_flight, dead: true, ..Client::default() };
        self.story.say(|| "crashes".to_owned());
        true
    }

    /// The operation gives up while its CAS is under way, and says that it failed.
    pub fn time_out(&mut self) -> bool {
        let possible = self.setup.times_out;
        let me = self.me();
        if !possible || me.at != At::Install || me.in_flight.is_some() {
            return false;
        }
        let chosen = me.chosen.expect("a slot was chosen");
        let own = me.own.expect("an entry was written");
        let expected = me.words[chosen as usize];
        me.in_flight = Some((chosen, expected, Word::naming(own)));
        self.state.entries[own as usize].life = Life::Free;
        self.story.say(|| format!("CAS slot {chosen} {expected} -> d{own} is posted, times out"));
        self.fails();
        true
    }

    pub fn observe(&mut self, event: Event) {
        let call = Call::new(self.client, self.me().op as usize);
        self.state.history = self.monitor.after(self.state.history, call, event);
    }

    pub fn returns(&mut self, result: u8) {
        let op = self.op;
        self.story.say(|| match op {
            Op::Get(_) if result == 0 => "returns ABSENT".to_owned(),
            Op::Get(_) => format!("returns {result}"),
            _ => "returns OK".to_owned(),
        });
        self.observe(Event::Returned(result));
    }

    /// Returns an error: the operation may have had an effect, or may have it later.
    fn fails(&mut self) {
        self.story.say(|| "returns ERROR".to_owned());
        self.observe(Event::Unknown);
        self.done();
    }

    /// A concurrent operation was noticed.
    pub fn aborts(&mut self, why: &str) {
        self.story.say(|| format!("aborts: {why}"));
        if self.setup.retries {
            self.is_over();
            let me = self.me();
            *me = Client {
                op: me.op,
                at: At::ReadSlot,
                in_flight: me.in_flight,
                ..Client::default()
            };
        } else {
            self.fails();
        }
    }

    /// Like `aborts`, when the client's own entry is already in the index.
    pub fn aborts_installed(&mut self, why: &str) {
        match self.setup.abort {
            Abort::Leave => self.aborts(why),
            Abort::RollBack => {
                self.story.say(|| format!("must abort: {why}"));
                self.me().at = At::RollBack;
            }
        }
    }

    pub fn done(&mut self) {
        self.is_over();
        let me = self.me();
        *me = Client { op: me.op + 1, in_flight: me.in_flight, ..Client::default() };
    }

    /// With exact clocks, entries that waited for this operation do not wait any longer.
    fn is_over(&mut self) {
        let bit = 1 << self.client;
        self.state.entries.iter_mut().for_each(|entry| entry.waits_for &= !bit);
    }

    pub fn read(&mut self, slot: u8) -> Word {
        let word = self.state.slots[slot as usize];
        self.story.say(|| format!("READ slot {slot}: {word}"));
        word
    }

    pub fn read_named(&mut self, word: Word) -> Entry {
        let number = word.entry().expect("only a word that names an entry is followed");
        let entry = self.state.entries[number as usize];
        let invalid = if entry.valid { "" } else { ", invalid" };
        self.story.say(|| format!("READ d{number}: {:?}={}{invalid}", entry.key, entry.value));
        entry
    }

    pub fn cas(&mut self, slot: u8, from: Word, to: Word, why: &str) -> bool {
        let there = self.state.slots[slot as usize];
        let swapped = there == from;
        if swapped {
            self.state.slots[slot as usize] = to;
        }
        let outcome = if swapped { "ok".to_owned() } else { format!("fails, it is {there}") };
        self.story.say(|| format!("{why}: CAS slot {slot} {from} -> {to} {outcome}"));
        swapped
    }

    pub fn new_empty(&self) -> Word {
        Word::empty(if self.setup.tagged_empty { NEW_TAG } else { 0 })
    }

    /// Writes an invalid entry into free or expired memory; `None` if there is none.
    pub fn write_entry(&mut self, key: Key, value: u8, previous: Word) -> Option<u8> {
        let life = |e: &u8| self.state.entries[*e as usize];
        let exact = !self.setup.skewed_clocks;
        let expired = |e: &u8| life(e).life == Life::Retired && !(exact && life(e).waits_for != 0);
        let own = || self.setup.entries_of(self.client);
        let free = own().find(|e| *e >= 2 && life(e).life == Life::Free);
        let number = free.or_else(|| own().find(expired))?;
        if exact {
            // The lines of this entry in caches have expired as well.
            self.state.caches.iter_mut().for_each(|cache| cache[number as usize] = 0);
        }
        self.state.entries[number as usize] =
            Entry { key, value, valid: false, life: Life::Used, waits_for: 0, previous };
        self.story.say(|| format!("write d{number}: {key:?}={value}, invalid"));
        Some(number)
    }

    /// Marks an entry for recycling.
    pub fn retire(&mut self, number: u8) {
        let busy = |(other, client): (usize, &Client)| {
            let waits = other != self.client && client.at != At::Idle && !client.dead;
            u8::from(waits) << other
        };
        let waits_for = self.state.clients.iter().enumerate().map(busy).sum();
        let entry = &mut self.state.entries[number as usize];
        if entry.life == Life::Used {
            (entry.life, entry.waits_for) = (Life::Retired, waits_for);
            self.story.say(|| format!("retires d{number}"));
        }
    }

    /// The last slot that a reverse pass reads first: the last but one of the forward pass.
    pub fn reverse_from(&self) -> u8 {
        self.setup.slots - 2
    }

    pub fn op_key(&self) -> Key {
        self.op.key().expect("only operations with a key come here")
    }

    pub fn forget_words(&mut self) {
        self.me().words = [Word::default(); SLOTS_MAX];
    }
}
