//! The keys of one connection at its node: what they open, and to which verbs.

use rand::Rng;

use super::frame::{Refusal, Request};
use crate::rights::Grant;

/// The keys of a connection. No other connection's keys open anything here.
#[derive(Debug)]
pub(super) struct Keys {
    /// In the order of the keys.
    keys: Vec<(u32, Grant)>,
}

impl Keys {
    /// A key for each grant. Returns them in the order of the grants, too.
    pub fn new(grants: &[Grant]) -> (Self, Vec<u32>) {
        let mut random = rand::rng();
        let mut keys: Vec<(u32, Grant)> = Vec::with_capacity(grants.len());
        for grant in grants {
            let mut key = random.next_u32();
            while keys.iter().any(|(taken, _)| *taken == key) {
                key = random.next_u32();
            }
            keys.push((key, *grant));
        }
        let told = keys.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable_by_key(|(key, _)| *key);
        (Self { keys }, told)
    }

    /// Keys with these numbers, which are in order.
    #[cfg(feature = "fuzzing")]
    pub fn of(keys: &[(u32, Grant)]) -> Self {
        Self { keys: keys.to_vec() }
    }

    /// Whether a request may be executed.
    ///
    /// # Errors
    /// [`Refusal`] says why not.
    #[inline]
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        let Request { verb, key, offset, len, .. } = *request;
        let at = self.keys.binary_search_by_key(&key, |(key, _)| *key);
        let (_, grant) = self.keys[at.map_err(|_| Refusal::UnknownKey)?];
        let within = offset.checked_sub(grant.offset).ok_or(Refusal::OutOfBounds)?;
        let room = grant.len.checked_sub(within).ok_or(Refusal::OutOfBounds)?;
        if u64::from(len) > room {
            return Err(Refusal::OutOfBounds);
        }
        if !grant.access.includes(verb.access()) {
            return Err(Refusal::ReadOnly);
        }
        if verb.is_atomic() && !offset.is_multiple_of(8) {
            return Err(Refusal::Misaligned);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Verb;
    use super::*;
    use crate::rights::Access;

    #[test]
    fn a_key_opens_its_bytes_to_its_verbs() {
        let grant = |offset, access| Grant { offset, len: 64, access };
        let grants =
            [grant(128, Access::Full), grant(0, Access::Read), grant(64, Access::ReadAtomic)];
        let (keys, told) = Keys::new(&grants);
        let check = |verb, key, offset, len| {
            keys.check(&Request { verb, is_signaled: true, tag: 0, key, offset, len })
        };
        let [full, read, atomic] = told[..] else { panic!("a key for each grant: {told:?}") };
        use Verb::{CompareSwap, FetchAdd, Read, Write};
        for verb in [Read, CompareSwap, FetchAdd, Write] {
            assert_eq!(check(verb, full, 184, 8), Ok(()));
            let is_read = verb == Read;
            assert_eq!(check(verb, read, 0, 8).is_ok(), is_read, "{verb:?}");
            assert_eq!(check(verb, atomic, 64, 8).is_ok(), verb != Write, "{verb:?}");
            let mut other = full;
            while told.contains(&other) {
                other = other.wrapping_add(1);
            }
            assert_eq!(check(verb, other, 184, 8), Err(Refusal::UnknownKey));
            for (offset, len) in [(120, 8), (185, 8), (192, 8), (128, 65), (u64::MAX - 3, 8)] {
                assert_eq!(check(verb, full, offset, len), Err(Refusal::OutOfBounds), "{offset}");
            }
        }
        assert_eq!(check(Write, read, 0, 8), Err(Refusal::ReadOnly));
        assert_eq!(check(CompareSwap, full, 132, 8), Err(Refusal::Misaligned));
        assert_eq!(check(Read, full, 129, 63), Ok(()));
        assert_eq!(check(Read, full, 192, 0), Ok(()), "nothing is at the end, too");
    }
}
