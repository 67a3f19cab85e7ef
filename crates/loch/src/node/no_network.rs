//! Nodes on a network in a build without verbs: there are none.

use std::sync::Arc;

use super::Node;
use super::control::network::Network;
use super::control_client::ControlClient;
use super::plan::NodePlan;
use crate::session::wire::DeviceChoice;
use crate::{NodeConfig, Result};

/// A node's part in a network.
pub(super) enum NodeNetwork {}

impl NodeNetwork {
    /// The control plane, as the node's server uses it.
    pub fn control(&self) -> Arc<dyn ControlClient> {
        match *self {}
    }

    /// The device that the node's clients choose.
    pub fn device(&self) -> DeviceChoice {
        match *self {}
    }
}

/// Starts a node whose memory is reached over a network.
pub(super) fn start_node(_: &NodeConfig, _: &NodePlan, network: Network) -> Result<Node> {
    match network {}
}
