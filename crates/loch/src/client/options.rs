//! Options of a client.

use std::time::Duration;

use crate::CacheLimits;
use crate::limits::{BATCH_DEFAULT, CONNECT_TIMEOUT, OPERATION_TIMEOUT, TIMEOUT_MAX};

/// Options of attaching to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Attach for reading only: memory is mapped read-only, and no session slot is taken. Every
    /// mutation fails with [`EngineError::ReadOnly`](crate::EngineError::ReadOnly). Default no.
    pub read_only: bool,
    /// How long connecting waits for nodes that are not up yet. Default 5 s.
    pub connect_timeout: Duration,
    /// How long an operation goes on after it first had to start over, and how long operations wait
    /// for a node to which the connection broke. When it has been lost for longer, operations that
    /// need it fail at once, until it is back. Over TCP a node is silent for 3 s before its
    /// connection is given up. Default 5 s.
    pub operation_timeout: Duration,
    /// Enter all memory into this process's page tables at once (and ask for huge pages), so that
    /// first accesses do not fault one by one. It costs milliseconds for each GiB. Default no.
    pub populate: bool,
    /// Reach the memory of the home node over the network too, if that is TCP, as the memory of
    /// other nodes: for measurements of clients that are not beside the data. Default no.
    pub far: bool,
    /// The limits of each table's cache, for engines with a cache.
    pub cache: CacheLimits,
    /// The most operations that a client of a `kv-direct` table packs into one packet: operations
    /// that its lanes ask of a worker at the same time. 1 means no packing. Default 256.
    pub batch: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            connect_timeout: CONNECT_TIMEOUT,
            operation_timeout: OPERATION_TIMEOUT,
            populate: false,
            far: false,
            cache: CacheLimits::default(),
            batch: BATCH_DEFAULT,
        }
    }
}

impl ConnectOptions {
    pub(crate) fn operation_timeout_us(&self) -> u64 {
        self.operation_timeout.min(TIMEOUT_MAX).as_micros() as u64
    }
}
