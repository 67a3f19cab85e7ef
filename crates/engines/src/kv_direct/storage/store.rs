//! Writing and removing an entry.

use super::{BUCKET_CLASS, Head, LINE_PLACES, Lookup, Storage};
use crate::error::EngineError;
use crate::kv_direct::bucket::{Bucket, Pointer, SLOTS, slots_for};
use crate::kv_direct::damaged;
use crate::kv_direct::header::Header;
use crate::kv_direct::item::{Draft, Home, Item};
use crate::kv_direct::slab::{Class, PLACE_BYTES, Place};
use crate::limits::KV_DIRECT_KEPT_LINES_MAX;
use crate::lines::{HALF_BYTES, HostMemory, LINE_BYTES, Line, Purpose};
use crate::operation::Version;
use crate::planted::{self, Bug};
use zerocopy::IntoBytes;

impl<H: HostMemory> Storage<H> {
    /// Gives the key a value: replaces the entry that `lookup` found, or adds a new one. Reads
    /// nothing. Afterwards `lookup` is up to date.
    ///
    /// # Errors
    /// [`EngineError::ValueTooLong`], [`EngineError::OutOfMemory`]; then nothing has changed.
    #[inline]
    pub async fn store(
        &self,
        lookup: &mut Lookup,
        key: &[u8],
        value: &[u8],
        version: Version,
        expires_at_ms: Option<u64>,
    ) -> Result<(), EngineError> {
        let draft = Draft { key, value, version, expires_at_ms };
        let (len, max) = (value.len() as u64, self.value_bytes_max);
        if len > max {
            return Err(EngineError::ValueTooLong { len, max });
        }
        let len = self.format.body_bytes(key.len(), value.len(), expires_at_ms.is_some());
        match lookup.found {
            Some(home) => self.replace(lookup, home, &draft, len).await,
            None => self.insert(lookup, &draft, len).await,
        }
    }

    /// Whether a [`store`](Self::store) of such a value needs no memory, so that it cannot fail:
    /// the entry would stay in its place, or its bucket has room for it.
    pub fn stays(&self, lookup: &Lookup, key: &[u8], value_len: usize, expires: bool) -> bool {
        if value_len as u64 > self.value_bytes_max {
            return false;
        }
        let len = self.format.body_bytes(key.len(), value_len, expires);
        let fits_slab = match lookup.found {
            Some(Home::Slab { class, .. }) => {
                Header::class_for(len).is_some_and(|new| new <= class)
            }
            _ => false,
        };
        fits_slab || self.fits_inline(lookup, len)
    }

    /// Whether an entry of this length goes into the bucket itself.
    #[inline(always)]
    fn fits_inline(&self, lookup: &Lookup, len: u64) -> bool {
        let own = lookup.found.map(Home::slot);
        len <= self.inline_bytes_max && lookup.here.bucket.has_room(len as usize, own)
    }

    /// Writes an entry of `len` bytes in place of the one at `home`.
    ///
    /// An entry that grows and finds no room in its bucket goes to a slab even if other entries of
    /// its size are inline: its bucket has a slot for the pointer, and another bucket may not have
    /// one.
    async fn replace(
        &self,
        lookup: &mut Lookup,
        home: Home,
        draft: &Draft<'_>,
        len: u64,
    ) -> Result<(), EngineError> {
        let slot = home.slot();
        let now = if self.fits_inline(lookup, len) {
            let bucket = &mut lookup.here.bucket;
            self.put_inline(bucket, Some(slot), draft, len)
        } else {
            let class = self.class_for(len)?;
            let stays = matches!(home, Home::Slab { class: old, .. } if old == class);
            let new = if stays { None } else { self.slabs.allocate(&self.memory, class).await };
            match (new, home) {
                (Some(place), _) => {
                    self.write_slab(place, class, draft, len).await;
                    lookup.here.bucket.clear(slot);
                    let bucket = &mut lookup.here.bucket;
                    put_pointer(bucket, lookup.secondary, place, class)
                }
                // A slab that is too large is better than none.
                (None, Home::Slab { place, class: old, .. }) if old >= class => {
                    self.write_slab(place, old, draft, len).await;
                    return Ok(());
                }
                _ => {
                    if planted::is(Bug::FailureFrees) {
                        self.free(home).await;
                    }
                    return Err(self.out_of_memory(class));
                }
            }
        };
        lookup.found = Some(now);
        self.write_bucket(&lookup.here).await;
        self.free(home).await;
        Ok(())
    }

