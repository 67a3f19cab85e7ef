//! A value that is written in the place where readers will find it.

use loch_engines::operation::Version;
use loch_engines::registry::Operating;
use loch_engines::{EngineError, nessie};
use loch_fabric::Fabric;

/// An entry of a table whose value is written in place.
pub(crate) trait InPlace {
    /// The bytes of the value.
    fn len(&self) -> usize;

    /// As [`Reservation::write_at`](crate::Reservation::write_at).
    ///
    /// # Errors
    /// The errors of the fabric.
    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), EngineError>;

    /// As [`Reservation::as_mut_ptr`](crate::Reservation::as_mut_ptr).
    ///
    /// # Errors
    /// The errors of the fabric.
    fn as_mut_ptr(&mut self) -> Result<*mut u8, EngineError>;

    /// Reads the first `len` bytes of the value.
    fn read(&self, len: usize) -> Operating<'_, Vec<u8>>;

    /// Makes the entry the key's value. Returns the version.
    fn commit<'a>(self: Box<Self>) -> Operating<'a, Version>
    where
        Self: 'a;
}

impl<F: Fabric> InPlace for nessie::Reservation<'_, F> {
    fn len(&self) -> usize {
        self.len()
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), EngineError> {
        self.write_at(offset, bytes)
    }

    fn as_mut_ptr(&mut self) -> Result<*mut u8, EngineError> {
        self.as_mut_ptr()
    }

    fn read(&self, len: usize) -> Operating<'_, Vec<u8>> {
        Box::pin(self.read(len))
    }

    fn commit<'a>(self: Box<Self>) -> Operating<'a, Version>
    where
        Self: 'a,
    {
        Box::pin((*self).commit())
    }
}
