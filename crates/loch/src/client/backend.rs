//! A table's client, over whatever network: shared memory, whose operations are awaited in place,
//! or another one behind a trait.

use futures_util::future::Either;
use loch_engines::EngineError;
use loch_engines::dispatch::Boxed;
use loch_engines::kv_direct::operation::Action;
use loch_engines::kv_direct::{Compute, Computed};
use loch_engines::nessie::CheckReport;
use loch_engines::operation::{Operation, Outcome, PutOptions, Value};
use loch_engines::registry::{EngineId, Operates, Operating};
use loch_fabric::Buf;

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

    /// What is not worth a way of its own on shared memory.
    pub fn operations(&self) -> &dyn Operations {
        match self {
            Self::Shm(client) => client,
            Self::Network(client) => &**client,
        }
    }

    /// As [`Kv::get`](loch_engines::Kv::get).
    #[inline]
    pub fn get<'a>(
        &'a self,
        key: &'a [u8],
        buf: Buf,
    ) -> Operating<'a, Option<Value>, impl Operates<Option<Value>> + 'a> {
        match self {
            Self::Shm(client) => client.get(key, buf),
            Self::Network(client) => Either::Right(client.get(key, buf)),
        }
    }

    /// As [`Kv::contains`](loch_engines::Kv::contains).
    #[inline]
    pub fn contains<'a>(&'a self, key: &'a [u8]) -> Operating<'a, bool, impl Operates<bool> + 'a> {
        match self {
            Self::Shm(client) => client.contains(key),
            Self::Network(client) => {
                let work = client.execute(key, Operation::Contains);
                Either::Right(Box::pin(async { work.await?.contained() }))
            }
        }
    }

    /// As [`Kv::put`](loch_engines::Kv::put).
    #[inline]
    pub fn put<'a>(
        &'a self,
        key: &'a [u8],
        value: &'a [u8],
        options: PutOptions,
    ) -> Operating<'a, u64, impl Operates<u64> + 'a> {
        match self {
            Self::Shm(client) => client.put(key, value, options),
            Self::Network(client) => {
                let work = client.execute(key, Operation::Put { value, options });
                Either::Right(Box::pin(async { work.await?.stored() }))
            }
        }
    }

    /// As [`Kv::delete`](loch_engines::Kv::delete).
    #[inline]
    pub fn delete<'a>(&'a self, key: &'a [u8]) -> Operating<'a, bool, impl Operates<bool> + 'a> {
        match self {
            Self::Shm(client) => client.delete(key),
            Self::Network(client) => {
                let work = client.execute(key, Operation::Delete);
                Either::Right(Box::pin(async { work.await?.deleted() }))
            }
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

/// What can be asked of the client of a table.
pub(crate) trait Operations: Send {
    /// As [`Kv::get`](loch_engines::Kv::get).
    fn get<'a>(&'a self, key: &'a [u8], buf: Buf) -> Boxed<'a, Result<Option<Value>, EngineError>>;

    /// As [`Kv::execute`](loch_engines::Kv::execute).
    fn execute<'a>(
        &'a self,
        key: &'a [u8],
        operation: Operation<'a>,
    ) -> Boxed<'a, Result<Outcome<'static>, EngineError>>;

    /// As [`Compute::compute`].
    fn compute<'a>(
        &'a self,
        key: &'a [u8],
        action: Action<'a>,
        buf: Buf,
    ) -> Boxed<'a, Result<Computed, EngineError>>;

    /// Reserves memory for a value of `len` bytes; `None` if the engine has none that is written in
    /// place.
    fn reserve<'a: 'k, 'k>(
        &'a self,
        key: &'k [u8],
        len: usize,
        options: PutOptions,
    ) -> Boxed<'k, Result<Option<Box<dyn InPlace + 'a>>, EngineError>>;

    /// As [`Table::check`](crate::Table::check).
    fn check(&self) -> Boxed<'_, Result<CheckReport, Error>>;

    /// As [`Table::usage`](crate::Table::usage).
    fn usage(&self) -> Boxed<'_, Result<Vec<Usage>, Error>>;

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
    fn detach(&self) -> Boxed<'_, Result<(), EngineError>>;
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
