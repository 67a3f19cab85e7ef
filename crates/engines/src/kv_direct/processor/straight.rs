//! The straight path: an operation on an inline entry, executed in the bucket itself.

use super::{Clock, Job, Processor, op_context};
use crate::kv_direct::operation::{Action, Reply};
use crate::kv_direct::storage::{Glance, Head};
use crate::kv_direct::vector::{self, UserFunctions};
use crate::lines::HostMemory;

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
    /// Executes an operation that concerns only an inline entry of the head bucket, if the entry
    /// stays in its place. It changes the entry there.
    #[inline(always)]
    pub(super) fn execute_straight(&self, head: &mut Head, job: &J) -> Straight {
        let key = job.key();
        let mut entry = match self.storage.glance(head, job.hash(), key) {
            Glance::Entry(entry) => entry,
            Glance::Unclear => return Straight::No,
            Glance::Further(line) => {
                return match job.action() {
                    Action::Get | Action::Contains => Straight::Further(line),
                    _ => Straight::No,
                };
            }
            Glance::Absent => {
                let reply = match job.action() {
                    Action::Get => Reply::Absent,
                    Action::Contains => Reply::Contained(false),
                    Action::Delete => Reply::Deleted(false),
                    _ => return Straight::No,
                };
                self.count(|counts| counts.executed += 1);
                job.answer(reply);
                return Straight::Done;
            }
        };
        let expires_at_ms = entry.expires_at_ms();
        if expires_at_ms.is_some_and(|at| at <= self.now_ms.get()) {
            return Straight::No;
        }
        let (reply, straight) = match job.action() {
            Action::Get => {
                let (version, value) = (entry.version(), entry.value());
                (Reply::Found { version, expires_at_ms, value }, Straight::Done)
            }
            Action::Contains => (Reply::Contained(true), Straight::Done),
            Action::Put { value, options }
                if value.len() == entry.value().len()
                    && options.expires_at_ms.is_some() == expires_at_ms.is_some() =>
            {
                let version = self.version();
                entry.value_mut().copy_from_slice(value);
                entry.stamp(version, options.expires_at_ms);
                (Reply::Stored(version), Straight::Changed)
            }
            Action::Update(lambda)
                if entry.value().len() == lambda.element.bytes() && expires_at_ms.is_none() =>
            {
                let before = op_context::word(entry.value());
                match vector::scalar(&lambda, before, &self.functions) {
                    Ok(after) => {
                        let value = entry.value_mut();
                        value.copy_from_slice(&after.to_le_bytes()[..value.len()]);
                        entry.stamp(self.version(), None);
                        (Reply::Scalar(before), Straight::Changed)
                    }
                    Err(failure) => (Reply::Failed(failure), Straight::Done),
                }
            }
            _ => return Straight::No,
        };
        self.count(|counts| counts.executed += 1);
        job.answer(reply);
        straight
    }
}
