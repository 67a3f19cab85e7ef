//! The systems that can be measured: Loch's engines over a fabric, and the peers.
//!
//! Owns their names, which are the same on the command line, in JSON and in
//! the table.

use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use loch::{TableConfig, TableProtocol};
use loch_engines::engine::Needs;
use loch_engines::nessie;
use loch_engines::registry::EngineId;
use loch_engines::room::Room;
use loch_fabric::sim::Profile;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::options::TABLE;

/// An engine of Loch; nessie also with the published protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    id: EngineId,
    /// The name in the registry by which its tables are declared.
    name: &'static str,
    is_published: bool,
}

/// Nessie with the published protocol, repaired: an option of nessie's tables that is measured
/// beside the engines.
const PUBLISHED: &str = "nessie-published";

/// The fabric that carries verbs between Loch's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// Shared memory of this host.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA verbs.
    Verbs,
    /// Simulated RDMA in virtual time, in one process: the same options and seed, the same result.
    Sim,
}

/// How clients reach peers that are servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerTransport {
    /// A unix socket.
    Unix,
    /// TCP on the loopback.
    Tcp,
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
    /// memcached.
    Memcached,
    /// Redis; as a cache it evicts the values that were not used for longest.
    Redis,
    /// Redis as a cache that evicts the values that are used least often.
    RedisLfu,
    /// Loch's gateway, asked as memcached is.
    GatewayMemcached,
    /// Loch's gateway, asked as Redis is.
    GatewayResp,
    /// LMDB, embedded in each client.
    Lmdb,
    /// The concurrent map papaya, inside one client.
    Papaya,
    /// The map hashbrown, inside one client; it is not concurrent.
    Hashbrown,
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
    /// Its tables can have a policy of eviction.
    pub evicts: bool,
}

impl Engine {
    /// All engines.
    pub fn all() -> impl Iterator<Item = Self> {
        let named = |id: EngineId| {
            id.names().iter().map(move |name| Self { id, name, is_published: false })
        };
        let mut engines: Vec<_> = EngineId::ALL.iter().copied().flat_map(named).collect();
        engines.insert(1, Self { is_published: true, ..engines[0] });
        engines.into_iter()
    }

    /// The engines without those that differ from another one in their options alone, except for
    /// nessie with the published protocol.
    pub fn main() -> impl Iterator<Item = Self> {
        Self::all().filter(|engine| engine.is_published || engine.name == engine.id.name())
    }

    /// The names of all engines, for people.
    pub fn names() -> String {
        Self::all().map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// Its capabilities.
    pub fn capabilities(self) -> Capabilities {
        let needs = self.needs();
        let lays_out = |workers| self.options().plan(&Room { workers, ..ROOM }).is_ok();
        Capabilities {
            name: self.name(),
            serves: self.serves(),
            has_one_server: self.serves() && lays_out(1) && !lays_out(2),
            // Requests and replies that may get lost need no connections, and no memory for them.
            lets_clients_be_apart: needs.unreliable_writes,
            packs_operations: self.packs_operations(),
            keeps_previous_versions: self.is_published(),
            evicts: self.evicts(),
        }
    }

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        if self.is_published { PUBLISHED } else { self.name }
    }

    /// The engine in the declaration of tables.
    pub fn options(self) -> loch::Engine {
        let options = nessie::options::Options {
            protocol: TableProtocol::Published,
            ..nessie::options::Options::default()
        };
        match self.is_published {
            true => options.into(),
            false => self.name().parse().expect("it is one of the registry"),
        }
    }

    /// Its engine in the registry.
    pub fn id(self) -> EngineId {
        self.id
    }

    /// What its tables need of a node.
    pub fn needs(self) -> Needs {
        self.id.needs()
    }

    /// Whether it is nessie with the published protocol.
    pub fn is_published(self) -> bool {
        self.is_published
    }

    /// The protocol that clients of its tables follow.
    pub fn table_protocol(self) -> TableProtocol {
        if self.is_published() { TableProtocol::Published } else { TableProtocol::Loch }
    }

    /// Whether its nodes have workers.
    pub fn serves(self) -> bool {
        self.needs().workers
    }

    /// Whether its tables can have a policy of eviction.
    fn evicts(self) -> bool {
        let mut table = TableConfig::new(TABLE, self.options());
        table.set("eviction", "sieve").is_ok() && table.engine.plan(&ROOM).is_ok()
    }

    /// Whether its clients pack operations: workers that compute get them in packets.
    pub fn packs_operations(self) -> bool {
        self.needs().computes
    }
}

/// Room for a table of any engine.
const ROOM: Room = Room {
    share: 64 << 20,
    nodes: 1,
    value_max: Some(64),
    workers: 1,
    window: None,
    slots: 2,
    is_remote: false,
};

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all()
            .find(|engine| engine.name() == text)
            .ok_or_else(|| format!("engines are {}; or none to run only peers", Self::names()))
    }
}

impl Serialize for Engine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.name().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Engine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Fabric {
    /// Whether nodes are reached over a network.
    pub fn is_network(self) -> bool {
        matches!(self, Self::Tcp | Self::Verbs)
    }

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Fabric::Shm => "shm",
            Fabric::Tcp => "tcp",
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

/// The argument of `--engine`: an engine, or `none`.
pub fn engine_choice(text: &str) -> Result<Option<Engine>, String> {
    if text == "none" { Ok(None) } else { text.parse().map(Some) }
}
