//! What can be measured: Loch's engines over a fabric, and the peers.
//!
//! Owns their names, which are the same on the command line, in JSON and in
//! the table.

use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use loch::TableProtocol;
use loch_fabric::sim::Profile;
use serde::{Deserialize, Serialize};

/// One row of a result: a Loch engine or a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// An engine of Loch.
    Engine(Engine),
    /// Another store.
    Peer(Peer),
}

/// A data path of Loch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Index and data decoupled, client-driven both ways.
    Nessie,
    /// The same by the published protocol, repaired.
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
    /// No engine but a baseline: Pilaf whose GETs are requests too.
    PilafVo,
    /// A baseline: FaRM as HERD's authors emulate it, values in the hash table.
    FarmEm,
    /// A baseline: the same, values out of the table.
    FarmEmVar,
    /// A baseline: requests and replies without a store, both by SEND.
    EchoSendSend,
    /// A baseline: the same, both by WRITE.
    EchoWriteWrite,
    /// A baseline: the same, requests by WRITE and replies by SEND.
    EchoWriteSend,
}

/// What carries verbs between Loch's processes.
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

impl System {
    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            System::Engine(engine) => engine.name(),
            System::Peer(peer) => peer.name(),
        }
    }

    /// Whether this is Loch rather than a peer.
    pub fn is_loch(self) -> bool {
        matches!(self, System::Engine(_))
    }
}

impl Engine {
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
            Engine::PilafVo => "pilaf-vo",
            Engine::FarmEm => "farm-em",
            Engine::FarmEmVar => "farm-em-var",
            Engine::EchoSendSend => "echo-send-send",
            Engine::EchoWriteWrite => "echo-write-write",
            Engine::EchoWriteSend => "echo-write-send",
        }
    }

    /// None of Loch's, but what the papers compare theirs with.
    pub const BASELINES: &[Engine] = &[
        Engine::PilafVo,
        Engine::FarmEm,
        Engine::FarmEmVar,
        Engine::EchoSendSend,
        Engine::EchoWriteWrite,
        Engine::EchoWriteSend,
    ];

    /// Whether it is one of [`Engine::BASELINES`].
    pub fn is_baseline(self) -> bool {
        Self::BASELINES.contains(&self)
    }

    /// The name that its tables have for it.
    pub fn of_tables(self) -> &'static str {
        match self {
            Engine::NessiePublished => Engine::Nessie.name(),
            engine => engine.name(),
        }
    }

    /// By which rules clients of its tables go.
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

    /// Whether its tables are not laid out as nessie's.
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

/// By hand, so that names and sources are the fabric's.
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
             kv-direct, baselines pilaf-vo, farm-em, farm-em-var, echo-send-send, echo-write-write \
             and echo-write-send; or none to run only peers"
                .into()
        })
    }
}
