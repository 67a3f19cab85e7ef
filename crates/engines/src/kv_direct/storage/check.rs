//! Walks the index and every slab, and verifies the invariants on which operations rely: `loch
//! check`.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::{BUCKET_CLASS, LINE_PLACES, Storage};
use crate::kv_direct::bucket::{Bucket, Pointer, SLOTS};
use crate::kv_direct::header::Header;
use crate::kv_direct::key::KeyHash;
use crate::kv_direct::slab::{Class, PLACE_BYTES, Place};
use crate::lines::{HostMemory, LINE_BYTES, Line};

/// The result of a walk through a processor's memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Entries that can be found.
    pub entries: u64,
    /// Bytes of the entries' keys and values.
    pub item_bytes: u64,
    /// Entries that are inline.
    pub inline: u64,
    /// Buckets that were added to chains.
    pub chained: u64,
    /// Bytes of free slabs.
    pub free_bytes: u64,
    /// Bytes of the memory.
    pub bytes: u64,
    /// Broken invariants, in words. Empty is good.
    pub broken: Vec<String>,
}

/// A report stops listing here.
const BROKEN_MAX: usize = 100;

impl Report {
    /// The share of the memory that is keys and values (kv-direct §3.3.1, "memory utilization").
    pub fn utilisation(&self) -> f64 {
        self.item_bytes as f64 / self.bytes as f64
    }

    fn broke(&mut self, what: String) {
        if self.broken.len() < BROKEN_MAX {
            self.broken.push(what);
        }
    }
}

/// One bit for each place: whether it has an owner already.
struct Claims(Vec<u64>);

impl Claims {
    fn new(places: u32) -> Self {
        Self(vec![0; places.div_ceil(64) as usize])
    }

    /// Takes `places`; false if some of them were taken, or do not exist.
    fn claim(&mut self, places: Range<u32>) -> bool {
        places.fold(true, |were_free, place| {
            let Some(word) = self.0.get_mut(place as usize / 64) else {
                return false;
            };
            let bit = 1 << (place % 64);
            let was_free = *word & bit == 0;
            *word |= bit;
            were_free && was_free
        })
    }

