//! GETs of many keys.

use loch_fabric::limits::BUCKET_WORDS_MAX;
use loch_fabric::{Buf, Chase, Fabric, FabricError, RemoteAddr, Step};

use super::longest;
use crate::error::EngineError;
use crate::limits::{BATCH_BUF_BYTES_MAX, BATCH_ENTRY_BYTES_MAX, BATCH_KEYS};
use crate::nessie::client::Client;
use crate::nessie::client::batch::{Batch, Look};
use crate::nessie::client::cache::Line;
use crate::nessie::layout::dte::{Header, flags};
use crate::nessie::layout::hash::{Candidates, KeyHash};
use crate::nessie::ops::read::Want;
use crate::operation::ValueRef;
use crate::planted::{self, Bug};

impl<F: Fabric> Client<F> {
    /// GETs many keys. `found` is called once for each key, with its index, in any order.
    ///
    /// # Errors
    /// As [`Client::get`]. After an error no further GETs are begun.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        found: impl FnMut(usize, Option<ValueRef<'_>>),
    ) -> Result<(), EngineError> {
        self.look_at_many(keys, Want::Value, found).await
    }

    /// Hands on whether each of many keys has a value, with the key's index, in any order. Reads no
    /// values.
    ///
    /// # Errors
    /// As [`Client::get_many`].
    pub async fn contains_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut contained: impl FnMut(usize, bool),
    ) -> Result<(), EngineError> {
        self.look_at_many(keys, Want::Key, |key, found| contained(key, found.is_some())).await
    }

    async fn look_at_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        want: Want,
        mut found: impl FnMut(usize, Option<ValueRef<'_>>),
    ) -> Result<(), EngineError> {
        if !self.has_stages() {
            for (number, key) in keys.iter().enumerate() {
                let hash = self.hash(key.as_ref())?;
                let _epoch = self.session.pin(&self.fabric)?;
                let seen = self.look_up(hash, key.as_ref(), want, Buf::new(), None).await?;
                hand_on(seen.as_ref(), want, |value| found(number, value));
            }
            return Ok(());
        }
        let mut batch = self.batch.take().unwrap_or_default();
        let mut done = Ok(());
        for (begin, keys) in (0..).step_by(BATCH_KEYS).zip(keys.chunks(BATCH_KEYS)) {
            let found = |key, value: Option<ValueRef<'_>>| found(begin + key, value);
            done = match self.is_near {
                true => self.look_at_batch(&mut batch, keys, want, found).await,
                // Boxed, so that the future is as small as batches on one host need it.
                false => Box::pin(self.look_at_far(&mut batch, keys, want, found)).await,
            };
            if done.is_err() {
                break;
            }
        }
        self.batch.set(Some(batch));
        done
    }

    async fn look_at_batch<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
        want: Want,
        mut found: impl FnMut(usize, Option<ValueRef<'_>>),
    ) -> Result<(), EngineError> {
        let entry_len = self.begin_gets(batch, keys, want)?;
        let words = self.map.shape.geometry.bucket_words();
        let mut entry = std::mem::take(&mut batch.entry);
        // One epoch for all keys and steps: it keeps every word's entry from being reused as the
        // same incarnation.
        let epoch = match planted::is(Bug::BatchUnpinned) {
            true => None,
            false => Some(self.session.pin(&self.fabric)?),
        };
        let mut gets = Gets::new(self, keys, batch, want, entry_len, &mut found);
        let chased = self.fabric.chase(keys.len(), words, entry_len, &mut entry, &mut gets).await;
        let longest = gets.longest;
        batch.entry = entry;
        chased?;
        self.mark_used_of(batch)?;
        if longest > 0 {
            self.hint_read_of(longest);
        }
        for key in &batch.rest {
            let key = usize::from(*key);
            if planted::is(Bug::BatchForgetsRest) {
                found(key, None);
                continue;
            }
            // Long values are among these. One buffer does for all of them: memory that was used
            // just now is faster than new memory.
            let (hash, buf) = (batch.looks[key].hash, std::mem::take(&mut batch.entry));
            let seen = self.look_up(hash, keys[key].as_ref(), want, buf, None).await?;
            hand_on(seen.as_ref(), want, |value| found(key, value));
            batch.entry = seen.map(|(_, buf)| buf).unwrap_or_default();
        }
        if batch.entry.capacity() > BATCH_BUF_BYTES_MAX {
            batch.entry = Buf::new();
        }
        drop(epoch);
        Ok(())
    }

    /// Marks the slots of the keys whose values were read.
    #[inline(always)]
    fn mark_used_of(&self, batch: &Batch) -> Result<(), EngineError> {
        for key in &batch.used {
            let Look { slot, mark, .. } = batch.looks[usize::from(*key)];
            self.used(slot, mark)?;
        }
        Ok(())
    }

    /// Checks the keys, and returns how many bytes of their entries are READ first.
    #[inline(always)]
    fn begin_gets<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
        want: Want,
    ) -> Result<usize, EngineError> {
        let key_len = longest(keys.iter().map(AsRef::as_ref))?;
        batch.rest.clear();
        batch.used.clear();
        Ok(self.first_read_len(key_len, want))
    }
}

