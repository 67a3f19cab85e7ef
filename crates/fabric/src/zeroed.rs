//! Private memory of this process, for large data with random accesses.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use zerocopy::FromZeros;

/// Memory that begins as zeros. The system provides its pages when they are first used, huge pages
/// if it has some: with small pages nearly every random access also misses the TLB.
///
/// ```
/// let mut words = loch_fabric::Zeroed::<u64>::new(1000)?;
/// words[999] = 7;
/// assert_eq!(words.iter().sum::<u64>(), 7);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Zeroed<T> {
    start: NonNull<T>,
    len: usize,
    owns: PhantomData<T>,
}

// SAFETY: it owns what it points to, as a box does.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as for Send; a shared reference gives shared references only.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

/// Mappings begin at a page.
const PAGE_BYTES: usize = 4096;

impl<T: FromZeros + Copy> Zeroed<T> {
    /// `len` elements.
    ///
    /// # Errors
    /// The system's, if it has no such range of addresses.
    ///
    /// # Panics
    /// If there are no bytes in them.
    pub fn new(len: usize) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= PAGE_BYTES) }
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        assert!(bytes > 0, "memory has bytes");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private mapping at an address that the kernel chooses touches no memory
        // of this process; it is unmapped once, in Drop.
        let start = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(null_mut(), bytes, protection, flags)?
        };
        // SAFETY: the range is our own mapping, whose contents the advice does not change.
        if let Err(error) = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxHugepage) } {
            tracing::debug!(%error, "no huge pages");
        }
        let start = NonNull::new(start.cast()).expect("mmap never returns null");
        Ok(Self { start, len, owns: PhantomData })
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` mapped room for `len` elements there, aligned to a page, and no other
        // object has it. Zeros are a value of `T`, and so is everything that was stored since.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Zeroed<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the reference is unique because `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for Zeroed<T> {
    fn drop(&mut self) {
        let bytes = self.len * size_of::<T>();
        // SAFETY: mapped in `new`; code that reaches its bytes borrows this, so none does now. The
        // elements need no drop: `new` accepts only `Copy` types.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_zero_and_keeps_what_is_stored() {
        let mut lines = Zeroed::<[u64; 8]>::new(100_000).unwrap();
        assert!(lines.iter().step_by(97).all(|line| *line == [0; 8]));
        for (i, line) in lines.iter_mut().enumerate() {
            line[i % 8] = i as u64;
        }
        let moved = std::thread::spawn(move || lines[99_999][7]);
        assert_eq!(moved.join().unwrap(), 99_999);
    }

    #[test]
    fn more_than_there_are_addresses_is_an_error() {
        assert!(Zeroed::<u64>::new(usize::MAX / 8).is_err());
        assert!(Zeroed::<u64>::new(usize::MAX).is_err());
    }
}
