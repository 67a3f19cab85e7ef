//! Where a client stores the records that it loads.

use std::ops::Range;

use crate::spec::Spec;
use crate::target::Endpoint;

/// Where a client's records go when they are loaded.
pub struct Homes {
    /// The client's home node.
    pub home: usize,
    /// Nodes that can be one.
    nodes: usize,
    /// Whether they go to all nodes, in equal parts.
    spreads: bool,
}

impl Homes {
    /// Of client number `client`.
    pub fn of(endpoint: &Endpoint, spec: &Spec, client: u32) -> Self {
        let nodes = endpoint.paths.len();
        let spreads = !(spec.clients as usize).is_multiple_of(nodes);
        Self { home: client as usize % nodes, nodes, spreads }
    }

    /// The parts of `records` that go to each node. Where clients are spread
    /// evenly over the nodes, so is what each of them puts at home.
    pub fn parts(&self, records: Range<u64>) -> Vec<(usize, Range<u64>)> {
        if !self.spreads {
            return vec![(self.home, records)];
        }
        let (len, nodes) = (records.end - records.start, self.nodes as u64);
        let at = |part: u64| {
            records.start + (u128::from(len) * u128::from(part) / u128::from(nodes)) as u64
        };
        (0..nodes)
            .map(|part| ((self.home + part as usize) % self.nodes, at(part)..at(part + 1)))
            .collect()
    }
}
