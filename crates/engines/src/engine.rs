//! Everything that the library, the node, the benchmark and the simulation know of an engine.
//!
//! An [`Engine`] is a type without values. It has one line in the [`registry`](crate::registry) and
//! a folder, which holds the options of its tables, the layout of such a table in memory, its
//! client ([`Kv`](crate::Kv)) and its worker.

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use loch_fabric::RemoteAddr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::LayoutError;
use crate::kv::{Kv, Lengths};
use crate::net::{Access, Connect, Net};
use crate::region::TableParams;
use crate::requests::RequestMap;
use crate::requests::mailboxes::MailedRequests;
use crate::room::Room;
use crate::serve::{Attached, Housekeeper, WorkerError, WorkerHost};

/// An engine: it decides who does the work of an operation when memory is remote.
pub trait Engine: 'static {
    /// The engine's number in the directory of a region. A number is never given to another engine.
    const ID: u32;
    /// The engine's name, followed by the names that declare a table of it with some options set.
    const NAMES: &'static [&'static str];
    /// What the engine's tables need of a node.
    const NEEDS: Needs;

    /// The options that a table of this engine can declare besides those of all tables. They are
    /// deserialised from the fields of the declaration; unknown fields are refused.
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

    /// The configuration of the table's log, if a table with these options has one.
    fn log(_: &Self::Options) -> Option<LogConfig> {
        None
    }

    /// The user-defined functions of a table with these options.
    fn functions(_: &Self::Options) -> &[FunctionConfig] {
        &[]
    }

    /// Lays out a table. The same options and the same room give the same plan. If the room names
    /// a longest value, [`Engine::NEEDS`] allows it.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] names the option that does not fit, and what would.
    fn plan(options: &Self::Options, room: &Room) -> Result<Plan, LayoutError>;

    /// The addresses of a table's parts.
    type Map: Clone + 'static;

    /// The map of a table that begins at `places[n].0` on node `n`, which has `places[n].1` session
    /// slots.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if there is no such table.
    fn map(params: &TableParams, places: &[Place]) -> Result<Self::Map, LayoutError>;

    /// The map of a table that is attached.
    fn map_of<M>(attached: &Attached<M>) -> Self::Map {
        let map = Self::map(&attached.params, &attached.places);
        map.expect("it was checked when it was read")
    }

    /// The requests and the mailboxes with which a table begins, if its workers SEND their replies.
    fn mailed(_: &Self::Map) -> Option<&MailedRequests> {
        None
    }

    /// The map of the table's requests, if workers serve the table.
    fn requests(map: &Self::Map) -> Option<&Arc<RequestMap>> {
        Self::mailed(map).map(MailedRequests::requests)
    }

    /// Bytes of the table in each node's region; by default it has mailed requests and nothing else
    /// there.
    fn bytes(map: &Self::Map) -> u64 {
        Self::mailed(map).map_or(0, |mailed| mailed.mailboxes().end())
    }

    /// The ranges of node `node`'s region that a client with a session may READ, besides its own
    /// requests and their replies. By the workers' lines clients learn which incarnation a worker
    /// has, and where it receives messages.
    fn readable(map: &Self::Map, node: u16) -> Vec<Range<u64>> {
        let requests = Self::requests(map).into_iter();
        requests.map(|requests| requests.worker_lines_of(node)).collect()
    }

    /// The engine's client over a network.
    type Client<N: Net>: Kv;

    /// Opens a client of a table. With a session that only observes, the client can read. Where a
    /// read needs a session ([`Needs::session_to_read`]) no client is opened with such a session.
    ///
    /// # Errors
    /// The errors of `connect`.
    fn client<N: Net, C: Connect<N>>(
        map: &Self::Map,
        access: Access,
        connect: C,
    ) -> Result<Self::Client<N>, C::Error>;

    /// The endpoint of a client.
    fn direct<N: Net>(client: &Self::Client<N>) -> &N::Direct;

    /// The table's options, one by one, for people who compare two tables.
    fn facts(_: &TableParams) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// How large the table is over all nodes.
    fn sizes(map: &Self::Map) -> Sizes;

    /// Whether a full table makes room for a new value by removing others.
    fn evicts(_: &Self::Map) -> bool {
        false
    }
}

