//! Looking at a key's candidates and reading the entries they name.

use loch_fabric::{Buf, Fabric, RemoteAddr, Validation};

use crate::error::EngineError;
use crate::limits::GRAIN_BYTES;
use crate::nessie::client::Client;
use crate::nessie::client::look::Words;
use crate::nessie::layout::dte::{EXPIRY_BYTES, HEADER_BYTES, Header, LOW_HALF};
use crate::nessie::layout::hash::Candidates;
use crate::nessie::layout::ite::{Ite, Place};
use crate::planted::{self, Bug};

/// The part of an entry that is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::nessie) enum Want {
    /// Header, expiry and key.
    Key,
    /// Everything, if the entry has the wanted key.
    Value,
}

/// A validated look at an entry.
pub(in crate::nessie) enum Seen {
    /// The entry has the key.
    Match(Header),
    /// The entry has another key, and so has the slot for as long as it holds this word.
    Other,
    /// The entry is no longer the one that the word names: the slot has changed.
    Changed,
}

/// A slot that shows a value of the key.
pub(in crate::nessie) struct Match {
    pub slot: usize,
    pub word: Ite,
    pub header: Header,
}

impl<F: Fabric> Client<F> {
    /// READs an entry and validates it against the word that names it (protocol R).
    ///
    /// The bytes may be torn, or belong to another entry. They count only if the generation is the
    /// word's, and it is still the same when the copy is done (or the checksum is right).
    #[inline]
    pub(in crate::nessie) async fn read_entry(
        &self,
        word: Ite,
        key: &[u8],
        want: Want,
        mut buf: Buf,
    ) -> (Buf, Result<Seen, EngineError>) {
        let place = self.map.codec.place(word);
        let Some((at, room)) = self.entry_at(word) else {
            return (buf, Err(names_nothing(word)));
        };
        buf.clear();
        let first = self.first_read_len(key.len(), want).min(room);
        let (mut buf, done) = self.fabric.read(at, first, buf).await;
        if let Err(error) = done {
            return (buf, Err(error.into()));
        }
        let Some(header) = Header::read(&buf) else {
            return (buf, Ok(Seen::Changed));
        };
        let generation = header.generation & self.map.codec.gen_mask();
        if generation != self.map.codec.generation(word) && !planted::is(Bug::NoGenerationCheck) {
            return (buf, Ok(Seen::Changed));
        }
        let key_end = header.value_at();
        let same_key =
            header.key_len() == key.len() && buf.get(header.key_at()..key_end) == Some(key);
        let wanted = match want {
            // The checksum covers the key, so the key must be here even if it is another one.
            _ if !same_key => key_end,
            Want::Key => key_end,
            Want::Value => header.entry_len(),
        };
        // A length that no entry can have is torn or damaged.
        if wanted > room || same_key && !self.may_be_long(&header, room) {
            return (buf, Ok(Seen::Changed));
        }
        if wanted > buf.len() && (same_key || self.validates_by_checksum()) {
            let have = buf.len();
            let (more, done) = self.fabric.read(at.add(have as u64), wanted - have, buf).await;
            buf = more;
            if let Err(error) = done {
                return (buf, Err(error.into()));
            }
        }
        let with_value = same_key && want == Want::Value;
        let seen = match self.is_valid(&header, place, at, &buf, with_value) {
            Err(error) => return (buf, Err(error)),
            Ok(false) => Seen::Changed,
            Ok(true) if same_key => {
                if want == Want::Value {
                    self.hint_read(&header);
                }
                Seen::Match(header)
            }
            Ok(true) => Seen::Other,
        };
        (buf, Ok(seen))
    }

    /// Whether a copy of an entry, made just now, holds a single incarnation of it.
    #[inline]
    pub(in crate::nessie) fn is_valid(
        &self,
        header: &Header,
        place: Place,
        at: RemoteAddr,
        buf: &[u8],
        with_value: bool,
    ) -> Result<bool, EngineError> {
        if planted::is(Bug::TornReadsBelieved) {
            return Ok(buf.len() >= header.value_at());
        }
        if self.validates_by_checksum() {
            return Ok(has_sums(header, place, buf, with_value));
        }
        Ok(self.fabric.reload(at)? == header.generation)
    }

