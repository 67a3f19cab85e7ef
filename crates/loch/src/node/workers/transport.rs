//! The workers' way to the memory of their own node and of their clients' nodes.

use std::sync::Arc;

use loch_engines::epoch::Session;
use loch_engines::requests::{Holder, Sessions};
use loch_engines::serve::{WorkerError, WorkerSite, WorkerTransport};
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{RegionId, RemoteAddr};

use super::mail::WorkerMail;
use crate::Error;
use crate::layout::memory::ClusterMemory;
use crate::node::attacher::LatestMemory;
use crate::session::endpoint::Yielding;

/// The transport of a node's workers.
pub(crate) trait NodeTransport:
    WorkerTransport<Memory = Arc<ClusterMemory>> + Clone + Send + 'static
{
    /// Called after a worker's session has ended.
    fn session_ended(&self) {}

    /// Whether all clients of a worker can ring its bell.
    const IS_RUNG: bool = false;
}

impl From<Error> for WorkerError {
    fn from(error: Error) -> Self {
        Self::Host(error.into())
    }
}

/// The transport of workers that have all memory mapped.
#[derive(Clone)]
pub(crate) struct MappedTransport {
    /// The workers' node.
    pub home: usize,
    /// The memory of all nodes, as far as it is known.
    pub latest_memory: Arc<LatestMemory>,
}

impl WorkerTransport for MappedTransport {
    type Memory = Arc<ClusterMemory>;
    type Endpoint = ShmEndpoint;
    type ReplyLinks = ();
    type Mail = Yielding<ShmEndpoint, WorkerMail>;

    fn endpoint(
        &self,
        memory: &Arc<ClusterMemory>,
        _: &WorkerSite,
        _: &Session,
    ) -> Result<(ShmEndpoint, ()), WorkerError> {
        Ok((memory.endpoint(self.home), ()))
    }

    #[inline]
    fn tend(&self, _: &ShmEndpoint, (): &mut ()) {}

    fn mail(
        &self,
        memory: &Arc<ClusterMemory>,
        _: &WorkerSite,
        mailbox: RemoteAddr,
    ) -> Result<Self::Mail, WorkerError> {
        let home = RegionId(self.home as u8);
        let own = memory.nodes[self.home].as_ref().expect("a node knows itself");
        let mut endpoint = ShmEndpoint::new(home);
        endpoint.attach(home, own.region().clone());
        let messages = WorkerMail::open(memory.regions(), mailbox);
        Ok(Yielding::new(endpoint, messages.map_err(Error::Fabric)?))
    }

    #[inline]
    fn tend_mail(&self, _: &Self::Mail) {}

    fn attach(&self, mail: &Self::Mail, memory: &Arc<ClusterMemory>) -> Result<(), WorkerError> {
        Ok(mail.messages().reopen(memory.regions()).map_err(Error::Fabric)?)
    }

    /// Every client has mapped the memory of the mailboxes, so a secret would keep no client out.
    fn sessions(&self, _: &WorkerSite) -> Sessions {
        let latest_memory = self.latest_memory.clone();
        Box::new(move |node, slot| Some(Holder::new(latest_memory.incarnation(node, slot)?, None)))
    }
}

impl NodeTransport for MappedTransport {
    const IS_RUNG: bool = true;
}
