//! INFO.

use std::time::{SystemTime, UNIX_EPOCH};

use loch::Usage;

use crate::context::{Context, forgotten};
use crate::failure::Failure;
use crate::looks::Seen;

/// The version whose commands clients may expect.
pub(super) const VERSION: &str = "7.2.0";

/// The sections in the order in which they are shown, and whether they are if none is asked for.
const SECTIONS: [(&str, bool); 8] = [
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("commandstats", false),
    ("latencystats", false),
];

/// The sections that show a look at the table.
const OF_THE_TABLE: [&str; 3] = ["memory", "stats", "keyspace"];

/// The text of these sections.
pub(super) async fn text(cx: &Context<'_>, asked: &[&[u8]]) -> Result<String, Failure> {
    let asked: Vec<String> =
        asked.iter().map(|name| String::from_utf8_lossy(name).to_ascii_lowercase()).collect();
    let is = |name: &str| asked.iter().any(|asked| asked == name);
    let (all, usual) = (is("all") || is("everything"), asked.is_empty() || is("default"));
    let mut text = String::new();
    let shows = |name: &str, is_usual: bool| all || is(name) || usual && is_usual;
    // All sections show the same look.
    let seen = match OF_THE_TABLE.iter().any(|name| shows(name, true)) {
        true => Some(cx.look().await?),
        false => None,
    };
    for (name, is_usual) in SECTIONS {
        if !shows(name, is_usual) {
            continue;
        }
        if !text.is_empty() {
            text += "\r\n";
        }
        let mut title = name.to_owned();
        title[..1].make_ascii_uppercase();
        text += &format!("# {title}\r\n");
        for (field, value) in fields(cx, name, seen.as_ref()) {
            text += &format!("{field}:{value}\r\n");
        }
    }
    if let Some(seen) = seen.filter(|_| shows("keyspace", true)) {
        text += &keyspace(&seen, text.is_empty());
    }
    Ok(text)
}

/// About as many keys as there are: entries that are about to be put or to be free count too.
fn keyspace(seen: &Seen<Vec<Usage>>, is_first: bool) -> String {
    let mut text = String::from(if is_first { "# Keyspace\r\n" } else { "\r\n# Keyspace\r\n" });
    let entries: u64 = seen.what.iter().map(|node| node.entries).sum();
    if entries > 0 {
        text += &format!("db0:keys={entries},expires=0,avg_ttl=0\r\n");
    }
    text
}

type Fields = Vec<(String, String)>;

/// The fields of a section. There is a look at the table if one is shown that needs it.
fn fields(cx: &Context<'_>, section: &str, seen: Option<&Seen<Vec<Usage>>>) -> Fields {
    let field = |name: &str, value: &dyn ToString| (name.to_owned(), value.to_string());
    let of_table = |of: fn(&Context<'_>, &Seen<Vec<Usage>>) -> Fields| {
        seen.map(|seen| of(cx, seen)).unwrap_or_default()
    };
    match section {
        "server" => server(cx),
        "clients" => vec![
            field("connected_clients", &cx.shared.clients.count()),
            field("maxclients", &cx.shared.clients.most),
            field("blocked_clients", &0),
        ],
        "memory" => of_table(memory),
        "persistence" => vec![field("loading", &0), field("rdb_bgsave_in_progress", &0)],
        "stats" => of_table(stats),
        "replication" => vec![
            field("role", &"master"),
            field("connected_slaves", &0),
            field("master_failover_state", &"no-failover"),
        ],
        "commandstats" => cx
            .shared
            .calls()
            .iter()
            .map(|(name, calls)| {
                let usec = calls.total_ns / 1000;
                let each = calls.total_ns as f64 / 1000.0 / calls.count.max(1) as f64;
                let text = format!("calls={},usec={usec},usec_per_call={each:.2}", calls.count);
                (format!("cmdstat_{name}"), text)
            })
            .collect(),
        _ => cx
            .shared
            .calls()
            .iter()
            .map(|(name, calls)| {
                let at = |part| calls.times_ns.value_at_quantile(part) as f64 / 1000.0;
                let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
                let text = format!("p50={p50:.3},p99={p99:.3},p99.9={p999:.3}");
                (format!("latency_percentiles_usec_{name}"), text)
            })
            .collect(),
    }
}

fn server(cx: &Context<'_>) -> Fields {
    let field = |name: &str, value: &dyn ToString| (name.to_owned(), value.to_string());
    let uptime = cx.shared.started.elapsed().as_secs();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let port = cx.shared.listeners.iter().find_map(|(listener, _)| match listener.address() {
        crate::Address::Tcp(address) => Some(address.port()),
        crate::Address::Unix(_) => None,
    });
    vec![
        field("redis_version", &VERSION),
        field("redis_mode", &"standalone"),
        field("loch_version", &env!("CARGO_PKG_VERSION")),
        field("loch_table", &cx.shared.table),
        field("os", &std::env::consts::OS),
        field("arch_bits", &usize::BITS),
        field("process_id", &std::process::id()),
        field("tcp_port", &port.unwrap_or(0)),
        field("server_time_usec", &now.as_micros()),
        field("uptime_in_seconds", &uptime),
        field("uptime_in_days", &(uptime / 86_400)),
        field("io_threads_active", &cx.shared.threads.len()),
        field("cluster_enabled", &0),
    ]
}

fn stats(cx: &Context<'_>, seen: &Seen<Vec<Usage>>) -> Fields {
    let field = |name: &str, value: &dyn ToString| (name.to_owned(), value.to_string());
    let (evicted, expired) = forgotten(&seen.what);
    vec![
        field("total_connections_received", &cx.shared.sum(|c| &c.connections)),
        field("total_commands_processed", &cx.shared.sum(|c| &c.commands)),
        field("total_net_input_bytes", &cx.shared.sum(|c| &c.bytes_in)),
        field("total_net_output_bytes", &cx.shared.sum(|c| &c.bytes_out)),
        field("rejected_connections", &cx.shared.sum(|c| &c.rejected)),
        field("expired_keys", &expired),
        field("evicted_keys", &evicted),
        field("keyspace_hits", &cx.shared.sum(|c| &c.hits)),
        field("keyspace_misses", &cx.shared.sum(|c| &c.misses)),
        field("total_error_replies", &cx.shared.sum(|c| &c.errors)),
        field("acl_access_denied_auth", &cx.shared.sum(|c| &c.wrong_passwords)),
    ]
}

fn memory(cx: &Context<'_>, seen: &Seen<Vec<Usage>>) -> Fields {
    let field = |name: &str, value: &dyn ToString| (name.to_owned(), value.to_string());
    let nodes = || seen.what.iter();
    let used: u64 = nodes().map(|node| node.index_bytes + node.entry_bytes).sum();
    let all: u64 = nodes().map(|node| node.index_bytes + node.data_bytes).sum();
    vec![
        field("used_memory", &used),
        field("maxmemory", &all),
        field("maxmemory_policy", &cx.policy()),
        field("loch_usage_age_ms", &seen.at.elapsed().as_millis()),
    ]
}
