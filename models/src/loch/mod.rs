//! Loch's own protocol, as `crates/engines/src/nessie` has it: each step of a client is one verb.
//!
//! # What is as in production
//! Words with state, generation, hop and a unique tag in EMPTY (`word.rs`); GET with its second
//! look; updates in one CAS, absorbing, and notes after them; inserts at home, or tentative with
//! *verify*, patience and new generations; DELETE; `put_if_version`, `put_if_absent` and
//! `fetch_add`; moves with *freeze*, *copy*, *scan*, *drop* and *finish*, and helping; the cache,
//! whose lines are words; the scrubber with its grace period. The order of the verbs is the order
//! of the code, but see below.
//!
//! # What is abstracted
//! * READs of several slots are posted together and arrive in any order. That includes the order of
//!   production's straight paths, which look at one bucket after the other. A GET stops at the
//!   first hit, whichever slot that is in.
//! * Generations and tags are names that only differ (`canonical.rs`): there is no wrap, and so
//!   neither the resting of entries nor the two epochs of a cached word.
//! * Patience is a choice that a client may make at any moment; there is no clock.
//! * A word carries its key. With `key_reads`, filters agree for all keys, and the key is READ from
//!   the entry and validated before the first decision; elsewhere the filter is taken to be exact.
//! * An entry is written in one step, and read in one. With `torn` this happens in parts:
//!   generation, key and value are written in this order; key and value are read in any order, and
//!   the generation again after that.
//! * A version is the value: scripts with conditions write no value twice.
//! * A PUT that finds no free slot returns FULL. In production it moves another key's entry, or
//!   settles a slot that another client left undecided, and starts over: here both are operations
//!   of the scripts.
//! * The note of a replaced entry is WRITTEN after the operation has returned, and before the next
//!   one of the client begins; its late arrival at other clients is a step of its own. A note of an
//!   old generation changes nothing.
//! * A client's free entries are those whose note is their generation. Slabs, leases, size classes
//!   and seizing are not modelled: an entry has one owner for good.
//! * A pin is announced, marked, looked up and held in four steps, and an entry is found free and
//!   taken in two, in scripts with pins; elsewhere it is taken in one. Cutting anew is not
//!   modelled, nor is the fence (`shm/words.rs` in the fabric has a loom model).
//! * A crash stops a client before any of its steps. CASes do not stay in flight beyond it
//!   (assumption A4 of docs/protocol.md: the connection is destroyed before anything of a dead
//!   client is reused).
//! * A victim of an eviction is any entry that a slot shows. In production clients evict entries of
//!   their own slabs, and none that they see pinned.
//! * An insert that may take a victim's place (PUT_OVER) does so whenever it looks and finds the
//!   value there, unless home is free. In production it does so only if no slot is free.
//! * Expiry is not modelled: an expiring value is removed by the CAS of a DELETE.

mod canonical;
mod evict;
mod install;
mod invariants;
mod look;
mod moving;
pub mod mutation;
mod pin;
mod scrub;
pub mod setup;
pub mod state;
mod turn;
mod word;

use std::array;

pub use mutation::Mutation;
pub use setup::Setup;
use state::{At, Client, Entry, State};
use turn::Turn;
use word::{Kind, Word};

use crate::explore::Model;
use crate::monitor::Monitor;
use crate::script::{Key, Op};
use crate::story::Story;

/// The most steps that a client may take alone before it must have finished.
const SOLO_STEPS_MAX: usize = 200;

/// The model of a configuration.
pub struct Loch {
    setup: Setup,
    monitor: Monitor,
}

impl Loch {
    /// The model of a configuration.
    pub fn new(setup: Setup) -> Self {
        setup.assert_fits();
        let monitor = Monitor::new(&setup.scripts);
        Self { setup, monitor }
    }

    /// The operation under way of a client.
    fn op(&self, client: usize, state: &State) -> Option<Op> {
        self.setup.scripts[client].get(state.clients[client].op as usize).copied()
    }

    /// The state after a step, if that step is possible.
    fn step(
        &self,
        state: &State,
        client: usize,
        choice: u8,
        told: bool,
    ) -> Option<(String, State)> {
        let op = self.op(client, state)?;
        let mut after = state.clone();
        let mut story = Story::new(told);
        let (setup, monitor) = (&self.setup, &self.monitor);
        let mut turn = Turn { setup, monitor, state: &mut after, client, op, story: &mut story };
        if !turn.step(choice) {
            return None;
        }
        let text = if told {
            format!("client {client} {op}: {}", story.into_text())
        } else {
            String::new()
        };
        Some((text, after))
    }

