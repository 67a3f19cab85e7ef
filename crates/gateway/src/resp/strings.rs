//! Strings.

use std::collections::HashSet;
use std::time::SystemTime;

use super::options::{SYNTAX, Unit, is, number};
use super::reply::Reply;
use super::transaction::TOO_LONG;
use crate::context::Context;
use crate::copies::Share;
use crate::failure::Failure;
use crate::figures::add;
use crate::gets::{Format, Found};
use crate::item::{self, Traits};
use crate::limits::{EXEC_BYTES_MAX, OUTPUT_BYTES};
use crate::store::{Change, Expires, Item, Store, View};

pub(super) async fn execute(
    cx: &Context<'_>,
    store: Store<'_>,
    command: &'static str,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let key = request[1];
    match command {
        "get" => get(cx, store, key, reply).await?,
        "set" => set(cx, store, request, reply).await?,
        "setnx" => {
            let options = SetOptions { only: Some(Only::Absent), ..SetOptions::default() };
            let done = put(store, key, request[2], options).await?.0;
            reply.integer(done.into());
        }
        "setex" | "psetex" => {
            let unit = Unit { is_seconds: command == "setex", is_from_now: true };
            let expires = unit.expiry(request[2], command)?;
            store.put(key, request[3], Traits::default(), expires).await?;
            reply.ok();
        }
        "getset" => {
            let before = put(store, key, request[2], SetOptions::returning()).await?.1;
            reply.value(before.as_ref().map(Item::data));
        }
        "getdel" => {
            let delete = |item: Option<&Item>| Ok((Change::Delete, item.cloned()));
            let item = store.update(key, delete).await?.0;
            count_hit(cx, item.is_some());
            reply.value(item.as_ref().map(Item::data));
        }
        "getex" => getex(cx, store, request, reply).await?,
        "mget" => mget(cx, store, &request[1..], reply).await?,
        "mset" => mset(store, request, reply).await?,
        "msetnx" => msetnx(store, request, reply).await?,
        "strlen" => {
            let len = store.read(key, |item| item.map_or(0, |item| item.data.len())).await?;
            reply.integer(len as i64);
        }
        "append" => {
            let append = |item: Option<&Item>| {
                let (at, part) = (item.map_or(0, |item| item.data().len()), request[2].to_vec());
                let len = at + part.len();
                Ok((Change::Patch { at, part }, len))
            };
            let appended = store.update_longer(key, request[2].len(), append).await?.0;
            reply.integer(appended as i64);
        }
        "getrange" | "substr" => {
            let (first, last) = (number(request[2])?, number(request[3])?);
            let part = |item: Option<View<'_>>| {
                let data = item.map_or(&[][..], |item| item.data);
                reply.bulk(range(data.len(), first, last).map_or(&[], |range| &data[range]));
            };
            store.read(key, part).await?;
        }
        "setrange" => set_range(cx, store, request, reply).await?,
        other => unreachable!("{other} is a command on strings"),
    }
    Ok(())
}

fn count_hit(cx: &Context<'_>, hits: bool) {
    let counters = &cx.figures().counters;
    add(if hits { &counters.hits } else { &counters.misses }, 1);
}

pub(super) async fn get(
    cx: &Context<'_>,
    store: Store<'_>,
    key: &[u8],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let get = |item: Option<View<'_>>| {
        count_hit(cx, item.is_some());
        reply.value(item.map(|item| item.data));
    };
    store.read(key, get).await
}

/// As a transaction executes it: all answers are held until its end.
async fn mget(
    cx: &Context<'_>,
    store: Store<'_>,
    keys: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    reply.array(keys.len());
    let (start, copies) = (reply.bytes.len(), &cx.shared.copies);
    let mut held = Share::of(&copies.held);
    for key in keys {
        let len = reply.bytes.len() - start;
        held.set(len);
        cx.pace().breathe().await;
        if len > EXEC_BYTES_MAX {
            return Err(TOO_LONG.into());
        }
        if len > OUTPUT_BYTES && !copies.may_hold() {
            return Err(Failure::Held);
        }
        get(cx, store, key, reply).await?;
    }
    Ok(())
}

