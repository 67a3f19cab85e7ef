//! The datagrams that are on their way or at their process.

use std::collections::{BTreeMap, VecDeque};

use super::verb::ProcessId;

/// Datagrams on their way, and datagrams that have arrived and were not taken.
#[derive(Debug, Default)]
pub(super) struct Mailboxes {
    pub flying: BTreeMap<u64, Datagram>,
    pub next: u64,
    pub arrived: BTreeMap<ProcessId, VecDeque<(ProcessId, Vec<u8>)>>,
}

/// A datagram on its way.
#[derive(Debug)]
pub(super) struct Datagram {
    pub from: ProcessId,
    pub to: ProcessId,
    pub bytes: Vec<u8>,
}
