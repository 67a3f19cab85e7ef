//! The control plane in a build without verbs: no node has one.

/// A node's place in the network.
pub(crate) mod network {
    use crate::{Error, NodeConfig, Result};

    /// A node without verbs has no place in a network.
    #[derive(Debug)]
    pub(crate) enum Network {}

    impl Network {
        /// Returns the error that a network needs a build with verbs.
        ///
        /// # Errors
        /// [`Error::Config`].
        pub fn new(_: &NodeConfig) -> Result<Self> {
            let problem = "this build has no verbs backend: use \"shm\", or build Loch with the \
                           feature `verbs`";
            Err(Error::config("fabric", problem))
        }

        /// The node's number.
        pub fn node(&self) -> usize {
            match *self {}
        }

        /// The control addresses of all nodes, in order.
        pub fn addresses(&self) -> &[String] {
            match *self {}
        }
    }
}