/// The answers to GETs.
pub(super) struct Values {
    pub resp: u8,
}

impl Format for Values {
    fn head(&self, _: usize, found: Option<&Found>, output: &mut Vec<u8>) {
        let mut reply = Reply { bytes: output, resp: self.resp };
        match found {
            Some(found) => reply.bulk_head(found.len),
            None => reply.null(),
        }
    }

    fn tail(&self, _: usize, is_hit: bool) -> &'static [u8] {
        if is_hit { b"\r\n" } else { b"" }
    }
}

/// On what condition a SET is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Only {
    Absent,
    Present,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SetOptions {
    only: Option<Only>,
    returns: bool,
    keeps_ttl: bool,
    expires: Option<Expires>,
}

impl SetOptions {
    fn returning() -> Self {
        Self { returns: true, ..Self::default() }
    }
}

/// The options of a SET or a GETEX. As with Redis, an option may stand there twice.
#[derive(Debug, Default)]
struct Options<'a> {
    only: Option<Only>,
    returns: bool,
    keeps_ttl: bool,
    persists: bool,
    time: Option<(Unit, &'a [u8])>,
}

impl<'a> Options<'a> {
    fn parse(arguments: &[&'a [u8]], is_set: bool) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            let (only, time) = (options.only, options.time);
            match *option {
                o if is_set && is(o, "nx") && only != Some(Only::Present) => {
                    options.only = Some(Only::Absent);
                }
                o if is_set && is(o, "xx") && only != Some(Only::Absent) => {
                    options.only = Some(Only::Present);
                }
                o if is_set && is(o, "get") => options.returns = true,
                o if is_set && is(o, "keepttl") && time.is_none() => options.keeps_ttl = true,
                o if !is_set && is(o, "persist") && time.is_none() => options.persists = true,
                o => {
                    let is_free = !options.keeps_ttl && !options.persists;
                    let fits =
                        |unit: &Unit| is_free && time.is_none_or(|(other, _)| other == *unit);
                    options.time = Unit::of(o).filter(fits).zip(rest.next().copied());
                    if options.time.is_none() {
                        return Err(SYNTAX.into());
                    }
                }
            }
        }
        Ok(options)
    }

    /// The expiry that they ask for.
    fn expires(&self, command: &str) -> Result<Option<Expires>, Failure> {
        self.time.map(|(unit, time)| unit.expiry(time, command)).transpose()
    }
}

async fn set(
    cx: &Context<'_>,
    store: Store<'_>,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let given = Options::parse(&request[3..], true)?;
    let Options { only, returns, keeps_ttl, .. } = given;
    let options = SetOptions { only, returns, keeps_ttl, expires: given.expires("set")? };
    add(&cx.figures().counters.sets, 1);
    let (done, before) = put(store, request[1], request[2], options).await?;
    match (options.returns, done) {
        (true, _) => reply.value(before.as_ref().map(Item::data)),
        (false, true) => reply.ok(),
        (false, false) => reply.null(),
    }
    Ok(())
}

/// Returns whether it was done, and the item before if the options want it.
async fn put(
    store: Store<'_>,
    key: &[u8],
    value: &[u8],
    options: SetOptions,
) -> Result<(bool, Option<Item>), Failure> {
    let expires = options.expires.unwrap_or(Expires::Never);
    if options == (SetOptions { expires: options.expires, ..SetOptions::default() }) {
        store.put(key, value, Traits::default(), expires).await?;
        return Ok((true, None));
    }
    let put = |item: Option<&Item>| {
        let before = item.filter(|_| options.returns).cloned();
        let is_wanted = match options.only {
            None => true,
            Some(Only::Absent) => item.is_none(),
            Some(Only::Present) => item.is_some(),
        };
        if !is_wanted {
            return Ok((Change::Keep, (false, before)));
        }
        let kept = item.filter(|_| options.keeps_ttl).and_then(|item| item.expires_at);
        let expires = if options.keeps_ttl { kept.into() } else { expires };
        let change = Change::Put { data: value.to_vec(), traits: Traits::default(), expires };
        Ok((change, (true, before)))
    };
    Ok(store.update(key, put).await?.0)
}