    /// Writes an entry of `len` bytes for a key without an entry: to the first bucket that has
    /// room, or to a new bucket of the chain.
    async fn insert(
        &self,
        lookup: &mut Lookup,
        draft: &Draft<'_>,
        len: u64,
    ) -> Result<(), EngineError> {
        let is_inline = len <= self.inline_bytes_max;
        let slots = if is_inline { slots_for(len as usize) } else { 1 };
        let slab = if is_inline {
            None
        } else {
            let class = self.class_for(len)?;
            let place = self.slabs.allocate(&self.memory, class).await;
            Some((place.ok_or_else(|| self.out_of_memory(class))?, class))
        };
        let chained = match self.room_for(lookup, slots) {
            true => None,
            false => match self.slabs.allocate(&self.memory, BUCKET_CLASS).await {
                Some(place) => Some(place),
                None => {
                    if let Some((place, class)) = slab
                        && !planted::is(Bug::LeaksWhenFull)
                    {
                        self.slabs.free(&self.memory, place, class).await;
                    }
                    return Err(self.out_of_memory(BUCKET_CLASS));
                }
            },
        };
        if let Some(place) = chained {
            let mut new = Head { line: place.number() / LINE_PLACES, bucket: Bucket::EMPTY };
            let mut before = lookup.other.unwrap_or(lookup.here);
            new.bucket.set_next(before.bucket.next());
            before.bucket.set_next(Some(place.number()));
            (lookup.here, lookup.other) = (new, Some(before));
        }
        let bucket = &mut lookup.here.bucket;
        lookup.found = Some(match slab {
            None => self.put_inline(bucket, None, draft, len),
            Some((place, class)) => {
                self.write_slab(place, class, draft, len).await;
                put_pointer(bucket, lookup.secondary, place, class)
            }
        });
        self.write_bucket(&lookup.here).await;
        if let (Some(_), Some(before)) = (chained, &lookup.other) {
            self.write_bucket(before).await;
        }
        Ok(())
    }

    /// Whether a bucket that `lookup` holds has this many free slots. If so, makes that bucket its
    /// `here`.
    #[inline(always)]
    fn room_for(&self, lookup: &mut Lookup, slots: u32) -> bool {
        if lookup.here.bucket.room() >= slots {
            return true;
        }
        let Some(other) = lookup.other.filter(|other| other.bucket.room() >= slots) else {
            return false;
        };
        let before = std::mem::replace(&mut lookup.here, other);
        let is_next = before.bucket.next() == Some(other.place());
        lookup.other = is_next.then_some(before);
        true
    }

    /// As [`store`](Self::store), for a value of unchanged length that was changed in `item`, which
    /// `lookup` filled: the entry is written back from `item`.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if the entry expires now and did not before, or was stored in
    /// the meantime.
    #[inline]
    pub async fn rewrite(
        &self,
        lookup: &mut Lookup,
        item: &mut Item,
        version: Version,
        expires_at_ms: Option<u64>,
    ) -> Result<(), EngineError> {
        let keeps_layout = lookup.found == item.home() && item.expires() == expires_at_ms.is_some();
        match lookup.found.filter(|_| keeps_layout) {
            Some(Home::Inline { slot }) if self.is_inline_as(lookup, slot, item) => {
                item.stamp(version, expires_at_ms);
                let body = item.body();
                lookup.here.bucket.body_mut(slot, body.len()).copy_from_slice(body);
                self.write_bucket(&lookup.here).await;
            }
            Some(Home::Slab { place, class, .. }) => {
                item.stamp(version, expires_at_ms);
                self.write_lines(place, class, item.lines()).await;
            }
            _ => {
                let (key, value) = (item.key(), item.value());
                self.store(lookup, key, value, version, expires_at_ms).await?;
                item.version = if self.format.versions { version } else { Version::default() };
                item.expires_at_ms = expires_at_ms;
            }
        }
        Ok(())
    }

    /// Whether the inline item in `slot` still has the same length as in `item`.
    fn is_inline_as(&self, lookup: &Lookup, slot: u32, item: &Item) -> bool {
        let inline = lookup.here.bucket.inline(slot);
        inline.is_some_and(|now| now.len == item.body().len() && now.expires == item.expires())
    }

