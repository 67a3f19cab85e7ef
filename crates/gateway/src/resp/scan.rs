//! Commands over all keys.

use loch::ScanCursor;

use super::glob;
use super::options::{SYNTAX, is, number};
use super::reply::Reply;
use crate::context::Context;
use crate::failure::Failure;
use crate::store::Store;

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
            let mut found = Vec::new();
            each_page(store, glob::literal_prefix(request[1]), |keys| {
                found.extend(keys.into_iter().filter(|key| glob::matches(request[1], key)));
            })
            .await?;
            // A scan may bring a key more than once.
            found.sort_unstable();
            found.dedup();
            reply.array(found.len());
            found.iter().for_each(|key| reply.bulk(key));
        }
        "randomkey" => random_key(cx, store, reply).await?,
        "dbsize" => {
            let mut count = 0;
            each_page(store, b"", |keys| count += keys.len() as i64).await?;
            reply.integer(count);
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

/// Brings all keys with a prefix, page by page.
async fn each_page(
    store: Store<'_>,
    prefix: &[u8],
    mut page_of: impl FnMut(Vec<Vec<u8>>),
) -> Result<(), Failure> {
    let mut cursor = Some(ScanCursor::default());
    while let Some(from) = cursor {
        let page = store.table().asynch().scan_page(&from, prefix).await?;
        page_of(page.keys.into_iter().map(|found| found.key).collect());
        cursor = page.next;
    }
    Ok(())
}

async fn scan(
    cx: &Context<'_>,
    store: Store<'_>,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let cursor = std::str::from_utf8(request[1]).ok().and_then(|text| text.parse::<u64>().ok());
    let cursor = cursor.ok_or("ERR invalid cursor")?;
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
        let keys = page.keys.into_iter().map(|found| found.key);
        found.extend(keys.filter(|key| is_wanted && glob::matches(pattern, key)));
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
