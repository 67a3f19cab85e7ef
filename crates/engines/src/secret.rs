//! A session's secret: 128 random bits that the client and the nodes that let it in share. The
//! nodes tell it to the client over the control plane. It seals datagrams
//! ([`crate::requests::seal`]).

use std::fmt;

/// The secret that seals a session's datagrams.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl Secret {
    /// A secret of these words, which have to be random.
    pub const fn new(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// The words.
    #[inline]
    pub const fn words(self) -> [u64; 2] {
        self.0
    }
}

/// The output of `Debug` hides the words.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(_)")
    }
}
