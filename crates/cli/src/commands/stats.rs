//! `loch stats`.

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table as Sheet};
use loch::limits::GRAIN_BYTES;
use loch::{FabricKind, ForgottenOf, NodeInfo, TableInfo, TableProtocol, Usage};
use serde::Serialize;

use super::target::{Access, ClusterArgs};
use crate::outcome::Answer;
use crate::output;
use crate::size::rounded;

const EXAMPLES: &str = "\
Examples:
  loch stats
  loch stats --json | jq '.tables[].usage[] | {node, entries, entry_bytes}'

Entries are counted by looking at all of them: seconds for hundreds of millions.

The columns of a table's part of a node: IN USE, the bytes of its entries; IN SLABS, of the slabs
that hold them; OF DATA, of all memory for values; INDEX, of its index. LEASED slabs belong to
clients; clients that died have LEFT slabs, which others take over.";

/// Show the cluster: its nodes, its tables, and how their memory is used
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatsArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The state of the cluster, as printed in JSON.
#[derive(Debug, Serialize)]
struct Stats<'a> {
    /// Name of the node that was asked.
    home: &'a str,
    /// The fabric that joins the nodes, and why it is that one.
    fabric: FabricKind,
    fabric_reason: &'a str,
    nodes: &'a [NodeInfo],
    tables: Vec<TableStats<'a>>,
}

#[derive(Debug, Serialize)]
struct TableStats<'a> {
    #[serde(flatten)]
    info: &'a TableInfo,
    /// Entries in use, over all nodes; `None` if a node could not be asked.
    entries: Option<u64>,
    /// Values that were evicted, and that had expired and were removed, over all nodes; `None` if
    /// there may be some that the table does not count.
    evicted: Option<u64>,
    expired: Option<u64>,
    usage: Vec<NodeUsage<'a>>,
}

/// The use of one node's part of a table.
#[derive(Debug, Serialize)]
struct NodeUsage<'a> {
    node: &'a str,
    #[serde(flatten)]
    usage: Usage,
}

/// Runs `loch stats`.
pub fn run(args: &StatsArgs) -> Result<Answer> {
    let cluster = args.cluster.connect(Access::Read)?;
    let mut info = cluster.info();
    let (mut usages, mut failure) = (Vec::new(), None);
    for table in &info.tables {
        // A node that is away stands in the way of most tables.
        let usage = failure.is_none().then(|| cluster.table(&table.name).and_then(|t| t.usage()));
        usages.push(usage.transpose().unwrap_or_else(|error| {
            failure = Some((table.name.clone(), error));
            None
        }));
    }
    if failure.is_some() {
        // By now it is known which node is away.
        info = cluster.info();
    }
    let tables = info.tables.iter().zip(usages);
    let tables = tables.map(|(table, usage)| TableStats::new(table, &info.nodes, usage)).collect();
    let home = info.nodes.get(info.home).map_or("", |node| &node.name);
    let (fabric, fabric_reason) = (info.fabric, &*info.fabric_reason);
    let stats = Stats { home, fabric, fabric_reason, nodes: &info.nodes, tables };
    if args.json {
        output::json(&stats)?;
    } else {
        output::line(&stats.in_words())?;
    }
    match failure {
        None => Ok(Answer::Done),
        Some((table, error)) => {
            Err(error).with_context(|| format!("cannot look at table {table:?}"))
        }
    }
}

impl Stats<'_> {
    fn in_words(&self) -> String {
        let mut nodes = sheet(&["NODE", "SOCKET", "PROCESS", "MEMORY", "SESSIONS"], 3);
        for node in self.nodes {
            nodes.add_row([
                node.name.clone(),
                node.socket.display().to_string(),
                if node.up { "up" } else { "down" }.into(),
                rounded(node.region_bytes),
                format!("{} of {}", node.sessions_taken, node.sessions),
            ]);
        }
        let mut tables = sheet(
            &[
                "TABLE", "NODE", "ENTRIES", "IN USE", "IN SLABS", "OF DATA", "INDEX", "LEASED",
                "LEFT",
            ],
            2,
        );
        for table in &self.tables {
            for NodeUsage { node, usage } in &table.usage {
                tables.add_row([
                    table.info.name.clone(),
                    (*node).to_owned(),
                    usage.entries.to_string(),
                    rounded(usage.entry_bytes),
                    rounded(usage.slab_bytes),
                    rounded(usage.data_bytes),
                    rounded(usage.index_bytes),
                    usage.leased_slabs.to_string(),
                    usage.abandoned_slabs.to_string(),
                ]);
            }
        }
        let declared: Vec<String> = self.tables.iter().map(TableStats::declaration).collect();
        let mut lines = declared;
        lines.push(format!("fabric {}: {}", self.fabric.name(), self.fabric_reason));
        lines.extend(self.nodes.iter().filter_map(deleted_region));
        format!("{}\n\n{}\n\n{}", trimmed(&nodes), trimmed(&tables), lines.join("\n"))
    }
}

