//! The extension of an entry in this protocol: its status, its previous version, and whether
//! MIGRATE made it as a copy.
//!
//! | offset in the entry | bytes | field |
//! | --- | --- | --- |
//! | 32 | 8 | status word: generation × 4 + status (1 pending, 2 committed, 3 aborted) |
//! | 40 | 8 | index word of the previous version, or 0 |
//! | 48 | 8 | generation of the previous version |
//! | 56 | 4 | bytes of the previous version's entry |
//! | 60 | 1 | a copy: the candidate it was copied from, plus one; else 0 |
//! | 61 | 1 | a copy: the candidate it was copied to, plus one; else 0 |
//! | 62 | 2 | reserved, zero |
//!
//! The status word is the only word that changes while the entry is in use, and it changes once, by
//! CAS. It contains the generation, so that a CAS that comes late finds another word. The checksum
//! does not cover it. The extension holds the generation and the length of the previous version, so
//! that a client can retire it without reading it.

use loch_fabric::RemoteAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::nessie::layout::dte::{EXTENSION_BYTES, HEADER_BYTES, Header, flags};
use crate::nessie::layout::ite::Ite;

/// Offset of the status word in an entry.
const STATUS_OFFSET: u64 = HEADER_BYTES as u64;

/// Whether an operation has taken effect: the published valid bit (nessie §4.1.2), with a third
/// value so that other clients can end an operation that its client does not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Status {
    /// The operation is not decided: only the owner may commit it, and any client may abort it.
    Pending = 1,
    /// The operation took effect.
    Committed = 2,
    /// The operation never takes effect.
    Aborted = 3,
}

impl Status {
    /// The status word of an entry with this generation.
    pub fn word(self, generation: u64) -> u64 {
        generation << 2 | self as u64
    }

    /// The status in the status word of an entry with this generation; `None` if the word has
    /// another generation.
    pub fn of_word(word: u64, generation: u64) -> Option<Self> {
        [Self::Pending, Self::Committed, Self::Aborted]
            .into_iter()
            .find(|status| status.word(generation) == word)
    }

    /// The address of the status word of the entry at `entry`.
    pub fn addr(entry: RemoteAddr) -> RemoteAddr {
        entry.add(STATUS_OFFSET)
    }
}

/// The extension as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Extension {
    /// See [`Status::word`].
    pub status: u64,
    prev_word: u64,
    prev_generation: u64,
    prev_len: u32,
    copied_from: u8,
    copied_to: u8,
    reserved: [u8; 2],
}

const _: () = assert!(size_of::<Extension>() == EXTENSION_BYTES);
const _: () = assert!(STATUS_OFFSET.is_multiple_of(8));

/// The entry that another entry replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Previous {
    pub word: Ite,
    pub generation: u64,
    /// Bytes of the entry.
    pub len: usize,
}

/// The candidates between which MIGRATE copies an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub from: usize,
    pub to: usize,
}

impl Extension {
    /// The extension of an entry that nobody has decided yet.
    pub fn pending(generation: u64, prev: Option<Previous>, route: Option<Route>) -> Self {
        let none = Previous { word: Ite(0), generation: 0, len: 0 };
        let prev = prev.unwrap_or(none);
        let number =
            |candidate: usize| u8::try_from(candidate + 1).expect("a key has few candidates");
        Self {
            status: Status::Pending.word(generation),
            prev_word: prev.word.0,
            prev_generation: prev.generation,
            prev_len: u32::try_from(prev.len).expect("values are checked on entry"),
            copied_from: route.map_or(0, |route| number(route.from)),
            copied_to: route.map_or(0, |route| number(route.to)),
            reserved: [0; 2],
        }
    }

    pub fn prev(&self) -> Option<Previous> {
        let word = Ite(self.prev_word);
        let (generation, len) = (self.prev_generation, self.prev_len as usize);
        (word.0 != 0).then_some(Previous { word, generation, len })
    }

    pub fn route(&self) -> Option<Route> {
        let from = usize::from(self.copied_from).checked_sub(1)?;
        let to = usize::from(self.copied_to).checked_sub(1)?;
        Some(Route { from, to })
    }
}

/// A validated look at an entry of the wanted key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dte {
    pub header: Header,
    pub prev: Option<Previous>,
    pub route: Option<Route>,
    /// The status at the moment of the READ. [`Status::Committed`] and [`Status::Aborted`] never
    /// change.
    pub status: Status,
    pub expires_at_ms: Option<u64>,
}

/// What an entry of a key, in a slot of the key, means for the key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The entry is the value.
    Present,
    /// The entry's previous version is the value.
    Previous { pending: bool },
    /// The entry is the value, but has been moved: this slot has to be cleared.
    MovedSource,
    /// An insert that has not taken effect: no value.
    Insert { pending: bool },
    /// A copy that has not taken effect, in its destination: no value.
    Destination { pending: bool },
}

