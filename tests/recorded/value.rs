//! Values that tell their tag, to the last byte.

use loch_history::appended;

use super::{COUNTERS, HOT_KEYS};

/// Lengths of values; the longer ones are read in two steps, and not at one moment.
const LENGTHS: [usize; 8] = [8, 8, 40, 200, 1000, 4800, 9000, 20_000];

/// The name of key number `key` in a round. The hot keys come first.
pub fn name_of(round: u64, key: usize) -> Vec<u8> {
    format!("{round}/{key}").into_bytes()
}

/// Whether a key's values are numbers, to which is added.
pub fn is_counter(key: usize) -> bool {
    key < COUNTERS
}

/// The value of a tag: the tag, and as many more bytes as the tag says, all of which depend on it;
/// up to `longest` bytes.
pub fn value_of(key: usize, tag: u64, longest: usize) -> Vec<u8> {
    let mixed = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let has_lengths = (COUNTERS..HOT_KEYS).contains(&key);
    let words = if has_lengths { LENGTHS[(mixed >> 61) as usize].min(longest) / 8 } else { 1 };
    let rest = (1..words as u64).map(|word| mixed.wrapping_mul(word | 1).rotate_left(word as u32));
    std::iter::once(tag).chain(rest).flat_map(u64::to_le_bytes).collect()
}

/// The tag of a value, and of those that were appended to it; none if it is not one of ours.
pub fn tag_of(key: usize, value: &[u8], longest: usize) -> Option<u64> {
    let (mut left, mut whole) = (value, None);
    while !left.is_empty() {
        let tag = u64::from_le_bytes(*left.first_chunk()?);
        left = left.strip_prefix(&value_of(key, tag, longest)[..])?;
        whole = Some(whole.map_or(tag, |whole| appended(whole, tag)));
    }
    whole.filter(|_| !is_counter(key) || value.len() == 8)
}
