//! The text commands, which memcached has had for long.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::request::{Data, flags, number};
use super::{BAD_LINE, Request, TOO_LARGE, VERSION, expires, is_noreply, line, replace, touches};
use crate::context::Context;
use crate::failure::Failure;
use crate::figures::add;
use crate::item::Traits;
use crate::limits::MEMCACHED_KEY_BYTES;
use crate::store::{Change, Expires, Item};

const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

pub(super) async fn execute(
    cx: &Context<'_>,
    request: Request<'_>,
    output: &mut Vec<u8>,
) -> Result<(), Failure> {
    let words = request.words;
    let said: &str = match words[0] {
        // A request with keys, all of which are short enough, was answered before.
        b"get" | b"gets" if words.len() > 1 => BAD_LINE,
        b"gat" | b"gats" if words.len() > 1 => match number::<i64>(words[1]) {
            None => BAD_EXPTIME,
            Some(_) if words.len() == 2 => "END",
            Some(_) => BAD_LINE,
        },
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            store(cx, request).await?
        }
        b"delete" => delete(cx, words).await?,
        b"incr" | b"decr" => return count(cx, words, output).await,
        b"touch" => touch(cx, words).await?,
        b"flush_all" => flush_all(cx, words).await?,
        b"version" => &format!("VERSION {VERSION}"),
        b"verbosity" if matches!(words.len(), 2 | 3) => match number::<i64>(words[1]) {
            Some(_) => "OK",
            None => BAD_LINE,
        },
        b"shutdown" => "ERROR: shutdown not enabled",
        b"cache_memlimit" => {
            "SERVER_ERROR the memory of a table is declared where its node starts: loch serve"
        }
        _ => "ERROR",
    };
    if !is_noreply(words) || said == "ERROR" {
        line(output, said);
    }
    Ok(())
}

fn key<'a>(word: Option<&&'a [u8]>) -> Result<&'a [u8], Failure> {
    match word {
        None => Err("ERROR".into()),
        Some(key) if key.len() > MEMCACHED_KEY_BYTES => Err(BAD_LINE.into()),
        Some(key) => Ok(key),
    }
}

async fn touch(cx: &Context<'_>, words: &[&[u8]]) -> Result<&'static str, Failure> {
    if !matches!(words.len(), 3 | 4) {
        return Err("ERROR".into());
    }
    let key = key(words.get(1))?;
    let expires = number(words[2]).map(expires).ok_or(BAD_EXPTIME)?;
    add(&cx.figures().counters.touches, 1);
    let Some(value) = touches::touch(cx, key, expires).await?.0 else { return Ok("NOT_FOUND") };
    // As with memcached, a value that is touched is used.
    cx.store.uses().read(value.version());
    Ok("TOUCHED")
}

/// Storage commands.
async fn store(cx: &Context<'_>, request: Request<'_>) -> Result<&'static str, Failure> {
    let words = request.words;
    let wanted = if words[0] == b"cas" { 6 } else { 5 };
    if words.len() != wanted && words.len() != wanted + 1 {
        return Err("ERROR".into());
    }
    let key = key(words.get(1))?;
    let (Some(flags), Some(exptime)) = (flags(words[2]), number::<i64>(words[3])) else {
        return Err(BAD_LINE.into());
    };
    let data = match request.data {
        Data::None => return Err(BAD_LINE.into()),
        Data::Bad => return Err("CLIENT_ERROR bad data chunk".into()),
        Data::TooLarge { .. } => {
            // As with `replace`.
            if words[0] == b"set" {
                cx.store.delete(key).await?;
            }
            return Err(TOO_LARGE.into());
        }
        Data::Block(data) => data,
    };
    let unique = match words[0] {
        b"cas" => Some(number::<u64>(words[5]).ok_or(BAD_LINE)?),
        _ => None,
    };
    add(&cx.figures().counters.sets, 1);
    let (traits, expires) = (Traits { flags, ..Traits::default() }, expires(exptime));
    if words[0] == b"set" {
        replace(cx, key, data, (traits, expires)).await?;
        return Ok("STORED");
    }
    let put = || Change::Put { data: data.to_vec(), traits, expires };
    let store = |item: Option<&Item>| {
        Ok(match (words[0], item) {
            (b"add", None) | (b"replace", Some(_)) => (put(), "STORED"),
            (b"append", Some(item)) => (joined(item, [item.data(), data].concat()), "STORED"),
            (b"prepend", Some(item)) => (joined(item, [data, item.data()].concat()), "STORED"),
            (b"cas", Some(item)) if Some(item.cas()) == unique => (put(), "STORED"),
            (b"cas", Some(_)) => (Change::Keep, "EXISTS"),
            (b"cas", None) => (Change::Keep, "NOT_FOUND"),
            _ => (Change::Keep, "NOT_STORED"),
        })
    };
    Ok(cx.store.update(key, store).await?.0)
}