    /// How many choices the next step of a client may have.
    fn choices(&self, client: usize, state: &State) -> u8 {
        let at = match state.clients[client].at {
            At::Idle => match self.op(client, state) {
                None => return 0,
                Some(Op::Evict(..)) => At::EvictLook,
                Some(Op::Move(..)) => At::MoveSource,
                Some(Op::Settle(_)) => At::Settle,
                Some(Op::Scrub) => At::ScrubPick,
                // The step may be a look; a step that writes an entry refuses all choices but the
                // first.
                Some(_) => At::Look,
            },
            at => at,
        };
        match at {
            At::Look | At::SecondLook | At::HomeLook | At::Tentative | At::Verify | At::Scan => {
                self.setup.candidates
            }
            At::ScrubLook | At::ScrubLookAgain | At::ScrubSecondLook => self.setup.candidates,
            At::ScrubPick => 2 + self.setup.scripts.len() as u8 * self.setup.entries,
            At::Rival | At::ReadBody => 2,
            _ => 1,
        }
    }

    fn crash(&self, state: &State, client: usize) -> Option<State> {
        let possible = state.crashes < self.setup.crashes && state.clients[client].at != At::Idle;
        possible.then(|| {
            let mut after = state.clone();
            let op = self.op(client, state).expect("a client that is not idle has an operation");
            let mut story = Story::new(false);
            let (setup, monitor) = (&self.setup, &self.monitor);
            Turn { setup, monitor, state: &mut after, client, op, story: &mut story }.crash();
            after
        })
    }

    /// Finds a client that is alive and cannot finish when all others stand still.
    fn stuck(&self, state: &State) -> Option<String> {
        (0..self.setup.scripts.len())
            .find(|client| !state.clients[*client].dead && !self.finishes_alone(state, *client))
            .map(|client| format!("stuck: client {client}, running alone, does not finish"))
    }

    fn finishes_alone(&self, state: &State, client: usize) -> bool {
        let mut state = state.clone();
        for _ in 0..SOLO_STEPS_MAX {
            let choices = self.choices(client, &state);
            if choices == 0 {
                return true;
            }
            // The last choice first, because with it a client loses patience.
            let step = (0..choices).rev().find_map(|c| self.step(&state, client, c, false));
            let Some((_, after)) = step else { return false };
            state = after;
            self.canonical(&mut state);
        }
        false
    }
}

impl Model for Loch {
    type State = State;

    fn initial(&self) -> State {
        let setup = &self.setup;
        let mut slots = [Word::UNKNOWN; state::SLOTS_MAX];
        slots[..setup.slots as usize].fill(Word::empty(0));
        let mut entries = [Entry { free: true, ..Entry::default() }; state::ENTRIES_MAX];
        let mut values = [0; 2];
        for (key, slot) in [(Key::A, setup.a_at), (Key::B, setup.b_at)] {
            let Some(slot) = slot else { continue };
            slots[slot as usize] = Word::naming(Kind::Visible, key as u8, 0, key);
            let (value, generation) = (setup.initial_value, 0);
            let (free, blind, marked) = (false, true, false);
            entries[key.index()] = Entry { generation, key, value, free, blind, marked };
            values[key.index()] = value;
        }
        State {
            slots,
            entries,
            clients: array::from_fn(|_| Client::default()),
            history: self.monitor.start(values),
            crashes: 0,
            fault: None,
        }
    }

    fn successors(&self, state: &State, told: bool, emit: &mut dyn FnMut(String, State)) {
        for client in 0..self.setup.scripts.len() {
            if state.clients[client].dead {
                continue;
            }
            for choice in 0..self.choices(client, state) {
                if let Some((text, after)) = self.step(state, client, choice, told) {
                    emit(text, after);
                }
            }
            if let Some(after) = self.crash(state, client) {
                let text = if told { format!("client {client} crashes") } else { String::new() };
                emit(text, after);
            }
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        invariants::violation(&self.setup, state)
            .or_else(|| self.setup.solo.then(|| self.stuck(state)).flatten())
    }

    /// A client may be left without an entry to write if others died before they wrote a note.
    fn may_end(&self, state: &State) -> bool {
        let starved = |client: &Client| state.crashes > 0 && client.at == At::Idle;
        state.clients[..self.setup.scripts.len()].iter().enumerate().all(|(number, client)| {
            client.dead || self.op(number, state).is_none() || starved(client)
        })
    }

    fn canonical(&self, state: &mut State) {
        canonical::rename(&self.setup, state);
    }

    fn show(&self, state: &State) -> String {
        let slot = |(number, word): (usize, &Word)| {
            let entry = &state.entries[word.entry() as usize];
            let content = if word.is_occupied() {
                format!("{{{:?}={}}}", entry.key, entry.value)
            } else {
                String::new()
            };
            format!("{number}: {word}{content}")
        };
        let slots = state.slots[..self.setup.slots as usize].iter().enumerate().map(slot);
        slots.collect::<Vec<_>>().join("  ")
    }
}
