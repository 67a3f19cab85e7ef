//! Verbs in a build without them: opening a table fails.

use super::net::OpenParams;
use super::nodes::Nodes;
use super::operations::Operations;
use crate::Result;

/// Returns the error that the build has no verbs.
///
/// # Errors
/// [`Device`](crate::Error::Device).
pub(crate) fn open_table(params: OpenParams<'_>) -> Result<Box<dyn Operations>> {
    let Nodes::Attached(attachment) = params.nodes else {
        unreachable!("nodes inside this process are not remote");
    };
    match *attachment.device()? {}
}
