//! From a key to the only place that may hold it: node, worker, bucket and tag (herd §4.1).

pub use crate::key_hash::KeyHash;

impl KeyHash {
    /// The key's tag in its bucket; never 0, which stands for no key.
    #[inline(always)]
    pub(super) fn tag(self) -> u16 {
        (self.low as u16).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tag_stands_for_nothing() {
        assert_eq!(KeyHash { low: 7 << 16, high: 0 }.tag(), 1);
        assert_eq!(KeyHash { low: 0xffff, high: 0 }.tag(), 0xffff);
    }
}
