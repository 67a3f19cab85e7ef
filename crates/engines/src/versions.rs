//! Versions: numbers that no value of the table ever had, even before restarts of workers and
//! nodes.
//!
//! Versions are stamps. A worker leases them in blocks from a word of the node's region, as a
//! nessie client does. The word outlives the worker, and all workers of the node lease from it.

use loch_fabric::{Fabric, RegionId, RemoteAddr};

use crate::error::EngineError;
use crate::operation::Version;
use crate::region::{STAMP_BITS, STAMP_OFFSET};

/// Stamps leased at a time: enough for half a second of a worker that does nothing else.
const BLOCK: u64 = 1 << 22;

/// The versions that one worker gives to values.
#[derive(Debug)]
pub(crate) struct Versions {
    home: RegionId,
    next: u64,
    end: u64,
}

impl Versions {
    pub fn new(home: RegionId) -> Self {
        Self { home, next: 0, end: 0 }
    }

    /// How many versions can be taken before the worker must lease more.
    #[inline]
    pub fn left(&self) -> u64 {
        self.end - self.next
    }

    /// Leases more versions if fewer than `needed` are left.
    ///
    /// # Errors
    /// As [`Versions::lease`].
    #[inline]
    pub async fn ensure<F: Fabric>(&mut self, fabric: &F, needed: u64) -> Result<(), EngineError> {
        if self.left() < needed { self.lease(fabric).await } else { Ok(()) }
    }

    /// Leases more versions.
    ///
    /// # Errors
    /// The fabric's errors; [`EngineError::Damaged`] if the stamps are used up.
    pub async fn lease<F: Fabric>(&mut self, fabric: &F) -> Result<(), EngineError> {
        let first = fabric.fetch_add(RemoteAddr::new(self.home, STAMP_OFFSET), BLOCK).await?;
        if first >= (1 << STAMP_BITS) - BLOCK {
            let what = format!("the next stamp of the worker's node is {first:#x}");
            return Err(EngineError::Damaged { what });
        }
        let node = u64::from(self.home.0) << STAMP_BITS;
        // Zero is not a version.
        (self.next, self.end) = (node | (first + 1), node | (first + BLOCK));
        Ok(())
    }

    /// Leases a block that is given away as a whole.
    ///
    /// # Errors
    /// As [`Versions::lease`].
    pub async fn lease_block<F: Fabric>(
        &mut self,
        fabric: &F,
    ) -> Result<std::ops::Range<u64>, EngineError> {
        self.lease(fabric).await?;
        Ok(std::mem::replace(&mut self.next, self.end)..self.end)
    }

    /// The next version.
    ///
    /// # Panics
    /// If no version is [left](Self::left).
    #[inline]
    pub fn take(&mut self) -> Version {
        assert!(self.next < self.end, "versions are leased in time");
        self.next += 1;
        Version::from_u64(self.next - 1)
    }
}
