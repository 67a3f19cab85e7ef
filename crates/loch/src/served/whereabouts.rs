//! How a table asks its nodes for what only they know: what their workers have in their own memory,
//! and whether they are up.

use std::path::PathBuf;
use std::sync::Arc;

use crate::Error;
use crate::attachment::Attachment;
use crate::embedded::Embedded;
use crate::wire::Inspected;

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