    /// Removes the entry that `lookup` found, if it found one. Afterwards `lookup` is up to date.
    pub async fn remove(&self, lookup: &mut Lookup) -> Result<(), EngineError> {
        let Some(home) = lookup.found.take() else {
            return Ok(());
        };
        lookup.here.bucket.clear(home.slot());
        let is_empty = lookup.here.bucket.room() == SLOTS && lookup.here.line >= self.buckets;
        let before = lookup.other.filter(|other| other.bucket.next() == Some(lookup.here.place()));
        match before.filter(|_| is_empty) {
            // An empty bucket leaves the chain: the bucket before it is written instead of it.
            Some(mut before) => {
                let empty = Place::new(lookup.here.place()).ok_or_else(damaged)?;
                let next = lookup.here.bucket.next().filter(|_| !planted::is(Bug::ChainIsCut));
                before.bucket.set_next(next);
                (lookup.here, lookup.other) = (before, None);
                self.write_bucket(&lookup.here).await;
                self.slabs.free(&self.memory, empty, BUCKET_CLASS).await;
            }
            None => self.write_bucket(&lookup.here).await,
        }
        self.free(home).await;
        Ok(())
    }

    /// Frees the old slab of an entry that has moved elsewhere, if it had one.
    #[inline(always)]
    async fn free(&self, home: Home) {
        if let Home::Slab { place, class, .. } = home {
            self.slabs.free(&self.memory, place, class).await;
        }
    }

    /// Puts an entry into a bucket that has room for it once the entry at `own` is gone.
    fn put_inline(
        &self,
        bucket: &mut Bucket,
        own: Option<u32>,
        draft: &Draft<'_>,
        len: u64,
    ) -> Home {
        let slot = bucket.put_inline(own, len as usize, draft.expires_at_ms.is_some());
        let slot = slot.expect("there is room");
        self.format.write(draft, bucket.body_mut(slot, len as usize));
        Home::Inline { slot }
    }

    /// Writes an entry of `len` bytes to a slab.
    async fn write_slab(&self, place: Place, class: Class, draft: &Draft<'_>, len: u64) {
        let expires = draft.expires_at_ms.is_some();
        let header = Header { class, body_bytes: len, expires };
        let start = (place.number() % LINE_PLACES) as usize * PLACE_BYTES as usize;
        let body = start + Header::bytes(class);
        let end = body + len as usize;
        let fill = |lines: &mut [Line]| {
            let bytes = lines.as_mut_bytes();
            header.write(&mut bytes[start..]);
            self.format.write(draft, &mut bytes[body..end]);
        };
        if end <= LINE_BYTES {
            let mut lines = [Line::ZERO];
            fill(&mut lines);
            return self.write_lines(place, class, &lines).await;
        }
        let mut lines = self.spare.borrow_mut().pop().unwrap_or_default();
        // The former bytes of the lines are written too, behind the entry's end.
        lines.resize(end.div_ceil(LINE_BYTES), Line::ZERO);
        fill(&mut lines);
        self.write_lines(place, class, &lines).await;
        if lines.len() <= KV_DIRECT_KEPT_LINES_MAX {
            self.spare.borrow_mut().push(lines);
        }
    }

    /// Writes lines to a slab, or half a line if the slab has only that.
    async fn write_lines(&self, place: Place, class: Class, lines: &[Line]) {
        let at = place.number() / LINE_PLACES;
        match lines {
            [line] if class == Class::SMALLEST => {
                let (halves, _) = line.0.as_chunks::<HALF_BYTES>();
                let half = &halves[(place.number() % LINE_PLACES) as usize];
                self.memory.write_half(Purpose::Data, place.number(), half).await;
            }
            [line] => self.memory.write_line(Purpose::Data, at, line).await,
            lines => self.memory.write(Purpose::Data, at, lines).await,
        }
    }

    fn class_for(&self, len: u64) -> Result<Class, EngineError> {
        Header::class_for(len).ok_or(self.no_room(len))
    }

    fn out_of_memory(&self, class: Class) -> EngineError {
        self.no_room(class.bytes())
    }

    fn no_room(&self, bytes: u64) -> EngineError {
        EngineError::OutOfMemory {
            bytes,
            capacity: u64::from(self.memory.lines()) * LINE_BYTES as u64,
        }
    }
}

/// Puts a pointer to a slab into a bucket that has a free slot.
fn put_pointer(bucket: &mut Bucket, secondary: u16, place: Place, class: Class) -> Home {
    let pointer = Pointer { secondary, place: place.number(), kind: Header::kind(class) };
    let slot = bucket.insert_pointer(pointer).expect("a slot is free");
    Home::Slab { slot, place, class }
}

const _: () = assert!(HALF_BYTES as u64 == PLACE_BYTES);
