//! Lists the keys of a processor, chain after chain. A key never leaves the chain of its bucket.

use zerocopy::IntoBytes;

use super::{Storage, word_at};
use crate::kv_direct::bucket::{Bucket, SLOTS};
use crate::lines::{HostMemory, LINE_BYTES};
use crate::operation::Version;
use crate::scan::{Listed, Listing, Page, Step};

/// Bytes of a slab that are read first: most keys end there, and the value is not wanted.
const FIRST_BYTES: usize = 2 * LINE_BYTES;

impl<H: HostMemory> Storage<H> {
    /// The keys of a step of a scan. Only while no operation is under way.
    pub fn scan(&self, step: &Step, now_ms: u64) -> Page {
        step.page(self.buckets.into(), now_ms, |head, listing| {
            // A chain that is damaged ends where it is: `loch check` says what is wrong with it.
            let mut line = Some(head as u32);
            while let Some(at) = line {
                let bucket = Bucket::of(&self.memory.peek(at));
                let entries = bucket.begins() | bucket.pointers();
                for slot in (0..SLOTS).filter(|slot| entries >> slot & 1 != 0) {
                    self.list_slot(&bucket, slot, listing);
                }
                line = bucket.next().and_then(|place| self.chained_line(place).ok());
            }
        })
    }

    /// Lists the entry that begins in a slot, if it is sound.
    fn list_slot(&self, bucket: &Bucket, slot: u32, listing: &mut Listing<'_>) -> Option<()> {
        if bucket.pointers() >> slot & 1 == 0 {
            let inline = bucket.inline(slot)?;
            let body = bucket.line().as_bytes().get(inline.at..inline.at + inline.len)?.to_vec();
            return self.list(&body, body.len(), inline.expires, listing);
        }
        let (place, header, at) = self.peek_header(bucket.pointer(slot)).ok()?;
        let (body_bytes, end) = (header.body_bytes as usize, at + header.body_bytes as usize);
        let list = |bytes: usize, listing: &mut Listing<'_>| {
            let lines = self.peek_lines(place, bytes);
            self.list(lines.as_bytes().get(at..bytes)?, body_bytes, header.expires, listing)
        };
        list(end.min(FIRST_BYTES), listing).or_else(|| list(end, listing))
    }

    /// Lists the entry with a body of `len` bytes, of which these are the first; `None` if they do
    /// not reach to the value.
    fn list(
        &self,
        body: &[u8],
        len: usize,
        expires: bool,
        listing: &mut Listing<'_>,
    ) -> Option<()> {
        let parts = self.format.parts(body, expires)?;
        listing.add(Listed {
            key: &body[parts.key.clone()],
            value_bytes: (len - parts.value_at) as u64,
            version: Version::from_u64(parts.version_at.map_or(0, |at| word_at(body, at))),
            expires_at_ms: parts.expiry_at.map(|at| word_at(body, at)),
        });
        Some(())
    }
}
