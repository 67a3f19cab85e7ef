//! The daemon on the host: splits slabs where few are left, and merges them where there are many
//! (kv-direct §3.3.2, §4, §5.1.2).
//!
//! The daemon works in turns of bounded length, and touches only the right ends of the stacks, so
//! the processor never waits for it.
//!
//! # When it splits and merges
//! * A stack of a small class is **low**: slabs of the next larger class that can spare some are
//!   put on it uncut, so that one entry is worth many allocations. The low watermark starts at a
//!   batch, and doubles whenever the stack has run low: memory for a size that no operation
//!   allocates is not cut.
//! * A stack is **high**: a merge starts. It takes out the small slabs, except for those that the
//!   processor may need meanwhile, sorts them, and puts back the slabs that they form together. The
//!   number that a merge could not reduce is the new measure: the next merge starts at twice as
//!   many slabs, so that merging costs a constant per freed slab, even if it is in vain.
//! * A stack is low and **no larger slab** is left: a merge, if more is free than after the last
//!   merge.
//! * The processor **asks**: a merge of everything, and low watermarks as at the beginning.

use std::ops::Range;
use std::sync::Arc;

use super::merge::{Run, Sort, cover};
use super::pools::Question;
use super::{Class, Pools, Slab};
use crate::limits::{DAEMON_TURN_ENTRIES, POOL_LOW_MAX, POOL_SHARE, SLAB_BATCH};

/// A stack is high from this many times the largest low watermark on.
const HIGH: u64 = 16;

/// A merge under way.
#[derive(Debug)]
struct Merge {
    /// Whether the processor asked for it.
    question: Option<u64>,
    sort: Sort,
    stage: Stage,
    run: Run,
}

/// The stage of a merge.
#[derive(Debug)]
enum Stage {
    /// Slabs are taken out of the stacks from this class on; of the first class up to this many, or
    /// all.
    Taking(Class, Option<u64>),
    /// The slabs are sorted.
    Sorting,
    /// The slabs are put back, from this one on.
    Putting(usize),
}

/// The host's side of a slab allocator.
///
/// When dropped, it puts back all slabs that it has taken.
#[derive(Debug)]
pub struct SlabDaemon {
    pools: Arc<Pools>,
    /// By small class: with fewer slabs than this its stack is low.
    low: [u64; Class::CACHED],
    /// The highest low watermark.
    low_max: u64,
    /// By class: with more slabs than this a merge starts.
    high: Vec<u64>,
    /// Small slabs that were left after the last merge.
    left_over: u64,
    merge: Option<Merge>,
    /// Slabs that will be put on a stack together.
    batch: Vec<Slab>,
}

impl SlabDaemon {
    /// The only daemon of `pools`.
    pub fn new(pools: Arc<Pools>) -> Self {
        let most = u64::from(pools.places() / Class::LARGEST_CACHED.places()) / POOL_SHARE;
        let low_max = most.clamp(1, POOL_LOW_MAX);
        let low = [low_max.min(SLAB_BATCH as u64); Class::CACHED];
        let high = vec![HIGH * low_max; usize::from(pools.largest().number()) + 1];
        Self { pools, low, low_max, high, left_over: 0, merge: None, batch: Vec::new() }
    }

    /// Does a bounded amount of work. Returns whether there is more. If not, there will be nothing
    /// to do until the processor has done something, and the daemon holds no slabs.
    pub fn turn(&mut self) -> bool {
        self.pools.look();
        let question = match self.pools.question() {
            // The merged slabs are left alone until the processor has looked for its own.
            Question::Answered => return false,
            Question::Open(question) => Some(question),
            Question::None => None,
        };
        let was_split = question.is_none() && self.split();
        match self.merge.take() {
            Some(merge) => self.merge = self.advance(merge),
            None => {
                self.forget();
                if question.is_some() || self.is_high() || self.is_stuck() {
                    let slabs = self.pools.len();
                    self.merge = Some(Merge::new(question, slabs as usize));
                }
            }
        }
        was_split || self.merge.is_some()
    }