/// Batches over a network.
impl<F: Fabric> Client<F> {
    async fn look_at_far<K: AsRef<[u8]>>(
        &self,
        batch: &mut Batch,
        keys: &[K],
        want: Want,
        mut found: impl FnMut(usize, Option<ValueRef<'_>>),
    ) -> Result<(), EngineError> {
        // Memory for all entries at once: those that are longer have a stage of their own.
        let entry_len = self.begin_gets(batch, keys, want)?.min(BATCH_ENTRY_BYTES_MAX);
        let mut buf = std::mem::take(&mut batch.entry);
        // As on one host: one epoch for all keys and steps.
        let _epoch = self.session.pin(&self.fabric)?;
        let mut gets = Gets::new(self, keys, batch, want, entry_len, &mut found);
        let seen = self.get_far(&mut gets, &mut buf).await;
        let longest = gets.longest;
        batch.entry = buf;
        seen?;
        self.look_at_clock().await?;
        self.mark_used_of(batch)?;
        if longest > 0 {
            self.hint_read_of(longest);
        }
        self.look_at_rest(batch, keys, want, &mut found).await
    }

    /// All stages: buckets, entries, and those entries that are longer than the READs of them.
    async fn get_far<K: AsRef<[u8]>, S: FnMut(usize, Option<ValueRef<'_>>)>(
        &self,
        gets: &mut Gets<'_, F, K, S>,
        buf: &mut Buf,
    ) -> Result<(), FabricError> {
        let (count, len) = (gets.keys.len(), gets.entry_len);
        let words = self.map.shape.geometry.bucket_words();
        self.fabric.chase(count, words, len, buf, &mut Far(gets)).await?;
        let (mut numbers, mut reads) = (Vec::new(), Vec::new());
        for (number, len) in std::mem::take(&mut gets.short) {
            match self.entry_at(gets.batch.looks[usize::from(number)].word) {
                Some((at, room)) if len <= room => {
                    numbers.push(number);
                    reads.push((at, len));
                }
                // No entry is as long there, whatever its header says.
                _ => gets.batch.rest.push(number),
            }
        }
        if reads.is_empty() {
            return Ok(());
        }
        buf.clear();
        let (filled, done) = self.fabric.read_many(&reads, std::mem::take(buf)).await;
        *buf = filled;
        done?;
        let mut rest = &buf[..];
        for (number, (_, len)) in numbers.into_iter().zip(&reads) {
            let (entry, after) = rest.split_at(*len);
            rest = after;
            let first = u64::from_le_bytes(*entry.first_chunk().expect("a header at least"));
            gets.arrived::<true>(number.into(), entry, first);
        }
        // These have been replaced by longer ones, as it seems.
        gets.batch.rest.extend(gets.short.drain(..).map(|(number, _)| number));
        Ok(())
    }

    /// The keys that are left to the general path, side by side.
    async fn look_at_rest<K: AsRef<[u8]>>(
        &self,
        batch: &Batch,
        keys: &[K],
        want: Want,
        found: &mut impl FnMut(usize, Option<ValueRef<'_>>),
    ) -> Result<(), EngineError> {
        let rest = batch.rest.iter().map(|key| {
            let (key, hash) = (usize::from(*key), batch.looks[usize::from(*key)].hash);
            async move {
                let seen = self.look_up(hash, keys[key].as_ref(), want, Buf::new(), None);
                seen.await.map(|seen| (key, seen))
            }
        });
        let done = |(key, seen): (usize, Option<(Header, Buf)>)| {
            hand_on(seen.as_ref(), want, |value| found(key, value));
        };
        self.all_of(rest.collect(), done).await
    }
}

/// Hands on what the general path has found.
fn hand_on(seen: Option<&(Header, Buf)>, want: Want, found: impl FnOnce(Option<ValueRef<'_>>)) {
    found(seen.map(|(header, entry)| ValueRef {
        version: header.version,
        bytes: if want == Want::Value {
            &entry[header.value_at()..header.entry_len()]
        } else {
            &[]
        },
        expires_at_ms: header.expires_at_ms(entry),
    }));
}

/// GETs of a batch, from the keys to the values.
struct Gets<'a, F: Fabric, K, S> {
    client: &'a Client<F>,
    keys: &'a [K],
    batch: &'a mut Batch,
    want: Want,
    entry_len: usize,
    found: &'a mut S,
    /// Bytes of the longest entry among those whose values were found.
    longest: usize,
    /// The entries that are longer than the READs of them, with their lengths.
    short: Vec<(u8, usize)>,
}

impl<'a, F: Fabric, K: AsRef<[u8]>, S: FnMut(usize, Option<ValueRef<'_>>)> Gets<'a, F, K, S> {
    #[inline(always)]
    fn new(
        client: &'a Client<F>,
        keys: &'a [K],
        batch: &'a mut Batch,
        want: Want,
        entry_len: usize,
        found: &'a mut S,
    ) -> Self {
        Self { client, keys, batch, want, entry_len, found, longest: 0, short: Vec::new() }
    }

