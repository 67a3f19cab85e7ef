//! The costs of an exchange of slabs.

use std::ops::Range;

use super::stack::Stack;
use crate::lines::HostMemory;

/// Accesses to the host's stacks. They are collected while the stacks change, which happens at
/// once. Then the operation that needed the exchange makes them.
#[derive(Debug, Default)]
pub(super) struct Traffic(Vec<(bool, usize)>);

impl Traffic {
    /// Consecutive lines were read.
    pub(super) fn read(&mut self, lines: usize) {
        self.0.push((false, lines));
    }

    /// Consecutive lines were written.
    pub(super) fn write(&mut self, lines: usize) {
        self.0.push((true, lines));
    }

    /// Entries of a stack were read.
    pub(super) fn read_entries(&mut self, stack: Stack<'_>, positions: Range<u64>) {
        stack.accesses(positions).for_each(|lines| self.read(lines));
    }

    /// Entries of a stack were written.
    pub(super) fn write_entries(&mut self, stack: Stack<'_>, positions: Range<u64>) {
        stack.accesses(positions).for_each(|lines| self.write(lines));
    }

    /// Makes the accesses.
    pub(super) async fn settle<H: HostMemory>(self, memory: &H) {
        for (is_write, lines) in self.0 {
            memory.exchange(is_write, lines).await;
        }
    }
}
