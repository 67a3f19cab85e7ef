//! A value written in place.

use std::io;

use loch_engines::operation::{Operation, Outcome, PutOptions};
use loch_fabric::lanes::block_on;

use crate::client::in_place::InPlace;
use crate::{Error, Result, Table, Version};

/// Memory for a value that is being written in place. [`Reservation::commit`] makes it the key's
/// value. A reservation that is dropped before leaves nothing behind.
///
/// In tables with workers, and in tables of the published protocol, the memory is of this process
/// and is copied at the commit. In other tables it is the table's memory. While the reservation
/// lives, memory that other clients wait to reuse has to wait too, so fill it and commit it soon.
/// [`io::Write`] writes from the start to the end.
///
/// ```
/// use std::io::Write;
/// use loch::{Cluster, EmbeddedConfig};
/// let table = Cluster::embedded(EmbeddedConfig::default())?.table("default")?;
/// let mut value = table.reserve(b"key", 1 << 20)?;
/// value.write_all(&[1; 1 << 19])?;
/// value.write_at(1 << 19, &[2; 1 << 19])?;
/// value.commit()?;
/// assert_eq!(table.get(b"key")?.map(|value| value[1 << 19]), Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reservation<'a> {
    table: &'a Table,
    /// Taken when the reservation ends.
    place: Option<ValuePlace<'a>>,
    /// The position of [`io::Write`].
    written: usize,
}

/// The place of the value.
pub(crate) enum ValuePlace<'a> {
    /// The table's memory.
    InTable(Box<dyn InPlace + 'a>),
    /// Memory of this process, for tables with workers and for the published protocol.
    Buffered(BufferedPut),
}

/// A value that is put at the commit.
pub(crate) struct BufferedPut {
    key: Vec<u8>,
    value: Vec<u8>,
    options: PutOptions,
}

impl ValuePlace<'_> {
    /// Makes a place in memory of this process.
    pub fn own(key: &[u8], len: usize, options: PutOptions) -> Self {
        Self::Buffered(BufferedPut { key: key.into(), value: vec![0; len], options })
    }
}

impl<'a> Reservation<'a> {
    pub(crate) fn new(table: &'a Table, place: ValuePlace<'a>) -> Self {
        Self { table, place: Some(place), written: 0 }
    }