/// The workers of an engine's tables. Of an engine without workers only [`Workers::shared`] says
/// anything.
pub trait Workers: Engine {
    /// The state that the workers of a table on one node share. It outlives each of the workers.
    type Shared: Send + Sync + 'static;

    /// The shared state before the first worker starts.
    fn shared(map: &Self::Map) -> Self::Shared;

    /// The table's other work on that node, if there is any.
    fn housekeeper(_: &Self::Shared) -> Option<&dyn Housekeeper> {
        None
    }

    /// Runs a worker from its start to its end. It waits only through its host's methods and its
    /// fabric, so the same code runs on a node's thread and in a simulator.
    ///
    /// # Errors
    /// The reason why the worker cannot go on.
    #[allow(async_fn_in_trait, reason = "a worker is one thread's: its futures need not be sent")]
    async fn serve<H: WorkerHost>(_: &Self::Shared, host: &H) -> Result<(), WorkerError> {
        unreachable!("no workers serve {}, and {:?} is one", Self::NAMES[0], host.site())
    }
}

/// What the tables of an engine need of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Workers serve the tables.
    pub workers: bool,
    /// The workers hold sessions of their node: they WRITE their replies, and other nodes accept
    /// connections only from sessions.
    pub sessions: bool,
    /// Values lie in the private memory of the nodes' processes, and are gone when the processes
    /// end.
    pub private_memory: bool,
    /// A GET is a request, which a client that attached for reading cannot make: all operations of
    /// such a client are refused.
    pub session_to_read: bool,
    /// Requests are unreliable WRITEs and may get lost.
    pub unreliable_writes: bool,
    /// A client with a session does nothing but send requests.
    pub requests_only: bool,
    /// Workers can compute on values. This is no need of the table but an ability of it.
    pub computes: bool,
    /// Bytes of the longest key together with its value, if there is a bound.
    pub key_and_value_bytes_max: Option<usize>,
}

impl Needs {
    /// The needs of an engine whose clients do all the work.
    pub const NOTHING: Self = Self {
        workers: false,
        sessions: false,
        private_memory: false,
        session_to_read: false,
        unreliable_writes: false,
        requests_only: false,
        computes: false,
        key_and_value_bytes_max: None,
    };

    /// Refuses a longest value that is longer than values can be. `name` is the engine's.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`].
    pub(crate) fn check(&self, room: &Room, name: &str) -> Result<(), LayoutError> {
        match (room.value_max, self.key_and_value_bytes_max) {
            (Some(len), Some(both)) if len >= both as u64 => Err(LayoutError::Geometry(format!(
                "value_max is {len}: a key and its value have up to {both} bytes in a table of {name}"
            ))),
            _ => Ok(()),
        }
    }

    /// The lengths of keys and values that a table with these parameters takes.
    pub fn lengths(&self, params: &TableParams) -> Lengths {
        let Self { key_and_value_bytes_max, .. } = *self;
        let value_bytes_max = params.value_bytes_max;
        Lengths { value_bytes_max, key_and_value_bytes_max, key_bytes: None }
    }
}

/// The configuration of a table's log on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The folder that holds the logs of all nodes.
    pub folder: PathBuf,
    /// Whether a change is on disk before the worker acknowledges it.
    pub sync: bool,
}

/// A user-defined function of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionConfig {
    /// The number by which clients call the function.
    pub number: u16,
    /// The file of its WebAssembly module.
    pub path: PathBuf,
}

/// The address where a table begins on a node, and the number of that node's session slots.
pub type Place = (RemoteAddr, u32);

/// How a table is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The parameters in the table's directory entry.
    pub params: TableParams,
    /// Bytes of the table in each node's region.
    pub bytes: u64,
    /// Bytes of the table in the private memory of each node's process.
    pub private_bytes: u64,
}

/// The size of a table over all nodes, and the shape of its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Hash functions of its index, each of which gives a key a bucket; 0 if a key's slots are
    /// found in another way.
    pub ways: u8,
    /// Slots of such a bucket; 0 if there are none.
    pub bucket_slots: u8,
    /// Slots of its index.
    pub index_slots: u64,
    /// Bytes of its index.
    pub index_bytes: u64,
    /// Bytes for values.
    pub data_bytes: u64,
    /// Entries are rounded up to multiples of this number of bytes, where they have addresses in
    /// such units; else 0.
    pub grain_bytes: u64,
}
