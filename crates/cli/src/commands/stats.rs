//! `loch stats`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table as Sheet};
use loch::{ClusterInfo, NodeInfo, TableInfo, TableProtocol, Usage};
use serde::Serialize;

use super::target::{Access, ClusterArgs};
use crate::outcome::Answer;
use crate::output;
use crate::size::rounded;

const EXAMPLES: &str = "\
Examples:
  loch stats
  loch stats --json | jq '.tables[].usage[] | {node, entries, entry_bytes}'

Entries are counted by looking at all of them: seconds for hundreds of millions.";

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
struct Stats {
    /// Name of the node that was asked.
    home: String,
    nodes: Vec<NodeStats>,
    tables: Vec<TableStats>,
}

#[derive(Debug, Serialize)]
struct NodeStats {
    name: String,
    socket: PathBuf,
    /// Whether its process runs; its memory can be used even if it does not.
    up: bool,
    region_bytes: u64,
    /// Identifies the memory. In hexadecimal: JSON's numbers are too short for it.
    identity: String,
    sessions: u32,
    sessions_taken: u32,
}

#[derive(Debug, Serialize)]
struct TableStats {
    name: String,
    engine: String,
    /// The protocol that its clients follow.
    protocol: TableProtocol,
    /// Workers of each node that serve it.
    workers: u16,
    value_bytes_max: u64,
    ways: u8,
    bucket_slots: u8,
    index_slots: u64,
    index_bytes: u64,
    data_bytes: u64,
    /// Entries in use, over all nodes.
    entries: u64,
    usage: Vec<NodeUsage>,
}

/// The use of one node's part of a table.
#[derive(Debug, Serialize)]
struct NodeUsage {
    node: String,
    index_bytes: u64,
    data_bytes: u64,
    slab_bytes: u64,
    entry_bytes: u64,
    entries: u64,
    leased_slabs: u64,
    abandoned_slabs: u64,
}

/// Runs `loch stats`.
pub fn run(args: &StatsArgs) -> Result<Answer> {
    let cluster = args.cluster.connect(Access::Read)?;
    let info = cluster.info();
    let mut tables = Vec::new();
    for table in &info.tables {
        let usage = cluster.table(&table.name).and_then(|t| t.usage());
        let usage = usage.with_context(|| format!("cannot look at table {:?}", table.name))?;
        tables.push(TableStats::new(table, &info.nodes, &usage));
    }
    let stats = Stats::new(&info, tables);
    if args.json {
        output::json(&stats)?;
    } else {
        output::line(&stats.in_words())?;
    }
    Ok(Answer::Done)
}

impl Stats {
    fn new(info: &ClusterInfo, tables: Vec<TableStats>) -> Self {
        let nodes: Vec<NodeStats> = info.nodes.iter().map(NodeStats::new).collect();
        let home = nodes.get(info.home).map(|node| node.name.clone());
        Self { home: home.unwrap_or_default(), nodes, tables }
    }

    fn in_words(&self) -> String {
        let mut nodes = sheet(&["NODE", "SOCKET", "PROCESS", "MEMORY", "SESSIONS"], 3);
        for node in &self.nodes {
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
            for usage in &table.usage {
                tables.add_row([
                    table.name.clone(),
                    usage.node.clone(),
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
        format!("{}\n\n{}\n\n{}", trimmed(&nodes), trimmed(&tables), declared.join("\n"))
    }
}

impl NodeStats {
    fn new(node: &NodeInfo) -> Self {
        Self {
            name: node.name.clone(),
            socket: node.socket.clone(),
            up: node.up,
            region_bytes: node.region_bytes,
            identity: format!("{:016x}", node.identity),
            sessions: node.sessions,
            sessions_taken: node.sessions_taken,
        }
    }
}

impl TableStats {
    fn new(table: &TableInfo, nodes: &[NodeInfo], usage: &[Usage]) -> Self {
        let of_node = |(node, usage): (&NodeInfo, &Usage)| NodeUsage {
            node: node.name.clone(),
            index_bytes: usage.index_bytes,
            data_bytes: usage.data_bytes,
            slab_bytes: usage.slab_bytes,
            entry_bytes: usage.entry_bytes,
            entries: usage.entries,
            leased_slabs: usage.leased_slabs,
            abandoned_slabs: usage.abandoned_slabs,
        };
        Self {
            name: table.name.clone(),
            engine: table.engine.clone(),
            protocol: table.protocol,
            workers: table.workers,
            value_bytes_max: table.value_bytes_max,
            ways: table.ways,
            bucket_slots: table.bucket_slots,
            index_slots: table.index_slots,
            index_bytes: table.index_bytes,
            data_bytes: table.data_bytes,
            entries: usage.iter().map(|usage| usage.entries).sum(),
            usage: nodes.iter().zip(usage).map(of_node).collect(),
        }
    }

    fn declaration(&self) -> String {
        let work = match self.workers {
            0 if self.protocol == TableProtocol::Published => " by the published protocol".into(),
            0 => String::new(),
            1 => " with 1 worker a node".into(),
            workers => format!(" with {workers} workers a node"),
        };
        let buckets = match self.ways {
            0 => String::new(),
            ways => format!(" ({ways} ways of {})", self.bucket_slots),
        };
        format!(
            "table {:?}: engine {}{work}, {} entries in {} slots{buckets}, values up to {}",
            self.name,
            self.engine,
            self.entries,
            self.index_slots,
            rounded(self.value_bytes_max)
        )
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
