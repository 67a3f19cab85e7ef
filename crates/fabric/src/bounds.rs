//! The one check of where bytes lie.

/// Whether the `len` bytes at `offset` are inside a region of `region_bytes`.
///
/// No sum wraps here, whatever the numbers. The plain check `offset + len <= region_bytes` would
/// hold in a release build for an offset just below 2^64.
#[inline(always)]
pub(crate) const fn is_inside(offset: u64, len: u64, region_bytes: u64) -> bool {
    match offset.checked_add(len) {
        Some(end) => end <= region_bytes,
        None => false,
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers at both ends of what a word holds, and any others.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..100, (0u64..100).prop_map(|n| u64::MAX - n), any::<u64>()]
    }

    proptest! {
        #[test]
        fn inside_is_what_arithmetic_without_end_says(
            offset in number(), len in number(), region_bytes in number(),
        ) {
            let end = u128::from(offset) + u128::from(len);
            prop_assert_eq!(is_inside(offset, len, region_bytes), end <= u128::from(region_bytes));
        }
    }
}
