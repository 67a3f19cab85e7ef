//! What workers stand on: how they reach their own node's memory, and that of their clients' nodes.

use std::sync::Arc;

use loch_engines::requests::{Holder, Sessions, WorkerId};
use loch_fabric::shm::ShmEndpoint;
use loch_fabric::{Fabric, Messages, RegionId, RemoteAddr};

use crate::Error;
use crate::client::endpoint::{WorkerMail, Yielding};
use crate::memory::{Memory, TableView};
use crate::node::neighbours::Surroundings;
use crate::node::sessions::Opened;

/// How a node's workers come to memory.
pub(crate) trait Ground: Clone + Send + 'static {
    /// Of a worker that is a client of its node, and WRITEs its replies.
    type Endpoint: Fabric;
    /// Its connections, which may break.
    type Ties;
    /// Of a worker that sends its replies: its own node's memory, and messages.
    type Mail: Fabric + Messages;

    /// For the worker of a table that holds `session`. What is not connected yet will be.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn endpoint(
        &self,
        memory: &Arc<Memory>,
        table: usize,
        session: Opened,
    ) -> Result<(Self::Endpoint, Self::Ties), Error>;

    /// Between two turns: makes connections again that broke. Waits for nobody.
    fn tend(&self, ties: &mut Self::Ties, endpoint: &Self::Endpoint);

    /// After a worker's session has ended.
    fn session_ended(&self);

    /// For a worker that sends its replies: worker `id` of a table, whose mailbox is `mailbox`.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Fabric`].
    fn mail(
        &self,
        memory: &Memory,
        table: &TableView,
        mailbox: RemoteAddr,
        id: WorkerId,
    ) -> Result<Self::Mail, Error>;

    /// What the node knows of the sessions of a table's clients.
    fn sessions(&self, surroundings: &Arc<Surroundings>, table: usize) -> Sessions;

    /// Nodes have come back with other memory: this is all of it now.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    fn attach(&self, mail: &Self::Mail, memory: &Memory) -> Result<(), Error>;

    /// As [`Ground::tend`], for a worker that sends its replies.
    fn tend_mail(&self, mail: &Self::Mail);
}

/// All memory is mapped.
#[derive(Clone, Copy)]
pub(crate) struct Mapped {
    /// The workers' node.
    pub home: usize,
}

impl Ground for Mapped {
    type Endpoint = ShmEndpoint;
    type Ties = ();
    type Mail = Yielding<ShmEndpoint, WorkerMail>;

    fn endpoint(
        &self,
        memory: &Arc<Memory>,
        _: usize,
        _: Opened,
    ) -> Result<(ShmEndpoint, ()), Error> {
        Ok((memory.endpoint(self.home), ()))
    }

    #[inline]
    fn tend(&self, (): &mut (), _: &ShmEndpoint) {}

    fn session_ended(&self) {}

    fn mail(
        &self,
        memory: &Memory,
        _: &TableView,
        mailbox: RemoteAddr,
        _: WorkerId,
    ) -> Result<Self::Mail, Error> {
        let home = RegionId(self.home as u8);
        let own = memory.nodes[self.home].as_ref().expect("a node knows itself");
        let mut endpoint = ShmEndpoint::new(home);
        endpoint.attach(home, own.region().clone());
        let messages = WorkerMail::open(memory.regions(), mailbox);
        Ok(Yielding::new(endpoint, messages.map_err(Error::Fabric)?))
    }

    /// Mailboxes are memory that every client has mapped: a secret would keep nobody out.
    fn sessions(&self, surroundings: &Arc<Surroundings>, _: usize) -> Sessions {
        let surroundings = surroundings.clone();
        Box::new(move |node, slot| Some(Holder::new(surroundings.incarnation(node, slot)?, None)))
    }

    fn attach(&self, mail: &Self::Mail, memory: &Memory) -> Result<(), Error> {
        mail.messages().reopen(memory.regions()).map_err(Error::Fabric)
    }

    #[inline]
    fn tend_mail(&self, _: &Self::Mail) {}
}
