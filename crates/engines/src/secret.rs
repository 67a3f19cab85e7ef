//! A session's secret, which the client and the nodes that let it in share: 128 random bits, told
//! over the control plane. Datagrams are sealed with it ([`crate::requests::seal`]).

use std::fmt;

/// What a session's datagrams are sealed with.
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

/// Its words are shown to nobody.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(_)")
    }
}