async fn getex(
    cx: &Context<'_>,
    store: Store<'_>,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let options = Options::parse(&request[2..], false)?;
    if !options.persists && options.time.is_none() {
        return get(cx, store, request[1], reply).await;
    }
    let touch = |item: Option<&Item>| {
        // As with Redis, a time is looked at only if there is something that has one.
        let Some(item) = item else { return Ok((Change::Keep, None)) };
        let expires = options.expires("getex")?.unwrap_or(Expires::Never);
        let change = match (expires, item.expires_at) {
            (Expires::Never, None) => Change::Keep,
            (expires, _) => Change::Expire(expires),
        };
        Ok((change, Some(item.clone())))
    };
    let item = store.update(request[1], touch).await?.0;
    count_hit(cx, item.is_some());
    reply.value(item.as_ref().map(Item::data));
    Ok(())
}

/// A key and its value.
type Pair<'a> = (&'a [u8], &'a [u8]);

fn pairs<'a>(request: &[&'a [u8]]) -> Result<Vec<Pair<'a>>, Failure> {
    let command = String::from_utf8_lossy(request[0]).to_ascii_lowercase();
    let wrong = || format!("ERR wrong number of arguments for '{command}' command");
    let pairs = request[1..].chunks(2);
    let pairs = pairs.map(|pair| pair.get(1).map(|value| (pair[0], *value)));
    pairs.collect::<Option<_>>().ok_or_else(|| wrong().into())
}

/// Not in one step: another client may see some of the values and not yet the others.
async fn mset(store: Store<'_>, request: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), Failure> {
    let pairs = pairs(request)?;
    let is_plain = pairs.iter().all(|(_, value)| item::header(Traits::default(), value).is_none());
    if is_plain && !store.is_draft() {
        // Of pairs with the same key the last one counts, and a batch has no order.
        let mut seen = HashSet::new();
        let last = pairs.iter().rev().filter(|(key, _)| seen.insert(*key)).copied();
        let last: Vec<Pair<'_>> = last.collect();
        store.put_all(&last).await?;
    } else {
        for (key, value) in pairs {
            store.put(key, value, Traits::default(), Expires::Never).await?;
        }
    }
    reply.ok();
    Ok(())
}

async fn msetnx(store: Store<'_>, request: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), Failure> {
    let pairs = pairs(request)?;
    let (key, value) = pairs[pairs.len() - 1];
    if pairs.iter().any(|(other, _)| *other != key) {
        return Err(
            "ERR MSETNX of several keys cannot be done in one step by this gateway: use SET \
                    with NX for each of them"
                .into(),
        );
    }
    let options = SetOptions { only: Some(Only::Absent), ..SetOptions::default() };
    reply.integer(put(store, key, value, options).await?.0.into());
    Ok(())
}

/// The part of a value from one byte to another, both of which may be counted from the end.
pub(super) fn range(len: usize, first: i64, last: i64) -> Option<std::ops::Range<usize>> {
    let len = len as i64;
    if first < 0 && last < 0 && first > last {
        return None;
    }
    let place = |at: i64| if at < 0 { (len + at).max(0) } else { at };
    let (first, last) = (place(first), place(last).min(len - 1));
    (first <= last).then(|| first as usize..last as usize + 1)
}

