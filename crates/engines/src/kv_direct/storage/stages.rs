//! GETs in stages, over many keys: first all keys are looked for in their head buckets, which the
//! caller has [prefetched](Storage::prefetch), then in the rest of their chains, and their values
//! are handed on. So the buckets of a chain arrive while other keys are looked for, and what is
//! counted and borrowed is so once for all keys.
//!
//! The stages read inline entries, and entries in slabs that one access reads, in memory that can
//! be [loaded](HostMemory::loads). They end at the first key for which that is not enough.

use std::ops::Range;

use loch_fabric::prefetch_read;

use super::straight::Glance;
use super::{LINE_PLACES, Storage, word_at};
use zerocopy::IntoBytes;

use crate::kv_direct::bucket::Bucket;
use crate::kv_direct::header::Header;
use crate::kv_direct::item::Parts;
use crate::kv_direct::key::KeyHash;
use crate::kv_direct::slab::{Class, PLACE_BYTES, Place};
use crate::lines::{HostMemory, LINE_BYTES, Line, Purpose};
use crate::operation::{Outcome, Version};

/// Keys that go through the stages together.
const KEYS_MAX: usize = 64;
/// Buckets of a chain that the stages read.
const CHAIN_MAX: usize = 64;

/// What a bucket says about a key.
#[derive(Clone, Copy)]
enum Spot {
    /// The entry is in this line, with these fields.
    Entry { line: u32, fields: Fields },
    /// There is no entry.
    Absent,
    /// The chain goes on in this line.
    Further(u32),
    /// The entry is in this slab, if the slab's entry has the key.
    Slab(Slab),
}

/// A slab that one access reads.
#[derive(Clone, Copy)]
struct Slab {
    /// The first line in which it lies, and the byte of that line at which it begins.
    line: u32,
    start: u8,
    count: u16,
    kind: u8,
}

impl Slab {
    /// The lines in which the slab lies.
    #[inline(always)]
    fn lines(self, lines: &[Line]) -> &[Line] {
        &lines[self.line as usize..][..usize::from(self.count)]
    }
}

/// The fields of an entry, in bytes of its line; where there is none, the end of the line.
#[derive(Clone, Copy)]
struct Fields {
    version_at: u8,
    expiry_at: u8,
    value_at: u8,
    end: u8,
}

const NOWHERE: u8 = LINE_BYTES as u8;

impl Fields {
    #[inline(always)]
    fn of(body: &Range<usize>, parts: &Parts) -> Self {
        let at = |at: Option<usize>| at.map_or(NOWHERE, |at| (body.start + at) as u8);
        let (version_at, expiry_at) = (at(parts.version_at), at(parts.expiry_at));
        let value_at = (body.start + parts.value_at) as u8;
        Self { version_at, expiry_at, value_at, end: body.end as u8 }
    }

    /// The value, if it has not expired.
    #[inline(always)]
    fn value(self, line: &Line, now_ms: u64) -> Option<Outcome<'_>> {
        let word = |at| (at != NOWHERE).then(|| word_at(&line.0, usize::from(at)));
        let (version, expires_at_ms) = (word(self.version_at), word(self.expiry_at));
        let version = version.map(Version::from_u64).unwrap_or_default();
        let value = &line.0[usize::from(self.value_at)..usize::from(self.end)];
        let has_expired = expires_at_ms.is_some_and(|at| at <= now_ms);
        (!has_expired).then_some(Outcome::Found { version, expires_at_ms, value })
    }
}

