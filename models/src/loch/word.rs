//! A slot's word, as in `crates/engines/src/nessie/layout/ite.rs`, but with names instead of
//! production's numbers: generations and tags only have to be different, so they are small and
//! renamed after every step (see `canonical.rs`).

use std::fmt;

use crate::script::Key;

/// The word in a slot, or in a client's memory of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Word(u16);

/// The kind of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Not read yet, or no longer of interest.
    Unknown,
    /// Free.
    Empty,
    /// T: an undecided insert, invisible.
    Tentative,
    /// V: a value.
    Visible,
    /// F: a value that is being moved to candidate `aux`.
    Frozen,
    /// C: a value that is being moved from candidate `aux`.
    Copy,
}

/// Moves that an entry can make until its next PUT. Production has as many.
pub const HOPS_MAX: u8 = 3;
/// The generation of an entry that was written just now. After every step it becomes 0.
pub const NEW_GENERATION: u8 = 7;
/// The tag of an EMPTY that was made just now.
pub const NEW_TAG: u16 = 0x1fff;

impl Word {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self(0);

    /// A free slot.
    pub fn empty(tag: u16) -> Self {
        Self(1 | tag << 3)
    }

    /// A word that names an entry.
    pub fn naming(kind: Kind, entry: u8, generation: u8, key: Key) -> Self {
        let fields = u16::from(entry) << 3 | u16::from(generation) << 7;
        Self(kind as u16 | fields | (key as u16) << 14)
    }

    /// The same entry in another state.
    pub fn with(self, kind: Kind, hop: u8, aux: u8) -> Self {
        let fields = u16::from(hop) << 10 | u16::from(aux) << 12;
        Self(self.0 & 0b0100_0011_1111_1000 | kind as u16 | fields)
    }

    /// The same word under another name of its generation.
    pub fn with_generation(self, generation: u8) -> Self {
        Self(self.0 & !(7 << 7) | u16::from(generation) << 7)
    }

    /// Its kind.
    pub fn kind(self) -> Kind {
        match self.0 & 7 {
            0 => Kind::Unknown,
            1 => Kind::Empty,
            2 => Kind::Tentative,
            3 => Kind::Visible,
            4 => Kind::Frozen,
            _ => Kind::Copy,
        }
    }

    /// The tag of an EMPTY.
    pub fn tag(self) -> u16 {
        self.0 >> 3
    }

    /// The entry it names.
    pub fn entry(self) -> u8 {
        (self.0 >> 3 & 15) as u8
    }

    /// The generation of the entry it names.
    pub fn generation(self) -> u8 {
        (self.0 >> 7 & 7) as u8
    }

    /// Moves since the entry was installed, this one included.
    pub fn hop(self) -> u8 {
        (self.0 >> 10 & 3) as u8
    }

    /// The other candidate of a move.
    pub fn aux(self) -> u8 {
        (self.0 >> 12 & 3) as u8
    }

    /// The key of the entry it names. Production reads it from the entry (and so does the model,
    /// with `key_reads`): it cannot change while the word stands.
    pub fn key(self) -> Key {
        Key::from_index((self.0 >> 14 & 1) as u8)
    }

    /// Whether the slot is free.
    pub fn is_empty(self) -> bool {
        self.kind() == Kind::Empty
    }

    /// Whether it names an entry.
    pub fn is_occupied(self) -> bool {
        self.0 & 7 > 1
    }

    /// Whether it shows a value to readers.
    pub fn is_visible(self) -> bool {
        self.0 & 7 > 2
    }

    /// Whether it shows a value of a key.
    pub fn shows(self, key: Key) -> bool {
        self.is_visible() && self.key() == key
    }

    /// Whether it is a tentative insert of a key.
    pub fn is_tentative_of(self, key: Key) -> bool {
        self.kind() == Kind::Tentative && self.key() == key
    }

    /// Whether two words name the same incarnation of the same entry.
    pub fn same_entry(self, other: Self) -> bool {
        (self.entry(), self.generation()) == (other.entry(), other.generation())
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let old = match self.generation() {
            0 | NEW_GENERATION => "",
            _ => "'",
        };
        let entry = format!("d{}{old}", self.entry());
        match self.kind() {
            Kind::Unknown => write!(f, "?"),
            Kind::Empty => write!(f, "EMPTY"),
            Kind::Tentative => write!(f, "T({entry})"),
            Kind::Visible if self.hop() == 0 => write!(f, "V({entry})"),
            Kind::Visible => write!(f, "V({entry},hop {})", self.hop()),
            Kind::Frozen => write!(f, "F({entry},hop {},to {})", self.hop(), self.aux()),
            Kind::Copy => write!(f, "C({entry},hop {},from {})", self.hop(), self.aux()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_as_they_went_in() {
        let word = Word::naming(Kind::Visible, 11, 5, Key::B).with(Kind::Frozen, 3, 2);
        assert_eq!((word.kind(), word.entry(), word.generation()), (Kind::Frozen, 11, 5));
        assert_eq!((word.hop(), word.aux(), word.key()), (3, 2, Key::B));
        assert_eq!(word.with(Kind::Visible, 0, 0), Word::naming(Kind::Visible, 11, 5, Key::B));
        assert_eq!(Word::empty(NEW_TAG).tag(), NEW_TAG);
        assert!(Word::empty(NEW_TAG).is_empty() && !Word::UNKNOWN.is_empty());
    }
}