    #[inline(always)]
    fn arrived<const FAR: bool>(&mut self, number: usize, entry: &[u8], again: u64) {
        let Batch { looks, rest, used, .. } = &mut *self.batch;
        let key = self.keys[number].as_ref();
        if FAR && self.want == Want::Value {
            // What is here of an entry says how long it is, if its key is right.
            let (word, wanted) = (looks[number].word, (key, Want::Key));
            let mut copy = None;
            let header = self.client.sound::<FAR>(word, wanted, entry, again, &mut copy);
            let len = header.map_or(0, |header| header.entry_len());
            if (entry.len() + 1..=BATCH_ENTRY_BYTES_MAX).contains(&len) {
                return self.short.push((number as u8, len));
            }
        }
        let wanted = (key, self.want);
        let (word, mut copy) = (looks[number].word, None);
        let header = self.client.sound::<FAR>(word, wanted, entry, again, &mut copy);
        let end = |header: &Header| match self.want {
            Want::Key => header.value_at(),
            Want::Value => header.entry_len(),
        };
        let Some(header) = header.filter(|header| end(header) <= entry.len()) else {
            rest.push(number as u8);
            return;
        };
        let value = &entry[header.value_at()..end(header)];
        if self.want == Want::Value {
            self.longest = self.longest.max(end(header));
        }
        if FAR && self.client.cache.is_some() {
            self.client.remember_found(&looks[number], &entry[..end(header)]);
        }
        if self.want == Want::Value && self.client.evicts() {
            used.push(number as u8);
        }
        // Linearization point of a hit (protocol G2): the READ of the bucket.
        (self.found)(
            number,
            Some(ValueRef { version: header.version, bytes: value, expires_at_ms: None }),
        );
    }

