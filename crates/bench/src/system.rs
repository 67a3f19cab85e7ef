//! The systems that can be measured: Loch's engines over a fabric, and the peers.
//!
//! Owns their names, which are the same on the command line, in JSON and in
//! the table.

use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use loch::TableProtocol;
use loch_fabric::sim::Profile;
use serde::{Deserialize, Serialize};

/// A data path of Loch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Index and data decoupled, client-driven both ways.
    Nessie,
    /// The same with the published protocol, repaired.
    NessiePublished,
    /// Nessie's reads with server-driven writes.
    NessieHybrid,
    /// Nessie's layout, every operation by request.
    NessieServer,
    /// One-sided reads, writes by request.
    Pilaf,
    /// Requests written into the server's memory, replies as datagrams.
    Herd,
    /// Operations executed at the NIC.
    KvDirect,
}

/// The fabric that carries verbs between Loch's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// Shared memory of this host.
    Shm,
    /// RDMA verbs.
    Verbs,
    /// Simulated RDMA in virtual time, in one process: the same options and seed, the same result.
    Sim,
}

/// The hardware that `--fabric sim` simulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hardware {
    /// ConnectX-3 at 10 Gb/s.
    ConnectX3At10,
    /// ConnectX-3 at 56 Gb/s.
    ConnectX3At56,
    /// ConnectX-6 at 200 Gb/s.
    ConnectX6At200,
}

/// A store measured beside Loch with the same workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// memcached over a unix socket.
    Memcached,
    /// Redis over a unix socket.
    Redis,
    /// LMDB, embedded in each client.
    Lmdb,
}

/// One value of `--engine`: an engine, or `none` to run only peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineChoice {
    /// `none`.
    None,
    /// A Loch engine.
    Engine(Engine),
}

/// The options of the bench that apply to a system on Loch's fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The system's name.
    pub name: &'static str,
    /// It has workers.
    pub serves: bool,
    /// It has one worker on each node, and no more.
    pub has_one_server: bool,
    /// Its clients need no memory at a node, and so can be on hosts without a node.
    pub lets_clients_be_apart: bool,
    /// Its clients pack operations, which its workers may execute out of order.
    pub packs_operations: bool,
    /// Its GETs can take a previous version.
    pub keeps_previous_versions: bool,
}

impl Engine {
    /// Its capabilities.
    pub fn capabilities(self) -> Capabilities {
        Capabilities {
            name: self.name(),
            serves: self.serves(),
            has_one_server: self == Engine::Pilaf,
            lets_clients_be_apart: self == Engine::Herd,
            packs_operations: self == Engine::KvDirect,
            keeps_previous_versions: self == Engine::NessiePublished,
        }
    }

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Nessie => "nessie",
            Engine::NessiePublished => "nessie-published",
            Engine::NessieHybrid => "nessie-hybrid",
            Engine::NessieServer => "nessie-server",
            Engine::Pilaf => "pilaf",
            Engine::Herd => "herd",
            Engine::KvDirect => "kv-direct",
        }
    }

    /// Its name in the declaration of tables.
    pub fn of_tables(self) -> &'static str {
        match self {
            Engine::NessiePublished => Engine::Nessie.name(),
            engine => engine.name(),
        }
    }

    /// The protocol that clients of its tables follow.
    pub fn table_protocol(self) -> TableProtocol {
        match self {
            Engine::NessiePublished => TableProtocol::Published,
            _ => TableProtocol::Loch,
        }
    }

    /// Whether its nodes have workers.
    pub fn serves(self) -> bool {
        !matches!(self, Engine::Nessie | Engine::NessiePublished)
    }

    /// Whether the layout of its tables is not nessie's.
    pub fn has_own_layout(self) -> bool {
        matches!(self, Engine::Pilaf | Engine::Herd | Engine::KvDirect)
    }
}

impl Fabric {
    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Fabric::Shm => "shm",
            Fabric::Verbs => "verbs",
            Fabric::Sim => "sim",
        }
    }
}

impl Hardware {
    /// Its numbers.
    pub fn profile(self) -> Profile {
        match self {
            Hardware::ConnectX3At10 => Profile::CONNECTX_3_10,
            Hardware::ConnectX3At56 => Profile::CONNECTX_3_56,
            Hardware::ConnectX6At200 => Profile::CONNECTX_6_200,
        }
    }
}

/// Implemented by hand, so that names and sources come from the fabric.
impl ValueEnum for Hardware {
    fn value_variants<'a>() -> &'a [Self] {
        &[Hardware::ConnectX3At10, Hardware::ConnectX3At56, Hardware::ConnectX6At200]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let profile = self.profile();
        Some(PossibleValue::new(profile.name).help(profile.source))
    }
}

impl Peer {
    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Memcached => "memcached",
            Peer::Redis => "redis",
            Peer::Lmdb => "lmdb",
        }
    }
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(EngineChoice::None);
        }
        Engine::from_str(text, false).map(EngineChoice::Engine).map_err(|_| {
            "engines are nessie, nessie-published, nessie-hybrid, nessie-server, pilaf, herd and \
             kv-direct; or none to run only peers"
                .into()
        })
    }
}
