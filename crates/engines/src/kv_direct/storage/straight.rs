//! The straight path: an entry that is inline in the head bucket of its chain is used in its place.
//!
//! This is the usual case of small entries. It is written without nested futures and without
//! copying the entry: each layer of futures costs a copy of its state. [`Storage::lookup_from`]
//! handles all other cases.

use loch_fabric::lanes::block_on;

use super::Storage;
use super::lookup::Head;
use crate::kv_direct::bucket::Bucket;
use crate::kv_direct::item::{Parts, Probe};
use crate::kv_direct::key::KeyHash;
use crate::lines::{HostMemory, Purpose};

/// The information of a head bucket about a key.
#[derive(Debug)]
pub enum Glance<'a> {
    /// The key's entry.
    Entry(InPlace<'a>),
    /// The key has no entry.
    Absent,
    /// The key has no entry up to here; the chain goes on in this line.
    Further(u32),
    /// More lines have to be read.
    Unclear,
}

/// An entry in its bucket.
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
    pub fn version(&self) -> u64 {
        self.word(self.parts.version_at).unwrap_or(0)
    }

    /// When the entry expires.
    #[inline(always)]
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.word(self.parts.expiry_at)
    }

    /// Gives the entry another version, if entries have versions, and another time of expiry, if it
    /// has one.
    #[inline(always)]
    pub fn stamp(&mut self, version: u64, expires_at_ms: Option<u64>) {
        self.parts.stamp(self.body, version, expires_at_ms);
    }

    #[inline(always)]
    fn word(&self, at: Option<usize>) -> Option<u64> {
        let at = at?;
        Some(u64::from_le_bytes(*self.body[at..].first_chunk().expect("parts are inside")))
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

    /// Posts the read of a bucket, which is [loaded](Self::loaded) afterwards. Only for
    /// [memory](HostMemory::loads) with this ability.
    #[inline(always)]
    pub fn post(&self, line: u32) {
        self.memory.post_line(Purpose::Index, line);
    }

    /// Prefetches a bucket that will be [posted](Self::post).
    #[inline(always)]
    pub fn prefetch(&self, line: u32) {
        self.memory.prefetch(line);
    }

    /// The bucket whose read was posted.
    #[inline(always)]
    pub fn loaded(&self, line: u32) -> Head {
        Head { line, bucket: Bucket::of(&self.memory.peek(line)) }
    }

    /// As [`write_bucket`](Self::write_bucket), for memory whose head buckets can be loaded.
    #[inline(always)]
    pub fn store_head(&self, head: &Head) {
        block_on(self.write_bucket(head));
    }

    /// Looks for an entry in the head bucket of its chain.
    #[inline(always)]
    pub fn glance<'h>(&self, head: &'h mut Head, hash: KeyHash, key: &[u8]) -> Glance<'h> {
        let bucket = &head.bucket;
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
                let body = &mut head.bucket.bytes_mut()[body];
                return Glance::Entry(InPlace { body, parts });
            }
        }
        match bucket.next() {
            _ if bucket.pointing(hash.secondary()) != 0 => Glance::Unclear,
            None => Glance::Absent,
            Some(place) => self.chained_line(place).map_or(Glance::Unclear, Glance::Further),
        }
    }
}
