//! Nessie as published (nessie §4.1 to §4.3), to show its flaws.
//!
//! A slot is EMPTY or names an entry. An entry has a valid bit, which its writer sets when it has
//! made sure that no other client interfered, and the previous version for earlier readers. PUT and
//! DELETE make a forward pass, install an invalid entry, remove duplicates, and make a reverse
//! pass; if a slot has changed they abort. A DELETE is the PUT of a value that is then removed. A
//! MIGRATE copies the entry. An entry is reused after an expiration period.
//!
//! # What the paper leaves open
//! The paper does not say what an abort does with an entry that is already installed: [`Abort`] has
//! both possibilities.
//!
//! # What is abstracted
//! A READ of an entry is atomic. Time is not modelled: with exact clocks an entry is reused when
//! every operation that was under way at its retirement has ended, which is the purpose of the
//! expiration period; with `skewed_clocks` it may be reused at once. Candidate `i` of every key is
//! slot `i`.

mod migrate;
mod passes;
mod state;
mod turn;

use std::array;

pub use state::State;
use state::{At, CLIENTS_MAX, Client, ENTRIES_MAX, Entry, Life, SLOTS_MAX, Word};
use turn::Turn;

use crate::explore::Model;
use crate::monitor::{History, Monitor};
use crate::script::{Key, Op};
use crate::story::Story;

/// The value that keys have at first.
const INITIAL_VALUE: u8 = 9;
/// The most steps that a client may take alone before it must have finished.
const SOLO_STEPS_MAX: usize = 300;

/// What an aborted operation does with its entry, if that is already in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// Nothing.
    Leave,
    /// CASes the slot back to the word that it held before.
    RollBack,
}

/// A configuration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// A script for each client.
    pub scripts: Vec<Vec<Op>>,
    /// Candidates of each key, and slots of the table.
    pub slots: u8,
    /// The slot where A is at first, if it has a value.
    pub a_at: Option<u8>,
    /// The slot where B is at first, if it has a value.
    pub b_at: Option<u8>,
    /// The effect of an abort.
    pub abort: Abort,
    /// Whether aborted operations are repeated, for ever; otherwise they return an error.
    pub retries: bool,
    /// Whether EMPTY words carry a unique tag, which the paper does not have.
    pub tagged_empty: bool,
    /// Whether a PUT prefers a slot with its key to an earlier empty slot, unlike the paper.
    pub prefers_match: bool,
    /// Entries that each client can write.
    pub entries: u8,
    /// Whether the first client may also reuse the initial entries.
    pub reuses_initial: bool,
    /// Whether entries may be reused before their time, because clocks differ.
    pub skewed_clocks: bool,
    /// Whether an operation may time out while its CAS is under way.
    pub times_out: bool,
    /// Whether clients cache entries.
    pub cache: bool,
    /// Clients that may crash.
    pub crashes: u8,
    /// Whether every client must be able to finish alone, from every state.
    pub solo: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            scripts: Vec::new(),
            slots: 2,
            a_at: None,
            b_at: None,
            abort: Abort::Leave,
            retries: false,
            tagged_empty: false,
            prefers_match: false,
            entries: 2,
            reuses_initial: false,
            skewed_clocks: false,
            times_out: false,
            cache: false,
            crashes: 0,
            solo: false,
        }
    }
}

impl Setup {
    /// Reads options: the names of the fields, with `-`.
    ///
    /// # Errors
    /// The text that is no option.
    pub fn read<'a>(
        options: impl Iterator<Item = &'a str>,
        scripts: Vec<Vec<Op>>,
    ) -> Result<Self, String> {
        let as_published = |op: Op| if let Op::Delete(key) = op { Op::Remove(key) } else { op };
        let scripts =
            scripts.into_iter().map(|s| s.into_iter().map(as_published).collect()).collect();
        let mut setup = Self { scripts, ..Self::default() };
        for option in options {
            setup.set(option).ok_or(format!("what is {option}?"))?;
        }
        Ok(setup)
    }

    fn set(&mut self, option: &str) -> Option<()> {
        let (name, value) = option.split_once(['=', '@']).unwrap_or((option, ""));
        let number = || value.parse::<u8>().ok();
        match name {
            "A" => self.a_at = Some(number()?),
            "B" => self.b_at = Some(number()?),
            "slots" => self.slots = number()?,
            "entries" => self.entries = number()?,
            "crashes" => self.crashes = number()?,
            "roll-back" => self.abort = Abort::RollBack,
            "retries" => self.retries = true,
            "tagged-empty" => self.tagged_empty = true,
            "prefers-match" => self.prefers_match = true,
            "reuses-initial" => self.reuses_initial = true,
            "skewed-clocks" => self.skewed_clocks = true,
            "times-out" => self.times_out = true,
            "cache" => self.cache = true,
            "solo" => self.solo = true,
            _ => return None,
        }
        Some(())
    }

    fn entries_of(&self, client: usize) -> impl Iterator<Item = u8> {
        let first = 2 + client as u8 * self.entries;
        let initial = if client == 0 && self.reuses_initial { 0..2 } else { 0..0 };
        initial.chain(first..first + self.entries)
    }
}

/// The model of a configuration.
pub struct Published {
    setup: Setup,
    monitor: Monitor,
}

