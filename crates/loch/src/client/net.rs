//! The requirements of this crate on a network, besides those of the engines.

use std::sync::Arc;

use loch_engines::EngineError;
use loch_engines::net::{Connect, Net};
use loch_fabric::shm::{ShmEndpoint, ShmMessages};
use loch_fabric::{FabricError, RemoteAddr};

use super::nodes::Nodes;
use super::options::ConnectOptions;
use crate::layout::memory::{ClusterMemory, TableView};
use crate::limits::RESEND_US;
use crate::session::endpoint::Yielding;
use crate::session::table_session::TableSession;
use crate::{Error, Result};

/// The parameters of opening a table: the table, its memory and its client.
#[derive(Clone, Copy)]
pub(crate) struct OpenParams<'a> {
    pub nodes: &'a Nodes,
    pub memory: &'a Arc<ClusterMemory>,
    pub table: &'a TableView,
    pub table_session: &'a TableSession,
    pub options: &'a ConnectOptions,
}

/// A network over which tables are opened.
pub(crate) trait Network: Net + 'static {
    /// How long a client waits for a reply before it sends its request again, in microseconds.
    const RESEND_US: u64;
    /// Whether connections may break. Operations that lacked a connection are then begun again.
    const BREAKS: bool;
    /// The attempts at one operation.
    type Attempts;

    /// Returns the value that makes the endpoint of a client.
    ///
    /// # Errors
    /// The reason why the nodes cannot be reached.
    fn connector(params: OpenParams<'_>) -> Result<impl Connect<Self, Error = Error>>;

    /// Called before an operation. Has broken connections made again, and does not wait for that.
    fn begin(endpoint: &Self::Direct) -> Self::Attempts;

    /// Called after an operation. Returns whether to begin it again, because it lacked a connection
    /// that is there now.
    async fn goes_on(
        endpoint: &Self::Direct,
        attempts: &mut Self::Attempts,
        error: Option<&EngineError>,
    ) -> bool;

    /// Bytes that the client's connections have sent, and received, if they are counted.
    fn bytes_carried(_endpoint: &Self::Direct) -> Option<[u64; 2]> {
        None
    }

    /// Explains an error that was caused by a missing connection.
    fn explain(endpoint: &Self::Direct, error: FabricError) -> Option<Error>;

    /// The error that a node is down, if one is. Never waits.
    fn missing_node(endpoint: &Self::Direct, nodes: &Nodes) -> Option<Error>;
}

/// The network of a client that has all memory of the cluster mapped.
pub(crate) struct Shm;

impl Net for Shm {
    type Direct = ShmEndpoint;
    type Waiting = Yielding<ShmEndpoint, Option<ShmMessages>>;

    fn direct(waiting: &Self::Waiting) -> &ShmEndpoint {
        waiting.endpoint()
    }
}

impl Network for Shm {
    const RESEND_US: u64 = RESEND_US;
    const BREAKS: bool = false;
    type Attempts = ();

    fn connector(params: OpenParams<'_>) -> Result<impl Connect<Self, Error = Error>> {
        let OpenParams { memory, table_session, .. } = params;
        Ok(ShmConnect {
            memory,
            endpoint: memory.endpoint(table_session.session().home().0.into()),
        })
    }

    #[inline]
    fn begin(_: &ShmEndpoint) {}

    async fn goes_on(_: &ShmEndpoint, (): &mut (), _: Option<&EngineError>) -> bool {
        false
    }

    fn explain(_: &ShmEndpoint, _: FabricError) -> Option<Error> {
        None
    }

    fn missing_node(_: &ShmEndpoint, nodes: &Nodes) -> Option<Error> {
        nodes.missing_node()
    }
}

/// Makes the endpoint of a client of shared memory.
struct ShmConnect<'a> {
    memory: &'a ClusterMemory,
    endpoint: ShmEndpoint,
}

impl Connect<Shm> for ShmConnect<'_> {
    type Error = Error;

    fn direct(self) -> Result<ShmEndpoint> {
        Ok(self.endpoint)
    }

    fn waiting(self, mailbox: Option<RemoteAddr>) -> Result<<Shm as Net>::Waiting> {
        let open = |mailbox| ShmMessages::open(self.memory.regions(), mailbox);
        let messages = mailbox.map(open).transpose().map_err(Error::Fabric)?;
        Ok(Yielding::new(self.endpoint, messages))
    }
}