impl Dte {
    /// Reads the bytes before the key; `None` if it is not an entry of this protocol, or if its
    /// status has another generation.
    pub fn read(entry: &[u8]) -> Option<Self> {
        let header = Header::read(entry)?;
        let bytes = entry.get(HEADER_BYTES..)?;
        let (extension, _) = Extension::read_from_prefix(bytes).ok()?;
        let status = Status::of_word(extension.status, header.generation)?;
        (header.flags & flags::STATUS != 0).then(|| Self {
            header,
            prev: extension.prev(),
            route: extension.route(),
            status,
            expires_at_ms: header.expires_at_ms(entry),
        })
    }

    /// The meaning of the entry in a slot of its key.
    pub fn meaning(&self, slot: usize) -> Meaning {
        let pending = self.status == Status::Pending;
        let at_source = self.route.is_some_and(|route| route.from == slot);
        match (self.status, self.route, self.prev) {
            (Status::Committed, ..) if at_source => Meaning::MovedSource,
            (Status::Committed, ..) => Meaning::Present,
            (_, Some(_), _) if !at_source => Meaning::Destination { pending },
            (_, _, Some(_)) => Meaning::Previous { pending },
            _ => Meaning::Insert { pending },
        }
    }

    /// The entry of the value, if a slot of the key with this entry shows a value: the entry
    /// itself, which `word` names, or its previous version.
    pub fn shown(&self, word: Ite) -> Previous {
        let own =
            Previous { word, generation: self.header.generation, len: self.header.entry_len() };
        if self.status == Status::Committed { own } else { self.prev.unwrap_or(own) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Version;
    use proptest::prelude::*;

    fn entry(generation: u64, prev: Option<Previous>, route: Option<Route>) -> Vec<u8> {
        let header = Header::new(generation, Version::from_u64(8), 3, 5, flags::STATUS);
        let extension = Extension::pending(generation, prev, route);
        [header.as_bytes(), extension.as_bytes(), b"keyvalue"].concat()
    }

    fn decided(mut entry: Vec<u8>, status: Status) -> Dte {
        let generation = Header::read(&entry).unwrap().generation;
        entry[32..40].copy_from_slice(&status.word(generation).to_le_bytes());
        Dte::read(&entry).unwrap()
    }

    proptest! {
        #[test]
        fn extensions_survive_the_trip(
            generation in 1u64..1 << 62,
            word in 1u64..,
            old in 1u64..1 << 62,
            len in 1usize..1 << 30,
            from in 0usize..16,
            to in 0usize..16,
            moved: bool,
        ) {
            let prev = Some(Previous { word: Ite(word), generation: old, len });
            let route = moved.then_some(Route { from, to });
            let dte = Dte::read(&entry(generation, prev, route)).unwrap();
            prop_assert_eq!((dte.prev, dte.route, dte.status), (prev, route, Status::Pending));
            let fresh = Dte::read(&entry(generation, None, None)).unwrap();
            prop_assert_eq!((fresh.prev, fresh.route), (None, None));
        }

        #[test]
        fn a_status_of_another_generation_says_nothing(
            generation in 1u64..1 << 61,
            other in 1u64..1 << 61,
        ) {
            let word = Status::Committed.word(other);
            let same = generation == other;
            prop_assert_eq!(Status::of_word(word, generation), same.then_some(Status::Committed));
        }
    }

    #[test]
    fn meanings_are_those_of_the_table() {
        let previous = Previous { word: Ite(9), generation: 3, len: 64 };
        let (prev, route) = (Some(previous), Some(Route { from: 1, to: 2 }));
        let [plain, update, copy] =
            [entry(7, None, None), entry(7, prev, None), entry(7, prev, route)];
        for (status, pending) in [(Status::Pending, true), (Status::Aborted, false)] {
            let means = |entry: &Vec<u8>, slot| decided(entry.clone(), status).meaning(slot);
            assert_eq!(means(&plain, 0), Meaning::Insert { pending });
            assert_eq!(means(&update, 0), Meaning::Previous { pending });
            assert_eq!(means(&copy, 1), Meaning::Previous { pending });
            assert_eq!(means(&copy, 2), Meaning::Destination { pending });
            assert_eq!(decided(update.clone(), status).shown(Ite(4)), previous);
        }
        let means = |entry: &Vec<u8>, slot| decided(entry.clone(), Status::Committed).meaning(slot);
        assert_eq!(means(&plain, 0), Meaning::Present);
        assert_eq!(means(&update, 0), Meaning::Present);
        assert_eq!(means(&copy, 1), Meaning::MovedSource);
        assert_eq!(means(&copy, 2), Meaning::Present);
        assert_eq!(decided(update, Status::Committed).shown(Ite(4)).generation, 7);
    }
}
