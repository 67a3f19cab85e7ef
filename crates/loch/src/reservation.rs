//! A value written in place.

use std::io;

use crate::{Error, Version};

/// Memory for a value that is being written in place. It becomes the key's value with
/// [`Reservation::commit`]; dropped before, it leaves nothing behind.
///
/// While it lives, memory that others wait to reuse waits with it: fill it and commit it.
/// [`io::Write`] writes from the start to the end.
pub struct Reservation<'a> {
    _table: &'a (),
}

impl Reservation<'_> {
    /// Bytes of the value.
    #[allow(clippy::len_without_is_empty, reason = "an empty value is as good as any")]
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Writes `bytes` at `offset` of the value.
    ///
    /// # Errors
    /// [`Error::OutsideReservation`] if they do not lie inside the value.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let _ = (offset, bytes);
        todo!()
    }

    /// The place of the value, for code that fills it without a detour (a system call, a device).
    /// Valid for [`Reservation::len`] bytes until the reservation ends. The bytes are shared memory:
    /// write through the pointer, form no reference.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn as_mut_ptr(&mut self) -> Result<*mut u8, Error> {
        todo!()
    }

    /// Makes it the key's value. Returns the version.
    ///
    /// # Errors
    /// As [`Table::put`](crate::Table::put).
    pub fn commit(self) -> Result<Version, Error> {
        todo!()
    }

    /// As [`Reservation::commit`], for the lanes of the table's thread.
    ///
    /// # Errors
    /// As [`Table::put`](crate::Table::put).
    pub async fn commit_async(self) -> Result<Version, Error> {
        todo!()
    }
}

impl io::Write for Reservation<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = bytes;
        todo!()
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
