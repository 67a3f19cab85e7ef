//! Cutting ranges into slabs.

use super::{Class, Place, Slab};
use std::ops::Range;

/// The places of `range` as few slabs, each aligned, none above `largest`, in order.
pub(super) fn cover(range: Range<u32>, largest: Class) -> impl Iterator<Item = Slab> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let left = range.end.checked_sub(at).filter(|left| *left > 0)?;
        let number = at.trailing_zeros().min(left.ilog2()).min(u32::from(largest.number()));
        let slab = Slab::new(Place::new(at)?, Class::new(number as u8)?);
        at = slab.end();
        Some(slab)
    })
}
