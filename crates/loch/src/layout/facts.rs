//! What a node tells of the layout of another.

use serde::{Deserialize, Serialize};

/// What a node knows of a node of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemberFacts {
    /// Its name.
    pub name: String,
    /// Identifies its memory.
    pub identity: u64,
    /// Its region's header, in hexadecimal.
    pub header: String,
    /// Its region's table directory, in hexadecimal.
    pub directory: String,
    /// Whether it can be reached.
    pub up: bool,
    /// Its session slots that are taken, when it last said so.
    pub sessions_taken: u32,
}

/// The bytes that are written in hexadecimal, if they are.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| Some((byte as char).to_digit(16)? as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}