    /// Does all the work that there is. Then the daemon holds no slabs.
    pub fn rest(&mut self) {
        while self.turn() {}
    }

    /// The classes whose stacks are kept from running low.
    fn small(&self) -> impl DoubleEndedIterator<Item = Class> + use<> {
        Class::between(Class::SMALLEST, Class::LARGEST_CACHED.min(self.pools.largest()))
    }

    /// The number of slabs up to which a stack is filled. A merge that was not asked for leaves
    /// this many, and so do other classes that want some.
    fn enough(&self, class: Class) -> u64 {
        2 * self.low.get(class.index()).copied().unwrap_or(self.low_max)
    }

    /// Fills the low stacks. Returns whether any slab was moved.
    fn split(&mut self) -> bool {
        let mut budget = DAEMON_TURN_ENTRIES;
        for class in self.small() {
            if self.pools.stack(class).len() >= self.low[class.index()] {
                continue;
            }
            self.low[class.index()] = (2 * self.low[class.index()]).min(self.low_max);
            while budget > 0 {
                let want = self.enough(class).saturating_sub(self.pools.stack(class).len());
                let moved = self.stock(class, budget.min(want as usize));
                if moved == 0 {
                    break;
                }
                budget = budget.saturating_sub(moved);
            }
        }
        budget < DAEMON_TURN_ENTRIES
    }

    /// Puts up to `want` entries on the stack of a class, from the next larger class that can spare
    /// some. Returns how many.
    fn stock(&mut self, class: Class, want: usize) -> usize {
        if want == 0 {
            return 0;
        }
        self.batch.clear();
        for larger in self.small().filter(|larger| *larger > class) {
            let stack = self.pools.stack(larger);
            if stack.take_right(want, self.enough(larger), |slab| self.batch.push(slab)) > 0 {
                break;
            }
        }
        if self.batch.is_empty() {
            self.cut(want);
        }
        self.pools.stack(class).put_right(&self.batch);
        self.batch.len()
    }

    /// Cuts about `want` entries of a small class from one large slab; the other pieces go to their
    /// own stacks.
    fn cut(&mut self, want: usize) {
        let pieces = u32::from(Class::LARGEST_CACHED.number()) + want.ilog2();
        let classes = Class::between(Class::LARGEST_CACHED, self.pools.largest());
        for class in classes.skip(1) {
            let mut taken = None;
            self.pools.stack(class).take_right(1, 0, |slab| taken = Some(slab));
            let Some(mut slab) = taken else { continue };
            while u32::from(slab.class().number()) > pieces {
                let Some((lower, upper)) = slab.halves() else { break };
                self.pools.stack(upper.class()).put_right(&[upper]);
                slab = lower;
            }
            self.batch.extend(cover(slab.start()..slab.end(), Class::LARGEST_CACHED));
            return;
        }
    }

    /// Whether some stack is high.
    fn is_high(&self) -> bool {
        let classes = Class::between(Class::SMALLEST, self.pools.largest());
        // The largest slabs cannot become larger.
        let classes = classes.filter(|class| *class < self.pools.largest());
        classes.zip(&self.high).any(|(class, high)| self.pools.stack(class).len() > *high)
    }

    /// Whether some stack is low, with no larger slab that could be split, but with smaller slabs
    /// that have not been merged yet.
    fn is_stuck(&self) -> bool {
        let least = self.left_over + self.left_over / 4 + self.low_max;
        self.small().any(|class| {
            let is_low = self.pools.stack(class).len() < self.low[class.index()];
            is_low && self.spare_below(class) > least
        })
    }

    /// Slabs of classes below `class` that a merge would take.
    fn spare_below(&self, class: Class) -> u64 {
        let smaller = self.small().filter(|smaller| *smaller < class);
        smaller.map(|class| self.pools.stack(class).len().saturating_sub(self.enough(class))).sum()
    }

