//! A cluster as a client sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use loch_fabric::ForkMark;
use serde::{Serialize, Serializer};

use crate::client::attachment::Attachment;
use crate::client::backend::Backend;
use crate::client::net::OpenParams;
use crate::client::nodes::Nodes;
use crate::client::options::ConnectOptions;
use crate::embedded::Embedded;
use crate::layout::memory::Member;
use crate::layout::table_info::TableInfo;
use crate::limits::TIMEOUT_MAX;
use crate::session::connection::mark;
use crate::{EmbeddedConfig, Error, FabricKind, Result, Table};

/// A cluster that this process is attached to. Cheap to clone; clones share one attachment.
///
/// A process that was forked from this one must attach anew. In the child this cluster opens no
/// table ([`Error::Forked`]), and an embedded cluster is of no use.
#[derive(Clone)]
pub struct Cluster {
    home: usize,
    options: ConnectOptions,
    nodes: Nodes,
    /// The mark of the process that has attached.
    mark: ForkMark,
}

/// The state of a cluster, from [`Cluster::info`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterInfo {
    /// The number of the home node, where this client writes.
    pub home: usize,
    /// The fabric that joins the nodes.
    pub fabric: FabricKind,
    /// Why it is that fabric.
    pub fabric_reason: String,
    /// The nodes, in order.
    pub nodes: Vec<NodeInfo>,
    /// The tables, in order.
    pub tables: Vec<TableInfo>,
}

/// A node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeInfo {
    /// The node's name.
    pub name: String,
    /// The node's socket. For a node on another host it is the address, and for a node inside this
    /// process it is empty.
    pub socket: PathBuf,
    /// Whether the node's process is up. Its memory can be used even if it is not.
    pub up: bool,
    /// Whether the node's region file was deleted: of another host, as the node told last. The node
    /// and its clients go on, but the data ends with them.
    pub region_deleted: bool,
    /// The bytes of the node's region.
    pub region_bytes: u64,
    /// Identifies the node's memory: another number is other memory. It is written in hexadecimal,
    /// because JSON's numbers are too short for it.
    #[serde(serialize_with = "hexadecimal")]
    pub identity: u64,
    /// The node's session slots.
    pub sessions: u32,
    /// The session slots that are taken.
    pub sessions_taken: u32,
}

fn hexadecimal<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:016x}"))
}

impl Cluster {
    /// Attaches to the cluster of the node at `socket`, which becomes this client's home.
    ///
    /// # Errors
    /// As [`Cluster::connect_with`].
    pub fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        Self::connect_with(socket, ConnectOptions::default())
    }

    /// Attaches to the cluster of the node at `socket`.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`] names the node that did not answer in time;
    /// [`Error::ClusterMismatch`], [`Error::ProtocolVersion`], [`Error::ForeignUser`],
    /// [`Error::RegionDamaged`].
    pub fn connect_with(socket: impl AsRef<Path>, options: ConnectOptions) -> Result<Self> {
        let connect_timeout = options.connect_timeout.min(TIMEOUT_MAX);
        let options = ConnectOptions { connect_timeout, ..options };
        let attachment = Attachment::new(socket.as_ref(), options.clone())?;
        Ok(Self {
            home: attachment.home(),
            options,
            nodes: Nodes::Attached(Arc::new(attachment)),
            mark: mark()?,
        })
    }

    /// Starts nodes inside this process: anonymous memory, no socket, no file. They end with the
    /// last clone of the cluster and the last of its tables.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration cannot be laid out, [`Error::NoSpace`],
    /// [`Error::HostMemory`].
    pub fn embedded(config: EmbeddedConfig) -> Result<Self> {
        Ok(Self {
            home: 0,
            options: ConnectOptions {
                operation_timeout: config.operation_timeout,
                cache: config.cache,
                batch: config.batch,
                ..ConnectOptions::default()
            },
            nodes: Nodes::Embedded(Arc::new(Embedded::start(&config)?)),
            mark: mark()?,
        })
    }

    /// Returns the same cluster with another home node, where this client's tables write first.
    ///
    /// ```
    /// use loch::{Cluster, EmbeddedConfig};
    /// let config = EmbeddedConfig { nodes: 2, ..EmbeddedConfig::default() };
    /// let first = Cluster::embedded(config)?;
    /// first.table("default")?.put(b"key", b"value")?;
    /// let second = first.with_home(1)?;
    /// assert!(second.table("default")?.contains(b"key")?);
    /// # Ok::<(), loch::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ClusterMismatch`] if there is no such node, else as [`Cluster::connect`].
    pub fn with_home(&self, node: usize) -> Result<Self> {
        let memory = self.nodes.memory();
        let Some(mapped) = memory.nodes.get(node).and_then(Option::as_ref) else {
            return Err(Error::ClusterMismatch {
                problem: format!("there is no node {node}: there are {}", memory.nodes.len()),
            });
        };
        match &self.nodes {
            Nodes::Attached(_) => Self::connect_with(&mapped.socket, self.options.clone()),
            Nodes::Embedded(_) => Ok(Self { home: node, ..self.clone() }),
        }
    }

    /// Opens a table, for one thread. If the home node's process was away, the client attaches
    /// again.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::SessionsExhausted`], [`Error::NodeUnreachable`] if the home
    /// node's process is down, [`Error::Forked`], and as [`Cluster::connect`].
    pub fn table(&self, name: &str) -> Result<Table> {
        if self.mark.is_inherited() {
            return Err(Error::Forked);
        }
        // A wrong name costs no session.
        self.nodes.memory().table(name)?;
        let (memory, table_session) = self.nodes.table_session(self.home)?;
        let table = memory.table(name)?;
        let (nodes, options) = (&self.nodes, &self.options);
        let backend = Backend::open(OpenParams {
            nodes,
            memory: &memory,
            table,
            table_session: &table_session,
            options,
        })?;
        Ok(Table::new(table, backend, table_session))
    }

    /// The names of the tables, in order.
    pub fn tables(&self) -> Vec<String> {
        self.nodes.memory().tables.iter().map(|t| t.name.clone()).collect()
    }

    /// The nodes and tables of the cluster.
    pub fn info(&self) -> ClusterInfo {
        let memory = self.nodes.memory();
        let info = |(number, node): (usize, &Member)| NodeInfo {
            name: node.name.clone(),
            socket: node.socket.clone(),
            region_bytes: node.header.region_bytes,
            identity: node.header.identity,
            sessions: node.client_sessions(),
            sessions_taken: self.nodes.sessions_taken(number, node).unwrap_or(0),
            up: self.nodes.is_up(number),
            region_deleted: self.nodes.is_deleted(number, node),
        };
        // An unknown node keeps its number.
        let nodes = memory.nodes.iter().enumerate();
        let nodes = nodes.filter_map(|(number, node)| Some((number, node.as_ref()?)));
        let (fabric, fabric_reason) = self.nodes.fabric();
        ClusterInfo {
            home: self.home,
            fabric,
            fabric_reason,
            nodes: nodes.map(info).collect(),
            tables: memory.table_infos(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_opens_no_table_of_its_parents_cluster() {
        let mut cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
        cluster.mark = ForkMark::of_a_parent().unwrap();
        let refused = cluster.table("default").err().expect("it is the parent's");
        assert!(matches!(refused, Error::Forked), "{refused}");
    }
}
