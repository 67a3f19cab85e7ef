//! GETs of many keys, as one batch, whose answers are in order.
//!
//! As many keys are read at a time as make up a bounded answer, by the lengths of the values so
//! far; if they are longer than that, the rest of the keys is read once the client has taken this
//! much. A long value is sent from where it is, and ends the batch.

use std::ops::Range;

use loch::Version;

use crate::context::Context;
use crate::failure::{self, Failure};
use crate::figures::add;
use crate::item::{self, Traits};
use crate::limits::{BATCH_BYTES, BATCH_REQUESTS, LONG_BYTES};
use crate::output::{Output, pin_to_send};

/// What was found under a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub traits: Traits,
    pub version: Version,
    pub len: usize,
}

impl Found {
    /// What memcached calls the item's CAS unique.
    pub fn cas(&self) -> u64 {
        self.traits.cas.unwrap_or(self.version.as_u64())
    }

    fn of(version: Version, value: &[u8]) -> (Self, &[u8]) {
        let (traits, data) = item::split(value);
        (Self { traits, version, len: data.len() }, data)
    }
}

/// Keys of a request whose answer goes out part by part, as the client takes it.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<u32>,
    answered: usize,
}

impl Keys {
    pub fn of(keys: &[&[u8]]) -> Self {
        let bytes = keys.concat();
        let ends = keys.iter().scan(0, |end, key| {
            *end += u32::try_from(key.len()).expect("a request has its bounds");
            Some(*end)
        });
        Self { bytes, ends: ends.collect(), answered: 0 }
    }

    /// How many are left.
    pub fn len(&self) -> usize {
        self.ends.len() - self.answered
    }

    /// Bytes of memory that they take.
    pub fn bytes(&self) -> usize {
        self.bytes.capacity() + 4 * self.ends.capacity()
    }

    /// The next keys, as many as a batch can have.
    pub fn next(&self, batch: &Batch) -> Vec<&[u8]> {
        let numbers = self.answered..self.ends.len().min(self.answered + batch.len());
        let end = |number: usize| self.ends[number] as usize;
        let start = |number: usize| number.checked_sub(1).map_or(0, end);
        numbers.map(|number| &self.bytes[start(number)..end(number)]).collect()
    }

    /// So many of them are answered.
    pub fn answered(&mut self, count: usize) {
        self.answered += count;
    }
}

/// How a protocol writes the answer to a GET of a key.
pub(crate) trait Format {
    /// Everything before the value, or all of the answer if there is none.
    fn head(&self, key: usize, found: Option<&Found>, output: &mut Vec<u8>);
    /// Everything behind it.
    fn tail(&self, key: usize, is_hit: bool) -> &'static [u8];
    /// Whether the value itself is a part of the answer.
    fn has_value(&self, _key: usize) -> bool {
        true
    }
    /// Whether a GET is all that this item needs. Otherwise its request is left to the caller.
    fn is_all(&self, _found: &Found) -> bool {
        true
    }
}

/// About so many values make up a batch, as long as they are like the last ones.
#[derive(Debug)]
pub(crate) struct Batch(usize);

impl Default for Batch {
    /// One value tells how long values are.
    fn default() -> Self {
        Self(1)
    }
}

impl Batch {
    pub fn len(&self) -> usize {
        self.0
    }

    /// These keys' answers had so many bytes.
    pub fn learn(&mut self, keys: usize, bytes: usize) {
        self.0 = (BATCH_BYTES * keys / bytes.max(1)).clamp(1, BATCH_REQUESTS);
    }
}