    /// Lowers the remembered results of earlier merges where there is less by now.
    fn forget(&mut self) {
        self.left_over = self.left_over.min(self.spare_below(Class::LARGEST_CACHED));
        for (class, high) in self.high.iter_mut().enumerate() {
            let class = Class::new(class as u8).expect("there is one for each");
            let len = self.pools.stack(class).len();
            *high = (*high).min((2 * len).max(HIGH * self.low_max));
        }
    }

    /// Remembers the result of a merge.
    fn learn(&mut self) {
        self.left_over = u64::MAX;
        self.high.fill(u64::MAX);
        self.forget();
    }

    /// Goes on with a merge; gives it back if it is not over.
    fn advance(&mut self, mut merge: Merge) -> Option<Merge> {
        match merge.stage {
            Stage::Taking(class, left) => merge.stage = self.take(&mut merge, class, left),
            Stage::Sorting if merge.sort.step(DAEMON_TURN_ENTRIES) => {
                merge.stage = Stage::Putting(0);
            }
            Stage::Sorting => {}
            Stage::Putting(at) => {
                let end = at + DAEMON_TURN_ENTRIES;
                self.put(&mut merge, at..end);
                if end >= merge.sort.len() {
                    self.finish(merge.question);
                    return None;
                }
                merge.stage = Stage::Putting(end);
            }
        }
        Some(merge)
    }

    /// Takes slabs of `class` and above out of their stacks. Returns the next stage.
    fn take(&self, merge: &mut Merge, mut class: Class, left: Option<u64>) -> Stage {
        let mut budget = DAEMON_TURN_ENTRIES;
        let mut left = left;
        while class < self.pools.largest() {
            let stack = self.pools.stack(class);
            let keep = if merge.question.is_some() { 0 } else { self.enough(class) };
            // Slabs that the processor puts meanwhile are for the next merge, or this one would
            // never end.
            let rest = left.unwrap_or_else(|| stack.len());
            let want = budget.min(rest as usize);
            let got = stack.take_right(want, keep, |slab| merge.sort.push(slab));
            budget -= got;
            if budget == 0 {
                return Stage::Taking(class, Some(rest - got as u64));
            }
            (class, left) = (Class::new(class.number() + 1).expect("one is larger"), None);
        }
        Stage::Sorting
    }

    /// Puts back the slabs that the slabs of these numbers form together.
    fn put(&self, merge: &mut Merge, numbers: Range<usize>) {
        let is_last = numbers.end >= merge.sort.len();
        for slab in numbers.map_while(|number| merge.sort.get(number)) {
            self.put_run(merge.run.add(slab));
        }
        if is_last {
            self.put_run(merge.run.end());
        }
    }

    fn put_run(&self, run: Range<u32>) {
        for slab in cover(run, self.pools.largest()) {
            self.pools.stack(slab.class()).put_right(&[slab]);
        }
    }

    fn finish(&mut self, question: Option<u64>) {
        self.learn();
        if let Some(question) = question {
            self.low.fill(self.low_max.min(SLAB_BATCH as u64));
            self.pools.answer(question);
        }
    }
}

impl Merge {
    /// A merge of about `slabs` slabs.
    fn new(question: Option<u64>, slabs: usize) -> Self {
        let stage = Stage::Taking(Class::SMALLEST, None);
        Self { question, sort: Sort::with_capacity(slabs), stage, run: Run::default() }
    }
}

impl Drop for SlabDaemon {
    fn drop(&mut self) {
        let Some(mut merge) = self.merge.take() else { return };
        let first = match merge.stage {
            Stage::Putting(at) => at,
            Stage::Taking(..) | Stage::Sorting => 0,
        };
        for slab in (first..).map_while(|number| merge.sort.get(number)) {
            self.pools.stack(slab.class()).put_right(&[slab]);
        }
        self.put_run(merge.run.end());
    }
}
