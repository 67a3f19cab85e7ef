//! A state of the model.

use super::word::Word;
use crate::monitor::History;
use crate::script::{CLIENTS_MAX, Key};

/// Slots at most.
pub const SLOTS_MAX: usize = 4;
/// The most entries: an initial entry for each key, and the entries of the clients.
pub const ENTRIES_MAX: usize = 12;

/// The table, the clients, and the possible explanations of the history.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The index.
    pub slots: [Word; SLOTS_MAX],
    /// The data tables.
    pub entries: [Entry; ENTRIES_MAX],
    /// The clients.
    pub clients: [Client; CLIENTS_MAX],
    /// The events that clients have seen so far.
    pub history: History,
    /// Clients that have crashed.
    pub crashes: u8,
    /// Something went wrong in a step.
    pub fault: Option<Fault>,
}

/// A violation of a step, not of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// I3: a word came back into a slot while a client remembered it from before.
    WordRepeated,
    /// An entry passed its checks although it was the wrong one.
    WrongEntryAccepted,
    /// A value that was read in place changed meanwhile.
    PinnedChanged,
}

/// An entry of a data table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Entry {
    /// 0 between steps: words of older incarnations have other numbers.
    pub generation: u8,
    /// Its key.
    pub key: Key,
    /// Its value.
    pub value: u8,
    /// Its note is its generation: the owner may write it again.
    pub free: bool,
    /// Written by an unconditional PUT (flag BLIND).
    pub blind: bool,
    /// It was pinned since it got its generation.
    pub marked: bool,
}

/// A client in the middle of its script.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Client {
    /// The operation under way, or the next one.
    pub op: u8,
    /// The next step.
    pub at: At,
    /// It has crashed.
    pub dead: bool,
    /// The operation has made its first step that others could notice.
    pub invoked: bool,
    /// The entry it has written and not yet installed.
    pub own: Option<u8>,
    /// That entry's word was in the index, tentatively: it needs a new generation.
    pub own_was_shown: bool,
    /// The key it deals with, to whose candidates the next fields refer.
    pub key: Key,
    /// Candidates that were read in this look.
    pub seen: u8,
    /// The words in them, as far as they matter.
    pub words: [Word; SLOTS_MAX],
    /// The candidate of its own word, or of the word that it found.
    pub target: u8,
    /// The candidate it is busy with.
    pub slot: u8,
    /// The entry that it moves, scrubs or notes, or to which it lost.
    pub word: Word,
    /// Source and destination of the move it makes or completes.
    pub from: u8,
    /// See `from`.
    pub to: u8,
    /// The value it has read.
    pub value: u8,
    /// The key it has read, in a look at an entry that may be torn.
    pub key_read: Key,
    /// Clients whose operations a grace period waits for, a bit each.
    pub waits_for: u8,
    /// It has announced that it reads the entry that it found in place.
    pub pins: bool,
    /// The line of its cache.
    pub cached: Cached,
}

