//! Nodes inside this process, as their clients see them.

use std::sync::Arc;

use loch_fabric::ForkMark;

use super::slot::{Process, SessionId};
use crate::Error;
use crate::layout::memory::ClusterMemory;
use crate::session::wire::Inspected;

/// What is asked of the nodes inside this process.
pub(crate) trait LocalNodes: Send + Sync {
    /// All regions.
    fn memory(&self) -> &Arc<ClusterMemory>;

    /// Says whether this process is the one that has the nodes.
    fn mark(&self) -> ForkMark;

    /// Opens a session at a node.
    ///
    /// # Errors
    /// [`Error::SessionsExhausted`].
    fn open_session(&self, home: usize) -> Result<SessionId, Error>;

    /// Ends a session whose client has left in order.
    fn end_session(&self, home: usize, session: SessionId, process: Process);

    /// What the workers of each node have of a table.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`] if a worker does not answer.
    fn inspect(&self, table: usize) -> Result<Vec<Inspected>, Error>;

    /// The first node of which a worker has failed, and why.
    fn failed(&self) -> Option<(usize, String)>;
}
