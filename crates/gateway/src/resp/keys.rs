//! Keys, whatever their values are.

use std::future::Future;

use super::connection::subcommand;
use super::options::{SYNTAX, is, number};
use super::reply::Reply;
use crate::context::Context;
use crate::failure::{Failure, found};
use crate::figures::add;
use crate::store::{Item, Store, View};

pub(super) async fn execute(
    cx: &Context<'_>,
    store: Store<'_>,
    command: &'static str,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    match command {
        "del" | "unlink" => {
            let mut deleted = 0;
            let keys = possible(&request[1..]);
            match all_of(store, &keys, |keys| store.table().asynch().delete_many(keys)).await? {
                Some(all) => deleted = all.into_iter().map(i64::from).sum(),
                None => {
                    for key in &keys {
                        deleted += i64::from(store.delete(key).await?);
                    }
                }
            }
            reply.integer(deleted);
        }
        "exists" | "touch" => {
            let mut found = 0;
            let keys = possible(&request[1..]);
            match all_of(store, &keys, |keys| store.table().asynch().contains_many(keys)).await? {
                // A key that is named twice counts twice.
                Some(all) => found = all.into_iter().map(i64::from).sum(),
                None => {
                    for key in &keys {
                        found += i64::from(store.contains(key).await?);
                    }
                }
            }
            if command == "touch" {
                add(&cx.figures().counters.touches, found as u64);
            }
            reply.integer(found);
        }
        "type" => {
            let kind = if store.contains(request[1]).await? { "string" } else { "none" };
            reply.simple(kind);
        }
        "copy" => copy(store, request, reply).await?,
        "rename" | "renamenx" => rename(store, command, request, reply).await?,
        "object" => object(store, request, reply).await?,
        other => unreachable!("{other} is a command on keys"),
    }
    Ok(())
}

/// Those of some keys that can be in a table. A batch with another one would fail, when it has done
/// something with a part of the others.
fn possible<'a>(keys: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let can_be = |key: &&[u8]| (1..=loch::limits::KEY_BYTES_MAX).contains(&key.len());
    keys.iter().copied().filter(can_be).collect()
}

/// Does something with some keys as one batch, unless they are those of a draft, or one
/// of them cannot be in the table.
async fn all_of<'a, F: Future<Output = loch::Result<Vec<bool>>>>(
    store: Store<'_>,
    keys: &'a [&'a [u8]],
    batch: impl FnOnce(&'a [&'a [u8]]) -> F,
) -> Result<Option<Vec<bool>>, Failure> {
    if store.is_draft() {
        return Ok(None);
    }
    Ok(found(batch(keys).await.map(Some))?)
}

/// Puts an item under a key, unless there is one that has to stay. Returns whether it did.
///
/// What is there is not read: the item has all the memory of its command.
async fn put_under(
    store: Store<'_>,
    key: &[u8],
    item: &Item,
    replaces: bool,
) -> Result<bool, Failure> {
    let expires = item.expires_at.into();
    if replaces {
        store.put(key, item.data(), item.traits, expires).await?;
        return Ok(true);
    }
    store.put_new(key, item.data().to_vec(), item.traits, expires).await
}

/// A copy of the source as it was when it was read, put in one step.
async fn copy(store: Store<'_>, request: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), Failure> {
    let (from, to) = (request[1], request[2]);
    let mut replaces = false;
    let mut options = request[3..].iter();
    while let Some(option) = options.next() {
        match *option {
            o if is(o, "replace") => replaces = true,
            o if is(o, "db") => match options.next() {
                Some(database) => match number(database)? {
                    0 => (),
                    _ => return Err("ERR DB index is out of range".into()),
                },
                None => return Err(SYNTAX.into()),
            },
            _ => return Err(SYNTAX.into()),
        }
    }
    if from == to {
        return Err("ERR source and destination objects are the same".into());
    }
    let copied = match store.get(from).await? {
        None => false,
        Some(item) => put_under(store, to, &item, replaces).await?,
    };
    reply.integer(copied.into());
    Ok(())
}

/// Not in one step: for a moment there are both keys. The source is deleted only if it is still as
/// it was when it was copied; otherwise it is copied again.
async fn rename(
    store: Store<'_>,
    command: &'static str,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let (from, to) = (request[1], request[2]);
    let mut replaces = command == "rename";
    let mut item = store.get(from).await?;
    let mut moved = from == to && replaces;
    if item.is_none() {
        return Err("ERR no such key".into());
    }
    while let Some(found) = item.filter(|_| from != to) {
        moved = put_under(store, to, &found, replaces).await?;
        if !moved || store.delete_version(from, found.version).await? {
            break;
        }
        // What was put under the other key by this command gives way to what it puts next. Whoever
        // waits for memory has none.
        replaces = true;
        drop(found);
        item = store.get(from).await?;
    }
    match command {
        "rename" => reply.ok(),
        _ => reply.integer(moved.into()),
    }
    Ok(())
}

async fn object(store: Store<'_>, request: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), Failure> {
    const HELP: [&str; 13] = [
        "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "ENCODING <key>",
        "    Return the kind of internal representation used in order to store the value",
        "    associated with a <key>.",
        "FREQ <key>",
        "    An error: access frequency is not tracked.",
        "IDLETIME <key>",
        "    Return the idle time of the <key>, that is the approximated number of",
        "    seconds elapsed since the last access to the key.",
        "REFCOUNT <key>",
        "    Return the number of references of the value associated with <key>: 1.",
        "HELP",
        "    Print this help.",
    ];
    if is(request[1], "help") {
        reply.array(HELP.len());
        HELP.iter().for_each(|line| reply.simple(line));
        return Ok(());
    }
    let asked = subcommand(request);
    let look = |item: Option<View<'_>>| item.map(|item| (encoding(item.data), item.version));
    let Some((encoding, version)) = store.read(request[2], look).await? else {
        reply.null();
        return Ok(());
    };
    match asked.as_str() {
        "encoding" => reply.bulk(encoding.as_bytes()),
        "freq" => {
            return Err(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. \
                        Please note that when switching between policies at runtime LRU and LFU \
                        data will take some time to adjust."
                    .into(),
            );
        }
        "idletime" => reply.integer(store.uses().of(version).idle_s.into()),
        _ => reply.integer(1),
    }
    Ok(())
}

/// As Redis would keep the string.
fn encoding(data: &[u8]) -> &'static str {
    match super::request::integer(data) {
        Some(_) => "int",
        None if data.len() <= 44 => "embstr",
        None => "raw",
    }
}
