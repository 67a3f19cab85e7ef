//! Buffers that verbs fill.

use std::ops::Deref;

/// A buffer of this process that a READ can fill, owned by the operation until its completion.
///
/// A verb takes the buffer by value and gives it back, because on real hardware the NIC continues
/// to write it after a future was dropped: a cancelled READ keeps the buffer until its completion
/// arrives. READs append, so a header and then a value end up side by side without another copy.
///
/// ```
/// let mut buf = loch_fabric::Buf::with_capacity(64);
/// buf.extend_from_slice(b"key");
/// assert_eq!(&buf[..], b"key");
/// buf.clear();
/// assert!(buf.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Buf {
    bytes: Vec<u8>,
}

impl Buf {
    /// An empty buffer that owns no memory.
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// An empty buffer that can take `bytes` bytes without growing.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// How many bytes it can take without growing.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Forgets the contents and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends `bytes`.
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Makes room for `bytes` bytes more.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Appends `bytes` zeros, to be written over.
    pub(crate) fn append_zeros(&mut self, bytes: usize) {
        self.bytes.resize(self.bytes.len() + bytes, 0);
    }

    /// `len` bytes from `at` on.
    pub(crate) fn part(&mut self, at: usize, len: usize) -> &mut [u8] {
        &mut self.bytes[at..at + len]
    }

    /// Keeps the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Forgets the first `len` bytes.
    pub(crate) fn remove_first(&mut self, len: usize) {
        self.bytes.drain(..len);
    }

    /// The bytes as a `Vec`, without copying.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends up to `len` bytes written by `fill`, which gets a pointer to the first of them and
    /// returns how many it has written.
    ///
    /// # Safety
    /// `fill` must initialise as many bytes as it says, of the `len` bytes at the pointer.
    pub(crate) unsafe fn append_some(
        &mut self,
        len: usize,
        fill: impl FnOnce(*mut u8) -> usize,
    ) -> usize {
        self.bytes.reserve(len);
        let start = self.bytes.len();
        let filled = fill(self.bytes.spare_capacity_mut().as_mut_ptr().cast()).min(len);
        // SAFETY: `reserve` made room for `len` more bytes, and by this function's contract `fill`
        // initialised the first `filled` of them.
        unsafe { self.bytes.set_len(start + filled) };
        filled
    }

    /// Appends `len` bytes written by `fill`, which gets a pointer to the first of them.
    ///
    /// # Safety
    /// `fill` must initialise `len` bytes at the pointer it is given.
    #[inline]
    pub(crate) unsafe fn append_with(&mut self, len: usize, fill: impl FnOnce(*mut u8)) {
        self.bytes.reserve(len);
        let start = self.bytes.len();
        fill(self.bytes.spare_capacity_mut().as_mut_ptr().cast());
        // SAFETY: `reserve` made room for `len` more bytes, and by this function's contract `fill`
        // initialised every one of them.
        unsafe { self.bytes.set_len(start + len) };
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Vec<u8>> for Buf {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }
}
