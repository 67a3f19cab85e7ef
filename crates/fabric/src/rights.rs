//! Rights: what a peer may do with which bytes of a region.

use serde::{Deserialize, Serialize};

use crate::bounds::is_inside;
use crate::limits::GRANTS_MAX;

/// The rights to one range of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Access {
    /// READ.
    Read,
    /// READ, CAS and FAA.
    ReadAtomic,
    /// READ, CAS, FAA and WRITE.
    Full,
}

impl Access {
    /// Whether these rights include all of `other`.
    pub fn includes(self, other: Access) -> bool {
        self >= other
    }
}

/// The rights to the `len` bytes from `offset` on of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The rights to them.
    pub access: Access,
}

/// A [`Grant`], or a piece of one, and the key that opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// First byte, as an offset into the region.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The rights to them.
    pub access: Access,
    /// The first byte's address on the passive end: over TCP, the offset.
    pub address: u64,
    /// The key.
    pub rkey: u32,
}

/// Checks that `ranges` of (offset, bytes) are inside a region, and that none overlap. The error
/// says what is wrong.
pub(crate) fn check_ranges(
    mut ranges: Vec<(u64, u64)>,
    region_bytes: u64,
) -> Result<(), &'static str> {
    if ranges.len() > GRANTS_MAX {
        return Err("more ranges than a connection may have");
    }
    ranges.sort_unstable();
    let mut end = 0;
    for (offset, len) in ranges {
        if len == 0 || offset < end {
            return Err("ranges that are empty or overlap");
        }
        if !is_inside(offset, len, region_bytes) {
            return Err("a range that leaves its region");
        }
        end = offset + len;
    }
    Ok(())
}
