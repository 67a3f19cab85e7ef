//! Verbs that were posted and are waited for.

use std::future::poll_fn;
use std::task::Poll;

use super::state::Inner;
use super::verb::{Stage, Verb, VerbId};
use crate::Result;
use crate::limits::DOORBELL_READS_MAX;

/// Verbs of one doorbell, waited for together. If this is dropped before they are over, they
/// continue.
pub(super) struct Posted<'a> {
    pub world: &'a Inner,
    pub verbs: [Option<VerbId>; DOORBELL_READS_MAX],
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        let mut verbs = self.world.verbs.borrow_mut();
        for id in self.verbs.into_iter().flatten() {
            let Some(verb) = verbs.get(id) else { continue };
            if matches!(verb.stage, Stage::Done(_)) {
                verbs.remove(id);
            } else {
                verb.detached = true;
            }
        }
    }
}

impl Posted<'_> {
    /// Waits until all verbs are over; returns the first error, if there is one.
    pub async fn wait(&mut self) -> Result<()> {
        poll_fn(|_| {
            let mut verbs = self.world.verbs.borrow_mut();
            let mut result = Ok(());
            for id in self.verbs.iter().flatten() {
                match verbs.get(*id).and_then(|verb| verb.outcome()) {
                    None => return Poll::Pending,
                    Some(one) => result = result.and(one),
                }
            }
            Poll::Ready(result)
        })
        .await
    }

    pub fn take(&mut self, index: usize) -> Option<Verb> {
        self.world.verbs.borrow_mut().remove(self.verbs[index].take()?)
    }
}
