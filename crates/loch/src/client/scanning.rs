//! Where a scan of a table goes on, and the keys that a call has found.

use loch_engines::scan::{Cursor, Key};

/// Where a scan of a table goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanPlace {
    /// Names the table and the nodes' memory: [`ClusterMemory::name_of`].
    ///
    /// [`ClusterMemory::name_of`]: crate::layout::memory::ClusterMemory::name_of
    pub memory: u64,
    /// The worker whose keys come next, among those of all nodes; 0 if clients scan by themselves.
    pub worker: u32,
    /// Where the scan of its part goes on.
    pub at: Cursor,
}

/// Keys that a scan has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scanned {
    pub keys: Vec<Key>,
    /// Where the scan goes on; `None` if it has come to its end.
    pub next: Option<ScanPlace>,
}
