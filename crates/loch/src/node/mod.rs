//! The node: owns memory, and lets clients attach to it.

use std::path::Path;

use crate::{Error, NodeConfig};

/// A running node. Dropping it stops it in an orderly way, as [`Node::stop`].
pub struct Node {}

impl Node {
    /// Starts a node: makes its region, or takes over the one that is there with all its data, and
    /// listens at its socket.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::NoSuchEngine`]; [`Error::SocketInUse`], [`Error::RegionInUse`];
    /// [`Error::NoSpace`]; [`Error::RegionMismatch`], [`Error::RegionDamaged`] (the file is left as
    /// it is).
    pub fn start(config: NodeConfig) -> Result<Self, Error> {
        let _ = config;
        todo!()
    }

    /// The socket at which clients attach.
    pub fn socket(&self) -> &Path {
        todo!()
    }

    /// Stops in an orderly way: the socket file is removed, the region file stays unless the node
    /// is ephemeral. Clients go on with the tables they have.
    pub fn stop(self) {}
}
