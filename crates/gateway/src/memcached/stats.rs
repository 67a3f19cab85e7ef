//! `stats`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{VERSION, line};
use loch::Usage;

use crate::context::{Context, forgotten};
use crate::failure::Failure;
use crate::looks::Seen;

type Lines = Vec<(String, String)>;

pub(super) async fn execute(
    cx: &Context<'_>,
    words: &[&[u8]],
    output: &mut Vec<u8>,
) -> Result<(), Failure> {
    let lines = match words.get(1).copied() {
        None => general(cx).await?,
        Some(b"settings") => settings(cx),
        Some(b"items") => items(cx).await?,
        Some(b"slabs") => slabs(cx).await?,
        Some(b"sizes") => vec![pair("sizes_status", &"disabled")],
        Some(b"latency") => latency(cx),
        Some(b"reset") => {
            cx.shared.threads.iter().for_each(|thread| thread.figures.reset());
            line(output, "RESET");
            return Ok(());
        }
        Some(_) => return Err("ERROR".into()),
    };
    for (name, value) in lines {
        line(output, &format!("STAT {name} {value}"));
    }
    line(output, "END");
    Ok(())
}

fn pair(name: &str, value: &dyn ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

async fn usage(cx: &Context<'_>) -> Result<Arc<Vec<Usage>>, Failure> {
    let seen: Seen<Vec<Usage>> = cx.look().await?;
    Ok(seen.what)
}

async fn general(cx: &Context<'_>) -> Result<Lines, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let usage = usage(cx).await?;
    let used: u64 = usage.iter().map(|node| node.index_bytes + node.entry_bytes).sum();
    let limit: u64 = usage.iter().map(|node| node.index_bytes + node.data_bytes).sum();
    let entries: u64 = usage.iter().map(|node| node.entries).sum();
    let (evicted, expired) = forgotten(&usage);
    let (hits, misses) = (cx.shared.sum(|c| &c.hits), cx.shared.sum(|c| &c.misses));
    Ok(vec![
        pair("pid", &std::process::id()),
        pair("uptime", &cx.shared.started.elapsed().as_secs()),
        pair("time", &now.as_secs()),
        pair("version", &VERSION),
        pair("loch_version", &env!("CARGO_PKG_VERSION")),
        pair("pointer_size", &usize::BITS),
        pair("max_connections", &cx.shared.clients.most),
        pair("curr_connections", &cx.shared.clients.count()),
        pair("total_connections", &cx.shared.sum(|c| &c.connections)),
        pair("rejected_connections", &cx.shared.sum(|c| &c.rejected)),
        pair("cmd_get", &(hits + misses)),
        pair("cmd_set", &cx.shared.sum(|c| &c.sets)),
        pair("cmd_touch", &cx.shared.sum(|c| &c.touches)),
        pair("get_hits", &hits),
        pair("get_misses", &misses),
        pair("bytes_read", &cx.shared.sum(|c| &c.bytes_in)),
        pair("bytes_written", &cx.shared.sum(|c| &c.bytes_out)),
        pair("limit_maxbytes", &limit),
        pair("threads", &cx.shared.threads.len()),
        pair("bytes", &used),
        pair("curr_items", &entries),
        pair("evictions", &evicted),
        pair("reclaimed", &expired),
    ])
}

fn settings(cx: &Context<'_>) -> Lines {
    let evicts = if cx.shared.evicts { "on" } else { "off" };
    let auth = if cx.shared.password.is_some() { "yes" } else { "no" };
    vec![
        pair("maxbytes", &cx.shared.table_bytes),
        pair("maxconns", &cx.shared.clients.most),
        pair("evictions", &evicts),
        pair("num_threads", &cx.shared.threads.len()),
        pair("item_size_max", &cx.shared.value_bytes_max),
        pair("cas_enabled", &"yes"),
        pair("auth_enabled_ascii", &auth),
        pair("flush_enabled", &"yes"),
    ]
}

/// What the table forgot, by the sizes of its entries.
async fn items(cx: &Context<'_>) -> Result<Lines, Failure> {
    let usage = usage(cx).await?;
    let mut sizes = std::collections::BTreeMap::<u64, (u64, u64)>::new();
    for class in usage.iter().flat_map(|node| node.forgotten.iter().flatten()) {
        let (evicted, expired) = sizes.entry(class.entry_bytes).or_default();
        *evicted += class.evicted;
        *expired += class.expired;
    }
    let mut lines = Lines::new();
    for (number, (bytes, (evicted, expired))) in sizes.into_iter().enumerate() {
        let name = |what: &str| format!("items:{}:{what}", number + 1);
        lines.push((name("chunk_size"), bytes.to_string()));
        lines.push((name("evicted"), evicted.to_string()));
        lines.push((name("reclaimed"), expired.to_string()));
    }
    Ok(lines)
}

async fn slabs(cx: &Context<'_>) -> Result<Lines, Failure> {
    let usage = usage(cx).await?;
    let slabs: u64 = usage.iter().map(|node| node.leased_slabs + node.abandoned_slabs).sum();
    let bytes: u64 = usage.iter().map(|node| node.slab_bytes).sum();
    Ok(vec![pair("active_slabs", &slabs), pair("total_malloced", &bytes)])
}

/// How long commands took, which memcached does not say.
fn latency(cx: &Context<'_>) -> Lines {
    let mut lines = Lines::new();
    for (name, calls) in cx.shared.calls() {
        let at = |part| calls.times_ns.value_at_quantile(part) as f64 / 1000.0;
        lines.push((format!("{name}:calls"), calls.count.to_string()));
        lines.push((format!("{name}:p50_us"), format!("{:.1}", at(0.5))));
        lines.push((format!("{name}:p99_us"), format!("{:.1}", at(0.99))));
    }
    lines
}
