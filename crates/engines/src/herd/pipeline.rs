//! The pipeline that hides memory behind other requests' work (herd §4.1.1).
//!
//! A request needs two random memory accesses, one after the other: the index bucket, then the
//! entry that it names. So it passes through two stages. When the request comes in, its bucket is
//! prefetched. When it enters the second stage the bucket is there, and its entry is prefetched.
//! When it leaves, the entry is there too. Requests leave in the order in which they came.
//!
//! The paper's pipeline holds one request in each stage, since the `post_send()` between two steps
//! takes longer than an access to memory. Here replies are sent many at a time, so a stage holds
//! **depth** requests: as many as it takes for an access to end meanwhile. Depth 1 is the paper's
//! pipeline. Depth 0 is no pipeline at all, for comparison.
//!
//! Requests advance only as others come in. If no requests come, the worker has to push **no-ops**:
//! clients wait for their replies before they send more. The paper's worker does so after 100 empty
//! polls. This one does so after one round that found nothing: its rounds look at all clients that
//! are active, and few clients have no more requests than they wait for.

use std::collections::VecDeque;

/// A pipeline of two stages.
#[derive(Debug)]
pub struct Pipeline<T> {
    /// The newest `depth` requests are in the first stage, the others in the second. `None` is a
    /// no-op.
    queue: VecDeque<Option<T>>,
    depth: usize,
    requests: usize,
}

impl<T> Pipeline<T> {
    /// An empty pipeline with `depth` places in each stage.
    pub fn new(depth: usize) -> Self {
        Self { queue: VecDeque::with_capacity(2 * depth + 1), depth, requests: 0 }
    }

    /// Places in each stage.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Whether the pipeline holds no request.
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Puts a request, or a no-op, into the first stage. Calls `second` for the request that enters
    /// the second stage. Returns the request that leaves.
    #[inline(always)]
    pub fn push(&mut self, item: Option<T>, second: impl FnOnce(&T)) -> Option<T> {
        self.requests += usize::from(item.is_some());
        self.queue.push_back(item);
        if self.depth > 0
            && let Some(at) = self.queue.len().checked_sub(self.depth + 1)
            && let Some(item) = &self.queue[at]
        {
            second(item);
        }
        if self.queue.len() <= 2 * self.depth {
            return None;
        }
        let out = self.queue.pop_front().flatten();
        self.requests -= usize::from(out.is_some());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order_after_both_stages(
            items in prop::collection::vec(any::<bool>(), 0..60),
            depth in 0usize..6,
        ) {
            let mut pipeline = Pipeline::new(depth);
            let (mut second, mut out) = (Vec::new(), Vec::new());
            let numbered = items.iter().enumerate().map(|(n, is)| is.then_some(n));
            let expected: Vec<_> = numbered.clone().flatten().collect();
            for (n, item) in numbered.chain(vec![None; 2 * depth]).enumerate() {
                let left = pipeline.push(item, |entered| second.push((n, *entered)));
                out.extend(left.map(|left| (n, left)));
            }
            prop_assert!(pipeline.is_empty());
            prop_assert!(out.iter().all(|(n, item)| n - item == 2 * depth));
            prop_assert!(second.iter().all(|(n, item)| n - item == depth && depth > 0));
            prop_assert!(depth == 0 || second.len() == out.len());
            let out: Vec<_> = out.into_iter().map(|(_, item)| item).collect();
            prop_assert_eq!(out, expected);
        }
    }
}
