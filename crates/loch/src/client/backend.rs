//! A table's client, over whatever network: shared memory, or another one behind a trait.

use std::pin::Pin;

use loch_engines::EngineError;
use loch_engines::kv_direct::operation::Action;
use loch_engines::kv_direct::{Compute, Computed};
use loch_engines::nessie::{self, CheckReport};
use loch_engines::operation::{Operation, Outcome, PutOptions, Value};
use loch_engines::registry::{EngineId, Operating};
use loch_fabric::Buf;
use loch_fabric::shm::ShmEndpoint;

use super::net::{Opening, Shm};
use super::table_client::TableClient;
use crate::reservation::InPlace;
use crate::{Counters, Error, Usage, network};

/// The client of a table.
#[expect(clippy::large_enum_variant, reason = "the short way is not boxed")]
pub(crate) enum Backend {
    /// All memory of the cluster is mapped.
    Shm(TableClient<Shm>),
    /// The home node's memory is mapped; that of others is reached by connections, which may break.
    Network(Box<dyn Operations>),
}

impl Backend {
    /// Opens a table.
    ///
    /// # Errors
    /// As [`TableClient::open`].
    pub fn open(opening: Opening<'_>) -> Result<Self, Error> {
        if opening.nodes.are_remote() {
            return network::open_table(opening).map(Self::Network);
        }
        TableClient::open(opening).map(Self::Shm)
    }

    /// All operations, boxed.
    pub fn operations(&self) -> &dyn Operations {
        match self {
            Self::Shm(client) => client,
            Self::Network(client) => &**client,
        }
    }

    /// The client whose operations are awaited in place, if it has such.
    #[inline]
    pub fn in_place(&self) -> Option<&nessie::Client<ShmEndpoint>> {
        match self {
            Self::Shm(client) => client.in_place(),
            Self::Network(_) => None,
        }
    }

    /// As [`TableClient::check_lengths`].
    ///
    /// # Errors
    /// [`EngineError`] as the PUT's.
    #[inline]
    pub fn check_lengths(&self, key: &[u8], len: usize) -> Result<(), EngineError> {
        match self {
            Self::Shm(client) => client.check_lengths(key, len),
            Self::Network(client) => client.check_lengths(key, len),
        }
    }
}

/// A look at a whole table.
pub(crate) type Looking<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + 'a>>;

/// What can be asked of the client of a table.
pub(crate) trait Operations: Send {
    /// As [`Kv::get`](loch_engines::Kv::get).
    fn get<'a>(&'a self, key: &'a [u8], buf: Buf) -> Operating<'a, Option<Value>>;

    /// As [`Kv::contains`](loch_engines::Kv::contains).
    fn contains<'a>(&'a self, key: &'a [u8]) -> Operating<'a, bool>;

    /// As [`Kv::execute`](loch_engines::Kv::execute).
    fn execute<'a>(
        &'a self,
        key: &'a [u8],
        operation: Operation<'a>,
    ) -> Operating<'a, Outcome<'static>>;

    /// As [`Compute::compute`].
    fn compute<'a>(
        &'a self,
        key: &'a [u8],
        action: Action<'a>,
        buf: Buf,
    ) -> Operating<'a, Computed>;

    /// Reserves memory for a value of `len` bytes; `None` if the engine has none that is written in
    /// place.
    fn reserve<'a: 'k, 'k>(
        &'a self,
        key: &'k [u8],
        len: usize,
        options: PutOptions,
    ) -> Operating<'k, Option<Box<dyn InPlace + 'a>>>;

    /// As [`Table::check`](crate::Table::check).
    fn check(&self) -> Looking<'_, CheckReport>;

    /// As [`Table::usage`](crate::Table::usage).
    fn usage(&self) -> Looking<'_, Vec<Usage>>;

    /// As [`Table::counters`](crate::Table::counters).
    fn counters(&self) -> Counters;

    /// Wall-clock time in milliseconds since the Unix epoch.
    fn wall_ms(&self) -> u64;

    /// The table's engine.
    fn engine(&self) -> EngineId;

    /// As [`TableClient::check_lengths`].
    ///
    /// # Errors
    /// [`EngineError`] as the PUT's.
    fn check_lengths(&self, key: &[u8], len: usize) -> Result<(), EngineError>;

    /// An error of the engine, with what is known of the table and its nodes.
    fn explain(&self, error: EngineError) -> Error;

    /// Leaves nothing behind.
    fn detach(&self) -> Operating<'_, ()>;
}

impl Compute for dyn Operations + '_ {
    async fn compute(
        &self,
        key: &[u8],
        action: Action<'_>,
        buf: Buf,
    ) -> Result<Computed, EngineError> {
        Operations::compute(self, key, action, buf).await
    }
}
