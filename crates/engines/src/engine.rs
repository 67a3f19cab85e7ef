//! All that the library, the node, the benchmark and the simulation know of an engine.
//!
//! An [`Engine`] is a type without values, one line of the [`registry`](crate::registry), and a folder:
//! the options of its tables, how such a table lies in memory, its client ([`Kv`]) and its worker.

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use loch_fabric::{Buf, Fabric, MailboxShape, RemoteAddr, VerbCount};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{EngineError, LayoutError};
use crate::nessie::hash::TableMap;
use crate::operation::{Conditional, Expect, Operation, Outcome, PutOptions, Value};
use crate::region::TableParams;
use crate::requests::RequestMap;

/// An engine: who does the work of an operation when memory is remote.
pub trait Engine: 'static {
    /// Its number in the directory of a region. Never used for another engine.
    const ID: u32;
    /// Its name, and other names by which tables are declared for it with some options set.
    const NAMES: &'static [&'static str];
    /// What its tables need of a node.
    const NEEDS: Needs;

    /// What can be declared of its tables besides what can be of all. Deserialised from the fields of
    /// the declaration; unknown ones are refused.
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

    /// The table of nessie's layout, if it has one: such tables are scrubbed.
    fn nessie(_: &Self::Map) -> Option<&Arc<TableMap>> {
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

    /// Option by option what a table is like, for people who compare two.
    fn facts(params: &TableParams) -> Vec<(&'static str, String)>;

    /// How large the table is over all nodes.
    fn sizes(map: &Self::Map) -> Sizes;
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

/// What a table has room in, and what is declared of it whatever its engine.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Its bytes of a node's memory.
    pub share: u64,
    /// Nodes of the cluster.
    pub nodes: u16,
    /// Bytes of the longest value, if that was chosen.
    pub value_max: Option<u64>,
    /// Workers of each node, where workers serve the table.
    pub workers: u16,
    /// Requests that a client has under way at one worker, if that was chosen.
    pub window: Option<u16>,
    /// Session slots of each node whose clients can have the table open: the node's scrubber's among
    /// them.
    pub slots: u32,
    /// Whether its memory is reached over a network.
    pub is_remote: bool,
}

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

/// A client of a table: one thread's session, endpoint, and operations under way.
///
/// Operations take `&self`, so any number of them can be under way in the lanes of a thread. An engine
/// brings `get`, `contains` and `execute`; the other operations are made of that, unless the engine has
/// a shorter way.
#[allow(async_fn_in_trait, reason = "a client is one thread's: its futures need not be sent")]
pub trait Kv {
    /// What carries its verbs.
    type Fabric: Fabric;

    /// The fabric, for its counters and its clocks.
    fn fabric(&self) -> &Self::Fabric;

    /// What its operations cost so far: the endpoint's verbs, and what workers sent to answer.
    fn counted(&self) -> VerbCount {
        self.fabric().counters().snapshot()
    }

    /// Attempts that were repeated inside operations so far, and requests that were sent again.
    fn retries(&self) -> u64;

    /// The value of `key`, if it has one. `buf` is filled with what it comes in.
    ///
    /// # Errors
    /// [`EngineError`]; [`EngineError::Timeout`] if others kept changing what the key is found by, or
    /// the key's worker did not answer in time.
    async fn get(&self, key: &[u8], buf: Buf) -> Result<Option<Value>, EngineError>;

    /// Whether `key` has a value. Reads no value.
    ///
    /// # Errors
    /// As [`Kv::get`].
    async fn contains(&self, key: &[u8]) -> Result<bool, EngineError>;

    /// Executes an operation that may change the value of `key`.
    ///
    /// # Errors
    /// [`EngineError`]; after any but [`EngineError::Ambiguous`] the key's value is what it was.
    async fn execute(
        &self,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Outcome<'static>, EngineError>;

    /// Gives `key` the value `value`. Returns the value's version.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn put(&self, key: &[u8], value: &[u8], options: PutOptions) -> Result<u64, EngineError> {
        self.execute(key, Operation::Put { value, options }).await?.stored()
    }

    /// Gives `key` the value `value` if what it has is as expected.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Conditional, EngineError> {
        self.execute(key, Operation::PutIf { value, expect, options }).await?.conditional()
    }

    /// Takes the value of `key` away; whether it had one.
    ///
    /// # Errors
    /// As [`Kv::execute`].
    async fn delete(&self, key: &[u8]) -> Result<bool, EngineError> {
        self.execute(key, Operation::Delete).await?.deleted()
    }

    /// Adds `add`, wrapping, to the 8-byte little-endian number under `key` and returns what it was; a
    /// key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Kv::execute`], and [`EngineError::NotACounter`].
    async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError> {
        self.execute(key, Operation::FetchAdd(add)).await?.before()
    }

    /// Appends `bytes` to the value of `key`, in one step that nothing comes between; a key without a value
    /// gets `bytes` as its value. Returns the version of the new value, which expires when the old one
    /// did: a value that an APPEND creates does not expire.
    ///
    /// # Errors
    /// As [`Kv::execute`]; [`EngineError::ValueTooLong`] if both together are too long.
    async fn append(&self, key: &[u8], bytes: &[u8]) -> Result<u64, EngineError> {
        self.execute(key, Operation::Append(bytes)).await?.stored()
    }

    /// Ends the client in good order: it does no more operations, and leaves nothing behind.
    ///
    /// # Errors
    /// The fabric's; what is left then is put in order by the node.
    async fn detach(&self) -> Result<(), EngineError> {
        Ok(())
    }
}
