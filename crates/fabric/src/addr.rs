//! Addresses: a region and an offset in it, packed in one word.

use std::fmt;

/// Names a region: one node's registered memory. Dense, because endpoints index tables with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub u8);

/// A byte in a region: eight bits of region, 56 bits of offset.
///
/// ```
/// use loch_fabric::{RegionId, RemoteAddr};
/// let at = RemoteAddr::new(RegionId(3), 4096);
/// assert_eq!((at.region(), at.offset()), (RegionId(3), 4096));
/// assert_eq!(at.add(8).offset(), 4104);
/// assert_eq!(RemoteAddr::from_word(at.to_word()), at);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteAddr(u64);

const OFFSET_BITS: u32 = 56;

impl RemoteAddr {
    /// The byte at `offset` of `region`.
    ///
    /// # Panics
    /// If `offset` needs more than 56 bits.
    #[inline(always)]
    pub const fn new(region: RegionId, offset: u64) -> Self {
        assert!(offset >> OFFSET_BITS == 0, "a region offset has 56 bits");
        Self((region.0 as u64) << OFFSET_BITS | offset)
    }

    /// The address as a word, to be kept in memory or sent.
    #[inline(always)]
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// The inverse of [`RemoteAddr::to_word`]; every word is an address.
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The region.
    #[inline(always)]
    pub const fn region(self) -> RegionId {
        RegionId((self.0 >> OFFSET_BITS) as u8)
    }

    /// Bytes from the region's start.
    #[inline(always)]
    pub const fn offset(self) -> u64 {
        self.0 & ((1 << OFFSET_BITS) - 1)
    }

    /// The address `bytes` further on in the same region.
    ///
    /// Only a build with debug assertions checks that the result is still in that region: every
    /// path computes addresses, and each verb checks its address before it touches a byte.
    #[inline(always)]
    #[allow(clippy::should_implement_trait, reason = "addresses are not a ring; `+` would mislead")]
    pub const fn add(self, bytes: u64) -> Self {
        debug_assert!(
            bytes >> OFFSET_BITS == 0 && (self.offset() + bytes) >> OFFSET_BITS == 0,
            "a region offset has 56 bits"
        );
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::Debug for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {} + {:#x}", self.region().0, self.offset())
    }
}

impl fmt::Display for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} of node {}", self.offset(), self.region().0)
    }
}
