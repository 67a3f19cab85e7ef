//! The facts of a node's layout that another node tells.

use serde::{Deserialize, Serialize};

/// The facts that a node knows of another node of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemberFacts {
    /// The node's name.
    pub name: String,
    /// Identifies the node's memory.
    pub identity: u64,
    /// The header of the node's region, in hexadecimal.
    pub header: String,
    /// The table directory of the node's region, in hexadecimal.
    pub directory: String,
    /// Whether the node can be reached.
    pub up: bool,
    /// The node's session slots that were taken when it last told.
    pub sessions_taken: u32,
    /// Whether the file of the node's region was deleted, as it told last.
    pub region_deleted: bool,
}

/// Decodes hexadecimal. Returns `None` if the text is not hexadecimal.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| Some((byte as char).to_digit(16)? as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}
