//! All that the library, the node, the benchmark and the simulation know of an engine.
//!
//! An [`Engine`] is a type without values, one line of the [`registry`](crate::registry), and a
//! folder: the options of its tables, how such a table lies in memory, its client
//! ([`Kv`](crate::Kv)) and its worker.

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use loch_fabric::{MailboxShape, RemoteAddr};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::LayoutError;
use crate::kv::Kv;
use crate::net::{Access, Connect, Net};
use crate::region::TableParams;
use crate::requests::RequestMap;
use crate::room::Room;
use crate::serve::{Housekeeper, WorkerError, WorkerHost};

/// An engine: who does the work of an operation when memory is remote.
pub trait Engine: 'static {
    /// Its number in the directory of a region. Never used for another engine.
    const ID: u32;
    /// Its name, and other names by which tables are declared for it with some options set.
    const NAMES: &'static [&'static str];
    /// What its tables need of a node.
    const NEEDS: Needs;

    /// What can be declared of its tables besides what can be of all. Deserialised from the fields
    /// of the declaration; unknown ones are refused.
    type Options: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned;

    /// The options of a table that is declared for the engine by `name`, one of [`Engine::NAMES`].
    fn named(options: Self::Options, name: &str) -> Self::Options {
        debug_assert!(Self::NAMES.contains(&name));
        options
    }

    /// The name by which a table with these options is declared.
    fn name(_: &Self::Options) -> &'static str {
        Self::NAMES[0]
    }

    /// The log of a table with these options, if it has one.
    fn log(_: &Self::Options) -> Option<LogConfig> {
        None
    }

    /// The functions that clients of a table with these options may have computed.
    fn functions(_: &Self::Options) -> &[FunctionConfig] {
        &[]
    }

    /// Lays out a table. The same options and the same room give the same plan.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] names the option that does not fit, and what would.
    fn plan(options: &Self::Options, room: &Room) -> Result<Plan, LayoutError>;

    /// Where the parts of a table are.
    type Map: Clone + 'static;

    /// The map of a table that begins at `places[n].0` on node `n`, which has `places[n].1` session
    /// slots.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if there is no such table.
    fn map(params: &TableParams, places: &[Place]) -> Result<Self::Map, LayoutError>;

    /// Bytes of the table in each node's region.
    fn bytes(map: &Self::Map) -> u64;

    /// Its requests, if workers serve it.
    fn requests(_: &Self::Map) -> Option<&Arc<RequestMap>> {
        None
    }

    /// The mailboxes of a node's part: how long, and where from the table's first byte.
    fn mailboxes(_: &Self::Map) -> Vec<(u64, MailboxShape)> {
        Vec::new()
    }

    /// What a client with a session may READ in the region of node `node`, besides its own requests
    /// and their replies.
    fn readable(_: &Self::Map, _node: u16) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Its client over a network.
    type Client<N: Net>: Kv;

    /// Opens a client of a table. A session that only observes makes a client that reads, as far as
    /// reads need no session.
    ///
    /// # Errors
    /// Those of `connect`.
    fn client<N: Net, C: Connect<N>>(
        map: &Self::Map,
        access: Access,
        connect: C,
    ) -> Result<Self::Client<N>, C::Error>;

    /// The endpoint of a client.
    fn direct<N: Net>(client: &Self::Client<N>) -> &N::Direct;

    /// Option by option what a table is like, for people who compare two.
    fn facts(params: &TableParams) -> Vec<(&'static str, String)>;

    /// How large the table is over all nodes.
    fn sizes(map: &Self::Map) -> Sizes;
}

/// The workers of an engine's tables. An engine without workers has nothing of it.
pub trait Workers: Engine {
    /// What the workers of a table on one node share. It outlives each of them.
    type Shared: Send + Sync + 'static;

    /// What those workers share when they begin.
    fn shared(map: &Self::Map) -> Self::Shared;

    /// What else is to be done for the table on that node, if there is anything.
    fn housekeeper(_: &Self::Shared) -> Option<&dyn Housekeeper> {
        None
    }

    /// A worker, from its begin to its end. Waits by its host's methods and its fabric's alone, so
    /// that it runs on a node's thread and in a simulator alike.
    ///
    /// # Errors
    /// Why it cannot go on.
    #[allow(async_fn_in_trait, reason = "a worker is one thread's: its futures need not be sent")]
    async fn serve<H: WorkerHost>(_: &Self::Shared, host: &H) -> Result<(), WorkerError> {
        unreachable!("no workers serve {}, and {:?} is one", Self::NAMES[0], host.site())
    }
}

/// What the tables of an engine need of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Workers serve them.
    pub workers: bool,
    /// Those workers hold sessions of their node: they WRITE their replies, as others let in
    /// connections of sessions alone.
    pub sessions: bool,
    /// Values are in the memory of the nodes' processes, and gone when those end.
    pub private_memory: bool,
    /// A GET is a request, which a client that attached for reading cannot make.
    pub session_to_read: bool,
    /// Requests may get lost: unreliable WRITEs.
    pub unreliable_writes: bool,
    /// Workers compute on values (no need, but what its tables can do).
    pub computes: bool,
    /// Bytes of the longest key with its value, if that is bounded.
    pub key_and_value_bytes_max: Option<usize>,
}

impl Needs {
    /// Of an engine whose clients do all work.
    pub const NOTHING: Self = Self {
        workers: false,
        sessions: false,
        private_memory: false,
        session_to_read: false,
        unreliable_writes: false,
        computes: false,
        key_and_value_bytes_max: None,
    };
}

/// Where each node keeps a log of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The folder of all nodes' logs.
    pub folder: PathBuf,
    /// Whether a change is on disk before it is acknowledged.
    pub sync: bool,
}

/// A function that the clients of a table may have computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionConfig {
    /// By which it is called.
    pub number: u16,
    /// A WebAssembly module.
    pub path: PathBuf,
}

/// Where a table begins on a node, and the session slots of that node.
pub type Place = (RemoteAddr, u32);

/// How a table is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What its directory entry says.
    pub params: TableParams,
    /// Its bytes in each node's region.
    pub bytes: u64,
    /// Bytes that it has in the memory of each node's process.
    pub private_bytes: u64,
}

/// How large a table is, over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Slots of its index.
    pub index_slots: u64,
    /// Bytes of its index.
    pub index_bytes: u64,
    /// Bytes for values.
    pub data_bytes: u64,
}