    /// The first step of a look for a remembered key.
    fn step_remembered(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        let (key, look) = (self.keys[number].as_ref(), &mut self.batch.looks[number]);
        let (read, want) = (look.slot, self.want);
        let mut entry = self.client.spare.take();
        let line = self.client.look_remembered(look, key, bucket, &mut entry);
        let is_plain = |line: &Line| line.header.flags & flags::EXPIRES == 0;
        let line = line.filter(|line| is_plain(line) && (want == Want::Key || line.has_value));
        if let Some(Line { header, slot, .. }) = line {
            if want == Want::Value && self.client.evicts() {
                let map = &self.client.map;
                look.slot = Candidates::from_hash(map, look.hash).slot(slot);
                let (_, position) = map.bucket_of(look.slot);
                look.mark = self.client.marks_in(bucket).of(position);
                self.batch.used.push(number as u8);
            }
            let value = match want {
                Want::Key => &[],
                Want::Value => &entry[header.value_at()..header.entry_len()],
            };
            // Linearization point of a warm hit (protocol G5): the READ of the bucket.
            let version = header.version;
            (self.found)(number, Some(ValueRef { version, bytes: value, expires_at_ms: None }));
        }
        self.client.spare.give_back(entry);
        if line.is_some() {
            return Step::End;
        }
        match look.slot == read {
            true => self.client.step(self.batch, number, bucket, self.entry_len),
            false => Step::Bucket(look.slot),
        }
    }
}

impl<F: Fabric, K: AsRef<[u8]>, S: FnMut(usize, Option<ValueRef<'_>>)> Chase for Gets<'_, F, K, S> {
    #[inline(always)]
    fn bucket(&mut self, number: usize) -> RemoteAddr {
        let map = &*self.client.map;
        let look = Look::begin(map, KeyHash::of(map, self.keys[number].as_ref()));
        self.batch.looks[number] = look;
        look.slot
    }

    #[inline(always)]
    fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        self.client.step(self.batch, number, bucket, self.entry_len)
    }

    #[inline(always)]
    fn arrived(&mut self, number: usize, entry: &[u8], again: u64) {
        self.arrived::<false>(number, entry, again);
    }
}

/// GETs over a network.
struct Far<'a, C>(&'a mut C);