/// A remembered word, with the entry it names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cached {
    /// The word, unknown when there is none.
    pub word: Word,
    /// Its key.
    pub key: Key,
    /// Its candidate.
    pub candidate: u8,
    /// The entry's value.
    pub value: u8,
}

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum At {
    /// Begin the next operation.
    #[default]
    Idle,
    /// Take an entry and write it: all of it, or its generation only.
    Write,
    /// Give it its generation, after it was found free and not pinned.
    Claim,
    /// Write its key.
    WriteKey,
    /// Write its value.
    WriteValue,
    /// Try the remembered word.
    Cached,
    /// READ the candidates, in any order.
    Look,
    /// READ the keys of the entries they name.
    ReadKeys,
    /// READ the entry that was found.
    ReadEntry,
    /// Announce that the entry is read in place.
    PinAnnounce,
    /// CAS the mark into it.
    PinMark,
    /// READ its slot again.
    PinLook,
    /// Look at the value in place, and end the pin.
    PinHold,
    /// READ its key and value, in any order.
    ReadBody,
    /// READ its generation again.
    Recheck,
    /// READ the candidates again: are they the same?
    SecondLook,
    /// CAS the found word to the own one, or to EMPTY.
    Update,
    /// READ the entry of the word that the CAS was lost to.
    Absorb,
    /// WRITE the note of the entry that was replaced.
    Note,
    /// READ the other candidates before an insert at home.
    HomeLook,
    /// CAS a tentative insert to EMPTY.
    HomeKill,
    /// CAS the free home to the own word.
    HomeInsert,
    /// There is no free slot: CAS a tentative insert of the key to EMPTY.
    MakeRoom,
    /// CAS a free slot to the own word, tentatively.
    Tentative,
    /// READ the other candidates.
    Verify,
    /// Deal with another tentative insert: CAS it or the own one to EMPTY.
    Rival,
    /// READ its slot again.
    VerifyAgain,
    /// CAS the tentative word to the visible one.
    Commit,
    /// CAS the tentative word to EMPTY.
    Withdraw,
    /// READ the slot whose value is to be evicted.
    EvictLook,
    /// CAS the word in it to EMPTY.
    Evict,
    /// CAS the word of another key to the own word, tentatively.
    Replace,
    /// WRITE the note of the value that was evicted by that.
    NoteReplaced,
    /// READ the slot to be moved.
    MoveSource,
    /// READ the slot it is to be moved to.
    MoveDestination,
    /// CAS V to F.
    Freeze,
    /// CAS the free destination to C.
    PlaceCopy,
    /// The copy failed: CAS F to V.
    TakeBack,
    /// READ the other candidates.
    Scan,
    /// CAS the obstacle to EMPTY.
    ScanClear,
    /// READ its slot again.
    ScanAgain,
    /// CAS F to EMPTY.
    Drop,
    /// CAS C to V.
    Finish,
    /// Met a C: READ its source.
    HelpCopy,
    /// Met an F: READ its destination.
    HelpFrozen,
    /// CAS the free destination to another EMPTY.
    HelpRetag,
    /// CAS F to V.
    HelpUndo,
    /// READ a slot in which there may be something undecided.
    Settle,
    /// CAS a tentative word in it to EMPTY.
    SettleClear,
    /// Choose an entry that is in use.
    ScrubPick,
    /// READ the candidates of its key.
    ScrubLook,
    /// Wait for the operations under way; then READ the entry's note and generation.
    ScrubEntry,
    /// READ the candidates.
    ScrubLookAgain,
    /// READ them a second time.
    ScrubSecondLook,
    /// CAS a tentative word to EMPTY.
    ScrubKill,
    /// WRITE the note.
    ScrubNote,
}

impl At {
    /// All steps there are.
    pub fn all() -> impl Iterator<Item = Self> {
        use At::*;
        [
            Idle,
            Write,
            Claim,
            WriteKey,
            WriteValue,
            Cached,
            Look,
            ReadKeys,
            ReadEntry,
            PinAnnounce,
            PinMark,
            PinLook,
            PinHold,
            ReadBody,
            Recheck,
            SecondLook,
            Update,
            Absorb,
            Note,
            HomeLook,
            HomeKill,
            HomeInsert,
            MakeRoom,
            Tentative,
            Verify,
            Rival,
            VerifyAgain,
            Commit,
            Withdraw,
            EvictLook,
            Evict,
            Replace,
            NoteReplaced,
            MoveSource,
            MoveDestination,
            Freeze,
            PlaceCopy,
            TakeBack,
            Scan,
            ScanClear,
            ScanAgain,
            Drop,
            Finish,
            HelpCopy,
            HelpFrozen,
            HelpRetag,
            HelpUndo,
            Settle,
            SettleClear,
            ScrubPick,
            ScrubLook,
            ScrubEntry,
            ScrubLookAgain,
            ScrubSecondLook,
            ScrubKill,
            ScrubNote,
        ]
        .into_iter()
    }
}

impl Client {
    /// Forgets what it has read, but not its entry and its cache.
    pub fn forget_look(&mut self) {
        (self.seen, self.words) = (0, [Word::UNKNOWN; SLOTS_MAX]);
        (self.target, self.slot, self.word) = (0, 0, Word::UNKNOWN);
        (self.from, self.to, self.value, self.key_read) = (0, 0, 0, Key::A);
    }

    /// Remembers one candidate's word only.
    pub fn keep_only(&mut self, candidate: u8) {
        let word = self.words[candidate as usize];
        self.forget_look();
        self.words[candidate as usize] = word;
    }

    /// The word it found, or its own tentative one.
    pub fn target_word(&self) -> Word {
        self.words[self.target as usize]
    }
}
