//! The errors of this crate.
//!
//! Errors are split by what the caller has to do ([`ErrorKind`]): correct the call, make room, try
//! again, find out what happened, or ask the operator for a repair.

use std::path::PathBuf;

use loch_engines::EngineError;
use loch_engines::error::ErrorKind;
use loch_engines::size::InWords;
use loch_fabric::FabricError;

use crate::ByteSize;

/// The result of what this crate does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation was not done. Unless a variant says otherwise, nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on a table was refused or did not finish.
    #[error("table {table:?}: {source}")]
    Table {
        /// The table.
        table: String,
        /// The reason.
        source: EngineError,
    },

    // Correct the call.
    /// The write does not lie inside the reserved value.
    #[error("the write ends at byte {end} of a value for which {len} bytes were reserved")]
    OutsideReservation {
        /// Where the write would end.
        end: u64,
        /// Bytes reserved.
        len: u64,
    },
    /// The table's engine does not have the operation.
    #[error("table {table:?} is of engine {engine}, {operation} is for tables of {engines}")]
    OtherEngine {
        /// The table.
        table: String,
        /// The table's engine.
        engine: &'static str,
        /// The operation that was asked for.
        operation: &'static str,
        /// The engines that have it.
        engines: &'static str,
    },
    /// The cluster or table belongs to the process from which this process was forked.
    #[error(
        "this process was forked from the one that attached to the cluster, whose session it must \
         not use: attach again in this process (Cluster::connect)"
    )]
    Forked,
    /// The cluster has no table of that name.
    #[error("there is no table {name:?}: the cluster has {}", .have.join(", "))]
    NoSuchTable {
        /// The name that was asked for.
        name: String,
        /// The names of the cluster's tables.
        have: Vec<String>,
    },
    /// There is no engine of that name.
    #[error(transparent)]
    NoSuchEngine(#[from] loch_engines::registry::UnknownEngine),
    /// The configuration cannot be used.
    #[error("configuration: {field}: {problem}")]
    Config {
        /// The field, by its name in the configuration.
        field: String,
        /// The problem, and what would be right.
        problem: String,
    },

    // Make room.
    /// The file system, or the memory of this host, has no room for a node's region.
    #[error(
        "no room for a region of {size} in {path}{free}: give the node less memory, or make the \
         file system larger (for /dev/shm: mount -o remount,size=... /dev/shm)",
        size = InWords(.size.bytes()),
        path = .path.display(),
        free = .free.map(|free| format!(", where {} is free", InWords(free.bytes()))).unwrap_or_default()
    )]
    NoSpace {
        /// The region file.
        path: PathBuf,
        /// The size asked for.
        size: ByteSize,
        /// The memory that was free, if the file system has a bound.
        free: Option<ByteSize>,
    },
    /// The host, or a control group of this process, has not so much memory left. The kernel would
    /// end the process when it takes the memory.
    #[error(
        "no memory for {size}: {holder} has {left} left; give the node less memory",
        size = InWords(.size.bytes())
    )]
    HostMemory {
        /// The size asked for.
        size: ByteSize,
        /// The host or the control group.
        holder: String,
        /// What it has left.
        left: String,
    },
    /// Tables have more memory in a node's process than this host has.
    #[error(
        "table {table:?}: with it, tables have {size} in the memory of the node's process, and this \
         host has {host} in all: give the node or the table less memory",
        size = InWords(.size.bytes()),
        host = InWords(.host.bytes())
    )]
    NoMemory {
        /// The first table for which the memory is not enough.
        table: String,
        /// The memory of this table and the tables before it, to the mebibyte.
        size: ByteSize,
        /// The memory of the host, to the mebibyte.
        host: ByteSize,
    },
    /// All session slots of the node are taken.
    #[error(
        "all {sessions} session slots of the node at {socket} are taken: drop tables that are not \
         used, or start the node with more sessions",
        socket = .socket.display()
    )]
    SessionsExhausted {
        /// The node.
        socket: PathBuf,
        /// The number of its session slots.
        sessions: u32,
    },

    // Try again.
    /// The node was told to stop before its memory was ready. A region that was there before is as
    /// it was.
    #[error("the node was stopped before its memory was ready")]
    StartStopped,
    /// No node answers at the socket.
    #[error("no node answers at {socket}: {remedy}", socket = .socket.display())]
    NodeUnreachable {
        /// The socket.
        socket: PathBuf,
        /// The observation, and the remedy.
        remedy: String,
    },

    // Repair.
    /// The node speaks another version of the handshake.
    #[error(
        "the node at {socket} speaks protocol version {theirs}, this program {ours}: use the same \
         release on both sides",
        socket = .socket.display()
    )]
    ProtocolVersion {
        /// The node.
        socket: PathBuf,
        /// The version of this program.
        ours: u32,
        /// The version of the node.
        theirs: u32,
    },
    /// The nodes' descriptions of their cluster do not fit together.
    #[error("the nodes do not form one cluster: {problem}")]
    ClusterMismatch {
        /// The descriptions that differ.
        problem: String,
    },
    /// A live node serves this socket.
    #[error(
        "a node is running at {socket}: stop it, or choose another socket",
        socket = .socket.display()
    )]
    SocketInUse {
        /// The socket.
        socket: PathBuf,
    },
    /// A live node owns this region file.
    #[error(
        "{path} belongs to a running node: stop it, or choose another name or region",
        path = .path.display()
    )]
    RegionInUse {
        /// The region file.
        path: PathBuf,
    },
    /// The region file was made with another configuration.
    #[error(
        "the region {path} has {field} {have}, the configuration says {want}: start the node with \
         the configuration that made it (or, if that is this one, with the version of Loch that \
         made it), or remove the file and lose its data",
        path = .path.display()
    )]
    RegionMismatch {
        /// The region file.
        path: PathBuf,
        /// The field that differs.
        field: String,
        /// The value in the file.
        have: String,
        /// The configured value.
        want: String,
    },
    /// The region file was made by a release of Loch that lays memory out in another way.
    #[error(
        "the region {path} has layout version {have}, and this build of Loch has {want}: start the \
         node with the release that made the file, or remove it and lose its data",
        path = .path.display()
    )]
    RegionVersion {
        /// The region file.
        path: PathBuf,
        /// The version of the file.
        have: u64,
        /// The version of this build.
        want: u64,
    },
    /// The file is not a region, or it is damaged. It was left as it is.
    #[error(
        "the region {path} cannot be used: {what}; restore it, or remove the file and lose its data",
        path = .path.display()
    )]
    RegionDamaged {
        /// The region file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// No RDMA device of this host can be used, or the chosen one cannot.
    #[error("no RDMA device can be used: {problem}")]
    Device {
        /// The devices that were looked at, and why none of them can be used.
        problem: String,
    },
    /// This process may not lock as much memory as its region has.
    #[error(
        "{needed} of memory have to be locked for RDMA, this process may lock {limit}: raise it \
         (`ulimit -l unlimited`; systemd: LimitMEMLOCK=infinity), or give the node less memory",
        needed = InWords(.needed.bytes()),
        limit = InWords(.limit.bytes())
    )]
    LockedMemory {
        /// Bytes of the region.
        needed: ByteSize,
        /// The memory that may be locked.
        limit: ByteSize,
    },
    /// A node could not prove to another that they are of one cluster.
    #[error("{problem}")]
    Untrusted {
        /// The node, and what its proof lacks.
        problem: String,
    },
    /// A file, folder or socket that another user could have made, or could change. It was left as
    /// it is.
    #[error(
        "{path} is not used: {problem}; owner {owner}, mode {mode:04o}; {remedy}",
        path = .path.display()
    )]
    NotPrivate {
        /// The path of the file, folder or socket.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
        /// The mode of the file.
        mode: u32,
        /// The reason why it cannot be trusted.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// The process at the other side of the socket is another user's.
    #[error(
        "{socket} is served by user {theirs}, this process is user {ours}: {remedy}",
        socket = .socket.display()
    )]
    ForeignUser {
        /// The socket.
        socket: PathBuf,
        /// The user id of this process.
        ours: u32,
        /// The user id of the other side.
        theirs: u32,
        /// The remedy.
        remedy: String,
    },
    /// A worker of the node has failed, and therefore the node stops.
    #[error("worker {worker} of table {table:?} failed: {what}")]
    WorkerFailed {
        /// The worker's table.
        table: String,
        /// The worker's number.
        worker: u16,
        /// The reason.
        what: String,
    },
    /// The node refused for a reason that this enum has no variant for.
    #[error("the node at {socket} refused: {reason}", socket = .socket.display())]
    Refused {
        /// The node.
        socket: PathBuf,
        /// The node's reason.
        reason: String,
    },
    /// The fabric failed before there was a table for operations.
    #[error("the fabric failed: {0}")]
    Fabric(FabricError),
    /// The operating system returned an error.
    #[error("cannot {action} {path}: {cause}", path = .path.display())]
    Os {
        /// The action that failed.
        action: &'static str,
        /// The path of the file or socket.
        path: PathBuf,
        /// The system's error.
        cause: String,
    },
}

impl Error {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Table { source, .. } => source.kind(),
            Self::OutsideReservation { .. }
            | Self::OtherEngine { .. }
            | Self::Forked
            | Self::NoSuchTable { .. }
            | Self::NoSuchEngine(_)
            | Self::Config { .. } => ErrorKind::Usage,
            Self::NoSpace { .. }
            | Self::HostMemory { .. }
            | Self::NoMemory { .. }
            | Self::SessionsExhausted { .. } => ErrorKind::NoRoom,
            Self::StartStopped | Self::NodeUnreachable { .. } => ErrorKind::TryAgain,
            _ => ErrorKind::Repair,
        }
    }

    /// The reason why an operation on a table was refused or did not finish, if this is the error
    /// of one.
    pub fn engine(&self) -> Option<&EngineError> {
        match self {
            Self::Table { source, .. } => Some(source),
            _ => None,
        }
    }

    pub(crate) fn config(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Config { field: field.into(), problem: problem.into() }
    }

    /// Makes an error of the operating system one of this crate: `action` on `path` failed.
    pub(crate) fn os<E: std::fmt::Display>(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(E) -> Self {
        move |cause| Self::Os { action, path: path.into(), cause: cause.to_string() }
    }
}
