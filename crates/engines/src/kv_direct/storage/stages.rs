//! GETs in stages, over many keys: first all keys are looked for in their head buckets, which the
//! caller has [prefetched](Storage::prefetch), then in the rest of their chains, and their values
//! are handed on. So the buckets of a chain arrive while other keys are looked for, and what is
//! counted and borrowed is so once for all keys.
//!
//! The stages read inline entries in memory that can be [loaded](HostMemory::loads). They end at
//! the first key for which that is not enough.

use std::ops::Range;

use loch_fabric::prefetch_read;

use super::straight::Glance;
use super::{Storage, word_at};
use crate::kv_direct::bucket::Bucket;
use crate::kv_direct::item::Parts;
use crate::kv_direct::key::KeyHash;
use crate::lines::{HostMemory, LINE_BYTES, Line, Purpose};
use crate::operation::Outcome;

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
        let (version, expires_at_ms) = (word(self.version_at).unwrap_or(0), word(self.expiry_at));
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
                if let Spot::Further(line) = spot {
                    prefetch_read(&lines[line as usize]);
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
                let reply = match spot {
                    Some(Spot::Entry { line, fields }) => {
                        fields.value(&lines[line as usize], now_ms)
                    }
                    Some(Spot::Absent) => Some(Outcome::Absent),
                    Some(Spot::Further(_)) | None => None,
                };
                let Some(reply) = reply else { break };
                answer(reply);
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
            Glance::Unclear => None,
        }
    }
}
