//! The nodes where a client stores the records that it loads.

use std::ops::Range;

use crate::spec::Spec;
use crate::target::Endpoint;
use crate::workload::part;

/// The nodes to which a client's records go when they are loaded.
pub struct Homes {
    /// The client's home node.
    pub home: usize,
    /// Nodes that can be a home.
    nodes: usize,
    /// Whether the records go to all nodes, in equal parts.
    spreads: bool,
}

impl Homes {
    /// Of client number `client`.
    pub fn of(endpoint: &Endpoint, spec: &Spec, client: u32) -> Self {
        let nodes = endpoint.paths.len();
        let spreads = !(spec.clients as usize).is_multiple_of(nodes);
        Self { home: client as usize % nodes, nodes, spreads }
    }

    /// The parts of `records` that go to each node. If clients are spread evenly over the nodes,
    /// records that each client stores at home are spread evenly too.
    pub fn parts(&self, records: Range<u64>) -> Vec<(usize, Range<u64>)> {
        if !self.spreads {
            return vec![(self.home, records)];
        }
        let len = records.end - records.start;
        let at = |number: usize| records.start + part(len, number as u32, self.nodes as u32);
        (0..self.nodes)
            .map(|number| ((self.home + number) % self.nodes, at(number)..at(number + 1)))
            .collect()
    }
}