/// A line about the region file of a node, if it was deleted.
pub(super) fn deleted_region(node: &NodeInfo) -> Option<String> {
    node.region_deleted.then(|| {
        format!(
            "the region file of node {:?} was deleted: the data ends with the node and its clients; \
             copy what is needed elsewhere before the node ends (docs/operations.md: A node that \
             lost its memory)",
            node.name
        )
    })
}

impl<'a> TableStats<'a> {
    /// Without `usage`, nothing is known but what was declared.
    fn new(info: &'a TableInfo, nodes: &'a [NodeInfo], usage: Option<Vec<Usage>>) -> Self {
        let is_known = usage.is_some();
        let usage = usage.unwrap_or_default();
        let entries = is_known.then(|| usage.iter().map(|usage| usage.entries).sum());
        let of_node = |(node, usage): (&'a NodeInfo, Usage)| NodeUsage { node: &node.name, usage };
        let is_counted = usage.iter().any(|usage| usage.forgotten.is_some());
        let sum = |count: fn(&ForgottenOf) -> u64| {
            let forgotten = usage.iter().filter_map(|usage| usage.forgotten.as_ref()).flatten();
            forgotten.map(count).sum()
        };
        Self {
            info,
            entries,
            evicted: (is_counted || is_known && !info.evicts).then(|| sum(|of| of.evicted)),
            expired: is_counted.then(|| sum(|of| of.expired)),
            usage: nodes.iter().zip(usage).map(of_node).collect(),
        }
    }

    fn declaration(&self) -> String {
        let info = self.info;
        let cache = if info.evicts { ", a cache" } else { "" };
        let work = match info.workers {
            0 if info.protocol == TableProtocol::Published => " by the published protocol".into(),
            0 => String::new(),
            1 => " with 1 worker a node".into(),
            workers => format!(" with {workers} workers a node"),
        };
        let buckets = match info.ways {
            0 => String::new(),
            ways => format!(" ({ways} ways of {})", info.bucket_slots),
        };
        let grain = match info.grain_bytes {
            0..=GRAIN_BYTES => String::new(),
            bytes => format!(
                ", entries in units of {bytes} bytes (half of one is lost in an entry on average)"
            ),
        };
        format!(
            "table {:?}: engine {}{work}{cache}, {}{} slots{buckets}, values up to {}{grain}{}",
            info.name,
            info.engine,
            self.entries.map_or_else(String::new, |entries| format!("{entries} entries in ")),
            self.index_slots(),
            rounded(info.value_bytes_max),
            self.forgotten()
        )
    }

    /// The slots of the index, with those that it has got since it was made.
    fn index_slots(&self) -> u64 {
        if self.entries.is_none() {
            return self.info.index_slots;
        }
        let now: u64 = self.usage.iter().map(|of_node| of_node.usage.index_bytes).sum();
        let slots = u128::from(self.info.index_slots) * u128::from(now);
        (slots / u128::from(self.info.index_bytes.max(1))) as u64
    }

    /// The values that were evicted or have expired, if the table has some or evicts.
    fn forgotten(&self) -> String {
        let (Some(evicted), Some(expired)) = (self.evicted, self.expired) else {
            return String::new();
        };
        if !self.info.evicts && expired == 0 {
            return String::new();
        }
        format!("; values evicted: {evicted}, expired and removed: {expired}")
    }
}

/// A table for people; the columns from `numbers_from` on are numbers.
fn sheet(columns: &[&str], numbers_from: usize) -> Sheet {
    let mut sheet = Sheet::new();
    sheet.load_style(NOTHING).set_header(columns);
    for column in sheet.column_iter_mut().skip(numbers_from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    sheet
}

/// The sheet without the blanks that fill up its lines.
fn trimmed(sheet: &Sheet) -> String {
    let text = sheet.to_string();
    let lines = text.lines().map(|line| line.trim_end());
    lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_the_unit_of_its_entries_if_that_is_not_the_usual_one() {
        let declaration = |grain_bytes| {
            let info = TableInfo {
                name: "large".into(),
                engine: "nessie".into(),
                protocol: TableProtocol::Loch,
                workers: 0,
                value_bytes_max: 64 << 20,
                ways: 3,
                bucket_slots: 4,
                index_slots: 1000,
                index_bytes: 8000,
                data_bytes: 8 << 40,
                grain_bytes,
                evicts: false,
            };
            TableStats::new(&info, &[], Some(Vec::new())).declaration()
        };
        for usual in [0, GRAIN_BYTES] {
            assert!(!declaration(usual).contains("units"), "{}", declaration(usual));
        }
        let coarse = declaration(128);
        assert!(
            coarse.contains(", entries in units of 128 bytes (half of one is lost"),
            "{coarse}"
        );
    }
}