/// The next event of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// The next step of its operation.
    Step,
    /// It crashes.
    Crash,
    /// Its operation times out, with its CAS under way.
    TimeOut,
    /// The CAS of an operation that has timed out arrives.
    LateCas,
}

const CHOICES: [Choice; 4] = [Choice::Step, Choice::Crash, Choice::TimeOut, Choice::LateCas];

impl Published {
    /// The model of a configuration.
    pub fn new(setup: Setup) -> Self {
        assert!(setup.scripts.len() <= CLIENTS_MAX && setup.slots as usize <= SLOTS_MAX);
        assert!(2 + setup.scripts.len() * setup.entries as usize <= ENTRIES_MAX);
        let monitor = Monitor::new(&setup.scripts);
        Self { setup, monitor }
    }

    fn take(
        &self,
        state: &State,
        client: usize,
        choice: Choice,
        told: bool,
    ) -> Option<(String, State)> {
        let op = self.setup.scripts[client].get(state.clients[client].op as usize).copied();
        let mut after = state.clone();
        let mut story = Story::new(told);
        let (setup, monitor) = (&self.setup, &self.monitor);
        let state = &mut after;
        if choice == Choice::LateCas {
            let taken = turn::late_cas(state, client, &mut story);
            return taken.then(|| (format!("client {client}: {}", story.into_text()), after));
        }
        let op = op.filter(|_| !state.clients[client].dead)?;
        let mut turn = Turn { setup, monitor, state, client, op, story: &mut story };
        let taken = match choice {
            Choice::Step => turn.step(),
            Choice::Crash => turn.crash(),
            _ => turn.time_out(),
        };
        let text = if told {
            format!("client {client} {op}: {}", story.into_text())
        } else {
            String::new()
        };
        taken.then_some((text, after))
    }

    fn finishes_alone(&self, state: &State, client: usize) -> bool {
        let mut state = state.clone();
        for _ in 0..SOLO_STEPS_MAX {
            if state.clients[client].op as usize >= self.setup.scripts[client].len() {
                return true;
            }
            // Without an entry to write it waits, but that is no flaw of the protocol.
            let Some((_, after)) = self.take(&state, client, Choice::Step, false) else {
                return true;
            };
            state = after;
            self.canonical(&mut state);
        }
        false
    }
}

impl Model for Published {
    type State = State;

    fn initial(&self) -> State {
        let mut slots = [Word::empty(0); SLOTS_MAX];
        let mut entries = [Entry::default(); ENTRIES_MAX];
        let mut values = [0; 2];
        for (key, slot) in [(Key::A, self.setup.a_at), (Key::B, self.setup.b_at)] {
            let Some(slot) = slot else { continue };
            slots[slot as usize] = Word::naming(key as u8);
            let (value, life) = (INITIAL_VALUE, Life::Used);
            entries[key.index()] = Entry { key, value, valid: true, life, ..Entry::default() };
            values[key.index()] = value;
        }
        State {
            slots,
            entries,
            clients: array::from_fn(|_| Client::default()),
            caches: [[0; ENTRIES_MAX]; CLIENTS_MAX],
            history: self.monitor.start(values),
            crashes: 0,
        }
    }

    fn successors(&self, state: &State, told: bool, emit: &mut dyn FnMut(String, State)) {
        for client in 0..self.setup.scripts.len() {
            for choice in CHOICES {
                if let Some((text, after)) = self.take(state, client, choice, told) {
                    emit(text, after);
                }
            }
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        if state.history == History::IMPOSSIBLE {
            return Some("not linearizable: no order of the operations explains this".to_owned());
        }
        // The crash belongs to the story, though a client that is merely slow blocks just as well.
        let looks = self.setup.solo && state.crashes == self.setup.crashes;
        (0..self.setup.scripts.len())
            .filter(|client| looks && !state.clients[*client].dead)
            .find(|client| !self.finishes_alone(state, *client))
            .map(|client| format!("stuck: client {client}, running alone, does not finish"))
    }

    /// Renames the tags of EMPTY words, slot by slot.
    fn canonical(&self, state: &mut State) {
        for slot in 0..self.setup.slots as usize {
            let mut names = Vec::new();
            let mut rename = |word: &mut Word| {
                if word.is_empty() {
                    let known = names.iter().position(|tag| *tag == word.tag());
                    let name = known.unwrap_or_else(|| {
                        names.push(word.tag());
                        names.len() - 1
                    });
                    *word = Word::empty(name as u8);
                }
            };
            rename(&mut state.slots[slot]);
            for client in &mut state.clients {
                if client.at == At::Idle {
                    continue;
                }
                rename(&mut client.words[slot]);
                if client.chosen == Some(slot as u8) {
                    rename(&mut client.old);
                }
            }
        }
    }

    fn show(&self, state: &State) -> String {
        let slot = |(number, word): (usize, &Word)| match word.entry() {
            None => format!("{number}: EMPTY"),
            Some(entry) => {
                let Entry { key, value, valid, .. } = state.entries[entry as usize];
                let invalid = if valid { "" } else { "?" };
                format!("{number}: d{entry}{{{key:?}={value}{invalid}}}")
            }
        };
        let slots = state.slots[..self.setup.slots as usize].iter().enumerate().map(slot);
        slots.collect::<Vec<_>>().join("  ")
    }
}
