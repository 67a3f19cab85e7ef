//! Nodes inside this process: memory without files, sessions without sockets.
//!
//! A session ends with its table, so there are no deaths to notice. The scrubbers put in order the
//! little that an orderly end can leave behind.

use std::sync::{Arc, mpsc};

use loch_fabric::ForkMark;
use loch_fabric::shm::Region;

use crate::layout::memory::{ClusterMemory, Member, of_region};
use crate::layout::plan;
use crate::limits::INSPECT_TIMEOUT;
use crate::node::attacher::LatestMemory;
use crate::node::host_memory::check_host;
use crate::node::region::format;
use crate::node::scrubber::{MappedAccess, Scrubber};
use crate::node::sessions::{SessionEnd, Sessions};
use crate::node::workers::Workers;
use crate::node::workers::plan::WorkerPlan;
use crate::node::workers::transport::MappedTransport;
use crate::session::connection::mark;
use crate::session::local::LocalNodes;
use crate::session::slot::{Process, SessionId};
use crate::session::wire::{Question, Told};
use crate::{EmbeddedConfig, Error, Result};

/// The nodes of one embedded cluster. They end when the last table and the last cluster do.
pub(crate) struct Embedded {
    memory: Arc<ClusterMemory>,
    nodes: Vec<EmbeddedNode>,
    /// A child process inherits the memory, but not the nodes' threads.
    mark: ForkMark,
}

/// One node.
struct EmbeddedNode {
    sessions: Arc<Sessions>,
    scrubber: Scrubber,
    workers: Workers,
}

impl Embedded {
    /// Makes the nodes' memory and starts their scrubbers.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::NoSpace`], [`Error::HostMemory`].
    pub fn start(config: &EmbeddedConfig) -> Result<Self> {
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
        let plans = plan::of_embedded(config)?;
        check_host(plans.iter().map(|plan| plan.header.region_bytes).sum())?;
        let mapped = plans.into_iter().enumerate().map(make).collect::<Result<Vec<_>, _>>()?;
        let nodes = mapped.iter().cloned().map(Some).collect();
        let memory = Arc::new(ClusterMemory::join(nodes, 0)?);
        let workers = WorkerPlan::new(&config.workers, &config.tables)?;
        let latest_memory = Arc::new(LatestMemory::fixed(memory.clone()));
        let nodes = mapped.iter().enumerate().map(|(number, node)| {
            let sessions = Arc::new(Sessions::restore(node, false).0);
            let theirs = memory.clone();
            let shared = MappedAccess::new(number, move || Ok(theirs.clone()));
            let scrubber = Scrubber::start(number, sessions.clone(), shared);
            let scrubber =
                scrubber.map_err(Error::os("start a thread for", node.name.as_str().as_ref()))?;
            let transport = MappedTransport { home: number, latest_memory: latest_memory.clone() };
            let workers = Workers::start(node, &workers, &sessions, &latest_memory, &transport)?;
            Ok(EmbeddedNode { sessions, scrubber, workers })
        });
        Ok(Self { nodes: nodes.collect::<Result<_>>()?, memory, mark: mark()? })
    }
}

impl LocalNodes for Embedded {
    fn mark(&self) -> ForkMark {
        self.mark
    }

    fn memory(&self) -> &Arc<ClusterMemory> {
        &self.memory
    }

    fn open_session(&self, home: usize) -> Result<SessionId> {
        let opened = self.nodes[home].sessions.open(Process::own());
        opened.ok_or_else(|| {
            let node = self.memory.nodes[home].as_ref();
            Error::SessionsExhausted {
                socket: format!("embedded-{home}").into(),
                sessions: node.map_or(0, Member::client_sessions),
            }
        })
    }

    fn end_session(&self, home: usize, session: SessionId, process: Process) {
        let EmbeddedNode { sessions, scrubber, .. } = &self.nodes[home];
        if let Some(how) = sessions.close(session, process, SessionEnd::Left) {
            scrubber.handle().ended(how == SessionEnd::Died);
        }
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn ask(&self, node: usize, question: Question) -> Result<Told> {
        let (sender, told) = mpsc::channel();
        let answer = move |answer| {
            // The caller may have given up.
            let _ = sender.send(answer);
        };
        let asked = self.nodes[node].workers.inspector().ask(question, Box::new(answer));
        let told = asked.then(|| told.recv_timeout(INSPECT_TIMEOUT).ok()).flatten();
        told.ok_or_else(|| Error::NodeUnreachable {
            socket: format!("embedded-{node}").into(),
            remedy: "its workers do not answer".into(),
        })
    }

    fn failed(&self) -> Option<(usize, String)> {
        let nodes = self.nodes.iter().enumerate();
        let mut failed = nodes.filter_map(|(node, embedded)| {
            Some((node, embedded.workers.status().error()?.to_string()))
        });
        failed.next()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if self.mark.is_inherited() {
            // The threads are the parent's; in the child a join would never return.
            std::mem::forget(std::mem::take(&mut self.nodes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableConfig;

    #[test]
    fn a_child_that_drops_its_parents_nodes_ends_no_worker() {
        let table = TableConfig { engine: "herd".parse().unwrap(), ..TableConfig::default() };
        let config = EmbeddedConfig { tables: vec![table], ..EmbeddedConfig::default() };
        for (is_child, answers) in [(false, false), (true, true)] {
            let mut nodes = Embedded::start(&config).unwrap();
            let inspector = nodes.nodes[0].workers.inspector().clone();
            if is_child {
                nodes.mark = ForkMark::of_a_parent().unwrap();
            }
            drop(nodes);
            let (sender, told) = mpsc::channel();
            let question = Question { table: 0, check: true, scan: None };
            inspector.ask(question, Box::new(move |answer| _ = sender.send(answer)));
            assert_eq!(told.recv_timeout(INSPECT_TIMEOUT).is_ok(), answers);
        }
    }
}
