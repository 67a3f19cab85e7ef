//! The text commands, which memcached has had for long.

use loch::Version;

use super::request::{Data, number};
use super::{BAD_LINE, Request, VERSION, expires, is_noreply, line};
use crate::context::Context;
use crate::failure::Failure;
use crate::figures::add;
use crate::item::{self, Traits};
use crate::limits::MEMCACHED_KEY_BYTES;
use crate::store::{Change, Item};

const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

pub(super) async fn execute(
    cx: &Context<'_>,
    request: Request<'_>,
    output: &mut Vec<u8>,
) -> Result<(), Failure> {
    let words = request.words;
    let said: &str = match words[0] {
        b"get" | b"gets" => return get_all(cx, &[request], output).await,
        b"gat" | b"gats" => return get_and_touch(cx, words, output).await,
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            store(cx, request).await?
        }
        b"delete" => delete(cx, words).await?,
        b"incr" | b"decr" => return count(cx, words, output).await,
        b"touch" => touch(cx, words).await?,
        b"flush_all" => flush_all(cx, words).await?,
        b"version" => &format!("VERSION {VERSION}"),
        b"verbosity" if words.len() > 1 => "OK",
        b"shutdown" => "ERROR: shutdown not enabled",
        b"cache_memlimit" => {
            "SERVER_ERROR the memory of a table is declared where its node starts: loch serve"
        }
        _ => "ERROR",
    };
    // A request that was not understood is answered: who sent it may wait.
    let is_error = said.contains("ERROR");
    if is_error || !is_noreply(words) {
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

fn value(output: &mut Vec<u8>, key: &[u8], flags: u32, data: &[u8], cas: Option<u64>) {
    output.extend_from_slice(b"VALUE ");
    output.extend_from_slice(key);
    let rest = match cas {
        Some(cas) => format!(" {flags} {} {cas}\r\n", data.len()),
        None => format!(" {flags} {}\r\n", data.len()),
    };
    output.extend_from_slice(rest.as_bytes());
    output.extend_from_slice(data);
    output.extend_from_slice(b"\r\n");
}

/// Answers requests of `get` and `gets`, all of whose keys make up one batch.
pub(super) async fn get_all(
    cx: &Context<'_>,
    requests: &[Request<'_>],
    output: &mut Vec<u8>,
) -> Result<(), Failure> {
    let mut keys: Vec<&[u8]> = Vec::with_capacity(requests.len());
    for request in requests {
        key(request.words.get(1))?;
        for word in &request.words[1..] {
            keys.push(key(Some(word))?);
        }
    }
    // Behind these keys a request ends; of those before it, some want the CAS unique.
    let mut ends = Vec::with_capacity(requests.len());
    let mut end = 0;
    for request in requests {
        end += request.words.len() - 1;
        ends.push((end, request.words[0] == b"gets"));
    }
    let (mut next, mut request, mut hits) = (0, 0, 0);
    let mut early: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut ended = |next: usize, output: &mut Vec<u8>| {
        if ends.get(request).is_some_and(|(end, _)| *end == next) {
            output.extend_from_slice(b"END\r\n");
            request += 1;
        }
    };
    let wants_cas = |number: usize| ends[ends.partition_point(|(end, _)| *end <= number)].1;
    let write = |number: usize, found: Option<(Version, &[u8])>, output: &mut Vec<u8>| {
        let Some((version, bytes)) = found else { return };
        let (Traits { flags, cas, .. }, data) = item::split(bytes);
        let cas = wants_cas(number).then_some(cas.unwrap_or(version.as_u64()));
        value(output, keys[number], flags, data, cas);
    };
    let done = cx.store.table().asynch().get_each(&keys, |number, found| {
        hits += u64::from(found.is_some());
        let found = found.as_ref().map(|found| (found.version(), &found[..]));
        if number == next {
            write(number, found, output);
            next += 1;
            ended(next, output);
        } else {
            let mut bytes = Vec::new();
            write(number, found, &mut bytes);
            early.push((number, bytes));
        }
        while let Some(at) = early.iter().position(|(number, _)| *number == next) {
            output.extend_from_slice(&early.swap_remove(at).1);
            next += 1;
            ended(next, output);
        }
    });
    done.await?;
    assert_eq!(next, keys.len(), "each key has its answer");
    add(&cx.figures().counters.hits, hits);
    add(&cx.figures().counters.misses, keys.len() as u64 - hits);
    Ok(())
}

/// `gat` and `gats`: GET, and another expiry.
async fn get_and_touch(
    cx: &Context<'_>,
    words: &[&[u8]],
    output: &mut Vec<u8>,
) -> Result<(), Failure> {
    if words.len() < 2 {
        return Err("ERROR".into());
    }
    let exptime = number(words[1]).ok_or("CLIENT_ERROR invalid exptime argument")?;
    for word in &words[2..] {
        let key = key(Some(word))?;
        let item = touched(cx, key, exptime).await?;
        let counters = &cx.figures().counters;
        add(if item.is_some() { &counters.hits } else { &counters.misses }, 1);
        if let Some((item, version)) = item {
            let cas = version.map_or(item.cas(), |version| version.as_u64());
            let cas = (words[0] == b"gats").then_some(cas);
            value(output, key, item.traits.flags, item.data(), cas);
        }
    }
    line(output, "END");
    Ok(())
}

async fn touched(
    cx: &Context<'_>,
    key: &[u8],
    exptime: i64,
) -> Result<Option<(Item, Option<Version>)>, Failure> {
    let touch = |item: Option<&Item>| {
        let Some(item) = item else { return Ok((Change::Keep, None)) };
        let (data, traits) = (item.data().to_vec(), item.traits);
        Ok((Change::Put { data, traits, expires: expires(exptime) }, Some(item.clone())))
    };
    add(&cx.figures().counters.touches, 1);
    let (item, version) = cx.store.update(key, touch).await?;
    Ok(item.map(|item| (item, version)))
}

async fn touch(cx: &Context<'_>, words: &[&[u8]]) -> Result<&'static str, Failure> {
    if !matches!(words.len(), 3 | 4) {
        return Err("ERROR".into());
    }
    let key = key(words.get(1))?;
    let exptime = number(words[2]).ok_or("CLIENT_ERROR invalid exptime argument")?;
    let touched = touched(cx, key, exptime).await?;
    Ok(if touched.is_some() { "TOUCHED" } else { "NOT_FOUND" })
}

/// Storage commands.
async fn store(cx: &Context<'_>, request: Request<'_>) -> Result<&'static str, Failure> {
    let words = request.words;
    let wanted = if words[0] == b"cas" { 6 } else { 5 };
    if words.len() != wanted && words.len() != wanted + 1 {
        return Err("ERROR".into());
    }
    let key = key(words.get(1))?;
    let (Some(flags), Some(exptime)) = (number::<u32>(words[2]), number::<i64>(words[3])) else {
        return Err(BAD_LINE.into());
    };
    let data = match request.data {
        Data::None => return Err(BAD_LINE.into()),
        Data::Bad => return Err("CLIENT_ERROR bad data chunk".into()),
        Data::TooLarge { .. } => {
            // As memcached: who wanted to replace the value does not want to read the old one.
            if words[0] == b"set" {
                cx.store.delete(key).await?;
            }
            return Err("SERVER_ERROR object too large for cache".into());
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
        cx.store.put(key, data, traits, expires).await?;
        return Ok("STORED");
    }
    let put = || Change::Put { data: data.to_vec(), traits, expires };
    let store = |item: Option<&Item>| {
        Ok(match (words[0], item) {
            (b"add", None) | (b"replace", Some(_)) => (put(), "STORED"),
            (b"append", Some(item)) => {
                (Change::bytes(Some(item), [item.data(), data].concat()), "STORED")
            }
            (b"prepend", Some(item)) => {
                (Change::bytes(Some(item), [data, item.data()].concat()), "STORED")
            }
            (b"cas", Some(item)) if Some(item.cas()) == unique => (put(), "STORED"),
            (b"cas", Some(_)) => (Change::Keep, "EXISTS"),
            (b"cas", None) => (Change::Keep, "NOT_FOUND"),
            _ => (Change::Keep, "NOT_STORED"),
        })
    };
    Ok(cx.store.update(key, store).await?.0)
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
    // A number that became shorter may have spaces behind it.
    let text = data.trim_ascii_end();
    let is_number = text.iter().all(u8::is_ascii_digit);
    number(text).filter(|_| is_number).ok_or_else(|| NON_NUMERIC.into())
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
    match words[1..] {
        [] | [b"0" | b"noreply"] | [b"0", b"noreply"] => (),
        [delay, ..] if number::<i64>(delay).is_none() => {
            return Err("CLIENT_ERROR invalid exptime argument".into());
        }
        _ => {
            return Err(
                "CLIENT_ERROR this gateway flushes at once only: send flush_all without a \
                        delay"
                    .into(),
            );
        }
    }
    cx.store.flush().await?;
    Ok("OK")
}
