//! Finding an entry.

use super::{LINE_PLACES, Storage};
use crate::error::EngineError;
use crate::kv_direct::bucket::{Bucket, Pointer};
use crate::kv_direct::damaged;
use crate::kv_direct::header::Header;
use crate::kv_direct::item::{Home, Item, Probe};
use crate::kv_direct::key::KeyHash;
use crate::kv_direct::slab::{Class, PLACE_BYTES, Place};
use crate::limits::KV_DIRECT_READ_BYTES_MAX;
use crate::lines::{HostMemory, LINE_BYTES, Purpose};

/// A bucket of a key's chain, and the line that it was read from. A lookup that goes on through the
/// chain has later buckets than the head.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub(super) line: u32,
    pub(super) bucket: Bucket,
}

impl Head {
    /// The bucket.
    #[inline(always)]
    pub fn bucket_mut(&mut self) -> &mut Bucket {
        &mut self.bucket
    }

    /// The bucket's place, as a chain points to it.
    pub(super) fn place(&self) -> u32 {
        self.line * LINE_PLACES
    }
}

/// The place of a key's entry, or the places where it could be.
///
/// It holds up to two buckets of the chain, so that the next step need not read any. If the key was
/// found, these are its bucket and the one before it, so that an empty bucket can be taken out of
/// the chain. If not, they are the head, and the last of the other buckets with the most room: if
/// neither has room no bucket has, and a chain of full buckets grows at its end.
#[derive(Clone, Debug)]
pub struct Lookup {
    pub(super) secondary: u16,
    pub(super) found: Option<Home>,
    pub(super) here: Head,
    pub(super) other: Option<Head>,
}

impl Lookup {
    /// Whether the key has an entry.
    #[inline(always)]
    pub fn found(&self) -> bool {
        self.found.is_some()
    }
}

/// The target of a search.
struct Wanted<'a> {
    key: &'a [u8],
    probe: Probe,
    secondary: u16,
}

impl<H: HostMemory> Storage<H> {
    /// Looks for the entry of `key`, whose hash is `hash`, and fills `item` if there is one.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if the table takes no keys of this length,
    /// [`EngineError::Damaged`].
    #[inline]
    pub async fn lookup(
        &self,
        hash: KeyHash,
        key: &[u8],
        item: &mut Item,
    ) -> Result<Lookup, EngineError> {
        let head = self.head(hash).await;
        self.lookup_from(head, hash, key, item).await
    }

    /// As [`lookup`](Self::lookup), from a head bucket that was read already.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    #[inline]
    pub async fn lookup_from(
        &self,
        head: Head,
        hash: KeyHash,
        key: &[u8],
        item: &mut Item,
    ) -> Result<Lookup, EngineError> {
        if !self.format.admits(key) {
            return Err(EngineError::Unsupported);
        }
        let secondary = hash.secondary();
        let wanted = Wanted { key, probe: Probe::new(&self.format, key), secondary };
        let found = self.search(&head.bucket, &wanted, item).await?;
        let lookup = Lookup { secondary, found, here: head, other: None };
        match head.bucket.next() {
            Some(_) if found.is_none() => self.walk(lookup, &wanted, item).await,
            _ => Ok(lookup),
        }
    }

    /// Goes on through the chain, after its head.
    async fn walk(
        &self,
        mut lookup: Lookup,
        wanted: &Wanted<'_>,
        item: &mut Item,
    ) -> Result<Lookup, EngineError> {
        let mut before = lookup.here;
        // A chain that is longer than the memory is a cycle.
        for _ in 0..self.lines {
            let Some(place) = before.bucket.next() else {
                return Ok(lookup);
            };
            let here = self.read_bucket(self.chained_line(place)?).await;
            let found = self.search(&here.bucket, wanted, item).await?;
            if found.is_some() {
                return Ok(Lookup { found, here, other: Some(before), ..lookup });
            }
            if here.bucket.room() >= lookup.other.map_or(0, |other| other.bucket.room()) {
                lookup.other = Some(here);
            }
            before = here;
        }
        Err(damaged())
    }

