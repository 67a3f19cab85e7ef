//! The client of a table over any network: shared memory directly, another network behind a trait.

use loch_engines::nessie;
use loch_fabric::shm::ShmEndpoint;

use super::batching::Batching;
use super::net::{OpenParams, Shm};
use super::operations::Operations;
use super::remote;
use super::table_client::TableClient;
use crate::Result;

/// The client of a table.
#[expect(clippy::large_enum_variant, reason = "the short way is not boxed")]
pub(crate) enum Backend {
    /// All memory of the cluster is mapped.
    Shm(TableClient<Shm>),
    /// The home node's memory is mapped. The memory of other nodes is reached over connections,
    /// which may break.
    Network(Box<dyn Operations>),
}

impl Backend {
    /// Opens a table.
    ///
    /// # Errors
    /// As [`TableClient::open`].
    pub fn open(params: OpenParams<'_>) -> Result<Self> {
        if params.nodes.are_remote() {
            return remote::open_table(params).map(Self::Network);
        }
        TableClient::open(params).map(Self::Shm)
    }

    /// Returns all operations, boxed.
    pub fn operations(&self) -> &dyn Operations {
        match self {
            Self::Shm(client) => client,
            Self::Network(client) => &**client,
        }
    }

    /// The client whose operations are awaited in place, if there is such a client.
    #[inline]
    pub fn in_place(&self) -> Option<&nessie::Client<ShmEndpoint>> {
        match self {
            Self::Shm(table) => table.client.in_place(),
            Self::Network(_) => None,
        }
    }

    /// The client that does batches of operations that only read, or that change something, if that
    /// is worth it.
    #[inline]
    pub fn batching(&self, is_read: bool) -> Option<Batching<'_>> {
        if let Some(client) = self.in_place() {
            return client.takes_batches().then_some(Batching::Near(client));
        }
        let client = self.operations();
        client.shares(is_read).then_some(Batching::Any(client))
    }
}
