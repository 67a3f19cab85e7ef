//! A process's connections: made with the first verb, broken by faults, and made again.

use std::cell::RefMut;

use super::SimEndpoint;
use super::process::Connection;
use crate::{Fabric, FabricError, RegionId, Result};

impl SimEndpoint {
    /// Makes the connection to a node again after it broke: from then on no verb that was posted on
    /// the old connection is executed any more.
    ///
    /// # Errors
    /// [`FabricError::Unreachable`] if the node does not answer, if it is another one because it
    /// lost its memory, or if this process was fenced.
    pub async fn reconnect(&self, node: RegionId) -> Result<()> {
        self.pause(self.world.profile.one_way_ns.div_ceil(500)).await;
        let answers = self.world.is_open(self.home, node);
        if !answers || !self.is_same(node) || self.world.process(self.process).fenced {
            return Err(FabricError::Unreachable { region: node });
        }
        if self.connection(node).queue.is_some() {
            self.world.rejoin(self.process, node);
        } else {
            self.world.fence(self.process, Some(node));
            self.connection(node).works = true;
        }
        Ok(())
    }

    /// The nodes to which the connection is broken.
    pub fn broken(&self) -> Vec<RegionId> {
        let process = self.world.process(self.process);
        let broken = process.connections.iter().filter(|(_, connection)| !connection.works);
        broken.map(|(node, _)| *node).collect()
    }

    /// The connection to a node; made now if there is none.
    pub(super) fn connection(&self, node: RegionId) -> RefMut<'_, Connection> {
        if !self.world.process(self.process).connections.contains_key(&node) {
            let queue = self.world.joined(self.process, node);
            let mut nodes = self.world.nodes.borrow_mut();
            if queue.is_none() {
                nodes[self.home.0 as usize].connections += 1;
            }
            let incarnation = nodes[node.0 as usize].incarnation;
            let connection = Connection { works: true, incarnation, queue };
            self.world.process(self.process).connections.insert(node, connection);
        }
        RefMut::map(self.world.process(self.process), |process| {
            process.connections.get_mut(&node).expect("it was just made")
        })
    }

    /// Whether a node has not lost its memory since the first connection to it.
    fn is_same(&self, node: RegionId) -> bool {
        let incarnation = self.connection(node).incarnation;
        self.world.nodes.borrow()[node.0 as usize].incarnation == incarnation
    }
}
