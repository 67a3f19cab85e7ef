//! The straight path: an operation on an inline entry, executed in the bucket itself.

use super::{Clock, Job, Processor, op_context};
use crate::error::EngineError;
use crate::functions::Lambda;
use crate::kv_direct::bucket::Bucket;
use crate::kv_direct::key::KeyHash;
use crate::kv_direct::storage::{Glance, InPlace};
use crate::kv_direct::vector::{self, UserFunctions};
use crate::lines::HostMemory;
use crate::operation::{Operation, Outcome};

/// The outcome of an operation on the straight path.
pub(super) enum Straight {
    /// The operation is answered.
    Done,
    /// The operation is answered, and has changed the bucket.
    Changed,
    /// The operation is a read, and the bucket in this line is next.
    Further(u32),
    /// The operation is not possible on this path.
    No,
}

impl<J: Job, H: HostMemory, U: UserFunctions, C: Clock> Processor<J, H, U, C> {
    /// Executes GETs of the keys that `key` tells at once, in their order, up to the first one that
    /// has to wait, or that needs more than a look at [prefetched](Self::prefetch) inline entries.
    /// Returns the number of GETs that were executed, which can be fewer than possible.
    #[inline(always)]
    pub fn execute_gets<'k>(
        &self,
        key: impl Fn(usize) -> Option<(KeyHash, &'k [u8])>,
        answer: impl FnMut(Outcome<'_>),
    ) -> usize {
        let station = self.station.borrow();
        let is_free = |hash| station.is_free(self.slot(self.storage.group(hash), hash), true);
        let free = |number| key(number).filter(|(hash, _)| is_free(*hash));
        let executed = self.storage.get_each(free, self.now_ms.get(), answer);
        self.count(|counts| counts.executed += executed as u64);
        executed
    }

    /// As [`execute_straight`](Self::execute_straight), in the bucket's place, if its memory can be
    /// loaded.
    #[inline(always)]
    pub(super) fn execute_in_place(&self, line: u32, job: &J) -> Option<Straight> {
        self.storage.in_place(line, |bucket| {
            let straight = self.execute_straight(bucket, job);
            let is_changed = matches!(straight, Straight::Changed);
            (straight, is_changed)
        })
    }

    /// Executes an operation that concerns only an inline entry of this bucket, if the entry stays
    /// in its place. It changes the entry there.
    #[inline(always)]
    pub(super) fn execute_straight(&self, bucket: &mut Bucket, job: &J) -> Straight {
        let key = job.key();
        let mut entry = match self.storage.glance(bucket, job.hash(), key) {
            Glance::Entry(entry) => entry,
            Glance::Pointed | Glance::Unclear => return Straight::No,
            Glance::Further(line) => {
                return match job.operation() {
                    Operation::Get | Operation::Contains => Straight::Further(line),
                    _ => Straight::No,
                };
            }
            Glance::Absent => {
                let reply = match job.operation() {
                    Operation::Get => Outcome::Absent,
                    Operation::Contains => Outcome::Contained(false),
                    Operation::Delete { of: None } => Outcome::Deleted(false),
                    _ => return Straight::No,
                };
                self.count(|counts| counts.executed += 1);
                job.answer(Ok(reply));
                return Straight::Done;
            }
        };
        let expires_at_ms = entry.expires_at_ms();
        if expires_at_ms.is_some_and(|at| at <= self.now_ms.get()) {
            return Straight::No;
        }
        let (reply, straight) = match job.operation() {
            Operation::Get => {
                let (version, value) = (entry.version(), entry.value());
                (Ok(Outcome::Found { version, expires_at_ms, value }), Straight::Done)
            }
            Operation::Contains => (Ok(Outcome::Contained(true)), Straight::Done),
            Operation::Put { value, options }
                if value.len() == entry.value().len()
                    && options.expires_at_ms.is_some() == expires_at_ms.is_some() =>
            {
                let version = self.version();
                entry.value_mut().copy_from_slice(value);
                entry.stamp(version, options.expires_at_ms);
                (Ok(Outcome::Stored(version)), Straight::Changed)
            }
            Operation::FetchAdd(add) if entry.value().len() == 8 && expires_at_ms.is_none() => {
                self.update_in_place(&mut entry, &Lambda::adds(add))
            }
            Operation::Update(lambda)
                if entry.value().len() == lambda.element.bytes() && expires_at_ms.is_none() =>
            {
                self.update_in_place(&mut entry, &lambda)
            }
            _ => return Straight::No,
        };
        self.count(|counts| counts.executed += 1);
        job.answer(reply);
        straight
    }

    #[inline(always)]
    fn update_in_place<'e>(
        &self,
        entry: &mut InPlace<'_>,
        lambda: &Lambda,
    ) -> (Result<Outcome<'e>, EngineError>, Straight) {
        let before = op_context::word(entry.value());
        match vector::scalar(lambda, before, &self.functions) {
            Ok(after) => {
                let value = entry.value_mut();
                value.copy_from_slice(&after.to_le_bytes()[..value.len()]);
                entry.stamp(self.version(), None);
                (Ok(Outcome::Scalar(before)), Straight::Changed)
            }
            Err(error) => (Err(error), Straight::Done),
        }
    }
}
