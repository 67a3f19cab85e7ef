//! Reads numbers off the front of a fuzz input. An input that has run out gives zeros: every input
//! means something.

/// The rest of an input.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// All of an input.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether it has run out.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes that were not read.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// The next bytes, as many as there are of so many.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        head
    }

    fn number<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let head = self.take(N);
        bytes[..head.len()].copy_from_slice(head);
        bytes
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.number::<1>()[0]
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.number())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.number())
    }

    /// One of so many, by a byte.
    pub fn below(&mut self, count: usize) -> usize {
        self.byte() as usize % count
    }

    /// One of these, by a byte.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
