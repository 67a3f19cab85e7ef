//! Access to this crate's private parsers for fuzz targets. It is not part of the API: it exists
//! with the feature `fuzzing` only, and may change at any time.

use crate::{memcached, resp};

/// The requests that were found, each with its bytes, and why there are no more.
pub type Found<T> = (Vec<(T, usize)>, Option<String>);

/// Cuts the bytes of these parts, as they come, into requests of Redis.
///
/// # Panics
/// If the parser wants no more bytes than it has.
pub fn resp<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Found<Vec<Vec<u8>>> {
    let (mut bytes, mut needed, mut found) = (Vec::new(), 0, Vec::new());
    // What is wrong may be seen before the bytes are there that a right request has at least.
    for part in parts.map(Some).chain([None]) {
        match part {
            Some(part) => bytes.extend_from_slice(part),
            None => needed = 0,
        }
        while !bytes.is_empty() && bytes.len() >= needed {
            match resp::parsed(&bytes) {
                Ok(Ok((request, consumed))) => {
                    found.push((request, consumed));
                    bytes.drain(..consumed);
                    needed = 0;
                }
                Ok(Err(more)) => {
                    assert!(more > bytes.len(), "{more} bytes are there");
                    needed = more;
                }
                Err(wrong) => return (found, Some(wrong)),
            }
        }
    }
    (found, None)
}

/// A request of memcached: its words, and its data as text for people.
pub type Line = (Vec<Vec<u8>>, String);

/// Cuts the bytes of these parts, as they come, into requests of memcached, whose data have up to
/// so many bytes.
///
/// # Panics
/// As [`resp`].
pub fn memcached<'a>(parts: impl Iterator<Item = &'a [u8]>, data_max: u64) -> Found<Line> {
    let (mut bytes, mut needed, mut found) = (Vec::new(), 0, Vec::<(Line, usize)>::new());
    let mut skips = 0usize;
    for part in parts.map(Some).chain([None]) {
        match part {
            Some(part) => bytes.extend_from_slice(part),
            None => needed = 0,
        }
        loop {
            let skipped = skips.min(bytes.len());
            bytes.drain(..skipped);
            skips -= skipped;
            if let Some((_, len)) = found.last_mut() {
                *len += skipped;
            }
            if bytes.is_empty() || bytes.len() < needed {
                break;
            }
            match memcached::parsed(&bytes, data_max) {
                Ok(Ok((line, consumed, rest))) => {
                    found.push((line, consumed));
                    bytes.drain(..consumed);
                    (needed, skips) = (0, rest);
                }
                Ok(Err(more)) => {
                    assert!(more > bytes.len(), "{more} bytes are there");
                    needed = more;
                }
                Err(wrong) => return (found, Some(wrong)),
            }
        }
    }
    (found, None)
}
