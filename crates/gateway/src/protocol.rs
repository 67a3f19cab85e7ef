//! What clients speak, how far a session of it has come, and which requests go together.

use std::collections::HashSet;

use crate::item::Traits;
use crate::store::Expires;

/// What clients of a listener speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp,
    Memcached,
}

/// What a session has done with some input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The bytes of the requests that were executed.
    pub consumed: usize,
    /// The bytes that the next request has at least; 0 if it may be there whole.
    pub needed: usize,
    /// Whether the connection ends.
    pub ends: bool,
    /// Whether it is not served for a moment.
    pub pauses: bool,
    /// The next request, if it only puts a long value that has not come whole.
    pub long: Option<LongSet>,
}

/// A request at the front of some input that puts a long value, whatever there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongSet {
    /// Where its key is.
    pub key: (usize, usize),
    /// Where its value begins.
    pub start: usize,
    /// The bytes of its value. Two more follow.
    pub len: usize,
    /// Whether these two may be any bytes, and not only the end of a line.
    pub ends_anyhow: bool,
    pub traits: Traits,
    pub expires: Expires,
    /// What tells the client that it was done.
    pub answer: Option<&'static str>,
}

/// How many of the first requests have keys of their own, no two of which are the same. A request
/// without a key ends them.
pub(crate) fn of_different_keys<'a>(keys: impl Iterator<Item = Option<&'a [u8]>>) -> usize {
    let mut seen = HashSet::new();
    keys.take_while(|key| key.is_some_and(|key| seen.insert(key))).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_together_up_to_a_key_that_comes_again_or_is_none() {
        let of = |keys: &[Option<&'static [u8]>]| of_different_keys(keys.iter().copied());
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[Some(b"a"), Some(b"b"), Some(b"a"), Some(b"c")]), 2);
        assert_eq!(of(&[Some(b"a"), None, Some(b"b")]), 1);
    }
}
