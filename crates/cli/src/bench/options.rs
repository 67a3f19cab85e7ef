//! Options of a part of the runs: the switches of the table that Loch's engines are measured on, the
//! workers that serve it, and which running cluster to measure instead of one of the bench's own.
//!
//! Each switch is one of the optimisations of nessie §4.3.2, so that what it brings
//! can be measured (Figure 13 there), or part of the index's shape. The
//! defaults are those of a table that nobody has tuned.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use loch::CacheLimits;
use loch::limits::BATCH_DEFAULT;
use loch_engines::limits::{NODES_MAX, WINDOW_MAX, WORKERS_MAX};
use serde::{Deserialize, Serialize};

use super::error::BenchError;
use super::size::parse_size;
use super::spec::Spec;
use super::system::{Engine, Fabric};

/// The table's switches. Peers have none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Loch's table")]
pub struct TableOptions {
    /// Index entries carry seven bits of the key's hash, so that other keys' entries are not read
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub filter_bits: Switch,
    /// Clients remember index words and remote entries; auto: where a round trip is dear, which
    /// over shm it is not
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "auto")]
    #[arg(hide_short_help = true)]
    pub cache: AutoSwitch,
    /// Lines of a client's cache
    #[arg(long, value_name = "N", default_value_t = CacheLimits::default().lines as u64)]
    #[arg(hide_short_help = true, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub cache_lines: u64,
    /// Entries up to this length are cached whole, of longer ones only where they are
    #[arg(long, value_name = "SIZE", default_value_t = CacheLimits::default().entry_bytes_max as u64)]
    #[arg(hide_short_help = true, value_parser = parse_size)]
    pub cache_entry_max: u64,
    /// Of entries above 4 KiB, header and key are read first
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub multi_read: Switch,
    /// A GET that meets an undecided PUT takes the previous version instead of waiting: a switch of
    /// --engine nessie-published; Loch's own PUTs are never undecided
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub previous_versions: Switch,
    /// A GET reads all of a key's slots in its first doorbell; auto: where a round trip is dear. With
    /// --fabric sim or verbs it always does
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "auto")]
    #[arg(hide_short_help = true)]
    pub batched_reads: AutoSwitch,
    /// Entries carry checksums, as they have to where a second look at an entry is dear: with
    /// --fabric sim they always do
    #[arg(long, value_enum, value_name = "SWITCH", default_value = "off")]
    #[arg(hide_short_help = true)]
    pub checksums: Switch,
    /// Hash functions of the index, 2 to 4
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(hide_short_help = true, value_parser = clap::value_parser!(u8).range(2..=4))]
    pub ways: u8,
    /// Slots that each hash function gives a key: 1 (the paper's index), 2 or 4
    #[arg(long, value_name = "N", default_value = "4")]
    #[arg(hide_short_help = true, value_parser = bucket_slots)]
    pub bucket_slots: u8,
    /// Share of the index's slots that the records fill
    #[arg(long, value_name = "PERCENT", default_value_t = 75)]
    #[arg(hide_short_help = true, value_parser = clap::value_parser!(u8).range(1..=95))]
    pub index_fill: u8,
}

/// What keys of the bench begin with in a table that others use too.
pub const KEY_PREFIX: &[u8; 8] = b"~bench~:";

/// A cluster that runs already. Its nodes, and its table's switches, are what they are.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "A cluster that runs already")]
pub struct AttachOptions {
    /// Measure the cluster of the node at this socket, with clients on this host: no node is
    /// started or stopped. Say the cluster's --fabric, too
    #[arg(long, value_name = "SOCKET")]
    #[arg(conflicts_with_all = [
        "nodes", "peer", "profile", "filter_bits", "cache", "multi_read", "previous_versions",
        "batched_reads", "checksums", "ways", "bucket_slots", "index_fill",
    ])]
    pub attach: Option<PathBuf>,
    /// Table of that cluster [default: default]
    #[arg(long = "table", value_name = "NAME", requires = "attach")]
    pub attached_table: Option<String>,
    /// Whether the records are stored first, under keys that begin with "~bench~:". They stay, so
    /// that another run of the same records need not [default: yes]
    #[arg(long, value_enum, value_name = "YES|NO", requires = "attach")]
    pub load: Option<Load>,
}

/// Whether records are stored first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// They are.
    Yes,
    /// They are there from an earlier run.
    No,
}

/// A cluster that is measured as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// Socket of the node that clients attach to.
    pub socket: PathBuf,
    /// The table.
    pub table: String,
    /// Whether the records are stored first.
    pub loads: bool,
}

impl TableOptions {
    /// How much a client may cache, where it caches at all.
    pub fn cache_limits(&self) -> CacheLimits {
        let (lines, entry_bytes_max) = (self.cache_lines as usize, self.cache_entry_max as usize);
        CacheLimits { lines, entry_bytes_max }
    }