    /// The line of a chained bucket.
    pub(super) fn chained_line(&self, place: u32) -> Result<u32, EngineError> {
        let line = place / LINE_PLACES;
        let is_one =
            place.is_multiple_of(LINE_PLACES) && (self.buckets..self.lines).contains(&line);
        if is_one { Ok(line) } else { Err(damaged()) }
    }

    /// Looks for the entry in one bucket.
    #[inline(always)]
    async fn search(
        &self,
        bucket: &Bucket,
        wanted: &Wanted<'_>,
        item: &mut Item,
    ) -> Result<Option<Home>, EngineError> {
        let mut candidates = wanted.probe.candidates(bucket);
        while candidates != 0 {
            let slot = candidates.trailing_zeros();
            candidates &= candidates - 1;
            let inline = bucket.inline(slot).ok_or_else(damaged)?;
            item.room(1, 0)[0] = bucket.line();
            let (body, home) = (inline.at..inline.at + inline.len, Home::Inline { slot });
            if item.become_entry(&self.format, wanted.key, body, inline.expires, home)? {
                return Ok(Some(home));
            }
        }
        let mut candidates = bucket.pointing(wanted.secondary);
        while candidates != 0 {
            let slot = candidates.trailing_zeros();
            candidates &= candidates - 1;
            let found = self.visit(slot, bucket.pointer(slot), wanted.key, item).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Reads the entry to which a pointer points. Returns its place, if it has this key.
    async fn visit(
        &self,
        slot: u32,
        pointer: Pointer,
        key: &[u8],
        item: &mut Item,
    ) -> Result<Option<Home>, EngineError> {
        let place = Place::new(pointer.place).ok_or_else(damaged)?;
        let first = Class::new(pointer.kind.min(Header::SMALL_CLASS.number()));
        let first = self.slab_lines(place, first.ok_or_else(damaged)?)?;
        let at = place.number() / LINE_PLACES;
        match item.room(first, 0) {
            [line] => *line = self.memory.read_line(Purpose::Data, at).await,
            lines => self.memory.read(Purpose::Data, at, lines).await,
        }
        // A slab of 32 bytes can be the second half of its line.
        let start = (place.number() % LINE_PLACES) as usize * PLACE_BYTES as usize;
        let read = &item.bytes()[start..first * LINE_BYTES];
        let header = Header::read(pointer.kind, read).ok_or_else(damaged)?;
        let body = start + Header::bytes(header.class);
        let end = body + header.body_bytes as usize;
        if pointer.kind == Header::LARGE_KIND {
            let known = self.format.key(&read[body - start..]);
            if known.is_some_and(|known| known != key) {
                return Ok(None);
            }
            self.slab_lines(place, header.class)?;
            let lines = end.div_ceil(LINE_BYTES);
            if lines > first {
                let rest = item.room(lines, first);
                self.memory.read(Purpose::Data, at + first as u32, rest).await;
            }
        }
        let home = Home::Slab { slot, place, class: header.class };
        let found = item.become_entry(&self.format, key, body..end, header.expires, home)?;
        Ok(found.then_some(home))
    }

    /// The number of lines in which the slab of this class at this place lies. All of them have to
    /// exist.
    #[inline(always)]
    pub(super) fn slab_lines(&self, place: Place, class: Class) -> Result<usize, EngineError> {
        let lines = class.bytes().div_ceil(LINE_BYTES as u64);
        let at = u64::from(place.number() / LINE_PLACES);
        let is_inside = at >= self.buckets.into() && at + lines <= self.lines.into();
        let is_aligned = place.number().is_multiple_of(class.places());
        if is_inside && is_aligned { Ok(lines as usize) } else { Err(damaged()) }
    }
}

const _: () = assert!(Header::SMALL_CLASS.bytes() == KV_DIRECT_READ_BYTES_MAX);