/// Answers GETs of the first of these keys. Returns how many: one at least, unless the first one
/// needs more than a GET.
pub(crate) async fn answer<'t>(
    cx: &Context<'t>,
    keys: &[&[u8]],
    batch: &mut Batch,
    format: &impl Format,
    output: &mut Output<'t>,
) -> Result<usize, Failure> {
    let count = until_long(cx, &keys[..keys.len().min(batch.len())]);
    let start = output.bytes.len();
    if count > 1 {
        match answer_short(cx, &keys[..count], format, output).await {
            // One of these keys cannot be in the table: each is looked for by itself.
            Err(failure) if failure.is_of_key() => (),
            answered => {
                let answered = answered?;
                batch.learn(answered, output.bytes.len() - start);
                if answered > 0 {
                    return Ok(answered);
                }
            }
        }
    }
    let Some(len) = answer_one(cx, keys[0], format, output).await? else { return Ok(0) };
    batch.learn(1, len);
    Ok(1)
}

/// How many of these keys come before the first one whose value is known to be long. That one is
/// read by itself: a copy of it, if there has to be one, needs memory that others may have.
fn until_long(cx: &Context<'_>, keys: &[&[u8]]) -> usize {
    let longs = &cx.store.load().longs;
    keys.iter().position(|key| longs.len(key).is_some()).unwrap_or(keys.len())
}

/// Answers GETs of the first keys, up to a value that is long or an item that needs more.
async fn answer_short(
    cx: &Context<'_>,
    keys: &[&[u8]],
    format: &impl Format,
    output: &mut Output<'_>,
) -> Result<usize, Failure> {
    let output = &mut output.bytes;
    let start = output.len();
    // Values come in any order. Those that come in order, which is most, are written at once.
    let mut early: Vec<(usize, bool, Vec<u8>)> = Vec::new();
    let (mut next, mut hits, mut last, mut early_bytes) = (0, 0, keys.len(), 0);
    let write = |number: usize, found: Option<(Found, &[u8])>, output: &mut Vec<u8>| {
        write_head(cx, number, found.as_ref().map(|(found, _)| found), format, output);
        if format.has_value(number) {
            output.extend_from_slice(found.as_ref().map_or(&[], |(_, data)| data));
        }
        output.extend_from_slice(format.tail(number, found.is_some()));
    };
    let done = cx.store.table().asynch().get_each(keys, |number, value| {
        // Also those behind the last one, which are read again.
        if let Some(value) = value.as_ref().filter(|value| value.len() >= LONG_BYTES) {
            cx.store.load().longs.note(keys[number], value.len());
        }
        if number >= last {
            return;
        }
        let found = value.as_ref().map(|value| Found::of(value.version(), value));
        let ends = |(found, _): &(Found, &[u8])| {
            found.len >= LONG_BYTES && format.has_value(number) || !format.is_all(found)
        };
        if found.as_ref().is_some_and(ends) || output.len() - start + early_bytes > BATCH_BYTES {
            last = number;
            return;
        }
        if number == next {
            write(number, found, output);
            (next, hits) = (next + 1, hits + u64::from(found.is_some()));
        } else {
            let mut bytes = Vec::new();
            write(number, found, &mut bytes);
            early_bytes += bytes.len();
            early.push((number, found.is_some(), bytes));
        }
        while let Some(at) = early.iter().position(|(number, ..)| *number == next && next < last) {
            let (_, is_hit, bytes) = early.swap_remove(at);
            output.extend_from_slice(&bytes);
            (next, hits) = (next + 1, hits + u64::from(is_hit));
        }
    });
    if let Err(error) = done.await {
        output.truncate(start);
        return Err(error.into());
    }
    assert_eq!(next, last, "each key before the last one has its answer");
    count(cx, hits, next as u64 - hits);
    Ok(next)
}

/// Answers a GET of one key, if it is all that is needed. Returns the bytes of the answer, about.
async fn answer_one<'t>(
    cx: &Context<'t>,
    key: &[u8],
    format: &impl Format,
    output: &mut Output<'t>,
) -> Result<Option<usize>, Failure> {
    let start = output.bytes.len();
    let pinned = failure::found(pin_to_send(cx, key).await)?;
    let is_hit = match pinned {
        None => {
            write_head(cx, 0, None, format, &mut output.bytes);
            false
        }
        Some(value) => {
            let (found, data) = Found::of(value.version(), &value);
            if !format.is_all(&found) {
                return Ok(None);
            }
            write_head(cx, 0, Some(&found), format, &mut output.bytes);
            if format.has_value(0) {
                if found.len >= LONG_BYTES {
                    count(cx, 1, 0);
                    let data_at = value.len() - found.len;
                    let all = data_at..value.len();
                    output.send(key, value, all, format.tail(0, true));
                    return Ok(Some(found.len));
                }
                output.bytes.extend_from_slice(data);
            }
            true
        }
    };
    output.bytes.extend_from_slice(format.tail(0, is_hit));
    count(cx, is_hit.into(), (!is_hit).into());
    Ok(Some(output.bytes.len() - start))
}

