//! What is told of every change of memory.

use std::rc::Rc;

use super::World;
use super::memory::pieces;
use super::verb::ProcessId;
use super::world::Inner;
use crate::RemoteAddr;

/// What is told of every change of memory: see [`World::watch`].
pub(super) type Watch = Rc<dyn Fn(Change)>;

/// A change of memory.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// By whom.
    pub by: ProcessId,
    /// The first byte.
    pub at: RemoteAddr,
    /// Bytes, all in one word.
    pub len: usize,
    /// That word before it was changed.
    pub before: u64,
    /// By what.
    pub how: How,
}

/// By what memory is changed.
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

impl World {
    /// What is told of every change of memory by a process just after it, one word of it at a time:
    /// for invariants about who may change what. It changes nothing.
    pub fn watch(&self, watch: impl Fn(Change) + 'static) {
        *self.0.watch.borrow_mut() = Some(Rc::new(watch));
    }
}

impl Inner {
    /// Tells of a change of memory.
    pub fn changed(&self, change: Change) {
        let watch = self.watch.borrow().clone();
        if let Some(watch) = watch {
            watch(change);
        }
    }

    /// Writes bytes to memory, and tells of it word by word.
    pub fn change(&self, by: ProcessId, at: RemoteAddr, bytes: &[u8], how: How) {
        let memory = self.memory(at.region());
        let Some(watch) = self.watch.borrow().clone() else {
            return memory.write(at.offset(), bytes);
        };
        for (offset, piece) in pieces(at.offset(), bytes.len()) {
            let (before, len) = (memory.load(offset & !7), piece.len());
            memory.write(offset, &bytes[piece]);
            watch(Change { by, at: RemoteAddr::new(at.region(), offset), len, before, how });
        }
    }
}