async fn set_range(
    cx: &Context<'_>,
    store: Store<'_>,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let (offset, part) = (number(request[2])?, request[3]);
    let Ok(offset) = usize::try_from(offset) else {
        return Err("ERR offset is out of range".into());
    };
    let end = offset.saturating_add(part.len());
    if !part.is_empty() && end as u64 > cx.shared.value_bytes_max {
        return Err("ERR string exceeds maximum allowed size (proto-max-bulk-len)".into());
    }
    let set = |item: Option<&Item>| {
        let len = item.map_or(0, |item| item.data().len());
        if part.is_empty() {
            return Ok((Change::Keep, len));
        }
        Ok((Change::Patch { at: offset, part: part.to_vec() }, len.max(end)))
    };
    let longer = if part.is_empty() { 0 } else { end };
    reply.integer(store.update_longer(request[1], longer, set).await?.0 as i64);
    Ok(())
}

/// How long an item lives on, in milliseconds, rounded as Redis does.
pub(super) fn millis_left(at: SystemTime) -> i64 {
    let left = at.duration_since(SystemTime::now()).unwrap_or_default();
    left.as_millis() as i64
}

#[cfg(test)]
mod tests {
    use loch::lanes::block_on;

    use super::*;
    use crate::context::Shared;
    use crate::limits::HELD_BYTES_MAX;
    use crate::load::Load;

    /// Each client's list of keys had 64 MB of answers, which no other client saw.
    #[test]
    fn a_list_of_keys_in_a_transaction_is_answered_while_there_is_memory_for_it() {
        let shared = Shared::for_test();
        let table = shared.cluster.table("default").unwrap();
        let load = Load::new(&shared.work, &shared.copies);
        let cx = Context::new(&shared, Store::new(&table, &shared.uses, &load), 0);
        table.put(b"k", &[7; 30_000]).unwrap();
        let keys = vec![b"k".as_slice(); 100];
        let mut others = Share::of(&shared.copies.held);
        for (free, most) in [(HELD_BYTES_MAX, 100), (300_000, 11), (0, 3)] {
            others.set(HELD_BYTES_MAX - free);
            let mut bytes = Vec::new();
            let mut reply = Reply { bytes: &mut bytes, resp: 2 };
            let done = block_on(mget(&cx, cx.store, &keys, &mut reply));
            assert_eq!(done.is_ok(), free == HELD_BYTES_MAX);
            let answered = bytes.len() / 30_000;
            assert!((most - 1..=most).contains(&answered), "{answered} of {most}, {free} free");
        }
    }

    #[test]
    fn ranges_are_counted_from_both_ends_as_redis_does() {
        for (first, last, want) in [
            (0, 3, "This"),
            (-3, -1, "ing"),
            (0, -1, "This is a string"),
            (10, 100, "string"),
            (5, 3, ""),
            (-1, -3, ""),
            (16, 20, ""),
            (-100, 0, "T"),
            (i64::MIN, i64::MAX, "This is a string"),
        ] {
            let text = "This is a string";
            let part = range(text.len(), first, last).map_or("", |range| &text[range]);
            assert_eq!(part, want, "{first} {last}");
        }
        assert_eq!(range(0, 0, -1), None);
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let words = |text: &'static str| text.split(' ').map(str::as_bytes).collect::<Vec<_>>();
        let is_refused = |text, is_set| {
            Options::parse(&words(text), is_set).and_then(|given| given.expires("set")).is_err()
        };
        for text in ["nx xx", "ex 1 px 1", "ex", "keepttl ex 1", "ex 1 keepttl", "what", "persist"]
        {
            assert!(is_refused(text, true), "{text}");
        }
        for text in ["ex 0", "px x"] {
            assert!(is_refused(text, true) && is_refused(text, false), "{text}");
        }
        for text in ["nx", "persist ex 1", "ex 1 persist", "get", "keepttl", "ex 1 px 1"] {
            assert!(is_refused(text, false), "{text}");
        }
        let words = words("XX GET EX 10 xx EX 20");
        let options = Options::parse(&words, true).unwrap();
        assert_eq!((options.only, options.returns), (Some(Only::Present), true));
        assert_eq!(options.time.unwrap().1, b"20");
    }
}
