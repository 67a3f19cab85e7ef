//! `gat` and `gats`: GETs that give another expiry.
//!
//! Some keys are touched side by side, as [`Batch`] says. A long value is sent from where it is, if
//! it is still the one that was touched, and ends the batch: the keys behind it are touched again.

use loch::lanes::run;
use loch::{Error, Value};

use super::text::ValuesFrom;
use super::write_value;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures::add;
use crate::gets::{Batch, Format, Found};
use crate::item;
use crate::limits::{LANES, LONG_BYTES};
use crate::output::Output;
use crate::protocol::of_different_keys;

/// Touches and answers the first of these keys. Returns how many, one at least.
pub(super) async fn answer<'t>(
    cx: &Context<'t>,
    keys: &[&[u8]],
    batch: &mut Batch,
    format: &ValuesFrom<'_>,
    output: &mut Output<'t>,
) -> Result<usize, Failure> {
    let (table, start) = (cx.store.table().asynch(), output.bytes.len());
    let expires = |key| format.expires(key).expect("the requests touch");
    let together = (0..keys.len()).take(batch.len().min(LANES));
    // An item that is gone once it is touched cannot be touched again.
    let alone = |key: &usize| expires(*key).has_passed();
    let together = together.map(|key| Some(keys[key]).filter(|_| !alone(&key)));
    let count = of_different_keys(together).max(1);
    let mut touched: Vec<loch::Result<Option<Value>>> = (0..count).map(|_| Ok(None)).collect();
    let lanes = touched.iter_mut().enumerate().map(|(key, touched)| async move {
        *touched = table.get_and_touch(keys[key], expires(key).options().expiry).await;
    });
    run(LANES, lanes, |()| ()).await;
    let mut answered = 0;
    for found in touched {
        let value = match found {
            Err(error) if answered == 0 => return Err(error.into()),
            Err(_) => break,
            Ok(value) => value,
        };
        answered += 1;
        if let Some(len) = write(cx, answered - 1, (keys, value), format, output).await? {
            batch.learn(1, len);
            return Ok(answered);
        }
    }
    batch.learn(answered, output.bytes.len() - start);
    Ok(answered)
}

/// Answers a touched key. Returns the length of its value if that is long and sent by itself.
async fn write<'t>(
    cx: &Context<'t>,
    number: usize,
    (keys, value): (&[&[u8]], Option<Value>),
    format: &ValuesFrom<'_>,
    output: &mut Output<'t>,
) -> Result<Option<usize>, Failure> {
    let (key, counters) = (keys[number], &cx.figures().counters);
    add(&counters.touches, 1);
    add(if value.is_some() { &counters.hits } else { &counters.misses }, 1);
    let tail = format.tail(number, value.is_some());
    let Some(value) = value else {
        output.bytes.extend_from_slice(tail);
        return Ok(None);
    };
    let (traits, data) = item::split(&value);
    let found = Found { traits, version: value.version(), len: data.len() };
    format.head(number, Some(&found), &mut output.bytes);
    cx.store.uses().read(found.version);
    if found.len >= LONG_BYTES {
        let pinned = match cx.store.table().asynch().pin(key).await {
            Err(Error::TooManyPins { .. }) => None,
            pinned => pinned?.filter(|pinned| pinned.version() == found.version),
        };
        if let Some(pinned) = pinned {
            write_value(key, pinned, found.len, tail, output);
            return Ok(Some(found.len));
        }
    }
    output.bytes.extend_from_slice(data);
    output.bytes.extend_from_slice(tail);
    Ok(None)
}