impl<H: HostMemory> Storage<H> {
    /// Answers GETs of the keys that `key` tells, in their order, up to the first one that needs
    /// more than a look at inline entries. Returns the number of keys that were answered, which can
    /// be fewer than possible.
    #[inline(always)]
    pub fn get_each<'k>(
        &self,
        key: impl Fn(usize) -> Option<(KeyHash, &'k [u8])>,
        now_ms: u64,
        mut answer: impl FnMut(Outcome<'_>),
    ) -> usize {
        let answered = self.memory.in_place(|lines, counts| {
            let mut spots = [Spot::Absent; KEYS_MAX];
            let mut found = 0;
            while found < KEYS_MAX
                && let Some((hash, key)) = key(found)
                && let Some(spot) = self.spot(lines, self.group(hash), hash, key)
            {
                match spot {
                    Spot::Further(line) => prefetch_read(&lines[line as usize]),
                    Spot::Slab(slab) => slab.lines(lines).iter().take(2).for_each(prefetch_read),
                    Spot::Entry { .. } | Spot::Absent => (),
                }
                spots[found] = spot;
                found += 1;
            }
            let (mut answered, mut buckets) = (0, 0);
            for spot in &spots[..found] {
                let (mut spot, mut left) = (Some(*spot), CHAIN_MAX);
                while let (Some(Spot::Further(line)), 1..) = (spot, left) {
                    let (hash, key) = key(answered).expect("it was told before");
                    (spot, left) = (self.spot(lines, line, hash, key), left - 1);
                }
                buckets += 1 + CHAIN_MAX - left;
                let outcome = match spot {
                    Some(Spot::Entry { line, fields }) => {
                        fields.value(&lines[line as usize], now_ms)
                    }
                    Some(Spot::Absent) => Some(Outcome::Absent),
                    Some(Spot::Slab(slab)) => {
                        let (_, key) = key(answered).expect("it was told before");
                        counts.read(Purpose::Data, usize::from(slab.count));
                        self.found_in(slab, lines, key, now_ms)
                    }
                    Some(Spot::Further(_)) | None => None,
                };
                let Some(outcome) = outcome else { break };
                answer(outcome);
                answered += 1;
            }
            counts.read_each(Purpose::Index, buckets);

            answered
        });
        answered.unwrap_or(0)
    }

    /// What the bucket in a line says about a key; `None` if more than inline entries must be
    /// looked at.
    #[inline(always)]
    fn spot(&self, lines: &[Line], line: u32, hash: KeyHash, key: &[u8]) -> Option<Spot> {
        match self.locate(Bucket::in_place(&lines[line as usize]), hash, key) {
            Glance::Entry((body, parts)) => {
                Some(Spot::Entry { line, fields: Fields::of(&body, &parts) })
            }
            Glance::Absent => Some(Spot::Absent),
            Glance::Further(line) => Some(Spot::Further(line)),
            Glance::Pointed => {
                self.slab(Bucket::in_place(&lines[line as usize]), hash).map(Spot::Slab)
            }
            Glance::Unclear => None,
        }
    }

    /// The one slab to which a bucket points for a key, if one access reads it whole.
    #[inline]
    fn slab(&self, bucket: &Bucket, hash: KeyHash) -> Option<Slab> {
        let pointing = bucket.pointing(hash.secondary());
        let pointer = bucket.pointer(pointing.trailing_zeros());
        if !pointing.is_power_of_two() || pointer.kind == Header::LARGE_KIND {
            return None;
        }
        let (place, class) = (Place::new(pointer.place)?, Class::new(pointer.kind)?);
        let count = self.slab_lines(place, class).ok()? as u16;
        let start = (place.number() % LINE_PLACES) as u8 * PLACE_BYTES as u8;
        Some(Slab { line: place.number() / LINE_PLACES, start, count, kind: pointer.kind })
    }

    /// The value in a slab, if its entry has the key and has not expired.
    #[inline]
    fn found_in<'l>(
        &self,
        slab: Slab,
        lines: &'l [Line],
        key: &[u8],
        now_ms: u64,
    ) -> Option<Outcome<'l>> {
        let bytes = &slab.lines(lines).as_bytes()[usize::from(slab.start)..];
        let header = Header::read(slab.kind, bytes)?;
        let body = bytes[Header::bytes(header.class)..].get(..header.body_bytes as usize)?;
        let parts = self.format.parts(body, header.expires)?;
        let word = |at: Option<usize>| at.map(|at| word_at(body, at));
        let (version, expires_at_ms) = (word(parts.version_at), word(parts.expiry_at));
        let version = version.map(Version::from_u64).unwrap_or_default();
        let is_it = body[parts.key.clone()] == *key && expires_at_ms.is_none_or(|at| at > now_ms);
        is_it.then_some(Outcome::Found { version, expires_at_ms, value: &body[parts.value_at..] })
    }
}