    fn place(&mut self) -> &mut ValuePlace<'a> {
        self.place.as_mut().expect("it is taken when the reservation ends")
    }

    /// Bytes of the value.
    #[allow(clippy::len_without_is_empty, reason = "an empty value is as good as any")]
    pub fn len(&self) -> usize {
        match self.place.as_ref().expect("it is taken when the reservation ends") {
            ValuePlace::InTable(inner) => inner.len(),
            ValuePlace::Buffered(own) => own.value.len(),
        }
    }

    /// Writes `bytes` at `offset` of the value.
    ///
    /// # Errors
    /// [`Error::OutsideReservation`] if they do not lie inside the value, [`Error::Forked`].
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.table.check_process()?;
        let end = offset.saturating_add(bytes.len());
        if end > self.len() {
            return Err(Error::OutsideReservation { end: end as u64, len: self.len() as u64 });
        }
        let written = match self.place() {
            ValuePlace::InTable(inner) => inner.write_at(offset, bytes),
            ValuePlace::Buffered(own) => {
                own.value[offset..end].copy_from_slice(bytes);
                Ok(())
            }
        };
        written.map_err(|e| self.table.error(e))
    }

    /// The address of the value, for code that fills it directly (a system call, a device). It is
    /// valid for [`Reservation::len`] bytes until the reservation ends. The bytes are shared
    /// memory: write through the pointer, and form no reference.
    ///
    /// # Errors
    /// [`EngineError::Fabric`](crate::EngineError::Fabric), [`Error::Forked`].
    pub fn as_mut_ptr(&mut self) -> Result<*mut u8> {
        self.table.check_process()?;
        let place = match self.place() {
            ValuePlace::InTable(inner) => inner.as_mut_ptr(),
            ValuePlace::Buffered(own) => Ok(own.value.as_mut_ptr()),
        };
        place.map_err(|e| self.table.error(e))
    }

    /// Makes the reservation the key's value. Returns the version.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn commit(self) -> Result<Version> {
        block_on(self.commit_async())
    }

    /// As [`Reservation::commit`], for the lanes of the table's thread.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub async fn commit_async(mut self) -> Result<Version> {
        self.table.check_process()?;
        let version = match self.place.take().expect("it is taken when the reservation ends") {
            ValuePlace::InTable(inner) => inner.commit().await,
            ValuePlace::Buffered(BufferedPut { key, value, options }) => {
                let put = Operation::Put { value: &value, options };
                let done = self.table.execute(&key, put).await;
                done.and_then(Outcome::stored)
            }
        };
        version.map_err(|e| self.table.error(e))
    }

    /// Ends the reservation without a PUT, and returns the first `len` bytes of the value in memory
    /// of this process: for a value whose rest comes so slowly that others would wait. What was
    /// never written is any bytes.
    ///
    /// # Errors
    /// [`Error::OutsideReservation`], [`EngineError::Fabric`](crate::EngineError::Fabric),
    /// [`Error::Forked`].
    ///
    /// ```
    /// use loch::{Cluster, EmbeddedConfig, lanes::block_on};
    /// let table = Cluster::embedded(EmbeddedConfig::default())?.table("default")?;
    /// let mut value = table.reserve(b"key", 1 << 20)?;
    /// value.write_at(0, b"the beginning")?;
    /// assert_eq!(block_on(value.take_back_async(3))?, b"the");
    /// assert!(!table.contains(b"key")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn take_back_async(mut self, len: usize) -> Result<Vec<u8>> {
        self.table.check_process()?;
        if len > self.len() {
            return Err(Error::OutsideReservation { end: len as u64, len: self.len() as u64 });
        }
        let bytes = match self.place() {
            ValuePlace::InTable(inner) => inner.read(len).await,
            ValuePlace::Buffered(own) => {
                own.value.truncate(len);
                Ok(std::mem::take(&mut own.value))
            }
        };
        bytes.map_err(|e| self.table.error(e))
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.table.check_process().is_err() {
            // The entry, and the epoch in which it is held, belong to the parent.
            std::mem::forget(self.place.take());
        }
    }
}

impl io::Write for Reservation<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.len() - self.written);
        let at = self.written;
        self.write_at(at, &bytes[..fits]).map_err(io::Error::other)?;
        self.written += fits;
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, EmbeddedConfig};

    #[test]
    fn a_child_neither_fills_nor_commits_nor_gives_up_what_its_parent_reserved() {
        let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
        let (parents, mut childs) =
            (cluster.table("default").unwrap(), cluster.table("default").unwrap());
        childs.inherit();
        let reserve = || {
            let mut reserved = parents.reserve(b"key", 100).unwrap();
            // The child has the same place, through a table that is not its own.
            Reservation::new(&childs, reserved.place.take().unwrap())
        };
        // Entries in use that are in no slot are the entries that the parent has reserved.
        let reserved = || parents.check().unwrap().unshown;
        let mut inherited = reserve();
        assert!(matches!(inherited.write_at(0, b"x"), Err(Error::Forked)));
        assert!(matches!(inherited.as_mut_ptr(), Err(Error::Forked)));
        assert!(matches!(inherited.commit(), Err(Error::Forked)));
        assert_eq!(reserved(), 1, "the child has given its parent's entry up");
        drop(reserve());
        assert_eq!(reserved(), 2, "the child has given its parent's entry up");
        drop(parents.reserve(b"key", 100).unwrap());
        assert_eq!(reserved(), 2, "the parent may");
        assert!(!parents.contains(b"key").unwrap());
    }
}
