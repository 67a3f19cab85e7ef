//! What stands for verbs in a build without them: it says so.

use crate::Error;
use crate::client::net::Opening;
use crate::client::operations::Operations;

/// Opens a table over verbs.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn open_table(_: Opening<'_>) -> Result<Box<dyn Operations>, Error> {
    let problem = "this build has no verbs backend: build Loch with the feature `verbs`";
    Err(Error::Device { problem: problem.into() })
}
