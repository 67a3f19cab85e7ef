//! RDMA devices in a build without verbs: none can be opened.

use std::sync::Arc;

use super::wire::DeviceChoice;
use crate::{Error, Result};

/// Whether this build can open devices.
pub(crate) const IS_BUILT: bool = false;

/// A device, which no such build has.
pub(crate) enum Device {}

/// Returns the error that the build has no devices.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn open_device(_: &DeviceChoice) -> Result<Arc<Device>> {
    let problem = "this build has no verbs backend: build Loch with the feature `verbs`";
    Err(Error::Device { problem: problem.into() })
}