    /// Checks that what is asked for is there.
    pub fn check(&self, spec: &Spec) -> Result<(), BenchError> {
        let has_them = spec.engines.contains(&Engine::NessiePublished);
        if self.previous_versions == Switch::Off && !has_them {
            return Err(BenchError::usage(
                "--previous-versions: none of these engines has any: add --engine \
                 nessie-published, or drop it",
            ));
        }
        Ok(())
    }
}

impl AttachOptions {
    /// What was asked for, if it was.
    pub fn chosen(self) -> Option<Attach> {
        let table = self.attached_table.unwrap_or_else(|| "default".into());
        let loads = self.load != Some(Load::No);
        self.attach.map(|socket| Attach { socket, table, loads })
    }
}

/// The workers of engines whose servers take part in operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Engines whose servers take part")]
pub struct ServerOptions {
    /// Workers of each node
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(WORKERS_MAX)))]
    pub workers: u16,
    /// Requests that a client has under way at one worker [default: 8; with
    /// --fabric sim as many as --lanes, at most 16]
    #[arg(long, value_name = "W")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(WINDOW_MAX)))]
    pub window: Option<u16>,
    /// Workers without work never sleep, as in the papers
    #[arg(long)]
    #[arg(hide_short_help = true)]
    pub dedicated: bool,
    /// Operations that a client of kv-direct packs into one packet, at most; 1: none
    #[arg(long, value_name = "N", default_value_t = BATCH_DEFAULT)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub batch: usize,
    /// Workers of kv-direct execute operations that wait for none before them on the same key out of
    /// their order; off: all wait for such a one
    #[arg(long, value_enum, value_name = "ON|OFF", default_value = "on")]
    #[arg(hide_short_help = true)]
    pub out_of_order: Switch,
    /// Hosts without a node that run all clients, with --fabric sim and --engine herd, farm-em,
    /// farm-em-var or one of echo; 0: clients run on the nodes' hosts
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(hide_short_help = true)]
    pub client_hosts: u32,
}

impl ServerOptions {
    /// Checks that what is asked for is there.
    pub fn check(&self, spec: &Spec) -> Result<(), BenchError> {
        let served = spec.engines.iter().find(|engine| engine.serves());
        if (self.workers > 1 || self.window.is_some()) && served.is_none() {
            let option = if self.workers > 1 { "--workers" } else { "--window" };
            return Err(BenchError::usage(format!(
                "{option}: none of these engines has workers: add one with --engine, such as \
                 nessie-server, or drop it"
            )));
        }
        if self.dedicated && (served.is_none() || spec.fabric == Fabric::Sim) {
            return Err(BenchError::usage(
                "--dedicated: there are no workers that could sleep: add an engine that has workers, \
                 such as nessie-server, on another fabric than sim, or drop it",
            ));
        }
        let is_tuned = self.batch != BATCH_DEFAULT || self.out_of_order == Switch::Off;
        if is_tuned && !spec.engines.contains(&Engine::KvDirect) {
            let option = if self.batch != BATCH_DEFAULT { "--batch" } else { "--out-of-order" };
            return Err(BenchError::usage(format!(
                "{option}: none of these engines has packets of operations: add --engine kv-direct, \
                 or drop it"
            )));
        }
        if self.client_hosts > 0 && spec.fabric != Fabric::Sim {
            return Err(BenchError::usage(
                "--client-hosts are simulated: add --fabric sim, or drop it",
            ));
        }
        let is_pilaf = |engine: &&Engine| matches!(engine, Engine::Pilaf | Engine::PilafVo);
        if self.workers > 1
            && let Some(pilaf) = spec.engines.iter().find(is_pilaf)
        {
            return Err(BenchError::usage(format!(
                "--workers {}: {} has one server on each node; give it a run of its own",
                self.workers,
                pilaf.name()
            )));
        }
        if self.client_hosts == 0 {
            return Ok(());
        }
        let is_bound = |engine: &&Engine| {
            let is_free = **engine == Engine::Herd || engine.is_baseline();
            !is_free || **engine == Engine::PilafVo
        };
        if let Some(other) = spec.engines.iter().find(is_bound) {
            return Err(BenchError::usage(format!(
                "--client-hosts is for --engine herd, farm-em and echo alone: clients of {} have \
                 memory at a node, and run on its host",
                other.name()
            )));
        }
        let hosts = u64::from(spec.nodes) + u64::from(self.client_hosts);
        if hosts > NODES_MAX as u64 {
            return Err(BenchError::usage(format!(
                "--client-hosts {}: together with --nodes there are up to {NODES_MAX} hosts",
                self.client_hosts
            )));
        }
        Ok(())
    }
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// In use.
    On,
    /// Not in use.
    Off,
}

/// On, off, or what the engine takes for best on this fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AutoSwitch {
    /// In use.
    On,
    /// Not in use.
    Off,
    /// The engine decides.
    Auto,
}

impl From<Switch> for bool {
    fn from(switch: Switch) -> bool {
        switch == Switch::On
    }
}

