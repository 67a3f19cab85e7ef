//! The hash tables that kv-direct compares (§5.1.1), each a correct store of real keys and values
//! over the same kind of memory, which counts the accesses.

mod cuckoo;
mod hopscotch;
mod kv_direct;
pub mod slots;
mod values;

pub use cuckoo::Cuckoo;
pub use hopscotch::Hopscotch;
pub use kv_direct::KvDirect;
pub use slots::KEY_BYTES;
pub use values::Sizes;

use loch_engines::lines::{Counts, Line, Near};

/// Host memory, and the count of accesses to it.
pub type Memory = Near<Vec<Line>>;

/// A store.
pub trait Design {
    /// Gives `key` this value. False if there is no room; then nothing has changed.
    fn put(&mut self, key: &[u8], value: &[u8]) -> bool;

    /// The value of `key`, in `value`; false if it has none.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> bool;

    /// Takes `key` and its value out; false if it is not there.
    fn delete(&mut self, key: &[u8]) -> bool;

    /// Bytes of its memory: index and slabs.
    fn bytes(&self) -> u64;

    /// The accesses so far.
    fn counts(&self) -> Counts;
}

/// Memory of `lines` lines, all zero.
fn zeroed(lines: u32) -> Memory {
    Near::new(vec![Line::ZERO; lines as usize])
}

/// How many of `lines` lines are the index, at this hash index ratio.
fn share_of(lines: u32, ratio: f64) -> u32 {
    (f64::from(lines) * ratio).round() as u32
}
