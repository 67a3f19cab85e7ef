//! Operations: one entry for each doorbell that is under way, with its results.
//!
//! An entry belongs to the endpoint, not to the future: it holds the buffers until the last of its
//! work requests is over, whether or not the future still lives.

use crate::limits::{DOORBELL_READS_MAX, READ_WORDS_MAX};
use crate::{Buf, FabricError, Result};

/// Names an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId(u32);

/// Words that an operation can hold.
pub(crate) const OP_WORDS: usize = DOORBELL_READS_MAX * READ_WORDS_MAX;

/// Words that were read, or bytes that are to be written.
pub(crate) type Words = [u64; OP_WORDS];

#[derive(Debug)]
pub(crate) struct Op {
    /// The number of verbs that are not wholly posted, and of work requests that are not over.
    pending: u32,
    /// No future waits for it.
    detached: bool,
    error: Option<FabricError>,
    pub words: Words,
    pub buf: Buf,
    /// The length of `buf` before the operation.
    start: usize,
}

/// All operations of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    all: Vec<Op>,
    free: Vec<u32>,
}

impl Ops {
    /// A new operation of `verbs` verbs.
    #[inline]
    pub fn add(&mut self, verbs: u32, detached: bool) -> OpId {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let words = [0; OP_WORDS];
                let buf = Buf::new();
                self.all.push(Op { pending: 0, detached, error: None, words, buf, start: 0 });
                (self.all.len() - 1) as u32
            }
        };
        let op = &mut self.all[index as usize];
        assert!(op.pending == 0, "operation {index} is still under way");
        (op.pending, op.detached, op.error) = (verbs, detached, None);
        OpId(index)
    }

    #[inline]
    pub fn get(&mut self, id: OpId) -> &mut Op {
        &mut self.all[id.0 as usize]
    }

    /// Gives a buffer to an operation, which appends to it or writes it out.
    pub fn lend(&mut self, id: OpId, buf: Buf) {
        let op = self.get(id);
        op.start = buf.len();
        op.buf = buf;
    }

    /// Notes that one more work request of an operation is under way.
    #[inline]
    pub fn begin(&mut self, id: OpId) {
        self.get(id).pending += 1;
    }

    /// Notes that a work request of an operation is over, or that its verb was wholly posted. The
    /// first error stays.
    #[inline]
    pub fn end(&mut self, id: OpId, result: Result<()>) {
        let op = self.get(id);
        assert!(op.pending > 0, "an operation ends once");
        op.pending -= 1;
        if let Err(error) = result {
            op.error.get_or_insert(error);
        }
        if op.pending == 0 && op.detached {
            self.free(id);
        }
    }

    /// Whether the result of a work request is of use: the future lives, and no request has failed.
    pub fn is_wanted(&mut self, id: OpId) -> bool {
        let op = self.get(id);
        !op.detached && op.error.is_none()
    }

    /// How an operation ended; `None` while it is under way.
    #[inline]
    pub fn outcome(&mut self, id: OpId) -> Option<Result<()>> {
        let op = self.get(id);
        (op.pending == 0).then_some(op.error.map_or(Ok(()), Err))
    }

    /// Takes the buffer of an operation that is over: a failed operation has appended nothing.
    pub fn take_buf(&mut self, id: OpId) -> Buf {
        let op = self.get(id);
        assert!(op.pending == 0, "a carrier may still use the buffer");
        if op.error.is_some() {
            op.buf.truncate(op.start);
        }
        std::mem::take(&mut op.buf)
    }

    /// Sets the length of the operation's buffer before the operation, if part of the result was
    /// appended already.
    pub fn starts_at(&mut self, id: OpId, start: usize) {
        self.get(id).start = start;
    }

    /// Takes the buffer that was written, whatever the outcome.
    pub fn take_written(&mut self, id: OpId) -> Buf {
        let op = self.get(id);
        assert!(op.pending == 0, "some of it may still be to be posted");
        std::mem::take(&mut op.buf)
    }

    /// Notes that nothing waits any more: the entry is free when the operation is over.
    pub fn release(&mut self, id: OpId) {
        let op = self.get(id);
        if op.pending == 0 {
            self.free(id);
        } else {
            op.detached = true;
        }
    }

    fn free(&mut self, id: OpId) {
        // A buffer that was not taken may be large.
        self.get(id).buf = Buf::new();
        self.free.push(id.0);
    }

    /// Entries in use.
    #[cfg(test)]
    fn in_use(&self) -> usize {
        self.all.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;

    const ERROR: FabricError = FabricError::Unreachable { region: RegionId(3) };

    #[test]
    fn an_operation_ends_with_its_last_request_and_keeps_the_first_error() {
        let mut ops = Ops::default();
        let id = ops.add(1, false);
        ops.lend(id, Buf::from(b"kept".to_vec()));
        ops.begin(id);
        ops.begin(id);
        ops.end(id, Ok(()));
        ops.get(id).buf.extend_from_slice(b" and read");
        ops.end(id, Err(ERROR));
        assert!(!ops.is_wanted(id) && ops.outcome(id).is_none());
        ops.end(id, Err(FabricError::Unattached { region: RegionId(4) }));
        assert_eq!(ops.outcome(id), Some(Err(ERROR)));
        assert_eq!(&ops.take_buf(id)[..], b"kept");
        ops.release(id);
        assert_eq!(ops.in_use(), 0);
    }

    #[test]
    fn an_operation_that_nobody_waits_for_is_freed_when_it_is_over() {
        let mut ops = Ops::default();
        let id = ops.add(2, false);
        ops.lend(id, Buf::from(vec![1; 100]));
        ops.release(id);
        ops.end(id, Ok(()));
        assert_eq!(ops.in_use(), 1, "a carrier may still write");
        let other = ops.add(1, true);
        assert_ne!(other, id);
        ops.end(id, Ok(()));
        ops.end(other, Err(ERROR));
        assert_eq!(ops.in_use(), 0);
        let again = ops.add(1, false);
        assert_eq!(ops.outcome(again), None);
        ops.end(again, Ok(()));
        assert_eq!(ops.outcome(again), Some(Ok(())), "the error was another's");
    }
}
