//! Buffers that are used again.

use std::cell::RefCell;

use loch_fabric::Buf;

/// The buffers of one thread that hold nothing now.
#[derive(Debug, Default)]
pub(crate) struct SpareBuffers(RefCell<Vec<Buf>>);

impl SpareBuffers {
    /// An empty buffer.
    #[inline]
    pub fn take(&self) -> Buf {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    #[inline]
    pub fn give_back(&self, mut buf: Buf) {
        buf.clear();
        self.0.borrow_mut().push(buf);
    }
}
