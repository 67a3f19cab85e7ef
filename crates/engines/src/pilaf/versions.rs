//! Versions: numbers that no value of the table had before, not even before a restart.
//!
//! The server leases numbers in blocks. It notes the end of a block before it uses the block's
//! first number: in the table's memory, which outlives the process, and in the log, which outlives
//! the memory (see [`server`](super::server)). A restarted server goes on after the highest end
//! that it finds.
//!
//! Memory has two copies, written in turn, each with its checksum. A server that is killed while it
//! writes one copy leaves the other, whose block is the last one that was used.

use loch_fabric::{Fabric, RemoteAddr};

use super::layout::{LEASES_OFFSET, LINE_BYTES};
use crate::checksum::checksum;
use crate::error::EngineError;
use crate::operation::Version;

/// The low bits of a version, which hold its node's number: each node numbers for itself.
const NODE_BITS: u32 = 8;
/// Numbers of a lease: enough for an hour of PUTs at a million a second. There are 2^24 leases.
const LEASE: u64 = 1 << 32;
/// Numbers of a node.
const NUMBERS: u64 = 1 << (64 - NODE_BITS);

/// The state from which one node makes versions.
#[derive(Clone, Debug)]
pub struct Versions {
    node: u8,
    next: u64,
    end: u64,
    /// The copy that is written next.
    turn: u64,
}

impl Versions {
    /// The versions of node `node`, as the table at `root` remembers them. Nothing is leased yet.
    ///
    /// # Errors
    /// The fabric's.
    pub fn load<F: Fabric>(fabric: &F, root: RemoteAddr, node: u8) -> Result<Self, EngineError> {
        let mut ends = [0; 2];
        for (turn, end) in ends.iter_mut().enumerate() {
            let at = copy_addr(root, turn as u64);
            let (number, sum) = (fabric.load(at)?, fabric.load(at.add(8))?);
            if sum == checksum(&number.to_le_bytes()) {
                *end = number;
            }
        }
        let end = ends[0].max(ends[1]);
        Ok(Self { node, next: end, end, turn: u64::from(ends[0] >= ends[1]) })
    }

    /// Makes all later versions higher than this one.
    pub fn outgrow(&mut self, version: Version) {
        self.skip_to((version.as_u64() >> NODE_BITS) + 1);
    }

    /// Takes note that the numbers below `end` were leased.
    pub fn skip_to(&mut self, end: u64) {
        self.next = self.next.max(end);
        self.end = self.end.max(self.next);
    }

    /// The next version; `None` if a lease is needed first.
    pub fn take(&mut self) -> Option<Version> {
        if self.next == self.end {
            return None;
        }
        let version = self.next << NODE_BITS | u64::from(self.node);
        self.next += 1;
        Some(Version::from_u64(version))
    }

    /// Leases a block and returns its end. The end has to be in the log too, durably, before a
    /// version is taken.
    ///
    /// # Errors
    /// The fabric's errors; [`EngineError::Damaged`] if the numbers are used up, which takes longer
    /// than servers live.
    pub fn lease<F: Fabric>(&mut self, fabric: &F, root: RemoteAddr) -> Result<u64, EngineError> {
        // Zero is not a version.
        let next = self.next.max(1);
        let end = next.saturating_add(LEASE);
        if end > NUMBERS {
            let what = format!("the next version would be number {next:#x} of {NUMBERS:#x}");
            return Err(EngineError::Damaged { what });
        }
        let at = copy_addr(root, self.turn);
        let sum = checksum(&end.to_le_bytes());
        fabric.store(at, &[&end.to_le_bytes()])?;
        fabric.store_before(at.add(8), sum)?;
        (self.next, self.end, self.turn) = (next, end, self.turn ^ 1);
        Ok(end)
    }
}

fn copy_addr(root: RemoteAddr, turn: u64) -> RemoteAddr {
    root.add(LEASES_OFFSET + turn * LINE_BYTES)
}
