//! A state of the published protocol.

use std::fmt;

use crate::monitor::History;
pub use crate::script::CLIENTS_MAX;
use crate::script::Key;

pub const SLOTS_MAX: usize = 3;
pub const ENTRIES_MAX: usize = 12;
/// The tag of an EMPTY that was made just now.
pub const NEW_TAG: u8 = u8::MAX;

/// An index table entry: EMPTY, with a tag if the configuration has tags, or the number of an
/// entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Word(u16);

impl Word {
    pub fn empty(tag: u8) -> Self {
        Self(u16::from(tag) << 8)
    }

    pub fn naming(entry: u8) -> Self {
        Self(u16::from(entry) + 1)
    }

    pub fn is_empty(self) -> bool {
        self.0 & 0xff == 0
    }

    pub fn tag(self) -> u8 {
        (self.0 >> 8) as u8
    }

    pub fn entry(self) -> Option<u8> {
        ((self.0 & 0xff) as u8).checked_sub(1)
    }
}

impl Default for Word {
    fn default() -> Self {
        Self::empty(0)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            None => write!(f, "EMPTY"),
            Some(entry) => write!(f, "d{entry}"),
        }
    }
}

/// The table, the clients, their caches, and the possible explanations of the history.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The index.
    pub slots: [Word; SLOTS_MAX],
    /// The data tables.
    pub entries: [Entry; ENTRIES_MAX],
    /// The clients.
    pub clients: [Client; CLIENTS_MAX],
    /// By client and entry: 0, or key and value.
    pub caches: [[u8; ENTRIES_MAX]; CLIENTS_MAX],
    /// The events that clients have seen so far.
    pub history: History,
    /// Clients that have crashed.
    pub crashes: u8,
}

/// Whether an entry may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Life {
    #[default]
    Free,
    Used,
    /// Marked for recycling: free when its time has come.
    Retired,
}

/// A data table entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Entry {
    pub key: Key,
    pub value: u8,
    pub valid: bool,
    pub life: Life,
    /// Clients whose operations were under way when it was retired, a bit each.
    pub waits_for: u8,
    pub previous: Word,
}

/// A client in the middle of its script. Candidate and slot are the same.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Client {
    pub op: u8,
    pub at: At,
    pub dead: bool,
    /// The slot it is busy with.
    pub slot: u8,
    /// The slot it will install its entry in.
    pub chosen: Option<u8>,
    pub own: Option<u8>,
    /// The word that it has read from each slot, or left there.
    pub words: [Word; SLOTS_MAX],
    /// The word that the chosen slot held before.
    pub old: Word,
    /// Entries to retire when the operation is done, a bit each.
    pub staged: u16,
    /// Key and value of the entry that it copies.
    pub copied: (Key, u8),
    /// The CAS of an operation that has timed out: slot, expected and new word.
    pub in_flight: Option<(u8, Word, Word)>,
}

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum At {
    #[default]
    Idle,
    /// Forward pass: READ a slot.
    ReadSlot,
    /// READ the entry it names.
    ReadEntry,
    /// GET: READ the previous version.
    ReadPrevious,
    /// GET: reverse pass.
    VerifyAbsent,
    /// PUT: write the entry, invalid.
    Write,
    /// CAS it into the chosen slot.
    Install,
    /// Forward pass goes on: READ a slot.
    ReadRest,
    /// READ the entry it names.
    ReadRestEntry,
    /// It is a duplicate: CAS the slot to EMPTY.
    RemoveDuplicate,
    /// Reverse pass: READ a slot.
    Verify,
    /// Set the valid bit; a DELETE CASes its slot to EMPTY.
    Commit,
    /// Mark the staged entries for recycling.
    Retire,
    /// Aborted: CAS the chosen slot to its earlier word.
    RollBack,
    /// MIGRATE: READ the source slot.
    MigrateSource,
    /// READ its entry.
    MigrateEntry,
    /// READ the destination slot.
    MigrateDestination,
    /// Write the copy, invalid.
    MigrateCopy,
    /// CAS the destination to it.
    MigratePlace,
    /// CAS the source to EMPTY.
    MigrateClear,
    /// The clearing failed: CAS the destination to EMPTY.
    MigrateUndo,
    /// Set the copy's valid bit.
    MigrateCommit,
    /// Mark the original for recycling.
    MigrateRetire,
}