/// Longer bytes of an item, which is then no longer stale and nobody's to renew.
fn joined(item: &Item, data: Vec<u8>) -> Change {
    let traits = Traits { flags: item.traits.flags, ..Traits::default() };
    Change::Put { data, traits, expires: item.expires_at.into() }
}

async fn delete(cx: &Context<'_>, words: &[&[u8]]) -> Result<&'static str, Failure> {
    const USAGE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
    let key = key(words.get(1))?;
    match words {
        [_, _] | [_, _, b"0"] | [_, _, b"noreply"] | [_, _, b"0", b"noreply"] => (),
        [_, _, _] | [_, _, _, _] => return Err(USAGE.into()),
        _ => return Err("ERROR".into()),
    }
    Ok(if cx.store.delete(key).await? { "DELETED" } else { "NOT_FOUND" })
}

/// The number that an item is.
pub(super) fn numeric(data: &[u8]) -> Result<u64, Failure> {
    number(data).ok_or_else(|| NON_NUMERIC.into())
}

async fn count(cx: &Context<'_>, words: &[&[u8]], output: &mut Vec<u8>) -> Result<(), Failure> {
    if !matches!(words.len(), 3 | 4) {
        return Err("ERROR".into());
    }
    let key = key(words.get(1))?;
    let delta: u64 = number(words[2]).ok_or("CLIENT_ERROR invalid numeric delta argument")?;
    let add = |item: Option<&Item>| {
        let Some(item) = item else { return Ok((Change::Keep, None)) };
        let before = numeric(item.data())?;
        let after = match words[0] {
            b"incr" => before.wrapping_add(delta),
            _ => before.saturating_sub(delta),
        };
        Ok((Change::bytes(Some(item), after.to_string().into_bytes()), Some(after)))
    };
    let after = cx.store.update(key, add).await?.0;
    if !is_noreply(words) {
        line(output, &after.map_or("NOT_FOUND".to_owned(), |after| after.to_string()));
    }
    Ok(())
}

async fn flush_all(cx: &Context<'_>, words: &[&[u8]]) -> Result<&'static str, Failure> {
    let at = match words[1..] {
        [] | [b"noreply"] => Expires::Never,
        [delay] | [delay, _] => expires(number(delay).ok_or(BAD_EXPTIME)?),
        _ => return Err("ERROR".into()),
    };
    let left = at.time().and_then(|at| at.duration_since(SystemTime::now()).ok());
    cx.shared.flush_later(left.map(|left| Instant::now() + left));
    // A moment that has passed is now; but as with memcached, nothing is older than the gateway. A
    // negative moment is now as well.
    let began = SystemTime::now() - cx.shared.started.elapsed();
    let is_before = |at| at != UNIX_EPOCH && at < began;
    if left.is_none() && !at.time().is_some_and(is_before) {
        cx.store.flush().await?;
    }
    Ok("OK")
}