    #[inline]
    fn validates_by_checksum(&self) -> bool {
        self.fabric.caps().validation == Validation::Checksum
    }

    /// Remembers the length of entries.
    #[inline(always)]
    pub(in crate::nessie) fn hint_read(&self, header: &Header) {
        self.hint_read_of(header.entry_len());
    }

    /// The same for an entry of this length.
    #[inline(always)]
    pub(in crate::nessie) fn hint_read_of(&self, entry_len: usize) {
        self.read_hint.set(entry_len.next_multiple_of(GRAIN_BYTES as usize));
    }

    /// The start of the entry that a word names, and the number of bytes from there to the end of
    /// its data table; `None` if there is no such place: no client writes such a word.
    #[inline(always)]
    pub(in crate::nessie) fn entry_at(&self, word: Ite) -> Option<(RemoteAddr, usize)> {
        let place = self.map.codec.place(word);
        let base = self.map.data_base(place.dti)?;
        let room = self.map.data_bytes().checked_sub(place.offset)?;
        (room >= HEADER_BYTES as u64).then(|| (base.add(place.offset), room as usize))
    }

    /// Whether an entry with `room` bytes to the end of its data table can be as long as its header
    /// says.
    #[inline]
    pub(in crate::nessie) fn may_be_long(&self, header: &Header, room: usize) -> bool {
        let max = self.map.shape.geometry.value_bytes_max;
        header.value_len() as u64 <= max && header.entry_len() <= room
    }

    /// Bytes to read before the entry's length is known: the last entry's length, if that is short.
    /// Of long entries only the part that shows whether the rest is wanted (nessie §4.3.2, "multiple
    /// reads"): of shorter ones, a second round trip costs more than the bytes that it saves.
    #[inline]
    pub(in crate::nessie) fn first_read_len(&self, key_len: usize, want: Want) -> usize {
        let key_end = HEADER_BYTES + EXPIRY_BYTES + key_len;
        let hint = self.read_hint.get();
        let at_once_max = self.fabric.caps().round_trip_bytes;
        let split = self.map.shape.options.multi_read && hint > at_once_max;
        match want {
            Want::Value if !split => hint.max(key_end),
            _ => key_end,
        }
    }

    /// The visible slot that has the key; `None` if no word shows it.
    pub(super) async fn find(
        &self,
        candidates: &Candidates,
        words: &Words,
        key: &[u8],
    ) -> Result<Lookup, EngineError> {
        let codec = &self.map.codec;
        let mut buf = Buf::new();
        for (slot, word) in words[..candidates.count()].iter().enumerate() {
            if !codec.is_visible(*word) || !codec.has_filter(*word, candidates.filter) {
                continue;
            }
            let (returned, seen) = self.read_entry(*word, key, Want::Key, buf).await;
            buf = returned;
            match seen? {
                Seen::Match(header) => {
                    let found = Match { slot, word: *word, header };
                    return Ok(Lookup::Found(found, buf));
                }
                Seen::Other => (),
                Seen::Changed => return Ok(Lookup::Changed),
            }
        }
        Ok(Lookup::Absent)
    }
}

/// The result of a look at all candidates.
pub(in crate::nessie) enum Lookup {
    /// The key is in this slot. The buffer holds the entry up to its key.
    Found(Match, Buf),
    /// No visible slot has the key.
    Absent,
    /// A slot changed meanwhile: start over.
    Changed,
}

#[cold]
pub(in crate::nessie) fn names_nothing(word: Ite) -> EngineError {
    let what = format!("the index entry {:#018x} names a place that there is not", word.0);
    EngineError::Damaged { what }
}

/// Whether the checksums of a copy of an entry are right, which holds its header and more.
pub(super) fn has_sums(header: &Header, place: Place, buf: &[u8], with_value: bool) -> bool {
    let Some(expiry_and_key) = buf.get(header.summed_at()..header.value_at()) else {
        return false;
    };
    if header.checksum & LOW_HALF != header.key_sum(place, expiry_and_key) {
        return false;
    }
    let value = || buf.get(header.value_at()..header.entry_len());
    !with_value || value().is_some_and(|v| header.checksum & !LOW_HALF == header.value_sum(v))
}
