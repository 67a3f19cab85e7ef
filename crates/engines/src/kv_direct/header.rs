//! The first bytes of an entry's slab.
//!
//! | slab | header |
//! | --- | --- |
//! | up to 4 KiB, read at once | 15 bits: bytes of the body; 1 bit: whether it expires |
//! | larger | 32 bits: bytes of the body; 8 bits: the class; 1 bit: whether it expires; 23 bits 0 |
//!
//! So the metadata of a slab with a power-of-two size take two bytes, as in the paper (kv-direct
//! §5.2.1).

use super::slab::Class;
use crate::limits::KV_DIRECT_READ_BYTES_MAX;

/// Header of a slab that is read at once.
const SMALL_HEADER: usize = 2;
/// Header of a larger slab.
const LARGE_HEADER: usize = 8;
const SMALL_EXPIRES: u16 = 1 << 15;
const LARGE_EXPIRES: u64 = 1 << 40;
const LARGE_CLASS_SHIFT: u32 = 32;

const _: () = assert!(KV_DIRECT_READ_BYTES_MAX <= SMALL_EXPIRES as u64);

/// The header of an entry's slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The size of the slab.
    pub class: Class,
    /// Bytes of the body.
    pub body_bytes: u64,
    /// Whether the body has a time of expiry.
    pub expires: bool,
}

impl Header {
    /// The largest class that has a slot type of its own and slabs that are read at once.
    pub const SMALL_CLASS: Class = Class::holding(KV_DIRECT_READ_BYTES_MAX).expect("a page");

    /// The type of slots that point to larger slabs.
    pub const LARGE_KIND: u8 = Self::SMALL_CLASS.number() + 1;

    /// The class of a slab for a body of this many bytes, if there is one.
    #[inline]
    pub fn class_for(body_bytes: u64) -> Option<Class> {
        match Class::holding(body_bytes + SMALL_HEADER as u64)? {
            class if class <= Self::SMALL_CLASS => Some(class),
            _ => Class::holding(body_bytes + LARGE_HEADER as u64),
        }
    }

    /// The offset of a body in slabs of this class.
    #[inline(always)]
    pub fn bytes(class: Class) -> usize {
        if class <= Self::SMALL_CLASS { SMALL_HEADER } else { LARGE_HEADER }
    }

    /// The type of slots that point to slabs of this class.
    #[inline(always)]
    pub fn kind(class: Class) -> u8 {
        class.number().min(Self::LARGE_KIND)
    }

    /// Writes the header of a slab to its first bytes.
    #[inline]
    pub fn write(&self, into: &mut [u8]) {
        if self.class <= Self::SMALL_CLASS {
            let bits = self.body_bytes as u16 | if self.expires { SMALL_EXPIRES } else { 0 };
            into[..SMALL_HEADER].copy_from_slice(&bits.to_le_bytes());
        } else {
            let class = u64::from(self.class.number()) << LARGE_CLASS_SHIFT;
            let bits = self.body_bytes | class | if self.expires { LARGE_EXPIRES } else { 0 };
            into[..LARGE_HEADER].copy_from_slice(&bits.to_le_bytes());
        }
    }

    /// The header of a slab that starts with `bytes`, and to which slots of type `kind` point;
    /// `None` if the bytes cannot be a header.
    #[inline(always)]
    pub fn read(kind: u8, bytes: &[u8]) -> Option<Self> {
        let header = if kind < Self::LARGE_KIND {
            let bits = u16::from_le_bytes(*bytes.first_chunk()?);
            Self {
                class: Class::new(kind)?,
                body_bytes: (bits & !SMALL_EXPIRES).into(),
                expires: bits & SMALL_EXPIRES != 0,
            }
        } else {
            let bits = u64::from_le_bytes(*bytes.first_chunk()?);
            Self {
                class: Class::new((bits >> LARGE_CLASS_SHIFT) as u8)?,
                body_bytes: (bits as u32).into(),
                expires: bits & LARGE_EXPIRES != 0,
            }
        };
        let fits = header.body_bytes + Self::bytes(header.class) as u64 <= header.class.bytes();
        (fits && Self::kind(header.class) == kind).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_direct::item::Format;
    use proptest::prelude::*;

    proptest! {
        /// Damaged bytes are a valid header for the slab that was read, or no header.
        #[test]
        fn any_bytes_can_be_read(
            bytes in proptest::collection::vec(any::<u8>(), 0..10),
            kind in 0u8..16,
        ) {
            if let Some(header) = Header::read(kind, &bytes) {
                let bytes = Header::bytes(header.class) as u64 + header.body_bytes;
                prop_assert!(bytes <= header.class.bytes());
                prop_assert_eq!(Header::kind(header.class), kind);
            }
        }
    }

    /// kv-direct §5.2.1: "KV size that is a power of two minus 2 bytes (for metadata)".
    #[test]
    fn a_power_of_two_minus_two_bytes_fits_a_slab() {
        let format = Format { key_bytes: Some(8), versions: false };
        for bytes in [32, 64, 128, 256, 512, 1024, 2048, 4096] {
            let class =
                |len: usize| Header::class_for(format.body_bytes(8, len - 8, false)).unwrap();
            assert_eq!(class(bytes - 2).bytes(), bytes as u64);
            assert_eq!(class(bytes - 1).bytes(), 2 * bytes as u64);
        }
        assert_eq!(Header::class_for(8192 - 8).unwrap().bytes(), 8192);
        assert_eq!(Header::class_for(8192 - 7).unwrap().bytes(), 16384);
    }

    #[test]
    fn a_header_survives_the_trip_in_every_class() {
        for class in (0..=Class::LARGEST.number()).filter_map(Class::new) {
            let most = (class.bytes() - Header::bytes(class) as u64).min(u64::from(u32::MAX));
            for (body_bytes, expires) in [(0, true), (most, false), (most, true)] {
                let (header, mut bytes) = (Header { class, body_bytes, expires }, [0; 8]);
                header.write(&mut bytes);
                assert_eq!(Header::read(Header::kind(class), &bytes), Some(header));
            }
            let mut bytes = [0; 8];
            Header { class, body_bytes: most + 1, expires: false }.write(&mut bytes);
            let read = Header::read(Header::kind(class), &bytes);
            assert!(read.is_none() || most == u64::from(u32::MAX), "longer than {class:?}");
        }
    }
}
