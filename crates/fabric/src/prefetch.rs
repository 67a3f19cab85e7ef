//! Prefetching of a thread's own memory: for engines, which have no unsafe code of their own.

/// Prefetches the first cache line of `at`, which will be read shortly. This is a hint: it loads no
/// register, it does not wait, and on a processor without prefetching it does nothing.
///
/// ```
/// let buckets = vec![[0u64; 8]; 1024];
/// loch_fabric::prefetch_read(&buckets[500]);
/// ```
#[inline(always)]
pub fn prefetch_read<T: ?Sized>(at: &T) {
    crate::shm::prefetch(std::ptr::from_ref(at).cast());
}

/// Like [`prefetch_read`], for the element of that index; does nothing if there is no such element.
///
/// ```
/// let log = vec![0u8; 1 << 20];
/// loch_fabric::prefetch_index(&log, 4096);
/// loch_fabric::prefetch_index(&log, usize::MAX);
/// ```
#[inline(always)]
pub fn prefetch_index<T>(slice: &[T], index: usize) {
    if let Some(at) = slice.get(index) {
        prefetch_read(at);
    }
}
