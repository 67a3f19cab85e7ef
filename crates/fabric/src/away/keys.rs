//! The rights that a peer's answer gives to this end, and their keys.

use crate::bounds::is_inside;
use crate::limits::TRANSFER_BYTES_MAX;
use crate::rights::{Access, Granted};
use crate::{FabricError, RemoteAddr};

/// The ranges of one connection, in order, without overlaps.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    granted: Vec<Granted>,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub address: u64,
    pub rkey: u32,
}

/// Why a range may not be used with some access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It may only be read.
    ReadOnly,
    /// Some of it may not even be read.
    Nothing,
}

impl Keys {
    /// From an answer that was validated.
    pub fn new(mut granted: Vec<Granted>) -> Self {
        granted.sort_unstable_by_key(|granted| granted.offset);
        Self { granted }
    }

    /// The range that `offset` lies in.
    #[inline]
    fn at(&self, offset: u64) -> Option<&Granted> {
        let after = self.granted.partition_point(|granted| granted.offset <= offset);
        let granted = self.granted.get(after.checked_sub(1)?)?;
        (offset - granted.offset < granted.len).then_some(granted)
    }

    /// Whether `len` bytes at `offset` may be used with `access`.
    pub fn check(&self, offset: u64, len: u64, access: Access) -> Result<(), Refused> {
        let Some(end) = offset.checked_add(len) else { return Err(Refused::Nothing) };
        let mut next = offset;
        let mut result = Ok(());
        while next < end {
            let Some(granted) = self.at(next) else { return Err(Refused::Nothing) };
            if !granted.access.includes(access) {
                result = Err(Refused::ReadOnly);
            }
            next = granted.offset + granted.len;
        }
        result
    }

    /// Whether `len` bytes at `at` may be used with `access`, in a region of `region_bytes`.
    ///
    /// # Errors
    /// The error of the verb.
    #[inline]
    pub fn check_verb(
        &self,
        region_bytes: u64,
        at: RemoteAddr,
        len: usize,
        access: Access,
    ) -> Result<(), FabricError> {
        let max = TRANSFER_BYTES_MAX;
        if len > max {
            return Err(FabricError::TooLong { len: len as u64, max: max as u64 });
        }
        let len = len as u64;
        if !is_inside(at.offset(), len, region_bytes) {
            return Err(FabricError::OutOfBounds { at, len, region_bytes });
        }
        self.check(at.offset(), len, access).map_err(|refused| match refused {
            Refused::ReadOnly => FabricError::ReadOnly { at },
            Refused::Nothing => FabricError::AccessDenied { at },
        })
    }

    /// Like [`Keys::check_verb`], for `words` words; the word of an atomic must have one key.
    ///
    /// # Errors
    /// The error of the verb.
    #[inline]
    pub fn check_words(
        &self,
        region_bytes: u64,
        at: RemoteAddr,
        words: usize,
        access: Access,
    ) -> Result<(), FabricError> {
        self.check_verb(region_bytes, at, words * 8, access)?;
        if !at.offset().is_multiple_of(8) {
            return Err(FabricError::OutOfBounds { at, len: words as u64 * 8, region_bytes });
        }
        let is_split =
            access == Access::ReadAtomic && self.remote(at.offset()).is_none_or(|(_, run)| run < 8);
        if is_split { Err(FabricError::AccessDenied { at }) } else { Ok(()) }
    }

    /// The place and key of `offset`, and how many bytes from there on have that key. `None` beyond
    /// all ranges.
    #[inline]
    pub fn remote(&self, offset: u64) -> Option<(Remote, u64)> {
        let granted = self.at(offset)?;
        let within = offset - granted.offset;
        let remote = Remote { address: granted.address + within, rkey: granted.rkey };
        Some((remote, granted.len - within))
    }

    /// A place for a verb that touches no byte.
    pub fn anywhere(&self) -> Remote {
        let first = self.granted.first();
        first
            .map_or(Remote { address: 0, rkey: 0 }, |g| Remote { address: g.address, rkey: g.rkey })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let granted = |offset, len, access, rkey| Granted {
            offset,
            len,
            access,
            address: 1000 + offset,
            rkey,
        };
        Keys::new(vec![
            granted(300, 100, Access::Full, 3),
            granted(100, 100, Access::Read, 1),
            granted(200, 100, Access::ReadAtomic, 2),
            granted(500, 10, Access::Full, 5),
        ])
    }

    #[test]
    fn each_byte_has_its_key() {
        let keys = keys();
        let of = |offset| keys.remote(offset).map(|(at, len)| (at.address, at.rkey, len));
        assert_eq!((of(99), of(400), of(499), of(510)), (None, None, None, None));
        assert_eq!((of(100), of(199)), (Some((1100, 1, 100)), Some((1199, 1, 1))));
        assert_eq!((of(200), of(350)), (Some((1200, 2, 100)), Some((1350, 3, 50))));
        assert_eq!(keys.anywhere().rkey, 1);
        assert_eq!(Keys::default().anywhere().rkey, 0);
    }

    #[test]
    fn rights_are_those_of_every_byte() {
        let keys = keys();
        use Access::{Full, Read, ReadAtomic};
        assert_eq!(keys.check(100, 300, Read), Ok(()), "three ranges in a row");
        assert_eq!(keys.check(150, 100, ReadAtomic), Err(Refused::ReadOnly));
        assert_eq!(keys.check(200, 8, ReadAtomic), Ok(()));
        assert_eq!(keys.check(250, 100, Full), Err(Refused::ReadOnly));
        assert_eq!(keys.check(300, 100, Full), Ok(()));
        assert_eq!(keys.check(300, 101, Read), Err(Refused::Nothing));
        assert_eq!(keys.check(99, 2, Read), Err(Refused::Nothing));
        assert_eq!(keys.check(150, 400, Full), Err(Refused::Nothing), "a gap counts for more");
        assert_eq!(keys.check(450, 0, Full), Ok(()), "nothing can be anywhere");
        assert_eq!(keys.check(u64::MAX - 7, 8, Read), Err(Refused::Nothing), "no sum wraps");
    }
}
