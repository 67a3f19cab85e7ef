//! Nodes inside this process, as their clients see them.

use std::sync::Arc;

use loch_fabric::ForkMark;

use super::slot::{Process, SessionId};
use crate::Result;
use crate::layout::memory::ClusterMemory;
use crate::session::wire::{Question, Told};

/// The requests that clients make of nodes inside this process.
pub(crate) trait LocalNodes: Send + Sync {
    /// All regions.
    fn memory(&self) -> &Arc<ClusterMemory>;

    /// The mark of the process that has the nodes.
    fn mark(&self) -> ForkMark;

    /// Opens a session at a node.
    ///
    /// # Errors
    /// [`SessionsExhausted`](crate::Error::SessionsExhausted).
    fn open_session(&self, home: usize) -> Result<SessionId>;

    /// Ends a session that its client has left in order.
    fn end_session(&self, home: usize, session: SessionId, process: Process);

    /// The number of nodes.
    fn nodes(&self) -> usize;

    /// Asks the workers of a node.
    ///
    /// # Errors
    /// [`NodeUnreachable`](crate::Error::NodeUnreachable) if a worker does not answer.
    fn ask(&self, node: usize, question: Question) -> Result<Told>;

    /// The first node with a worker that has failed, and the reason.
    fn failed(&self) -> Option<(usize, String)>;
}
