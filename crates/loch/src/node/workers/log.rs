//! A worker's log in the node's folder, and the lock that keeps other processes away from it.

use std::fs::File;
use std::path::PathBuf;

use loch_engines::checksum::checksum;
use loch_engines::engine::LogConfig;
use loch_engines::log::{Logging, Policy};
use loch_engines::serve::WorkerSite;

use crate::limits::{PILAF_COMPACT_BYTES, REGION_LOCK_TIMEOUT};
use crate::node::lock::lock_within;
use crate::node::storage::FileStorage;
use crate::private;

/// The reason why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "its log at {path} cannot be opened: {cause}; put that right, or give the table another folder \
     (log)",
    path = .path.display()
)]
pub(super) struct LogFailure {
    path: PathBuf,
    cause: String,
}

/// Opens the log of a worker's table. The log is locked for as long as the file is open.
pub(super) fn open(
    site: &WorkerSite,
    config: &LogConfig,
) -> Result<(File, Logging<FileStorage>), LogFailure> {
    let (LogConfig { folder, sync }, node) = (config, site.id.node);
    let path = folder.join(format!("node-{node}"));
    let failed = |cause: String| LogFailure { path: path.clone(), cause };
    // Other users must neither read the values nor hold the lock. Until the folder is checked, no
    // file is opened by a name that another user may have made.
    private::make_folders(folder).map_err(|e| failed(e.to_string()))?;
    private::make_folder(&path, "log").map_err(|e| failed(e.to_string()))?;
    let storage = FileStorage::open(&path).map_err(|e| failed(e.to_string()))?;
    let lock = private::open_lock(&path.join("lock"), "log").map_err(|e| failed(e.to_string()))?;
    if !lock_within(&lock, REGION_LOCK_TIMEOUT).map_err(|e| failed(e.to_string()))? {
        return Err(failed("another process has it".into()));
    }
    let logging = Logging {
        storage,
        // Segments of another table or node in the folder are an error.
        table: checksum(format!("{node} {}", site.name).as_bytes()),
        policy: Policy { sync: *sync, ..Policy::default() },
        compact_bytes: PILAF_COMPACT_BYTES,
    };
    Ok((lock, logging))
}
