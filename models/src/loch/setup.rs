//! The settings of a configuration of the model.

use super::mutation::Mutation;
use super::state::{ENTRIES_MAX, SLOTS_MAX};
use crate::script::{CLIENTS_MAX, Key, Op, SCRIPT_MAX};

/// The value that keys have at first.
pub const INITIAL_VALUE: u8 = 9;

/// A configuration.
#[derive(Clone, Debug)]
pub struct Setup {
    /// A script for each client.
    pub scripts: Vec<Vec<Op>>,
    /// Candidates of a key.
    pub candidates: u8,
    /// Slots of the table.
    pub slots: u8,
    /// By how many slots the candidates of B are shifted against those of A.
    pub shift: u8,
    /// The slot where A is at first, if it has a value.
    pub a_at: Option<u8>,
    /// The slot where B is at first, if it has a value.
    pub b_at: Option<u8>,
    /// The value they have.
    pub initial_value: u8,
    /// Entries that each client can write; the first client owns the initial ones too.
    pub entries: u8,
    /// Clients that may crash, at any step.
    pub crashes: u8,
    /// Whether every client must be able to finish alone, from every state.
    pub solo: bool,
    /// Whether an insert goes to the home slot if that is free, as in production.
    pub home_insert: bool,
    /// Whether there is no variant without the home rule: it has more states than memory allows.
    pub home_only: bool,
    /// Whether an insert elsewhere may take any free slot; production takes the first.
    pub any_free_slot: bool,
    /// Whether clients remember words.
    pub cache: bool,
    /// Whether entries are written and read in parts.
    pub torn: bool,
    /// Whether all words have the same filter bits, so that keys are READ.
    pub key_reads: bool,
    /// Whether I3 is checked. Without the check, the consequences of a repeated word become
    /// visible.
    pub check_unique_words: bool,
    /// A rule that is left out.
    pub mutation: Option<Mutation>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            scripts: Vec::new(),
            candidates: 3,
            slots: 3,
            shift: 0,
            a_at: None,
            b_at: None,
            initial_value: INITIAL_VALUE,
            entries: 2,
            crashes: 0,
            solo: false,
            home_insert: true,
            home_only: false,
            any_free_slot: false,
            cache: false,
            torn: false,
            key_reads: false,
            check_unique_words: true,
            mutation: None,
        }
    }
}

impl Setup {
    /// Reads options as `configurations.txt` explains them.
    ///
    /// # Errors
    /// The text that is no option.
    pub fn read<'a>(
        options: impl Iterator<Item = &'a str>,
        scripts: Vec<Vec<Op>>,
    ) -> Result<Self, String> {
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
            "slots" => (self.slots, self.candidates) = (number()?, number()?),
            "candidates" => self.candidates = number()?,
            "shift" => self.shift = number()?,
            "value" => self.initial_value = number()?,
            "entries" => self.entries = number()?,
            "crashes" => self.crashes = number()?,
            "solo" => self.solo = true,
            "cache" => self.cache = true,
            "torn" => self.torn = true,
            "same-filter" => self.key_reads = true,
            "no-home" => (self.home_insert, self.any_free_slot) = (false, true),
            "home-only" => self.home_only = true,
            "words-may-repeat" => self.check_unique_words = false,
            "without" => self.mutation = Some(Mutation::named(value)?),
            _ => return None,
        }
        Some(())
    }

    /// The slot of a candidate of a key.
    pub fn slot_of(&self, key: Key, candidate: u8) -> usize {
        ((candidate + key as u8 * self.shift) % self.slots) as usize
    }

    /// Which candidate of a key a slot is.
    pub fn candidate_at(&self, key: Key, slot: u8) -> Option<u8> {
        (0..self.candidates).find(|candidate| self.slot_of(key, *candidate) == slot as usize)
    }

    /// The entries that a client may write, in the order in which it takes them.
    pub fn entries_of(&self, client: usize) -> impl Iterator<Item = u8> {
        let first = 2 + client as u8 * self.entries;
        let initial = if client == 0 { 0..2 } else { 0..0 };
        (first..first + self.entries).chain(initial)
    }

    /// Whether there are pins.
    pub fn pins(&self) -> bool {
        self.scripts.iter().flatten().any(|op| matches!(op, Op::Pin(_)))
    }

    /// Whether a rule is left out.
    pub fn lacks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Refuses a configuration that the model has no room for.
    pub fn assert_fits(&self) {
        let clients = self.scripts.len();
        assert!(clients <= CLIENTS_MAX, "{clients} clients, over {CLIENTS_MAX}");
        assert!(self.scripts.iter().all(|s| s.len() <= SCRIPT_MAX), "a script is too long");
        assert!(self.slots as usize <= SLOTS_MAX && self.candidates <= self.slots, "slots");
        let entries = 2 + clients * self.entries as usize;
        assert!(entries <= ENTRIES_MAX, "{entries} entries, over {ENTRIES_MAX}");
    }
}
