//! Where a scan of a table goes on, and the keys that a call has found.

use loch_engines::scan::{Cursor, Key};

/// Where a scan of a table goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanPlace {
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
