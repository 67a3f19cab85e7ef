//! Nodes inside this process: memory without files, sessions without sockets.
//!
//! A session ends with its table, so there are no deaths to find out about; what the scrubbers are
//! for is the little that an orderly end can leave behind.

use std::sync::Arc;

use loch_fabric::shm::Region;

use crate::memory::{Member, Memory};
use crate::node::region::{format, of_region};
use crate::node::scrubber::{Scrubber, Shared};
use crate::node::sessions::{End, Opened, Process, Sessions};
use crate::{EmbeddedConfig, Error, plan};

/// The nodes of one embedded cluster. They end when the last table and the last cluster do.
pub(crate) struct Embedded {
    memory: Arc<Memory>,
    nodes: Vec<(Arc<Sessions>, Scrubber)>,
}

impl Embedded {
    /// Makes the nodes' memory and starts their scrubbers.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::NoSpace`].
    pub fn start(config: &EmbeddedConfig) -> Result<Self, Error> {
        let make = |(number, plan): (usize, plan::Plan)| {
            let name = format!("embedded-{number}");
            let region = Region::anonymous(plan.header.region_bytes)
                .map_err(of_region(name.as_str().as_ref()))?;
            format(&region, &plan)?;
            region.populate();
            Member::read(name.clone(), "".into(), Arc::new(region)).map_err(|error| {
                Error::RegionDamaged { path: name.into(), what: error.to_string() }
            })
        };
        let plans = plan::of_embedded(config)?.into_iter().enumerate();
        let mapped = plans.map(make).collect::<Result<Vec<_>, _>>()?;
        let nodes = mapped.iter().cloned().map(Some).collect();
        let memory = Arc::new(Memory::join(nodes, 0)?);
        let nodes = mapped.iter().enumerate().map(|(number, node)| {
            let sessions = Arc::new(Sessions::restore(node, false).0);
            let theirs = memory.clone();
            let shared = Shared::new(number, move || Ok(theirs.clone()));
            let scrubber = Scrubber::start(number, sessions.clone(), shared);
            let scrubber =
                scrubber.map_err(Error::os("start a thread for", node.name.as_str().as_ref()))?;
            Ok((sessions, scrubber))
        });
        Ok(Self { nodes: nodes.collect::<Result<_, Error>>()?, memory })
    }

    /// All regions.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Opens a session at a node.
    ///
    /// # Errors
    /// [`Error::SessionsExhausted`].
    pub fn open_session(&self, home: usize) -> Result<Opened, Error> {
        let opened = self.nodes[home].0.open(Process::own());
        opened.ok_or_else(|| {
            let node = self.memory.nodes[home].as_ref();
            Error::SessionsExhausted {
                socket: format!("embedded-{home}").into(),
                sessions: node.map_or(0, Member::client_sessions),
            }
        })
    }

    /// Ends a session whose client has left in order.
    pub fn end_session(&self, home: usize, session: Opened, process: Process) {
        let (sessions, scrubber) = &self.nodes[home];
        if sessions.close(session, process, End::Left) {
            scrubber.bell().ended(false);
        }
    }
}
