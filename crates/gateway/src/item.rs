//! What the value of a key is for clients of the two protocols.
//!
//! The bytes of a string of Redis, or of an item of memcached without flags, are the value of the
//! key, so all clients of the table see the same. Whatever memcached knows of an item besides
//! (flags, whether it is stale, whether somebody was asked to renew it) stands before the bytes:
//!
//! ```text
//! 0    MARK, 8 bytes
//! 8    flags, u32, little-endian
//! 12   state: 1 stale, 2 somebody renews it, 4 it has a CAS unique of its own
//! 13   zeros
//! 16   the CAS unique, u64, little-endian, if it has one
//! 16   or 24: the bytes
//! ```
//!
//! A value that begins with MARK by itself gets such a header as well.

use arrayvec::ArrayVec;

/// The bytes before a value by which a header is known.
const MARK: [u8; MARK_BYTES] = *b"\x00\xf9loch\x01\n";
/// So many bytes of a value say whether it begins like that by itself.
pub(crate) const MARK_BYTES: usize = 8;
const HEADER_BYTES: usize = 16;

/// What memcached knows of an item besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// The flags of the client.
    pub flags: u32,
    /// The item was invalidated, and is to be renewed.
    pub is_stale: bool,
    /// A client was told to renew it.
    pub is_won: bool,
    /// The CAS unique that a client chose. The others are the versions of the values.
    pub cas: Option<u64>,
}

/// Splits a value into what is known of it and its bytes.
pub(crate) fn split(value: &[u8]) -> (Traits, &[u8]) {
    let Some(rest) = value.strip_prefix(&MARK) else { return (Traits::default(), value) };
    let Some((header, bytes)) = rest.split_at_checked(HEADER_BYTES - MARK.len()) else {
        return (Traits::default(), value);
    };
    let flags = u32::from_le_bytes(*header.first_chunk().expect("it has eight bytes"));
    let (cas, bytes) = match (header[4] & 4 != 0, bytes.split_first_chunk()) {
        (true, Some((cas, bytes))) => (Some(u64::from_le_bytes(*cas)), bytes),
        (true, None) => return (Traits::default(), value),
        (false, _) => (None, bytes),
    };
    let traits = Traits { flags, is_stale: header[4] & 1 != 0, is_won: header[4] & 2 != 0, cas };
    (traits, bytes)
}

/// The header before such bytes, if there has to be one.
pub(crate) fn header(traits: Traits, bytes: &[u8]) -> Option<ArrayVec<u8, 24>> {
    if traits == Traits::default() && !bytes.starts_with(&MARK) {
        return None;
    }
    let mut header = ArrayVec::from([0; 24]);
    header[..8].copy_from_slice(&MARK);
    header[8..12].copy_from_slice(&traits.flags.to_le_bytes());
    let has_cas = traits.cas.is_some();
    header[12] = u8::from(traits.is_stale) | u8::from(traits.is_won) << 1 | u8::from(has_cas) << 2;
    header[HEADER_BYTES..].copy_from_slice(&traits.cas.unwrap_or(0).to_le_bytes());
    header.truncate(if has_cas { 24 } else { HEADER_BYTES });
    Some(header)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn joined(traits: Traits, bytes: &[u8]) -> Vec<u8> {
        let mut value = header(traits, bytes).map_or(Vec::new(), |header| header.to_vec());
        value.extend_from_slice(bytes);
        value
    }

    proptest! {
        #[test]
        fn what_is_joined_is_split_again(
            flags: u32,
            is_stale: bool,
            is_won: bool,
            cas: Option<u64>,
            marked: bool,
            mut bytes: Vec<u8>,
        ) {
            if marked {
                bytes.splice(..0, MARK);
            }
            let traits = Traits { flags, is_stale, is_won, cas };
            let value = joined(traits, &bytes);
            prop_assert_eq!(split(&value), (traits, &bytes[..]));
        }

        #[test]
        fn a_value_of_another_client_is_a_string(bytes: Vec<u8>) {
            prop_assert_eq!(split(&bytes), (Traits::default(), &bytes[..]));
            prop_assert_eq!(joined(Traits::default(), &bytes), bytes);
        }
    }

    #[test]
    fn a_header_that_is_cut_short_is_a_value() {
        let value = joined(Traits { flags: 7, cas: Some(1), ..Traits::default() }, b"");
        for end in 8..value.len() {
            assert_eq!(split(&value[..end]), (Traits::default(), &value[..end]));
        }
    }
}
