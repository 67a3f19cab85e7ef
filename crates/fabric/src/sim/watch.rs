//! Reports of every change of memory.

use std::rc::Rc;

use super::verb::ProcessId;
use crate::RemoteAddr;

/// The function that is told of every change of memory: see [`World::watch`](super::World::watch).
pub(super) type Watch = Rc<dyn Fn(Change)>;

/// A change of memory.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The process that changed it.
    pub by: ProcessId,
    /// The first byte.
    pub at: RemoteAddr,
    /// Bytes, all in one word.
    pub len: usize,
    /// That word before it was changed.
    pub before: u64,
    /// The kind of access.
    pub how: How,
}

/// The kinds of access that change memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A store of a processor.
    Store,
    /// A WRITE, or a part of it.
    Write,
    /// An atomic that made one word of another.
    Atomic {
        /// The word before.
        from: u64,
        /// The word after.
        to: u64,
    },
}
