//! Commands over all keys.

use std::collections::BTreeSet;

use loch::ScanCursor;

use super::glob::{self, Pattern};
use super::options::{SYNTAX, is, number};
use super::reply::Reply;
use crate::context::Context;
use crate::failure::Failure;
use crate::limits::{KEYS_BYTES_MAX, KEYS_FREE_BYTES, WORK_BYTES_MAX};
use crate::looks::Seen;
use crate::store::Store;

/// What a key that was found takes besides its bytes.
const KEY_OVERHEAD: usize = 64;
/// Keys of a page, unless the client says how many.
const COUNT: usize = 10;
/// A call looks at no more pages of the table than these, of which most may be without keys.
const PAGES_MAX: usize = 256;

pub(super) async fn execute(
    cx: &Context<'_>,
    store: Store<'_>,
    command: &'static str,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    match command {
        "scan" => scan(cx, store, request, reply).await?,
        "keys" => {
            let pattern = Pattern::parse(request[1])?;
            // A scan may bring a key more than once.
            let (mut found, mut bytes, mut alone) = (BTreeSet::new(), 0, None);
            let mut pages = Pages::of(store, glob::literal_prefix(request[1]));
            while let Some(keys) = pages.next().await? {
                for key in keys {
                    if !pattern.matches(&key, cx.pace()).await {
                        continue;
                    }
                    bytes += key.len() + KEY_OVERHEAD;
                    if bytes > KEYS_BYTES_MAX {
                        return Err("ERR KEYS has found too many keys: use SCAN".into());
                    }
                    if bytes > KEYS_FREE_BYTES && alone.is_none() {
                        alone = Some(cx.shared.lists.take(WORK_BYTES_MAX).await);
                    }
                    found.insert(key);
                }
            }
            reply.array(found.len());
            for key in found {
                cx.pace().breathe().await;
                reply.bulk(&key);
            }
        }
        "randomkey" => random_key(cx, store, reply).await?,
        "dbsize" => {
            let keys: Seen<u64> = cx.look().await?;
            reply.integer(keys.what.cast_signed());
        }
        "flushdb" | "flushall" => {
            match &request[1..] {
                [] => (),
                [how] if is(how, "sync") || is(how, "async") => (),
                _ => return Err(SYNTAX.into()),
            }
            store.flush().await?;
            reply.ok();
        }
        other => unreachable!("{other} is a command over all keys"),
    }
    Ok(())
}

/// All keys with a prefix, page by page.
struct Pages<'a> {
    store: Store<'a>,
    prefix: &'a [u8],
    cursor: Option<ScanCursor>,
}

impl<'a> Pages<'a> {
    fn of(store: Store<'a>, prefix: &'a [u8]) -> Self {
        Self { store, prefix, cursor: Some(ScanCursor::default()) }
    }

    /// The keys of the next page, of which there may be none.
    async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        let Some(from) = self.cursor.take() else { return Ok(None) };
        self.store.load().pace.breathe().await;
        let page = self.store.table().asynch().scan_page(&from, self.prefix).await?;
        self.cursor = page.next;
        Ok(Some(page.keys.into_iter().map(|found| found.key).collect()))
    }
}

async fn scan(
    cx: &Context<'_>,
    store: Store<'_>,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let cursor = std::str::from_utf8(request[1]).ok();
    // As with Redis, no digits are a zero.
    let cursor = cursor.and_then(|text| if text.is_empty() { Some(0) } else { text.parse().ok() });
    let cursor: u64 = cursor.ok_or("ERR invalid cursor")?;
    let (mut pattern, mut count, mut is_wanted) = (&b"*"[..], COUNT, true);
    let mut options = request[2..].iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or(SYNTAX)?;
        match *option {
            o if is(o, "match") => pattern = value,
            o if is(o, "count") => match number(value)? {
                asked @ 1.. => count = asked as usize,
                _ => return Err(SYNTAX.into()),
            },
            // All keys are strings.
            o if is(o, "type") => is_wanted = is(value, "string"),
            _ => return Err(SYNTAX.into()),
        }
    }
    let parsed = Pattern::parse(pattern)?;
    let mut next = match cursor {
        0 => Some(ScanCursor::default()),
        number => Some(cx.shared.cursors.cursor(number).ok_or(
            "ERR invalid cursor: this gateway has not given it, or has given 4096 others since; begin \
             with 0",
        )?),
    };
    let (mut found, mut looked, mut pages) = (Vec::new(), 0, 0);
    while let Some(from) = &next
        && looked < count
        && pages < PAGES_MAX
    {
        let page = store.table().asynch().scan_page(from, glob::literal_prefix(pattern)).await?;
        looked += page.keys.len();
        pages += 1;
        for key in page.keys.into_iter().map(|found| found.key) {
            if is_wanted && parsed.matches(&key, cx.pace()).await {
                found.push(key);
            }
        }
        next = page.next;
    }
    let next = next.map_or(0, |cursor| cx.shared.cursors.number(cursor));
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.array(found.len());
    found.iter().for_each(|key| reply.bulk(key));
    Ok(())
}

/// Any key of the next page that has some: the pages of all keys, round and round.
async fn random_key(
    cx: &Context<'_>,
    store: Store<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let (mut cursor, mut rounds) = (cx.random.take(), 0);
    while rounds < 2 {
        cx.pace().breathe().await;
        let page = store.table().asynch().scan_page(&cursor, b"").await?;
        rounds += usize::from(page.next.is_none());
        cursor = page.next.unwrap_or_default();
        if !page.keys.is_empty() {
            let any = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let any = any.unwrap_or_default().subsec_nanos() as usize;
            reply.bulk(&page.keys[any % page.keys.len()].key);
            cx.random.replace(cursor);
            return Ok(());
        }
    }
    reply.null();
    Ok(())
}