impl From<AutoSwitch> for Option<bool> {
    fn from(switch: AutoSwitch) -> Option<bool> {
        match switch {
            AutoSwitch::On => Some(true),
            AutoSwitch::Off => Some(false),
            AutoSwitch::Auto => None,
        }
    }
}

fn bucket_slots(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(slots @ (1 | 2 | 4)) => Ok(slots),
        _ => Err("a bucket has 1, 2 or 4 slots".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::spec::tests::spec;

    #[test]
    fn the_defaults_are_those_of_a_table_nobody_tuned() {
        let own = loch::engines::nessie::options::Options::default();
        let (options, table) = (spec("").unwrap().table, &own.layout);
        assert_eq!(bool::from(options.filter_bits), table.filter_bits);
        assert_eq!(Option::<bool>::from(options.cache), own.cache);
        assert_eq!(bool::from(options.multi_read), table.multi_read);
        assert_eq!(Option::<bool>::from(options.batched_reads), table.batched_reads);
        assert_eq!(bool::from(options.checksums), table.checksums);
        assert_eq!((options.ways, options.bucket_slots), (table.ways, table.bucket_slots));
    }

    #[test]
    fn a_running_cluster_is_what_it_is() {
        let attached = spec("--attach /run/a.sock --fabric verbs").unwrap().attach;
        let expected =
            Attach { socket: "/run/a.sock".into(), table: "default".into(), loads: true };
        assert_eq!(attached, Some(expected));
        let attached = spec("--attach /a --load no --table t").unwrap().attach.unwrap();
        assert!(!attached.loads && attached.table == "t");
        for (contradiction, option) in [
            ("--nodes 1", "--nodes"),
            ("--peer redis", "--peer"),
            ("--cache on", "--cache"),
            ("--ways 3", "--ways"),
            ("--index-fill 50", "--index-fill"),
            ("--fabric sim", "--fabric sim"),
            ("--key-size 15", "--key-size"),
            ("--engine none", "--engine"),
        ] {
            let error = spec(&format!("--attach /a {contradiction}")).expect_err(contradiction);
            assert!(error.contains(option), "{contradiction}: {error}");
        }
        for alone in ["--load no", "--table t"] {
            assert!(spec(alone).expect_err(alone).contains("--attach"), "{alone}");
        }
    }

    #[test]
    fn workers_are_simulated_and_client_hosts_are_herds() {
        let line = "--fabric sim --engine herd --workers 6 --window 4 --client-hosts 17";
        let default = spec("").unwrap().servers;
        let expected = ServerOptions { workers: 6, window: Some(4), client_hosts: 17, ..default };
        assert_eq!(spec(line).unwrap().servers, expected);
        let line = "--engine kv-direct --batch 1 --out-of-order off";
        let expected = ServerOptions { batch: 1, out_of_order: Switch::Off, ..default };
        assert_eq!(spec(line).unwrap().servers, expected);
        for (line, option, way_out) in [
            ("--workers 2", "--workers", "nessie-server"),
            ("--fabric sim --window 2", "--window", "nessie-server"),
            ("--previous-versions off", "--previous-versions", "nessie-published"),
            ("--engine herd --client-hosts 2", "--client-hosts", "--fabric sim"),
            ("--fabric sim --engine herd,pilaf --workers 2", "--workers", "pilaf"),
            ("--fabric sim --workers 0", "--workers", "1.."),
            ("--dedicated", "--dedicated", "nessie-server"),
            ("--batch 4", "--batch", "--engine kv-direct"),
            ("--out-of-order off", "--out-of-order", "--engine kv-direct"),
            ("--fabric sim --engine herd --dedicated", "--dedicated", "drop it"),
            ("--fabric sim --window 257", "--window", "256"),
            ("--fabric sim --client-hosts 1", "--client-hosts", "--engine herd"),
            ("--fabric sim --engine herd --client-hosts 256", "--client-hosts", "256"),
        ] {
            let error = spec(line).expect_err(line);
            assert!(error.contains(option) && error.contains(way_out), "{line}: {error}");
        }
    }

    #[test]
    fn every_switch_can_be_turned() {
        let options = spec(
            "--filter-bits off --cache on --cache-lines 64 --cache-entry-max 32KiB --multi-read off --previous-versions off --batched-reads on \
             --checksums on --engine nessie-published --ways 2 --bucket-slots 1 --index-fill 50",
        );
        let expected = TableOptions {
            filter_bits: Switch::Off,
            cache: AutoSwitch::On,
            cache_lines: 64,
            cache_entry_max: 32 << 10,
            multi_read: Switch::Off,
            previous_versions: Switch::Off,
            batched_reads: AutoSwitch::On,
            checksums: Switch::On,
            ways: 2,
            bucket_slots: 1,
            index_fill: 50,
        };
        assert_eq!(options.unwrap().table, expected);
        for wrong in ["--bucket-slots 3", "--ways 5", "--cache maybe", "--index-fill 96"] {
            assert!(spec(wrong).is_err(), "{wrong}");
        }
    }
}
