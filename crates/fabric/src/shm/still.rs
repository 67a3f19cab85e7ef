//! Bytes of a region that nobody changes for a while: the only references into shared memory.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use super::ShmEndpoint;
use crate::{RemoteAddr, Result};

/// Bytes of a region, in place. They stand still as long as a promise of the protocol holds, which
/// the caller of [`ShmEndpoint::still`] vouches for.
#[derive(Debug)]
pub struct Still<'a> {
    /// Invariant: `len` mapped bytes, which stay mapped during `'a`.
    first: NonNull<u8>,
    len: usize,
    endpoint: PhantomData<&'a ShmEndpoint>,
}

impl ShmEndpoint {
    /// The `len` bytes at `at`, without a copy.
    ///
    /// The caller vouches that no process which follows the protocol changes any of them from now
    /// until the result is dropped; no other check is made. Processes that do not follow it are no
    /// further threat: a region is open to processes of its owner's user only, and such a process
    /// can as well change the private memory of this one.
    ///
    /// # Errors
    /// As those of [`Fabric::read`](crate::Fabric::read).
    pub fn still(&self, at: RemoteAddr, len: usize) -> Result<Still<'_>> {
        let first = self.locate(at, len, false)?;
        let first = NonNull::new(first).expect("a mapping does not begin at address 0");
        Ok(Still { first, len, endpoint: PhantomData })
    }
}

impl Deref for Still<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `first` is located with `len` bytes, which stay mapped while the endpoint is
        // borrowed, and `still`'s caller vouches that nobody changes them before `self` is dropped.
        // The bytes were written before the word that led this process to them, so they are
        // initialised, and in any case a file's.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::shm::Region;
    use crate::{Fabric, FabricError, RegionId};

    #[test]
    fn bytes_are_shown_in_place_and_only_inside_their_region() {
        let mut shm = ShmEndpoint::new(RegionId(0));
        shm.attach(RegionId(0), Arc::new(Region::anonymous(1 << 16).unwrap()));
        let at = |offset| RemoteAddr::new(RegionId(0), offset);
        shm.store(at(101), &[b"in place"]).unwrap();
        let still = shm.still(at(101), 8).unwrap();
        assert_eq!(&still[..], b"in place");
        assert_eq!(still.as_ptr(), shm.raw(at(101), 8).unwrap().cast_const());
        assert!(shm.still(at(1 << 16), 0).unwrap().is_empty());
        let error = shm.still(at((1 << 16) - 7), 8).unwrap_err();
        assert!(matches!(error, FabricError::OutOfBounds { .. }), "{error}");
        assert!(shm.still(RemoteAddr::new(RegionId(1), 0), 1).is_err());
    }
}
