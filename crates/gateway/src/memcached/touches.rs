//! `gat`, `gats` and `touch`, which give items another expiry.
//!
//! Some keys are touched side by side, as [`Batch`] says. A long value is touched by itself, with
//! memory for its copies, and sent from where it is, if it is still the one that was touched. It
//! ends the batch: the keys behind it are touched again.

use loch::lanes::run;
use loch::{EngineError, Error, Value};

use super::values::ValuesFrom;
use super::write_value;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures::add;
use crate::gets::{Batch, Format, Found};
use crate::item;
use crate::limits::{LANES, LONG_BYTES, WORK_COPIES};
use crate::load::Grant;
use crate::output::Output;
use crate::protocol::of_different_keys;
use crate::store::Expires;

/// Touches and answers the first of these keys. Returns how many, one at least.
pub(super) async fn answer<'t>(
    cx: &Context<'t>,
    keys: &[&[u8]],
    batch: &mut Batch,
    format: &ValuesFrom<'_>,
    output: &mut Output<'t>,
) -> Result<usize, Failure> {
    let (table, start) = (cx.store.table(), output.bytes.len());
    let expires = |key| format.expires(key).expect("the requests touch");
    let some = &keys[..keys.len().min(batch.len()).min(LANES)];
    run(LANES, some.iter().map(|key| learn(cx, key)), |()| ()).await;
    // An item that is gone once it is touched cannot be touched again.
    let alone =
        |key: usize| expires(key).has_passed() || cx.store.load().longs.len(keys[key]).is_some();
    let together = (0..some.len()).map(|key| Some(keys[key]).filter(|_| !alone(key)));
    let count = of_different_keys(together);
    if count == 0 {
        // A long value is held whole if it is not sent from where it is.
        if !table.pins_in_place() && !cx.shared.copies.may_hold() {
            return Err(Failure::Held);
        }
        let (value, _grant) = by_itself(cx, keys[0], expires(0)).await?;
        let sent = write(cx, 0, (keys, value), format, output).await?;
        batch.learn(1, sent.unwrap_or(output.bytes.len() - start));
        return Ok(1);
    }
    let mut touched: Vec<loch::Result<Option<Value>>> = (0..count).map(|_| Ok(None)).collect();
    let lanes = touched.iter_mut().enumerate().map(|(key, touched)| async move {
        *touched = table.asynch().get_and_touch(keys[key], expires(key).options().expiry).await;
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

/// Looks where a value is whether it is long, if the thread does not know. An error is found again
/// when it is touched.
async fn learn(cx: &Context<'_>, key: &[u8]) {
    let longs = &cx.store.load().longs;
    if longs.len(key).is_none()
        && let Ok(Some(value)) = cx.store.pin(key).await
    {
        longs.note(key, value.len());
    }
}

/// Touches a key. Returns its value, and the memory for it, if it is long.
async fn by_itself(
    cx: &Context<'_>,
    key: &[u8],
    expires: Expires,
) -> Result<(Option<Value>, Option<Grant>), Failure> {
    loop {
        let most = cx.store.load().longs.len(key).unwrap_or(LONG_BYTES);
        let (value, grant) = touch(cx, key, expires).await?;
        // An item that is gone now cannot be touched again.
        if expires.has_passed() || value.as_ref().is_none_or(|value| value.len() <= most) {
            return Ok((value, grant));
        }
    }
}

/// Touches a key, with memory and time for copies of its value if that is long.
pub(super) async fn touch(
    cx: &Context<'_>,
    key: &[u8],
    expires: Expires,
) -> loch::Result<(Option<Value>, Option<Grant>)> {
    let load = cx.store.load();
    learn(cx, key).await;
    let known = load.longs.len(key);
    let mut grant = None;
    if let Some(len) = known {
        grant = Some(load.take(WORK_COPIES * len).await);
        load.pace.step(len).await;
    }
    let value = cx.store.table().asynch().get_and_touch(key, expires.options().expiry).await?;
    let len = value.as_ref().map_or(0, |value| value.len());
    load.longs.note(key, len);
    if len >= LONG_BYTES {
        load.pace.stepped(len.saturating_sub(known.unwrap_or(0)));
    }
    Ok((value, grant))
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
    if found.len >= LONG_BYTES && cx.store.table().pins_in_place() {
        let pinned = match cx.store.pin(key).await {
            Err(Error::Table { source: EngineError::TooManyPins { .. }, .. }) => None,
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