impl<F: Fabric, K: AsRef<[u8]>, S: FnMut(usize, Option<ValueRef<'_>>)> Chase
    for Far<'_, Gets<'_, F, K, S>>
{
    fn bucket(&mut self, number: usize) -> RemoteAddr {
        let (slot, gets) = (self.0.bucket(number), &mut *self.0);
        if gets.client.cache.is_none() {
            return slot;
        }
        let look = &mut gets.batch.looks[number];
        gets.client.begin_remembered(look, gets.keys[number].as_ref());
        look.slot
    }

    fn step(&mut self, number: usize, bucket: &[u64; BUCKET_WORDS_MAX]) -> Step {
        match self.0.batch.looks[number].way {
            Look::REMEMBERED => self.0.step_remembered(number, bucket),
            _ => self.0.step(number, bucket),
        }
    }

    fn arrived(&mut self, number: usize, entry: &[u8], again: u64) {
        self.0.arrived::<true>(number, entry, again);
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::lanes::block_on;

    use super::*;
    use crate::nessie::client::tests::{client, client_with};
    use crate::nessie::layout::geometry::Options;
    use crate::operation::PutOptions;

    #[test]
    fn a_client_keeps_no_long_buffer_of_a_batch() {
        let client = client(32 << 20);
        let long = vec![7; BATCH_BUF_BYTES_MAX + 1];
        for (key, value) in [(b"a", &long[..]), (b"b", &long[..6000]), (b"c", b"short")] {
            block_on(client.put(key, value, PutOptions::default())).unwrap();
        }
        for keys in [[b"b", b"c", b"a"], [b"a", b"b", b"c"]] {
            let mut lengths = Vec::new();
            let found = |_, value: Option<ValueRef<'_>>| {
                lengths.push(value.map(|found| found.len()));
            };
            block_on(client.get_many(&keys, found)).unwrap();
            lengths.sort();
            assert_eq!(lengths, [5, 6000, long.len()].map(Some));
            let batch = client.batch.take().unwrap();
            assert!(batch.entry.capacity() <= BATCH_BUF_BYTES_MAX, "{}", batch.entry.capacity());
        }
    }

    /// Otherwise the values that are read in batches alone are the first to be evicted.
    #[test]
    fn what_a_batch_reads_is_marked_as_used_and_nothing_else() {
        let client = client_with(3 << 20, Options { evicts: true, ..Options::default() });
        let keys = [b"read", b"seen", b"left"];
        for key in keys {
            block_on(client.put(key, b"value", PutOptions::default())).unwrap();
        }
        block_on(client.get_many(&keys[..1], |_, value| assert!(value.is_some()))).unwrap();
        block_on(client.contains_many(&keys[1..2], |_, is_there| assert!(is_there))).unwrap();
        let is_used = |key: &[u8]| {
            let candidates = Candidates::from_hash(&client.map, client.hash(key).unwrap());
            let (words, marks) = block_on(client.collect_marked(&candidates)).unwrap();
            let is_its = |slot: &usize| client.map.codec.is_visible(words[*slot]);
            let slot = (0..candidates.count()).find(is_its).unwrap();
            candidates.mark_in(&marks, slot).is_used()
        };
        assert_eq!(keys.map(|key| is_used(key)), [true, false, false]);
    }

    /// A READ that is as long as the entries before it would leave the region.
    #[test]
    fn the_last_entry_of_a_table_is_read_as_far_as_the_table_goes() {
        let client = client(4 << 20);
        let put = |key: &u32| {
            block_on(client.put(&key.to_le_bytes(), &[2; 6000], PutOptions::default())).is_ok()
        };
        let keys: Vec<_> = (0..).take_while(put).map(u32::to_le_bytes).collect();
        let longer = 64 << 10;
        let offset = |key: &[u8; 4]| {
            let candidates = Candidates::from_hash(&client.map, client.hash(key).unwrap());
            let words = block_on(client.collect(&candidates)).unwrap();
            let words = words[..candidates.count()].iter().copied();
            let shown = words.filter(|word| client.map.codec.is_visible(*word));
            shown.map(|word| client.map.codec.place(word).offset).max().unwrap()
        };
        assert!(keys.iter().map(offset).max().unwrap() + longer > client.map.data_bytes());
        client.hint_read_of(longer as usize);
        let mut found = 0;
        let count = |_, value: Option<ValueRef<'_>>| {
            assert_eq!(value.unwrap()[..], [2; 6000]);
            found += 1;
        };
        block_on(client.get_many(&keys, count)).unwrap();
        assert_eq!(found, keys.len());
    }

    #[test]
    fn a_batch_with_a_key_that_cannot_be_does_nothing() {
        let client = client(4 << 20);
        let long = [1; crate::limits::KEY_BYTES_MAX + 1];
        for wrong in [&b""[..], &long] {
            let (keys, pairs) = ([&b"a"[..], wrong], [(&b"a"[..], b"v"), (wrong, b"v")]);
            let refused = [
                block_on(client.put_many(&pairs, |_, _| unreachable!("nothing is done"))),
                block_on(client.get_many(&keys, |_, _| unreachable!("nothing is done"))),
                block_on(client.contains_many(&keys, |_, _| unreachable!("nothing is done"))),
                block_on(client.delete_many(&keys, |_, _| unreachable!("nothing is done"))),
            ];
            for refused in refused {
                let is_told = match wrong.len() {
                    0 => matches!(refused, Err(EngineError::KeyEmpty)),
                    _ => matches!(refused, Err(EngineError::KeyTooLong { .. })),
                };
                assert!(is_told, "{refused:?}");
            }
        }
    }
}