    fn taken(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

impl<H: HostMemory> Storage<H> {
    /// Verifies every bucket, every entry and every slab. `seed` is the seed with which the keys
    /// were hashed. Only while neither an operation nor a turn of the daemon is under way.
    pub fn check(&self, seed: u64) -> Report {
        let lines = self.memory.lines();
        let mut claims = Claims::new(lines * LINE_PLACES);
        let mut report =
            Report { bytes: u64::from(lines) * LINE_BYTES as u64, ..Report::default() };
        claims.claim(0..self.buckets * LINE_PLACES);
        for head in 0..self.buckets {
            self.check_chain(seed, head, &mut claims, &mut report);
        }
        for slab in self.slabs.free_slabs() {
            let (place, class) = (slab.place().number(), slab.class());
            report.free_bytes += class.bytes();
            if !claims.claim(place..place + class.places()) {
                report.broke(format!("place {place} is free, and in use or free once more"));
            }
        }
        let lost = u64::from(lines * LINE_PLACES).abs_diff(claims.taken());
        if lost != 0 {
            report.broke(format!("{lost} places of {PLACE_BYTES} bytes are nobody's"));
        }
        report
    }

    fn check_chain(&self, seed: u64, head: u32, claims: &mut Claims, report: &mut Report) {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut line = head;
        // A bucket that two chains claim ends the second chain, so the walk does not go round in
        // circles.
        loop {
            let bucket = Bucket::of(&self.memory.peek(line));
            if let Some(what) = bucket.broken() {
                return report.broke(format!("bucket at line {line}: {what}"));
            }
            for slot in
                (0..SLOTS).filter(|slot| (bucket.begins() | bucket.pointers()) >> slot & 1 != 0)
            {
                match self.check_slot(seed, head, &bucket, slot, claims, report) {
                    Ok(key) => keys.push(key),
                    Err(what) => report.broke(format!("slot {slot} at line {line}: {what}")),
                }
            }
            let Some(place) = bucket.next() else { break };
            let claimed = claims.claim(place..place + BUCKET_CLASS.places());
            line = match self.chained_line(place) {
                Ok(line) if claimed => line,
                _ => {
                    return report
                        .broke(format!("line {line}: place {place} is no bucket of its own"));
                }
            };
            report.chained += 1;
        }
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            report.broke(format!("a key has two entries in the chain of bucket {head}"));
        }
    }

    /// The key of the entry that begins in a slot, or a description of what is wrong with it.
    fn check_slot(
        &self,
        seed: u64,
        head: u32,
        bucket: &Bucket,
        slot: u32,
        claims: &mut Claims,
        report: &mut Report,
    ) -> Result<Vec<u8>, String> {
        let pointer = (bucket.pointers() >> slot & 1 != 0).then(|| bucket.pointer(slot));
        let (lines, body, expires) = match pointer {
            None => {
                let inline = bucket.inline(slot).ok_or("an item without an end")?;
                report.inline += 1;
                (vec![bucket.line()], inline.at..inline.at + inline.len, inline.expires)
            }
            Some(pointer) => self.peek_slab(pointer, claims)?,
        };
        let bytes = lines.as_bytes().get(body).ok_or("an entry that is longer than its slab")?;
        let entry = self.format.read(bytes, expires).ok_or("an entry of impossible lengths")?;
        let hash = KeyHash::of(seed, entry.key);
        if self.group(hash) != head || !self.format.admits(entry.key) {
            return Err("an entry whose key is not of this chain".into());
        }
        if pointer.is_some_and(|pointer| pointer.secondary != hash.secondary()) {
            return Err("a secondary hash that is not the key's".into());
        }
        report.entries += 1;
        report.item_bytes += (entry.key.len() + entry.value.len()) as u64;
        Ok(entry.key.to_vec())
    }

    /// The lines of a slab, the range of the entry's body in their bytes, and whether the entry
    /// expires.
    fn peek_slab(
        &self,
        pointer: Pointer,
        claims: &mut Claims,
    ) -> Result<(Vec<Line>, Range<usize>, bool), String> {
        let (place, header, body) = self.peek_header(pointer)?;
        if !claims.claim(place.number()..place.number() + header.class.places()) {
            return Err(format!("the slab at place {} has two owners", place.number()));
        }
        let end = body + header.body_bytes as usize;
        Ok((self.peek_lines(place, end), body..end, header.expires))
    }

    /// A slab's place and header, and where the entry's body begins, in bytes from the slab's first
    /// line.
    pub(super) fn peek_header(&self, pointer: Pointer) -> Result<(Place, Header, usize), String> {
        let place = Place::new(pointer.place).ok_or("a pointer to nowhere")?;
        let outside = |_| format!("a slab at place {}, which is none", place.number());
        self.slab_lines(place, Class::SMALLEST).map_err(outside)?;
        let start = (place.number() % LINE_PLACES) as usize * PLACE_BYTES as usize;
        let first = self.memory.peek(place.number() / LINE_PLACES);
        let header = Header::read(pointer.kind, &first.0[start..]);
        let header = header.ok_or("a slab that does not begin with a header")?;
        self.slab_lines(place, header.class).map_err(outside)?;
        Ok((place, header, start + Header::bytes(header.class)))
    }

    /// So many bytes from a slab's first line on, in whole lines.
    pub(super) fn peek_lines(&self, place: Place, bytes: usize) -> Vec<Line> {
        let first = place.number() / LINE_PLACES;
        let lines = first..first + bytes.div_ceil(LINE_BYTES) as u32;
        lines.map(|line| self.memory.peek(line)).collect()
    }
}
