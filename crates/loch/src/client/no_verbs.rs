//! What stands for verbs in a build without them: it says so.

use super::net::OpenParams;
use super::nodes::Nodes;
use super::operations::Operations;
use crate::Error;

/// Opens a table over verbs.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn open_table(params: OpenParams<'_>) -> Result<Box<dyn Operations>, Error> {
    let Nodes::Attached(attachment) = params.nodes else {
        unreachable!("nodes inside this process are not remote");
    };
    match *attachment.device()? {}
}
