//! The straight path: an entry that is inline in a bucket of its chain is used in its place.
//!
//! This is the usual case of small entries. It is written without nested futures, because each
//! layer of futures costs a copy of its state, and where memory can be loaded without copying the
//! bucket either. [`Storage::lookup_from`] handles all other cases.

use std::ops::Range;

use super::lookup::Head;
use super::{Storage, word_at};
use crate::kv_direct::bucket::Bucket;
use crate::kv_direct::item::{Parts, Probe};
use crate::kv_direct::key::KeyHash;
use crate::lines::{HostMemory, Purpose};
use crate::operation::Version;

/// The information of a bucket about a key, whose entry is an `E`.
#[derive(Clone, Copy, Debug)]
pub enum Glance<E> {
    /// The key's entry.
    Entry(E),
    /// The key has no entry.
    Absent,
    /// The key has no entry up to here; the chain goes on in this line. All entries of the bucket
    /// are inline, so those of the next may be as well.
    Further(u32),
    /// The entry may be in one of the slabs to which the bucket points.
    Pointed,
    /// More lines have to be read.
    Unclear,
}

/// An entry in its bucket, to be read or changed.
#[derive(Debug)]
pub struct InPlace<'a> {
    body: &'a mut [u8],
    parts: Parts,
}

impl InPlace<'_> {
    /// The value.
    #[inline(always)]
    pub fn value(&self) -> &[u8] {
        &self.body[self.parts.value_at..]
    }

    /// The value, to be changed and [written](Storage::write_bucket).
    #[inline(always)]
    pub fn value_mut(&mut self) -> &mut [u8] {
        &mut self.body[self.parts.value_at..]
    }

    /// The version; 0 in a table without versions.
    #[inline(always)]
    pub fn version(&self) -> Version {
        self.word(self.parts.version_at).map(Version::from_u64).unwrap_or_default()
    }

    /// When the entry expires.
    #[inline(always)]
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.word(self.parts.expiry_at)
    }

    /// Gives the entry another version, if entries have versions, and another time of expiry, if it
    /// has one.
    #[inline(always)]
    pub fn stamp(&mut self, version: Version, expires_at_ms: Option<u64>) {
        self.parts.stamp(self.body, version, expires_at_ms);
    }

    #[inline(always)]
    fn word(&self, at: Option<usize>) -> Option<u64> {
        at.map(|at| word_at(self.body, at))
    }
}

impl<H: HostMemory> Storage<H> {
    /// Reads the head bucket of a key's chain.
    #[inline(always)]
    pub async fn head(&self, hash: KeyHash) -> Head {
        self.read_bucket(self.group(hash)).await
    }

    #[inline(always)]
    pub(super) async fn read_bucket(&self, line: u32) -> Head {
        Head { line, bucket: Bucket::of(&self.memory.read_line(Purpose::Index, line).await) }
    }

    /// Writes a bucket in which an entry was changed.
    #[inline(always)]
    pub async fn write_bucket(&self, head: &Head) {
        self.memory.write_line(Purpose::Index, head.line, &head.bucket.line()).await;
    }

    /// Prefetches a bucket, if its memory can be [loaded](HostMemory::loads).
    #[inline(always)]
    pub fn prefetch(&self, line: u32) {
        self.memory.prefetch(line);
    }

    /// Works on a bucket in its place, if its memory can be loaded. `work` says whether it has
    /// changed the bucket.
    #[inline(always)]
    pub fn in_place<R>(&self, line: u32, work: impl FnOnce(&mut Bucket) -> (R, bool)) -> Option<R> {
        self.memory.in_place(|lines, counts| {
            counts.read(Purpose::Index, 1);
            let (result, is_changed) = work(Bucket::in_place_mut(&mut lines[line as usize]));
            if is_changed {
                counts.wrote(Purpose::Index, 1);
            }
            result
        })
    }

    /// A bucket as it was just seen [in its place](Self::in_place).
    pub fn seen(&self, line: u32) -> Head {
        Head { line, bucket: Bucket::of(&self.memory.peek(line)) }
    }

    /// Looks for an entry in a bucket of its chain.
    #[inline(always)]
    pub fn glance<'b>(
        &self,
        bucket: &'b mut Bucket,
        hash: KeyHash,
        key: &[u8],
    ) -> Glance<InPlace<'b>> {
        match self.locate(bucket, hash, key) {
            Glance::Entry((at, parts)) => {
                let body = &mut bucket.bytes_mut()[at.start..at.end];
                Glance::Entry(InPlace { body, parts })
            }
            Glance::Absent => Glance::Absent,
            Glance::Further(line) => Glance::Further(line),
            Glance::Pointed | Glance::Unclear => Glance::Unclear,
        }
    }

    /// As [`glance`](Self::glance). Tells where in the bucket the entry's body is, and its parts.
    #[inline(always)]
    pub(super) fn locate(
        &self,
        bucket: &Bucket,
        hash: KeyHash,
        key: &[u8],
    ) -> Glance<(Range<usize>, Parts)> {
        if !self.format.admits(key) {
            return Glance::Unclear;
        }
        let probe = Probe::new(&self.format, key);
        let mut candidates = probe.candidates(bucket);
        while candidates != 0 {
            let slot = candidates.trailing_zeros();
            candidates &= candidates - 1;
            let Some(inline) = bucket.inline(slot) else { return Glance::Unclear };
            let body = inline.at..inline.at + inline.len;
            let Some(bytes) = bucket.bytes().get(body.clone()) else { return Glance::Unclear };
            let Some(parts) = self.format.parts(bytes, inline.expires) else {
                return Glance::Unclear;
            };
            if probe.is_exact() || bytes[parts.key.clone()] == *key {
                return Glance::Entry((body, parts));
            }
        }
        match bucket.next() {
            _ if bucket.pointing(hash.secondary()) != 0 => Glance::Pointed,
            None => Glance::Absent,
            Some(_) if bucket.pointers() != 0 => Glance::Unclear,
            Some(place) => self.chained_line(place).map_or(Glance::Unclear, Glance::Further),
        }
    }
}
