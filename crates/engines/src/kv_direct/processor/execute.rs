//! An operation from its lookup to its write-back, and the operations that get its value forwarded.

use super::op_context::{AtHand, OpContext};
use super::{Clock, Job, Processor};
use crate::kv_direct::storage::{Head, Lookup};
use crate::kv_direct::vector::UserFunctions;
use crate::lines::{HostMemory, LINE_BYTES};
use crate::planted::{self, Bug};

/// Operations that one lane applies to a value at hand while operations on other keys wait for the
/// same slot.
const OVERTAKING_MAX: usize = 1024;

impl<J: Job, H: HostMemory, U: UserFunctions, C: Clock> Processor<J, H, U, C> {
    pub(super) async fn execute(&self, slot: usize, job: J, head: Head, context: &mut OpContext) {
        let looked_up = self.storage.lookup_from(head, job.hash(), job.key(), &mut context.item);
        let mut lookup = match looked_up.await {
            Ok(lookup) => lookup,
            Err(failure) => return job.answer(Err(failure)),
        };
        context.is_dirty = false;
        if lookup.found() {
            context.at_hand = AtHand::Item;
            (context.version, context.expires_at_ms) =
                (context.item.version, context.item.expires_at_ms);
        } else {
            context.at_hand = AtHand::Absent;
        }
        self.apply(&mut lookup, &job, context).await;
        self.count(|counts| counts.executed += 1);
        let mut forwarded = 0;
        while context.at_hand != AtHand::Elsewhere
            && let Some(next) = self.next_of_key(slot, job.key(), forwarded < OVERTAKING_MAX)
        {
            self.clock.cycles(context.value().len().div_ceil(LINE_BYTES).max(1)).await;
            self.apply(&mut lookup, &next, context).await;
            forwarded += 1;
        }
        if forwarded > 0 {
            self.count(|counts| {
                counts.executed += forwarded as u64;
                counts.forwarded += forwarded as u64;
            });
        }
        if context.is_dirty && !planted::is(Bug::NoWriteBack) {
            self.write_back(&mut lookup, job.key(), context).await;
        }
    }

    #[inline]
    fn next_of_key(&self, slot: usize, key: &[u8], may_overtake: bool) -> Option<J> {
        let mut station = self.station.borrow_mut();
        if !station.is_awaited(slot) {
            return None;
        }
        let any = planted::is(Bug::ForwardsToAnyKey);
        station.next_of_key(slot, may_overtake, |job| job.key() == key || any)
    }

    /// Writes the value at hand back to its place.
    async fn write_back(&self, lookup: &mut Lookup, key: &[u8], context: &mut OpContext) {
        let (version, expires_at_ms) = (context.version, context.expires_at_ms);
        let written = match context.at_hand {
            AtHand::Item => {
                self.storage.rewrite(lookup, &mut context.item, version, expires_at_ms).await
            }
            _ => self.storage.store(lookup, key, &context.own, version, expires_at_ms).await,
        };
        // Invariant 2: the change was answered, so the processor cannot go on without it.
        written.expect("a value that stays where it is can be written there");
        context.is_dirty = false;
        self.count(|counts| counts.written_back += 1);
    }
}
