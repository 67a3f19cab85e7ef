//! Strings as arrays of bits.

use super::options::{SYNTAX, is, number};
use super::reply::Reply;
use super::strings::range;
use crate::context::Context;
use crate::failure::Failure;
use crate::store::{Change, Item, Store, View};

/// Bits of the longest string of Redis.
const BITS_MAX: u64 = 8 * (512 << 20);

pub(super) async fn execute(
    cx: &Context<'_>,
    store: Store<'_>,
    command: &'static str,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    match command {
        "getbit" => {
            let (byte, mask) = place(request[2])?;
            let is_set = |item: Option<View<'_>>| {
                item.and_then(|item| item.data.get(byte)).is_some_and(|byte| byte & mask != 0)
            };
            reply.integer(store.read(request[1], is_set).await?.into());
        }
        "setbit" => {
            let (byte, mask) = place(request[2])?;
            let is_set = match request[3] {
                b"0" => false,
                b"1" => true,
                _ => return Err("ERR bit is not an integer or out of range".into()),
            };
            if byte as u64 >= cx.shared.value_bytes_max {
                return Err("ERR string exceeds maximum allowed size (proto-max-bulk-len)".into());
            }
            let set = |item: Option<&Item>| {
                let before = item.and_then(|item| item.data().get(byte)).copied().unwrap_or(0);
                let part = vec![before & !mask | if is_set { mask } else { 0 }];
                Ok((Change::Patch { at: byte, part }, before & mask != 0))
            };
            reply.integer(store.update_longer(request[1], byte + 1, set).await?.0.into());
        }
        "bitcount" => {
            // As with Redis, the rest is looked at only if there is something to count.
            let count = |item: Option<View<'_>>| {
                item.map_or(Ok(0), |item| count_in(item.data, &request[2..]))
            };
            reply.integer(store.read(request[1], count).await??.into());
        }
        other => unreachable!("{other} is a command on bits"),
    }
    Ok(())
}

/// The byte of a bit, and the bit in it. Bits are counted from the highest.
fn place(argument: &[u8]) -> Result<(usize, u8), Failure> {
    let offset = number(argument).ok().and_then(|offset| u64::try_from(offset).ok());
    match offset {
        Some(offset) if offset < BITS_MAX => Ok(((offset / 8) as usize, 0x80 >> (offset % 8))),
        _ => Err("ERR bit offset is not an integer or out of range".into()),
    }
}

/// Counts the bits that the arguments of a BITCOUNT name.
fn count_in(data: &[u8], bounds: &[&[u8]]) -> Result<u32, Failure> {
    let (bounds, unit) = match bounds {
        [] => return Ok(count(data, (0, -1), false)),
        [first, last, unit @ ..] if unit.len() < 2 => ((number(first)?, number(last)?), unit),
        _ => return Err(SYNTAX.into()),
    };
    if matches!(bounds, (..0, ..0)) && bounds.0 > bounds.1 {
        return Ok(0);
    }
    match unit {
        [] => Ok(count(data, bounds, false)),
        [unit] if is(unit, "byte") => Ok(count(data, bounds, false)),
        [unit] if is(unit, "bit") => Ok(count(data, bounds, true)),
        _ => Err(SYNTAX.into()),
    }
}

fn count(data: &[u8], (first, last): (i64, i64), in_bits: bool) -> u32 {
    if !in_bits {
        let range = range(data.len(), first, last);
        return range.map_or(0, |range| data[range].iter().map(|byte| byte.count_ones()).sum());
    }
    let Some(bits) = range(8 * data.len(), first, last) else { return 0 };
    let is_set = |bit: usize| data[bit / 8] & (0x80 >> (bit % 8)) != 0;
    let whole = bits.start.div_ceil(8)..bits.end / 8;
    if whole.start >= whole.end {
        return bits.filter(|bit| is_set(*bit)).count() as u32;
    }
    let edges = (bits.start..8 * whole.start).chain(8 * whole.end..bits.end);
    let in_edges = edges.filter(|bit| is_set(*bit)).count() as u32;
    in_edges + data[whole].iter().map(|byte| byte.count_ones()).sum::<u32>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_are_counted_one_by_one_or_by_bytes(
            data: Vec<u8>,
            first in -99..99i64,
            last in -99..99i64,
        ) {
            let Some(bits) = range(8 * data.len(), first, last) else { return Ok(()) };
            let one_by_one = bits.filter(|bit| data[bit / 8] >> (7 - bit % 8) & 1 == 1).count();
            prop_assert_eq!(count(&data, (first, last), true) as usize, one_by_one);
        }
    }

    #[test]
    fn bits_are_counted_as_in_the_documents_of_redis() {
        assert_eq!(count(b"foobar", (0, -1), false), 26);
        assert_eq!(count(b"foobar", (0, 0), false), 4);
        assert_eq!(count(b"foobar", (1, 1), false), 6);
        assert_eq!(count(b"foobar", (5, 30), true), 17);
    }
}