/// Answers with a part of a key's value from where it is, if `part` says which one. Returns whether
/// it did.
pub(crate) async fn answer_part<'t>(
    cx: &Context<'t>,
    key: &[u8],
    part: impl FnOnce(usize) -> Option<Range<usize>>,
    head: impl FnOnce(usize, &mut Vec<u8>),
    output: &mut Output<'t>,
) -> bool {
    // An error is found again by the request that is executed instead.
    let Ok(Some(value)) = pin_to_send(cx, key).await else { return false };
    let data_len = item::split(&value).1.len();
    let (Some(part), start) = (part(data_len), value.len() - data_len) else { return false };
    head(part.len(), &mut output.bytes);
    cx.store.uses().read(value.version());
    output.send(key, value, start + part.start..start + part.end, b"\r\n");
    true
}

/// Writes what comes before a value, and notes that it was read.
#[inline]
fn write_head(
    cx: &Context<'_>,
    number: usize,
    found: Option<&Found>,
    format: &impl Format,
    output: &mut Vec<u8>,
) {
    format.head(number, found, output);
    if let Some(found) = found {
        cx.store.uses().read(found.version);
    }
}

fn count(cx: &Context<'_>, hits: u64, misses: u64) {
    add(&cx.figures().counters.hits, hits);
    add(&cx.figures().counters.misses, misses);
}

#[cfg(test)]
mod tests {
    use loch::lanes::block_on;

    use super::*;
    use crate::context::Shared;
    use crate::load::Load;
    use crate::store::Store;

    struct Plain;

    impl Format for Plain {
        fn head(&self, _: usize, _: Option<&Found>, _: &mut Vec<u8>) {}

        fn tail(&self, _: usize, _: bool) -> &'static [u8] {
            b""
        }
    }

    /// A batch over a network had a copy of each of its values, and no memory for them.
    #[test]
    fn values_that_are_known_to_be_long_are_read_one_by_one() {
        let shared = Shared::for_test();
        let table = shared.cluster.table("default").unwrap();
        let load = Load::new(&shared.work, &shared.copies);
        let cx = Context::new(&shared, Store::new(&table, &shared.uses, &load), 0);
        let (short, long) = (vec![1; 100], vec![2; LONG_BYTES]);
        let keys: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
        for (key, value) in keys.iter().zip([&short, &long, &short, &long]) {
            table.put(key, value).unwrap();
        }
        let bytes_of_answer = || {
            let (mut batch, mut output) = (Batch(4), Output::new(&shared.copies));
            let before = table.counters().verbs.bytes;
            let answered = answer(&cx, &keys, &mut batch, &Plain, &mut output);
            assert_eq!((block_on(answered).unwrap(), &output.bytes), (1, &short));
            table.counters().verbs.bytes - before
        };
        assert!(bytes_of_answer() >= 2 * LONG_BYTES as u64, "nobody knew of them");
        assert!(bytes_of_answer() < LONG_BYTES as u64);
        assert_eq!(load.longs.len(b"d"), Some(LONG_BYTES));
        // One that has become short is in batches again.
        table.put(b"b", &short).unwrap();
        let (mut batch, mut output) = (Batch(2), Output::new(&shared.copies));
        let mut answered = || block_on(answer(&cx, &keys[1..], &mut batch, &Plain, &mut output));
        assert_eq!((answered().unwrap(), load.longs.len(b"b")), (1, None));
    }
}
