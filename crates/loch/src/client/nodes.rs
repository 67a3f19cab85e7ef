//! The nodes of a cluster, and the requests to them that are not about memory.

use std::path::PathBuf;
use std::sync::Arc;

use loch_engines::scan::Page;

use crate::client::attachment::Attachment;
use crate::layout::memory::{ClusterMemory, Member};
use crate::session::local::LocalNodes;
use crate::session::table_session::{At, TableSession};
use crate::session::wire::{Inspected, Question, Told, WorkerScan};
use crate::{Error, FabricKind, Result};

/// The nodes of a cluster.
#[derive(Clone)]
pub(crate) enum Nodes {
    /// Nodes in processes of their own.
    Attached(Arc<Attachment>),
    /// Nodes in this process.
    Embedded(Arc<dyn LocalNodes>),
}

impl Nodes {
    /// The memory of the nodes, as far as it is known.
    pub fn memory(&self) -> Arc<ClusterMemory> {
        match self {
            Self::Attached(attachment) => attachment.memory(),
            Self::Embedded(embedded) => embedded.memory().clone(),
        }
    }

    /// Opens a session of a client at node `home`. Returns it with the memory in which it is.
    ///
    /// # Errors
    /// As [`Cluster::table`](crate::Cluster::table).
    pub fn table_session(&self, home: usize) -> Result<(Arc<ClusterMemory>, TableSession)> {
        match self {
            Self::Attached(attachment) => attachment.table_session(),
            Self::Embedded(embedded) => {
                let opened = embedded.open_session(home)?;
                let (memory, at) = (embedded.memory(), At::Embedded(embedded.clone(), opened));
                Ok((memory.clone(), TableSession::new(home, memory.clone(), at)))
            }
        }
    }

    /// For a client that only looks at memory: what it has in place of a session, and the memory.
    pub fn reader(&self) -> (Arc<ClusterMemory>, TableSession) {
        match self {
            Self::Attached(attachment) => attachment.reader(),
            // All embedded nodes are equally near, so any node can be the home.
            Self::Embedded(embedded) => {
                let memory = embedded.memory().clone();
                (memory.clone(), TableSession::new(0, memory, At::Observer(embedded.mark())))
            }
        }
    }

    /// The fabric, and why it is that one.
    pub fn fabric(&self) -> (FabricKind, String) {
        match self {
            Self::Attached(attachment) => attachment.fabric(),
            Self::Embedded(_) => (FabricKind::Shm, "the nodes are in this process".into()),
        }
    }

    /// Returns whether the memory of the nodes is reached over a network.
    pub fn are_remote(&self) -> bool {
        match self {
            Self::Attached(attachment) => attachment.is_remote(),
            Self::Embedded(_) => false,
        }
    }

    /// Asks what each node's workers have of a table, and whether it is sound.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Refused`].
    pub fn inspect(&self, table: usize, check: bool) -> Result<Vec<Inspected>> {
        let question = Question { table: table as u32, check, scan: None };
        let tell = |node| match self.ask(node, question.clone())? {
            Told::Inspected(inspected) => Ok(inspected),
            Told::Scanned(_) => Err(out_of_turn()),
        };
        (0..self.count()).map(tell).collect()
    }

    /// Asks a worker of a node for keys of a table.
    ///
    /// # Errors
    /// As [`Nodes::inspect`].
    pub fn scan(&self, node: usize, table: usize, scan: WorkerScan) -> Result<Page> {
        match self.ask(node, Question { table: table as u32, check: false, scan: Some(scan) })? {
            Told::Scanned(page) => Ok(page),
            Told::Inspected(_) => Err(out_of_turn()),
        }
    }

    /// The number of nodes.
    fn count(&self) -> usize {
        match self {
            Self::Attached(attachment) => attachment.nodes(),
            Self::Embedded(embedded) => embedded.nodes(),
        }
    }

    fn ask(&self, node: usize, question: Question) -> Result<Told> {
        match self {
            Self::Attached(attachment) => attachment.ask(node, question),
            Self::Embedded(embedded) => embedded.ask(node, question),
        }
    }

    /// Returns whether a node's process is up.
    pub fn is_up(&self, node: usize) -> bool {
        match self {
            Self::Attached(attachment) => attachment.is_up(node),
            Self::Embedded(_) => true,
        }
    }

    /// Returns whether the file of a node's region was deleted, as far as is known.
    pub fn is_deleted(&self, number: usize, node: &Member) -> bool {
        match self {
            Self::Attached(_) if node.mapped().is_some() => node.is_deleted(),
            Self::Attached(attachment) => attachment.is_deleted(number),
            // The memory of nodes inside this process has no file.
            Self::Embedded(_) => false,
        }
    }

    /// The number of a node's client session slots that are taken, if it is known.
    pub fn sessions_taken(&self, number: usize, node: &Member) -> Option<u32> {
        let hearsay = || match self {
            Self::Attached(attachment) => attachment.sessions_taken(number),
            Self::Embedded(_) => None,
        };
        node.client_sessions_taken().or_else(hearsay)
    }

    /// The error that a node is down, if one is.
    pub fn missing_node(&self) -> Option<Error> {
        let (socket, remedy): (PathBuf, String) = match self {
            Self::Attached(attachment) => {
                let down = attachment.down()?;
                (down, "its workers do not answer: start it with `loch serve`".into())
            }
            Self::Embedded(embedded) => {
                let (node, why) = embedded.failed()?;
                (format!("embedded-{node}").into(), why)
            }
        };
        Some(Error::NodeUnreachable { socket, remedy })
    }
}

/// The error of a node that answers another question than it was asked.
fn out_of_turn() -> Error {
    Error::ClusterMismatch { problem: "a node answered out of turn: is it another release?".into() }
}
