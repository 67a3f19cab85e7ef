//! How a table asks its nodes for what only they know: what their workers have in their own memory,
//! and whether they are up.

use std::path::PathBuf;
use std::sync::Arc;

use loch_engines::nessie::{CheckReport, Client};
use loch_fabric::shm::ShmEndpoint;

use super::client::Failed;
use crate::attachment::Attachment;
use crate::embedded::Embedded;
use crate::lease::Lease;
#[cfg(feature = "verbs")]
use crate::remote::Remote;
use crate::wire::Inspected;
use crate::{ConnectOptions, Error, Usage};

/// Where the nodes of a table are.
#[derive(Clone)]
pub(crate) enum Whereabouts {
    /// In processes of their own.
    Attached(Arc<Attachment>),
    /// In this process.
    Embedded(Arc<Embedded>),
}

impl Whereabouts {
    /// What each node's workers of a table have.
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Refused`].
    pub fn inspect(&self, table: usize) -> Result<Vec<Inspected>, Error> {
        match self {
            Self::Attached(attachment) => attachment.inspect(table),
            Self::Embedded(embedded) => embedded.inspect(table),
        }
    }

    /// A reader of the memory of table number `table`, one of nessie's layout.
    ///
    /// # Errors
    /// As [`Remote::open`].
    pub fn inspector(&self, table: usize, options: &ConnectOptions) -> Result<Inspector, Error> {
        let (memory, lease) = match self {
            Self::Attached(attachment) => attachment.reader(),
            // Embedded nodes are all equally near.
            Self::Embedded(embedded) => (
                embedded.memory().clone(),
                Lease::observer(0, embedded.memory().clone(), embedded.mark()),
            ),
        };
        #[cfg(feature = "verbs")]
        if let Self::Attached(attachment) = self
            && attachment.is_remote()
        {
            let remote = Remote::open(attachment.clone(), memory, table, &lease, options)?;
            return Ok(Inspector::Verbs(Box::new(remote), lease));
        }
        let map = memory.tables[table].nessie().expect("it is laid out as nessie's").clone();
        let (session, timeout_us) = (lease.session(), options.operation_timeout_us());
        let endpoint = memory.endpoint(usize::from(session.home().0));
        let client = Client::new(endpoint, map, session, options.cache, timeout_us);
        Ok(Inspector::Shm(Box::new(client)))
    }

    /// That a node is down, if one is.
    pub fn missing_node(&self) -> Option<Error> {
        let (socket, remedy): (PathBuf, String) = match self {
            Self::Attached(attachment) => {
                let down = attachment.down()?;
                (down, "its workers do not answer: start it with `loch serve`".into())
            }
            Self::Embedded(embedded) => {
                let (node, why) = embedded.failed()?;
                (format!("embedded-{node}").into(), why)
            }
        };
        Some(Error::NodeUnreachable { socket, remedy })
    }
}

/// A reader of a table's memory, for as long as it takes to look at it.
pub(crate) enum Inspector {
    Shm(Box<Client<ShmEndpoint>>),
    /// With what ends its connections.
    #[cfg(feature = "verbs")]
    Verbs(Box<Remote>, #[expect(dead_code, reason = "it is held")] Lease),
}

impl Inspector {
    /// As [`Table::check`](crate::Table::check).
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Fabric`].
    pub async fn check(&self) -> Result<CheckReport, Failed> {
        match self {
            Self::Shm(client) => Ok(client.check().await?),
            #[cfg(feature = "verbs")]
            Self::Verbs(remote, _) => {
                Ok(remote.read(async || remote.client().check().await).await?)
            }
        }
    }

    /// As [`Table::usage`](crate::Table::usage).
    ///
    /// # Errors
    /// [`Error::NodeUnreachable`], [`Error::Fabric`].
    pub async fn usage(&self) -> Result<Vec<Usage>, Failed> {
        let map = match self {
            Self::Shm(client) => client.map(),
            #[cfg(feature = "verbs")]
            Self::Verbs(remote, _) => remote.client().map(),
        };
        let mut all = Vec::new();
        for dti in 0..map.data_tables() as u8 {
            all.push(match self {
                Self::Shm(client) => client.usage(dti).await?,
                #[cfg(feature = "verbs")]
                Self::Verbs(remote, _) => {
                    remote.read(async || remote.client().usage(dti).await).await?
                }
            });
        }
        Ok(all)
    }
}
